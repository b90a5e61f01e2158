"""Changes of repositories become runs: received or polled, compared, matched with pipeline files, planned.

A change is stored (`change_records.py`) and handled (`changes.py`): one run for each pipeline file that it triggers.
`planner.py` compiles the plan of a run; `poller.py` and `schedules.py` create changes that no webhook announced. Start
with `controller.py`.
"""
