"""The actions by the names with which a step uses them."""

from __future__ import annotations

from typing import Final

from deltaci.runner.actions import node, python
from deltaci.runner.actions.artifacts import download, upload
from deltaci.runner.actions.cache import cache
from deltaci.runner.actions.checkout import check_out
from deltaci.runner.actions.context import Action

ACTIONS: Final[dict[str, Action]] = {
    "checkout": check_out,
    "cache": cache,
    "upload-artifact": upload,
    "download-artifact": download,
    "setup-python": python.setup,
    "setup-node": node.setup,
}
