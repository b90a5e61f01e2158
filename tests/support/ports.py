"""Ports that stay reserved for a server while it is stopped, so that it can be started on the same port again."""

from __future__ import annotations

import socket


class ReservedPort:
    """A port that the kernel chose. No other process gets it before `close`, except a server that names it.

    The port is bound but not listened on. With SO_REUSEADDR on both sockets, which servers set, Linux lets one server
    listen on it; the kernel gives it to nobody who asks for any free port.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()
