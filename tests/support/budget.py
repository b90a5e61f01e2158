"""The size of long searches: a fixed small part in `make test`, everything in `make test THOROUGH=1`."""

from __future__ import annotations

import os
from typing import Final

IS_THOROUGH: Final = os.environ.get("THOROUGH") == "1"


def budget(small: int, thorough: int) -> int:
    """Return the size of a search for this run."""
    return thorough if IS_THOROUGH else small
