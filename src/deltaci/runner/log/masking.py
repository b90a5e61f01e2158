"""Masking of secrets in logs, independent of how the output is divided into parts.

`Mask` is a filter over bytes. It finds every occurrence of every form of every secret (see `secret_forms`), also
overlapping ones, and replaces each run of overlapping occurrences by one mark. It holds back only bytes that may be
the beginning of a form, so the log is delayed little, and the division into parts never changes the result.

To be fast in pure Python, it uses that a form of 15 bytes or more contains, at any position, one 8-byte word at an
address that is a multiple of 8. A block is cast to such words in one call and intersected with the set of all words in
the first 15 bytes of the forms; only forms of which a word occurs are searched for. If there are many forms of 7 to 14
bytes, words of 4 bytes are used, which cover forms of 7 bytes or more. Shorter forms are searched for one by one; so
are all forms if there are only a few, as in a log whose only secret is its nonce.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from deltaci.runner.log.secret_encodings import secret_forms

BLOCK_BYTES: Final = 64 * 1024
MAX_MIDDLE_SEARCHES: Final = 12  # So many searches are cheaper than reading the block as 4-byte words,
MAX_SEARCHES: Final = 20  # and so many are cheaper than reading it as words at all.
# How often the end of a block is compared with a form before it is held back anyway: bounds the cost of periodic ones.
MAX_COMPARISONS: Final = 64
_MARK_CHARACTERS: Final = b"*#=~?-_.:+!^%&@|/<>x" + bytes(range(256))

_WordCode = Literal["I", "Q"]


class _WordIndex:
    """An index of forms by the words of `size` bytes near their beginning, for a fast search of a block.

    It contains only forms of at least 2 × size − 1 bytes: such a form has a whole word at an aligned position.
    """

    def __init__(self, forms: Iterable[bytes], size: int, code: _WordCode) -> None:
        self.min_bytes = 2 * size - 1
        self._size = size
        self._code: _WordCode = code
        by_word: defaultdict[int, list[bytes]] = defaultdict(list)
        for form in forms:
            for offset in range(size if len(form) >= self.min_bytes else 0):
                by_word[int.from_bytes(form[offset : offset + size], sys.byteorder)].append(form)
        self._by_word = dict(by_word)
        self._words = frozenset(by_word)

    def candidates(self, block: bytes) -> set[bytes]:
        """Return all indexed forms that may occur in the block, or begin at its end with at least `min_bytes`."""
        if not self._words or len(block) < self._size:
            return set()
        aligned_size = len(block) - len(block) % self._size
        occurring_words = self._words.intersection(memoryview(block)[:aligned_size].cast(self._code))
        return {form for word in occurring_words for form in self._by_word[word]}


class Mask:
    """A filter that masks secrets in a stream of bytes.

    Feed it all output, and flush it where the stream ends or pauses.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = sorted({form for secret in secrets for form in secret_forms(secret)})
        middle_count = sum(7 <= len(form) < 15 for form in forms)
        indexed_forms = forms if len(forms) > MAX_SEARCHES else []
        use_long_words = middle_count <= MAX_MIDDLE_SEARCHES
        self._index = _WordIndex(indexed_forms, 8, "Q") if use_long_words else _WordIndex(indexed_forms, 4, "I")
        self._unindexed = [form for form in forms if not indexed_forms or len(form) < self._index.min_bytes]
        # Every proper prefix of a form that is too short for the index, and every byte that may end a prefix.
        self._prefixes = frozenset(
            form[:prefix_length] for form in forms for prefix_length in range(1, min(15, len(form)))
        )
        self._prefix_bytes = frozenset(byte for form in forms for byte in form[:-1])
        self._mark = _mark(forms)
        self._pending = b""
        # How many bytes at the start of `_pending` belong to a mark that is already written.
        self._pending_masked_bytes = 0

    def copy_for_new_stream(self) -> Mask:
        """Return a mask for the same secrets that has processed no bytes yet."""
        new_mask = copy.copy(self)
        new_mask._pending, new_mask._pending_masked_bytes = b"", 0
        return new_mask

    @property
    def mark(self) -> bytes:
        """The replacement of a secret: `***`, or other characters if a secret begins or ends with a star."""
        return self._mark

    def feed(self, chunk: bytes) -> bytes:
        """Process the next bytes and return the masked bytes that can be written now."""
        if len(chunk) <= BLOCK_BYTES:
            return self._feed_block(chunk)
        view = memoryview(chunk)
        blocks = (bytes(view[offset : offset + BLOCK_BYTES]) for offset in range(0, len(chunk), BLOCK_BYTES))
        return b"".join(self._feed_block(block) for block in blocks)

    def flush(self) -> bytes:
        """Return all bytes that are held back, masked. An incomplete secret among them is not masked."""
        block, self._pending = self._pending, b""
        return self._mask_block(block, len(block), self._candidates(block))

    def _feed_block(self, chunk: bytes) -> bytes:
        """Process one block. Return the masked bytes that can be written now and hold back the others."""
        block = self._pending + chunk if self._pending else chunk
        candidates = self._candidates(block)
        safe_end = self._pending_start(block, candidates)
        masked = self._mask_block(block, safe_end, candidates)
        self._pending = block[safe_end:]
        return masked

    def _candidates(self, block: bytes) -> list[bytes]:
        """Return the forms that may occur in the block or begin at its end, so that others need not be searched for."""
        candidates = [
            form
            for form in self._unindexed
            if form in block or (len(form) > 15 and _prefix_start(block, form) < len(block))
        ]
        candidates.extend(self._index.candidates(block))
        return candidates

    def _pending_start(self, block: bytes, candidates: list[bytes]) -> int:
        """Return the position in the block from which on bytes are held back: there a secret may begin."""
        start = end = len(block)
        if not block or block[-1] not in self._prefix_bytes:
            return end
        for suffix_length in range(min(14, end), 0, -1):
            if block[end - suffix_length :] in self._prefixes:
                start = end - suffix_length
                break
        for form in candidates:
            if len(form) > 15:
                start = min(start, _prefix_start(block, form))
        return start

    def _mask_block(self, block: bytes, end: int, candidates: list[bytes]) -> bytes:
        """Return the block up to `end`, masked.

        A mark may reach beyond `end`, which is remembered for the next block.
        """
        masked_end = self._pending_masked_bytes
        if not masked_end and not candidates:
            return block[:end]
        output_parts: list[bytes] = []
        for occurrence_start, occurrence_end in sorted(
            span for form in candidates for span in _occurrences(block, form)
        ):
            if occurrence_start >= end:
                break
            if occurrence_start >= masked_end:
                output_parts += (block[masked_end:occurrence_start], self._mark)
            masked_end = max(masked_end, occurrence_end)
        output_parts.append(block[masked_end:end])
        self._pending_masked_bytes = max(0, masked_end - end)
        return b"".join(output_parts)


def _occurrences(block: bytes, form: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of occurrences of a form that together cover every byte of all its occurrences."""
    form_length = len(form)
    start = block.find(form)
    while start >= 0:
        yield start, start + form_length
        last_overlapping = block.rfind(form, start + 1, start + 2 * form_length - 1)
        start = last_overlapping if last_overlapping >= 0 else block.find(form, start + form_length)


def _prefix_start(block: bytes, form: bytes) -> int:
    """Return where the longest suffix of the block starts that is a prefix of the form, of 15 bytes or more.

    Return the end of the block if there is none.
    """
    form_start = form[:15]
    start = block.find(form_start, max(0, len(block) - len(form) + 1))
    for _ in range(MAX_COMPARISONS):
        if start < 0:
            return len(block)
        if form.startswith(block[start:]):
            return start
        start = block.find(form_start, start + 1)
    # A start that is too early is safe: more bytes are held back than necessary.
    return start if start >= 0 else len(block)


def _mark(forms: list[bytes]) -> bytes:
    """Return the mark: three times a character with which no form begins or ends, so that no form overlaps it."""
    ends = {form[0] for form in forms} | {form[-1] for form in forms}
    for character in _MARK_CHARACTERS:
        mark = bytes([character]) * 3
        if character not in ends and not any(mark in form for form in forms):
            return mark
    return b"***"
