"""What a job's log says: the job's own output and the runner's words, all masked, in sections.

Everything that leaves the runner and came from the job goes through here: no secret, and nothing that a terminal would
obey where people expect a name or a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.text import plain_line
from deltaci.runner.log.masking import Mask
from deltaci.runner.log.sections import SectionWriter
from deltaci.runner.log.stream import LogStream

MAX_LINE = 2000


class JobLog:
    """One job's log, from its header on."""

    def __init__(self, stream: LogStream, nonce: str) -> None:
        self._stream = stream
        self._writer = SectionWriter(nonce)
        self._secrets: list[str] = [self._writer.nonce]  # A job that reads its own log must not forge its sections.
        self._mask = Mask(self._secrets)
        self._text_mask = self._mask.fresh()
        stream.write(self._writer.header())

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """From now on these are masked."""
        more = list(secrets)
        if more:
            # What is kept back may be the beginning of a secret that is known already; nobody else will show it.
            self._stream.write(self._writer.output(self._mask.flush()))
            self._secrets += more
            self._mask = Mask(self._secrets)
            self._text_mask = self._mask.fresh()

    def begin_section(self, index: int, name: str) -> None:
        """A section begins."""
        self._stream.write(self._writer.begin(index, self.masked(name)))

    def write_output(self, data: bytes) -> None:
        """What the job wrote."""
        self._stream.write(self._writer.output(self._mask.feed(data)))

    def end_section(self, index: int, exit_code: int | None, seconds: float) -> None:
        """A section ended."""
        self._stream.write(self._writer.output(self._mask.flush()) + self._writer.end(index, exit_code, seconds))

    def write_line(self, text: str) -> None:
        """One line of the runner's own."""
        self._stream.write(self._writer.output(f"{self.masked_line(text)}\n".encode()))

    @contextmanager
    def section(self, index: int, name: str) -> Iterator[None]:
        """A section of the runner's own work."""
        began = time.monotonic()
        self.begin_section(index, name)
        try:
            yield
        finally:
            self.end_section(index, 0, time.monotonic() - began)

    def masked(self, text: str) -> str:
        """A text without secrets."""
        raw = text.encode("utf-8", "surrogatepass")
        return (self._text_mask.feed(raw) + self._text_mask.flush()).decode("utf-8", "replace")

    def masked_line(self, text: str, most: int = MAX_LINE) -> str:
        """A text as one line for people: without secrets, and with nothing that a terminal obeys."""
        return plain_line(self.masked(text), most)

    def masked_json(self, value: Any) -> Any:
        """JSON without secrets in its texts; refused if one is in it nevertheless, in a number or across texts."""
        safe = self._masked_texts(value)
        text = msgspec.json.encode(safe).decode()
        if self.masked(text) != text:
            raise Refused("bad_request", "it has a secret in it that cannot be masked; leave it out")
        return safe

    def _masked_texts(self, value: Any) -> Any:
        match value:
            case str():
                return self.masked(value)
            case list():
                return [self._masked_texts(each) for each in value]
            case dict():
                return {self.masked(name): self._masked_texts(each) for name, each in value.items()}
        return value
