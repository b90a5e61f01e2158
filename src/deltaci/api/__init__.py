"""The contract of `/api/v1` without I/O: its routes, the types that it takes and answers, and its OpenAPI document.

`routes.py` is the table that routes, authorises and reads requests; `schemas/` has the types, `openapi.py` the document
of everything that is served over HTTP. The server and the client import this package; it imports `core`, `protocol` and
`audit`. Start reading at `routes.py`.
"""
