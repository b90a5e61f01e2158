"""The files of a job: its folders, sources, caches and artifacts, and the worktrees of workstreams.

A job may change its workspace at any moment, also by placing symbolic links. `folders.py` and `safe_fs.py` therefore
open each folder on a path without following links; all other modules write and read workspaces through them. May import
`core`, `git`, `protocol`, `engine.validation` and other parts of `runner`. Start with `layout.py`.
"""
