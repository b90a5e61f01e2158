"""What forges say, and what they are told."""
