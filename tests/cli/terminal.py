"""Runs `deltaci` commands against a server, and checks their output."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from deltaci.cli.app import app
from tests.client.hosted import Hosted
from tests.support.fork_server import Deltaci

ROOT = Path(__file__).parents[2]


class Terminal:
    """Runs commands in a folder with a server's `.state`, by which they find the server."""

    def __init__(self, folder: Path, hosted: Hosted) -> None:
        self.folder = folder
        self.hosted = hosted

    def deltaci(self, *words: str, input: str | None = None, **environment: str) -> Result:
        """Run a command in this process."""
        variables = {"DELTACI_SERVER": None, "DELTACI_KEY": None, "USER": "ada", "COLUMNS": "120", **environment}
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            return CliRunner().invoke(app, list(words), input=input, env=variables)
        finally:
            os.chdir(before)

    def text(self, *words: str, **more: Any) -> str:
        """Return the output of a command, which must succeed."""
        result = self.deltaci(*words, **more)
        assert result.exit_code == 0, (result.exit_code, result.output, result.exception)
        return result.stdout

    def json(self, *words: str, **more: Any) -> Any:
        """Return the JSON document that a command prints, which must succeed."""
        return json.loads(self.text(*words, "--json", **more))

    def refused(self, code: int, *words: str, **more: Any) -> str:
        """Return the error message of a command, which must fail with this status and print one line."""
        result = self.deltaci(*words, **more)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        assert "Traceback" not in result.output
        assert len(result.stderr.strip().splitlines()) == 1 or "Usage:" in result.stderr, result.stderr
        return result.stderr

    def program(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command as a process."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DELTACI_")}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return Deltaci(
            words,
            cwd=self.folder,
            env={**environment, **options.pop("env", {})},
            **options,
        )

    def file(self, name: str, value: Any) -> str:
        """Write a JSON file; return its name."""
        (self.folder / name).write_text(json.dumps(value))
        return name

    def submit(self, *words: str, plan: Any) -> str:
        """Start a run of this plan; return its id."""
        return self.text("submit", "-", *words, input=json.dumps(plan)).strip()
