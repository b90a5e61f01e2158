"""Names of the jobs of a matrix: as on GitHub, `test (3.12, linux)`, restricted to allowed characters, and unique."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from deltaci.pipeline.planning.matrix import Combination

MAX_NAME: Final = 100
HASH_DIGITS: Final = 7
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_.,:=@+() \-]+")


def unique_names(combinations: Sequence[Combination]) -> list[str]:
    """Return a valid and unique job name for each combination, in order.

    A name that is too long or not unique ends with a hash of its combination, so that it does not depend on the others.
    """
    cleaned_names = [_NOT_ALLOWED.sub("-", combination.name).strip() for combination in combinations]
    count_by_name = Counter(cleaned_names)
    job_names = []
    for combination, name in zip(combinations, cleaned_names, strict=True):
        is_usable = len(name) <= MAX_NAME and count_by_name[name] == 1
        job_names.append(name if is_usable else _with_hash(name, combination))
    return job_names


def _with_hash(job_name: str, combination: Combination) -> str:
    """Return a name, shortened if necessary, with a hash of the combination appended."""
    combination_json = msgspec.json.encode([combination.name, combination.values], order="deterministic")
    hash = sha256(combination_json).hexdigest()[:HASH_DIGITS]
    return f"{job_name[: MAX_NAME - HASH_DIGITS - 1].rstrip()}-{hash}"
