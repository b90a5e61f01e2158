"""Workstreams on a server: lines of work, each on a branch of its own, until they are merged or put aside."""
