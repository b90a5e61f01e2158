"""The typed client of `/api/v1`: `deltaci.Client` for programs that wait, `deltaci.AsyncClient` for those that do not.

Every call is described once (`calls.py`), everything that takes more than one call is told once as steps (`talks.py`),
and two thin shells perform those steps: `blocking.py` and `asynchronous.py`.
"""

from deltaci.client.asynchronous import AsyncClient
from deltaci.client.blocking import Client
from deltaci.client.errors import ApiError, ClientError, Unreachable
from deltaci.client.patience import Patience

__all__ = ["ApiError", "AsyncClient", "Client", "ClientError", "Patience", "Unreachable"]
