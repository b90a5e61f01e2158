"""The fleet: which workers are alive, which are silent, and which may be given work.

`health.py` decides (pure) what follows from silence; `heartbeats.py` shares heartbeat times between servers;
`incarnations.py` gives a worker that comes back under its old name a new record. Imports core, the engine and the
storage port. Start with `liveness.py`, which runs the checks.
"""
