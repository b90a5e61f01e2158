"""Plans and runs pipelines in a local folder, without a server of their own: `deltaci plan` and `deltaci run`.

`tree.py` turns the folder into a commit, `plans.py` plans its pipelines, `engine.py` runs a server and a runner in this
process, `session.py` starts the runs, and `watch.py` shows them. May import app, runner, client, pipeline and core, and
the server's authentication and secrets. Start with `session.py`.
"""
