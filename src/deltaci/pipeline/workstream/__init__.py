"""Workstream files: several tasks on one branch, rules that must hold, and how the result is merged.

`parse` turns a file or JSON values into a `model.Workstream` or its problems; `compile` turns that into the job specs
of its run. Pure. Imports `core`, `protocol` and the pipeline parser. Start with `model`.
"""
