"""The pure core: five state machines as tables, and the decisions that apply commands to them.

Nothing in this package does I/O, reads a clock, draws a random number or logs: times, ids and secrets arrive with the
commands; changed records and events are returned. It imports only itself and msgspec. Start with `machine` (how a table
of rules is executed), then `run`, `job`, `attempt`, `lease` and `worker` (one machine each), `cascade` (which commands
follow from a transition) and `decide` (one command in, changed records and events out).
"""
