"""Deterministic simulation of servers, runners, users and faults in one process under virtual time.

`history.py` plays one history from a seed; `scenario.py` draws what happens in it and `faults.py` injects the faults.
`machine.py`, `network.py` and `database.py` simulate the environment of the real server and runner. `checker/` checks
the event log and imports nothing of ours outside itself. The other modules may import everything but the CLI; only the
CLI imports this package. Start with `history.py`.
"""
