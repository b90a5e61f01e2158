"""Which built-in steps there are."""

from __future__ import annotations

from typing import Final

from deltaci.runner.builtins import node, python
from deltaci.runner.builtins.artifacts import download, upload
from deltaci.runner.builtins.cache import cache
from deltaci.runner.builtins.checkout import check_out
from deltaci.runner.builtins.stage import BuiltInStep

BUILT_INS: Final[dict[str, BuiltInStep]] = {
    "checkout": check_out,
    "cache": cache,
    "upload-artifact": upload,
    "download-artifact": download,
    "setup-python": python.setup,
    "setup-node": node.setup,
}
