"""The merge queue: workstreams get to their base only as trees that were tested, several at a time."""
