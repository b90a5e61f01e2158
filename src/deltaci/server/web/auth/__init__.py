"""Signing in to the web interface: API keys, OIDC, session cookies and their revocation."""
