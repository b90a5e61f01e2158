"""Pipeline files and plans. Pure: no file access, clock or network.

`parse/` reads a pipeline file and reports all of its problems, `model.py` has its types, `planning/` turns a pipeline
and a change into a plan. `expressions/` is the language of `${{ … }}`, `github/` converts workflow files, `workstream/`
reads workstream files, `detect/` proposes a pipeline for a repository without one. Imports core and protocol. Start
with `model.py`, `parse/reader.py` and `planning/compile.py`.
"""
