"""Pipelines here and now: this folder as a repository, its plan, and the whole system in one process. No server."""
