"""The runner protocol over HTTP and NATS: each message becomes a command, each decision a response.

`app.py` is a plain ASGI application, because claims and heartbeats are the hot path. `message_handlers.py` has the
protocol itself, `registration.py` the credentials of runners, `job_data.py` the files and secrets of a lease's job.
"""
