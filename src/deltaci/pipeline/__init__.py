"""Pipeline files become a plan: text and lists of paths in, values out. Nothing here reads a file or a clock."""
