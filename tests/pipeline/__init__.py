"""Pipeline files: how they are read, and what is said of those that are wrong."""
