"""The contract of `/api/v1` without I/O: its routes, its request and response types, and the OpenAPI document.

`routes.py` is the table by which the server routes, authorises and decodes requests; `schemas/` has the types;
`openapi.py` describes everything that is served over HTTP. The server and the client import this package; it imports
`core`, `protocol` and `audit`. Start reading at `routes.py`.
"""
