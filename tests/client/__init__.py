"""The typed client, against a real server."""
