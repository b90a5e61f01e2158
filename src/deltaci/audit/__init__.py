"""Read-only analysis of the event log.

`verify` checks that every transition of a log is allowed, `projections` converts events to the state names of each
specification document (docs/spec), `explain` gives the reasons for the state of a run or job, `timeline` computes when
each phase began and ended. Pure: imports only `core`. Start reading at `verify/__init__.py`.
"""
