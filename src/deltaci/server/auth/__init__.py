"""Authentication: API keys, tokens that this server signs, and tokens of OIDC issuers."""
