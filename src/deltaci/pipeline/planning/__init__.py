"""Planning: decide which jobs of a pipeline a change starts, with which values, and the reason for each decision.

Pure: equal inputs give an equal plan. Imports core, protocol and the rest of `deltaci.pipeline`. Start with
`compile.py`, which calls `triggers.py`, `job_filter.py` (conditions and changed paths, with `select.py`),
`expansion.py` (matrices) and `job_specs.py` (the specification for the runner), and returns a `plan.Plan`.
"""
