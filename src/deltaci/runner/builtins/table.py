"""Which built-in steps there are."""

from __future__ import annotations

from typing import Final

from deltaci.runner.builtins.checkout import check_out
from deltaci.runner.builtins.stage import BuiltInStep

BUILT_INS: Final[dict[str, BuiltInStep]] = {
    "checkout": check_out,
}
