"""The web interface: pages that the server writes from what the API answers, and small scripts that keep them true."""
