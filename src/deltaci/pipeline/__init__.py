"""Pipeline files become a plan: text and lists of paths in, values out. No files, no git, no clock, no network."""
