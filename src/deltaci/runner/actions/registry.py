"""Which built-in steps there are."""

from __future__ import annotations

from typing import Final

from deltaci.runner.actions import node, python
from deltaci.runner.actions.artifacts import download, upload
from deltaci.runner.actions.cache import cache
from deltaci.runner.actions.checkout import check_out
from deltaci.runner.actions.context import BuiltInStep

BUILT_INS: Final[dict[str, BuiltInStep]] = {
    "checkout": check_out,
    "cache": cache,
    "upload-artifact": upload,
    "download-artifact": download,
    "setup-python": python.setup,
    "setup-node": node.setup,
}
