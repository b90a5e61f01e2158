"""The one mapping from exceptions to HTTP errors: a stable code, a message and the headers that HTTP requires."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

import msgspec

from deltaci.core.errors import Refused
from deltaci.engine.requests import Overloaded
from deltaci.server.rest.http.ranges import BadRange
from deltaci.server.tenants import RateLimited
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Conflict, Unavailable

RETRY: Final = {"Retry-After": "1"}
# The headers that belong to a code.
HEADERS: Final[Mapping[str, Mapping[str, str]]] = {
    "bad_credential": {"WWW-Authenticate": "Bearer"},
    "expired_credential": {"WWW-Authenticate": "Bearer"},
    "too_slow": {"Connection": "close"},
    "over_quota": RETRY,
    "unreadable": RETRY,
    "overloaded": RETRY,
    "unavailable": RETRY,
}

LOGGER: Final = logging.getLogger(__name__)


class HttpError(NamedTuple):
    """The error code, message and extra headers of an HTTP error response. Each API maps the code to a status."""

    code: str
    message: str
    headers: Mapping[str, str]

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as ASGI sends them."""
        return [
            (header_name.lower().encode(), header_value.encode("latin-1", "replace"))
            for header_name, header_value in self.headers.items()
        ]


def http_error(error: Exception, request_id: str, allowed_methods: Sequence[str] = ()) -> HttpError:
    """Return the code, message and headers of the error response for an exception.

    An exception that is no known error is logged with `request_id` and gets the code `internal`. `allowed_methods` is
    sent with the code `wrong_method`.
    """
    code, message, headers = "", str(error), {}
    match error:
        case BadRange():
            code, message, headers = error.code, error.message, {"Content-Range": f"bytes */{error.size}"}
        case Refused():
            code, message = error.code, error.message
        case RateLimited():
            code, headers = "too_many_requests", {"Retry-After": str(max(1, ceil(error.seconds)))}
        case msgspec.ValidationError():
            code = "bad_message"
        case msgspec.DecodeError() | RecursionError():
            code, message = "bad_json", f"the body is not JSON: {error}"
        case Overloaded():
            code = "overloaded"
        case Unavailable() | Conflict() | BlobStoreUnavailable():
            code = "unavailable"
        case _:
            LOGGER.error("request %s: internal error", request_id, exc_info=error)
            code, message = "internal", f"internal error; the server's log has it under {request_id}"
    if code == "wrong_method":
        headers = {"Allow": ", ".join(allowed_methods)}
    return HttpError(code, message, {**HEADERS.get(code, {}), **headers})
