"""Patterns of users for paths, branches and log lines, matched in bounded time by server and runner."""
