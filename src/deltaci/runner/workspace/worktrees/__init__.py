"""Worktrees that are reused by the jobs of a workstream: one folder for each stream.

    workstreams/STREAM/repository.git   the runner's own repository, which no job can write to
    workstreams/STREAM/tree             the tree of all tasks; `own-NAME` is one task's, `test-N` is for merge queues
    workstreams/STREAM/tree.git         the git directory for its job, which may change it; created for each job

Outside of a job's cell, git uses only the repository that no job can write to. It never reads the configuration, hooks,
attributes, index or objects that a job left; a tree is compared with an index of the runner's own. Start with
`worktree_pool.py`, then `prepare.py` (before the steps) and `bundle_commits.py` (after them).
"""
