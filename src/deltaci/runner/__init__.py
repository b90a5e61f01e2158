"""The runner: takes jobs from a server, runs them, and reports their results.

`agent.py` requests leases and starts a `JobRunner` (`job.py`) for each; `execution.py` runs a job between lease and
result. The folders are its parts: `lease/` (heartbeats), `steps/`, `workspace/` (files), `sandbox/` (isolation),
`log/`, `actions/` (`uses: checkout` and others). Imports core, the runner protocol, git and expressions, JSON checks of
`engine`, and limits and keys of `storage`; nothing of the server. Start with `agent.py`, then `job.py`.
"""
