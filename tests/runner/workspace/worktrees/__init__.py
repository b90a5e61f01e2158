"""Worktrees of workstreams: what the server gives and takes, and what runners do with it."""
