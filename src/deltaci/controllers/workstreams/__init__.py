"""Workstreams: several tasks on one branch, validated, merged through the merge queue, and archived.

`controller.py` drives each workstream through its stages; `planning.py` creates its branch and tasks, `integrate.py`
adds the commits of a finished task, `checks.py` applies its rules, `archive.py` writes down a finished one.
"""
