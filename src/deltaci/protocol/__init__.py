"""The runner protocol, as both sides import it: messages, job specification, routes and refusals, NATS subjects.

Also what a runner and the server must read in the same way: test reports, sections of a log, certificates. Imports only
`core`. Start reading at `messages.py`; docs/protocol.md is generated from it.
"""
