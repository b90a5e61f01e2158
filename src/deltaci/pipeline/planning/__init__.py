"""Planning: which jobs of a pipeline a change starts, with which values, and the reason for each decision."""
