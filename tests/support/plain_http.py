"""The TLS context of test clients that speak plain HTTP."""

from __future__ import annotations

import ssl
from typing import Final

# It trusts nothing. Without it, each client of httpx reads the public certificate authorities: 20 ms of CPU.
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
