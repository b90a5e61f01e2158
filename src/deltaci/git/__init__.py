"""Git: one way to run it, bare repositories, mirrors, and commits that are made without a work tree.

`command.py` runs the program with bounded time and output, for the server, runners and the command line;
`repository.py` creates bare repositories and fetches into them; `url_policy.py` decides which addresses may be fetched.
`mirrors.py` keeps a bare mirror for each project; `bundles.py` checks bundles that jobs send; `commit_builder.py`
makes merge commits inside a mirror; `diff.py` reads the changed paths of a diff, `blobs.py` many
files. Start with `mirrors.py`.
"""
