#!/usr/bin/env python3
"""Validate a log of state transitions: `validate_state_transitions.py .state/transitions.jsonl`.

Document 003 names this script. It is `deltaci verify` under that name: the same checks, the same exit codes.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    from deltaci.cli.app import main
except ModuleNotFoundError:
    python = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python"
    print(f"deltaci is not installed for {sys.executable}; run 'make test' once, then use {python}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.argv[1:1] = ["verify"]
    main()
