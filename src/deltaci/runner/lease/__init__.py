"""Keeping leases: a separate process sends heartbeats and kills the jobs whose leases it cannot prove any more.

`keeper.py` is that process, `heartbeat.py` the thread on which it waits for answers, `log_recovery.py` uploads the rest
of a job's log when its runner died.
"""
