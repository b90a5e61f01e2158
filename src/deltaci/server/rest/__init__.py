"""`/api/v1`: one module per resource. `deltaci/api/routes.py` has the table of its routes.

A handler reads records, or sends commands to the engine or a controller, and converts the result with `serializers.py`.
`http/` finds the route, authenticates the caller, validates the request and writes the response; `streams/` sends
events and logs while they are written. The web interface calls the handlers in the same process, through
`ApiApp.call_handler`; nothing here imports it. Start with `http/app.py` and `runs.py`.
"""
