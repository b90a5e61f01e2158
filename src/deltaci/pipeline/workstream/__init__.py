"""Workstream files: several tasks on one branch, what must hold, and how the result is merged."""
