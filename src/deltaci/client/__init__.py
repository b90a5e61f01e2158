"""The typed client of `/api/v1`: the blocking `deltaci.Client` and the asyncio `deltaci.AsyncClient`.

`calls.py` describes every request once. `operations.py` contains everything that takes more than one request, as
generators of effects (`effects.py`), which `blocking.py` and `asynchronous.py` perform.
"""

from deltaci.client.asynchronous import AsyncClient
from deltaci.client.blocking import Client
from deltaci.client.errors import ApiError, ClientError, Unreachable
from deltaci.client.retry import Patience

__all__ = ["ApiError", "AsyncClient", "Client", "ClientError", "Patience", "Unreachable"]
