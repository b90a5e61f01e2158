"""The conformance kit: checks any runner or any server against the runner protocol, as a black box, rule by rule.

Runners: `scenario_execution` starts the runner against a scripted orchestrator and records a transcript, which
`runner_checks` judges. Servers: `server_checks` sends requests as a scripted runner. The package imports only
`protocol`. Start reading at `scenarios.py` or `server_checks.py`; docs/conformance.md describes the command.
"""
