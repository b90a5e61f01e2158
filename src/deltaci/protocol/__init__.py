"""The runner protocol as both sides import it: messages, job specification, HTTP routes, error codes, NATS subjects.

It also holds the formats that runner and server must parse in the same way: JUnit reports, sections of a job log, TLS
certificate files. It imports only `core`. Start reading at `messages.py`, which docs/protocol.md is generated from.
"""
