"""What is too large for a record: logs, artifacts, caches."""
