"""The runner: takes jobs from a server, runs them, and reports what they did.

`agent.py` asks for work and starts a `job.py` for each lease; `execution.py` runs a job between lease and result. The
folders are its parts: `lease/` (heartbeats), `steps/`, `workspace/` (files), `sandbox/` (isolation), `log/`, `actions/`
(`uses: checkout` and others). Imports the runner protocol, git, expressions and nothing of the server. Start with
`agent.py`, then `job.py`.
"""
