"""Worktrees that stay between jobs: one folder for each stream, and in it what its trees are made of.

    workstreams/STREAM/repository.git   the runner's own: what the repository or the server gave; no job writes it
    workstreams/STREAM/tree             the tree of all tasks; `own-NAME` is one task's, `test-N` is for tests of merges
    workstreams/STREAM/tree.git         its git directory, which its job may do anything with: made anew for each job

Git runs outside of a job's cell only with the repository that no job can write to, never with what a job left: its
configuration, hooks, attributes, index and objects are never read. A tree is compared with an index of our own.
"""
