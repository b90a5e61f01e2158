"""The command line: one file per group of commands. Parses, prints, and leaves every decision to others."""
