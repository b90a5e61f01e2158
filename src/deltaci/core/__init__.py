"""The pure heart: five state machines, what follows from what, and the proof that a log is legal.

Nothing in here does I/O, reads a clock, draws a random number or logs. Time, identities and secrets
come in with the commands; records and events go out. Everything else in the product is a shell
around this package.
"""
