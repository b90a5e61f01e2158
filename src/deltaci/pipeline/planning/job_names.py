"""Names of jobs in a run: as on GitHub, `test (3.12, linux)`, with only what a name may have, and all distinct."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from deltaci.pipeline.planning.matrix import Combination

MAX_NAME: Final = 100
MARK: Final = 7
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.,:=@+() \-]+")


def unique_names(combinations: Sequence[Combination]) -> list[str]:
    """A name for every job of a matrix. A mark follows only from the combination itself."""
    plain = [_NOT_ALLOWED.sub("-", each.name).strip() for each in combinations]
    counts = Counter(plain)
    found = []
    for each, name in zip(combinations, plain, strict=True):
        is_plain = len(name) <= MAX_NAME and counts[name] == 1
        found.append(name if is_plain else _marked(name, each))
    return found


def _marked(name: str, combination: Combination) -> str:
    written = msgspec.json.encode([combination.name, combination.values], order="deterministic")
    mark = sha256(written).hexdigest()[:MARK]
    return f"{name[: MAX_NAME - MARK - 1].rstrip()}-{mark}"
