"""The server: the runner protocol, the REST API, the web pages and webhooks, as ASGI applications.

`runner_api/` serves runners, `rest/` people and programs, `web/` browsers; `auth/` decides who a caller is. A handler
translates a request into commands for the engine and their results into a response; it decides nothing itself. Start
with `deltaci/app.py`, which connects all parts.
"""
