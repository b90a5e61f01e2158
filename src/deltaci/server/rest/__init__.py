"""`/api/v1`: one module per resource. `deltaci/api/routes.py` has the table of its endpoints.

A handler checks permissions and translates; `http/` parses requests and writes responses, `serializers.py` turns
records into API types. Start with `http/app.py` and `runs.py`.
"""
