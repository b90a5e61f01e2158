"""Pipeline files become a plan. PURE: texts and lists of paths in, values out; no files, clock or network."""
