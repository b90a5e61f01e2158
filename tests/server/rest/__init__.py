"""The API against a running server, on SQLite and on PostgreSQL."""
