"""What the README says works as pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_example_in_the_readme_works_as_pasted(tmp_path: Path) -> None:
    """The first thing that a stranger tries must not fail."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example
    (tmp_path / "example.py").write_text(example[1], encoding="utf-8")

    result = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["3 sent", "mail to ada", "mail to bob", "mail to cyd"]
    assert len([line for line in example[1].splitlines() if line.strip()]) <= 15


def test_the_ci_runs_the_test_command_of_the_readme() -> None:
    """What protects the project and what people run must be one thing."""
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "$ make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands.strip().endswith("make test")
