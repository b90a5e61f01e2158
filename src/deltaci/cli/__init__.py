"""The command line: it parses arguments, asks a server or runs an engine here, and prints the result.

`commands/` has one module per group of commands, `registry.py` lists them, `app.py` runs them; the other modules are
shared by several commands.
"""
