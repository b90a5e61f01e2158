"""Readers of the event log: nothing here decides or changes anything.

`verify` proves that a log is legal, `projections` shows it in the vocabularies of the five documents, `explain` says
why a run or job is in its state, `timeline` when it did what. Pure, like `core`, which is all that it imports; the
tables of what each document calls a state are in `core.status`. Start reading at `verify/__init__.py`.
"""
