"""How long, and how new: quick and always the same for `make test`, long and new each time for `make fuzz`.

`FUZZ_SCALE` multiplies the number of examples. `FUZZ_SEED` makes them new ones; the same seed makes the same again.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

SCALE: Final = float(os.environ.get("FUZZ_SCALE", "1"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "0"))

EXAMPLES: Final[Counter[str]] = Counter()  # How many inputs each target has seen in this process.

Test = Callable[..., None]

# For a search whose rule `make test` proves elsewhere.
only_in_fuzz: Final = pytest.mark.skipif(SCALE <= 1, reason="a longer search, which `make fuzz` does")


def fuzzed(examples: int, **what: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """A test that is called with so many inputs, of which none may be too much for it."""

    def decorate(test: Test) -> Test:
        name = target(test)

        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            EXAMPLES[name] += 1
            test(*args, **kwargs)

        chosen = settings(
            max_examples=max(1, round(examples * SCALE)),
            deadline=None,
            derandomize=not SEED,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        found: Test = chosen(given(**what)(counted))
        return seed(SEED)(found) if SEED else found

    return decorate


def target(test: Callable[..., object]) -> str:
    """What a target is called in the table: its file and its name, without what all of them have."""
    file = test.__module__.rpartition(".")[2].removeprefix("test_")
    return f"{file}: {test.__name__.removeprefix('test_').replace('_', ' ')}"


def write_counts(folder: Path) -> None:
    """Leave the numbers for whoever started this process, and others beside it."""
    (folder / f"{os.getpid()}.json").write_text(json.dumps(EXAMPLES), encoding="utf-8")
