"""What is written down: transitions as they happen, the files of workstreams, their archive."""
