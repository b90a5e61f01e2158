"""What a terminal obeys instead of showing it: in texts of others nothing of it may be left."""

from __future__ import annotations

import re
from typing import Final

# ESC [ … letter; ESC ] … BEL or ESC \\; ESC and one more. Also their one-byte forms, and those that are cut off.
ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b.?"
)
