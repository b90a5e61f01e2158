"""The HTTP layer of the REST API: routing, parameters, cursors, ranges, streaming and idempotency keys.

`app.py` handles a request from its route to its response; `request.py` defines what a handler gets and returns. Except
for `app.py`, which has the table of handlers, nothing here imports the modules of the resources but `event_streams.py`.
"""
