"""A job's log: the job's output and the runner's own lines, masked and divided into sections.

All texts from the job pass through here before they leave the runner: secrets are masked, and terminal control
characters are removed from names and messages.
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
    """Writes one job's log, beginning with its header."""

    def __init__(self, stream: LogStream, nonce: str) -> None:
        self._stream = stream
        self._writer = SectionWriter(nonce)
        self._secrets: list[str] = [self._writer.nonce]  # A job that reads its own log must not forge its sections.
        self._mask = Mask(self._secrets)
        self._text_mask = self._mask.copy_for_new_stream()
        stream.write(self._writer.header())

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Mask these secrets as well in everything that is written from now on."""
        new_secrets = list(secrets)
        if new_secrets:
            # Write the bytes that the old mask holds back: the new one does not have them.
            self._stream.write(self._writer.output(self._mask.flush()))
            self._secrets += new_secrets
            self._mask = Mask(self._secrets)
            self._text_mask = self._mask.copy_for_new_stream()

    def begin_section(self, index: int, step_name: str) -> None:
        """Write the marker with which a section begins."""
        self._stream.write(self._writer.begin(index, self.masked(step_name)))

    def write_output(self, chunk: bytes) -> None:
        """Write output of the job, masked."""
        self._stream.write(self._writer.output(self._mask.feed(chunk)))

    def end_section(self, index: int, exit_code: int | None, seconds: float) -> None:
        """Write the marker with which a section ends."""
        self._stream.write(self._writer.output(self._mask.flush()) + self._writer.end(index, exit_code, seconds))

    def write_line(self, text: str) -> None:
        """Write a line of the runner, masked."""
        self._stream.write(self._writer.output(f"{self.masked_line(text)}\n".encode()))

    @contextmanager
    def section(self, index: int, step_name: str) -> Iterator[None]:
        """Write a begin marker before and an end marker after all that the block writes to the log."""
        started_at = time.monotonic()
        self.begin_section(index, step_name)
        try:
            yield
        finally:
            self.end_section(index, 0, time.monotonic() - started_at)

    def tail(self) -> list[str]:
        """Return the last lines of the output so far; see `LogStream.tail`."""
        return self._stream.tail()

    def masked(self, text: str) -> str:
        """Return a text with its secrets masked."""
        encoded_text = text.encode("utf-8", "surrogatepass")
        return (self._text_mask.feed(encoded_text) + self._text_mask.flush()).decode("utf-8", "replace")

    def masked_line(self, text: str, max_length: int = MAX_LINE) -> str:
        """Return a text as one masked line without terminal control characters."""
        return plain_line(self.masked(text), max_length)

    def masked_json(self, value: Any) -> Any:
        """Return a JSON value with the secrets in its strings masked.

        Raise `Refused` if the encoded value still contains a secret, as a number or across several strings.
        """
        masked_value = self._masked_texts(value)
        json_text = msgspec.json.encode(masked_value).decode()
        if self.masked(json_text) != json_text:
            raise Refused("bad_request", "it contains a secret that cannot be masked; leave it out")
        return masked_value

    def _masked_texts(self, value: Any) -> Any:
        """Return a JSON value with the secrets in each string and key masked."""
        match value:
            case str():
                return self.masked(value)
            case list():
                return [self._masked_texts(element) for element in value]
            case dict():
                return {self.masked(member_name): self._masked_texts(member) for member_name, member in value.items()}
        return value
