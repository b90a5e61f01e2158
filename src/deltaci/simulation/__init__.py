"""Deterministic simulation: servers, runners, clients and faults in one process under virtual time.

`history.py` plays one history from a seed; `scenario.py` and `faults.py` decide what happens in it; `machine.py`,
`network.py` and `database.py` simulate the environment of the real server and runner. `checker/` judges the event log
and shares no code with what it checks. Start with `history.py`.
"""
