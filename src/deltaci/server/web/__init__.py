"""The web interface: HTML pages rendered on the server from API responses, and small scripts that update them live."""
