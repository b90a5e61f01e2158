"""The errors of the client, and how an error response is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from deltaci.api.routes import REQUEST_ID_HEADER
from deltaci.api.schemas import records as api
from deltaci.core import errors
from deltaci.core.text import plain_line

UNEXPECTED: Final = "unexpected_answer"
SHOWN_CHARS: Final = 200
# Refusals that another moment may change; a full quota or an unreadable record is still so a second later.
PASSING_STATUSES: Final = frozenset({429, 502, 503, 504})
LASTING_CODES: Final = frozenset({"over_quota", "unreadable"})

_problem = msgspec.json.Decoder(api.ApiProblem)


class ClientError(Exception):
    """The base class of the client's errors: a call failed."""


class Unreachable(ClientError, errors.Unreachable):
    """No response arrived: the connection failed, broke, or timed out.

    `is_unheard` is true if no connection was made, so that the server cannot have changed anything.
    """

    def __init__(self, message: str, *, is_unheard: bool = False) -> None:
        super().__init__(message)
        self.is_unheard = is_unheard


class ApiError(ClientError):
    """The server refused the request. `code` is a stable word; `hint` says what to do."""

    def __init__(self, *, status: int, code: str, message: str, hint: str = "", request_id: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.request_id = request_id
        self.retry_after: float | None = None

    @property
    def is_passing(self) -> bool:
        """Return whether the same request may succeed a little later."""
        return self.status in PASSING_STATUSES and self.code not in LASTING_CODES


def refusal(url: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error in a response, also for a response that is not of a Delta CI server, such as a proxy's page."""
    try:
        told = _problem.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = unexpected(url, status, headers, body)
    else:
        error = ApiError(
            status=status, code=told.code, message=told.message, hint=told.hint, request_id=told.request_id
        )
    error.retry_after = _seconds(headers.get("retry-after", ""))
    return error


def unexpected(url: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error for a response that no Delta CI server sends."""
    kind = headers.get("content-type", "").partition(";")[0] or "no content type"
    begins = plain_line(body[: 4 * SHOWN_CHARS].decode(errors="replace"), SHOWN_CHARS)
    return ApiError(
        status=status,
        code=UNEXPECTED,
        message=f"{url} answered {status} with {plain_line(kind, 80)}, which is not a response of Delta CI"
        + (f"; it begins: {begins}" if begins else ""),
        hint="check the server URL, proxies in between, and that the server version is compatible with this client",
        request_id=headers.get(REQUEST_ID_HEADER, ""),
    )


def _seconds(text: str) -> float | None:
    """Return the number in a `Retry-After` header, or None. Dates are not supported: servers never send them."""
    return float(text) if text.isdecimal() and len(text) < 7 else None
