"""Masking: no secret leaves the runner in a log, however the output is cut into parts.

`Mask` is a filter over bytes. It finds every occurrence of every form of every secret (see `disguises`), also those
that overlap, and writes one mark for each run of overlapping ones. It keeps back only the bytes that may be the
beginning of a form, so a log is as live as it can be, and how the bytes were cut never changes what comes out.

How it is fast without leaving Python: a form of 15 bytes or more contains, wherever it stands, one 8-byte word at an
address that is a multiple of 8. So a block is read as words, in one call, and these are compared with a set of the few
words in which forms begin; only forms of which a word was seen are searched for. If there are many forms of 7 to 14
bytes, words of 4 bytes do the same for all of 7 or more. The rest are searched for one by one; so are all, if there are
only a few, as in a log without any secret but its own nonce.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from deltaci.runner.log.secret_encodings import secret_forms

BLOCK_BYTES: Final = 64 * 1024
MAX_FEW: Final = 12  # So many searches cost less than reading the block as 4-byte words,
MAX_ALL: Final = 20  # and so many less than reading it as words at all.
# How often the end of a block is compared with a form before it is simply kept back: bounds periodic secrets.
MAX_COMPARISONS: Final = 64
_MARK_CHARACTERS: Final = b"*#=~?-_.:+!^%&@|/<>x" + bytes(range(256))

_WordCode = Literal["I", "Q"]


class _Words:
    """Forms of at least 2 × size − 1 bytes, found by the words of `size` bytes in which they begin."""

    def __init__(self, forms: Iterable[bytes], size: int, code: _WordCode) -> None:
        self.min_bytes = 2 * size - 1
        self._size = size
        self._code: _WordCode = code
        by_word: defaultdict[int, list[bytes]] = defaultdict(list)
        for form in forms:
            for at in range(size if len(form) >= self.min_bytes else 0):
                by_word[int.from_bytes(form[at : at + size], sys.byteorder)].append(form)
        self._by_word = dict(by_word)
        self._words = frozenset(by_word)

    def possible(self, block: bytes) -> set[bytes]:
        """The forms that may be in the block, or that its end may be the beginning of (with `min_bytes` or more)."""
        if not self._words or len(block) < self._size:
            return set()
        whole = len(block) - len(block) % self._size
        seen = self._words.intersection(memoryview(block)[:whole].cast(self._code))
        return {form for word in seen for form in self._by_word[word]}


class Mask:
    """Replaces secrets in a stream of bytes. Feed it everything, and flush it where the stream ends or pauses."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = sorted({form for secret in secrets for form in secret_forms(secret)})
        middle = sum(7 <= len(form) < 15 for form in forms)
        many = forms if len(forms) > MAX_ALL else []
        self._words = _Words(many, 8, "Q") if middle <= MAX_FEW else _Words(many, 4, "I")
        self._few = [form for form in forms if not many or len(form) < self._words.min_bytes]
        # Every beginning that may be too short to be seen by its words, and every byte with which one may end.
        self._beginnings = frozenset(form[:size] for form in forms for size in range(1, min(15, len(form))))
        self._bytes = frozenset(byte for form in forms for byte in form[:-1])
        self._mark = _mark(forms)
        self._kept = b""
        self._covered = 0  # So many bytes at the start of what is kept belong to a mark that is already written.

    def fresh(self) -> Mask:
        """Another one for the same secrets, for a stream of its own."""
        other = copy.copy(self)
        other._kept, other._covered = b"", 0
        return other

    @property
    def mark(self) -> bytes:
        """What is written for a secret: `***`, unless a secret has stars at its ends and would be spelled by it."""
        return self._mark

    def feed(self, data: bytes) -> bytes:
        """What can be shown now."""
        if len(data) <= BLOCK_BYTES:
            return self._next(data)
        view = memoryview(data)
        return b"".join(self._next(bytes(view[at : at + BLOCK_BYTES])) for at in range(0, len(data), BLOCK_BYTES))

    def flush(self) -> bytes:
        """The rest: nothing more comes, or not for now. A secret that is only begun is shown."""
        block, self._kept = self._kept, b""
        return self._shown(block, len(block), self._possible(block))

    def _next(self, data: bytes) -> bytes:
        block = self._kept + data if self._kept else data
        possible = self._possible(block)
        end = self._begun(block, possible)
        shown = self._shown(block, end, possible)
        self._kept = block[end:]
        return shown

    def _possible(self, block: bytes) -> list[bytes]:
        found = [form for form in self._few if form in block or (len(form) > 15 and _begins(block, form) < len(block))]
        found.extend(self._words.possible(block))
        return found

    def _begun(self, block: bytes, possible: list[bytes]) -> int:
        """Where the longest end of the block starts that is the beginning of a form."""
        begun = end = len(block)
        if not block or block[-1] not in self._bytes:
            return end
        for size in range(min(14, end), 0, -1):
            if block[end - size :] in self._beginnings:
                begun = end - size
                break
        for form in possible:
            if len(form) > 15:
                begun = min(begun, _begins(block, form))
        return begun

    def _shown(self, block: bytes, end: int, possible: list[bytes]) -> bytes:
        """The block up to `end`, masked; remembers how far the last mark reaches beyond it."""
        covered = self._covered
        if not covered and not possible:
            return block[:end]
        parts: list[bytes] = []
        for start, stop in sorted(place for form in possible for place in _places(block, form)):
            if start >= end:
                break
            if start >= covered:
                parts += (block[covered:start], self._mark)
            covered = max(covered, stop)
        parts.append(block[covered:end])
        self._covered = max(0, covered - end)
        return b"".join(parts)


def _places(block: bytes, form: bytes) -> Iterator[tuple[int, int]]:
    """Where the form stands. Of occurrences that overlap only those are told that are needed to cover all of them."""
    size = len(form)
    at = block.find(form)
    while at >= 0:
        yield at, at + size
        last = block.rfind(form, at + 1, at + 2 * size - 1)
        at = last if last >= 0 else block.find(form, at + size)


def _begins(block: bytes, form: bytes) -> int:
    """Where the block's longest end starts that is a beginning of the form, of 15 bytes or more; or the block's end."""
    head = form[:15]
    at = block.find(head, max(0, len(block) - len(form) + 1))
    for _ in range(MAX_COMPARISONS):
        if at < 0:
            return len(block)
        if form.startswith(block[at:]):
            return at
        at = block.find(head, at + 1)
    # Too early is safe: these bytes only come out a little later.
    return at if at >= 0 else len(block)


def _mark(forms: list[bytes]) -> bytes:
    """Three times a character that can never, together with what stands beside it, spell a form."""
    ends = {form[0] for form in forms} | {form[-1] for form in forms}
    for character in _MARK_CHARACTERS:
        mark = bytes([character]) * 3
        if character not in ends and not any(mark in form for form in forms):
            return mark
    return b"***"
