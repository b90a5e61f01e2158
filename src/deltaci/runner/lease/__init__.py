"""Keep the leases of running jobs in a separate process, and kill jobs whose leases cannot be confirmed in time.

`keeper.py` is that process, `heartbeat.py` its network thread, and `log_recovery.py` uploads the rest of a job's log
after its runner has died. May import `core`, `protocol`, `sandbox` and the runner's client. Start with `keeper.py`.
"""
