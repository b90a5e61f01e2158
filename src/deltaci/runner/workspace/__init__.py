"""The files of a job: its folders, sources, caches, artifacts, and the worktrees of workstreams.

A job may change its workspace at any moment, also by links. `safe_fs.py` and `folders.py` therefore open each folder on
the way without following links; everything else here that writes or reads a workspace uses them.
"""
