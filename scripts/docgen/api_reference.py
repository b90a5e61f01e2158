"""Draws docs/api-reference.md from the table of addresses."""

from __future__ import annotations

from collections.abc import Iterator

from deltaci.api.routes import EVERY_REQUEST, EVERY_ROUTE, REFUSALS, ROOT, ROUTES, Route, error_codes


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# The addresses of the API"
    yield ""
    yield "Drawn from the table that the server routes by; [api.md](api.md) says what it means, and"
    yield f"[api-contract.txt](reference/api-contract.txt) lists every field. All of it is below `{ROOT}`."
    yield ""
    yield "| | address | scope | what it does | besides the usual, refused with |"
    yield "|---|---|---|---|---|"
    yield from map(_line, ROUTES)
    yield ""
    yield "The usual: " + ", ".join(f"`{code}`" for code in (*EVERY_REQUEST, *EVERY_ROUTE)) + "."
    yield ""
    yield "## Codes"
    yield ""
    yield "| code | status | means | what to do |"
    yield "|---|---|---|---|"
    for code, known in REFUSALS.items():
        yield f"| `{code}` | {known.status} | {known.title} | {known.hint} |"


def _line(route: Route) -> str:
    usual = {*EVERY_REQUEST, *EVERY_ROUTE}
    codes = ", ".join(f"`{code}`" for code in error_codes(route) if code not in usual)
    address = route.path.replace("*}", "}")
    again = "; takes an `Idempotency-Key`" if route.is_repeatable else ""
    return f"| {route.method} | `{address}` | {route.required_scope} | {route.summary}{again} | {codes} |"
