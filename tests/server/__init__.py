"""The server as a runner sees it."""
