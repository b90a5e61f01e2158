"""The HTTP layer of the REST API: routing, parameters, ranges, streaming, idempotency keys and error responses."""
