"""The generated pages of the documentation are compared by `make check` and written by `make fix`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.docgen import __main__ as docgen
from scripts.docgen.pages import MARK, replace_below_mark


def test_a_page_that_differs_is_reported_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that has drifted misleads everybody who reads it."""
    monkeypatch.setattr(docgen, "ROOT", tmp_path)
    monkeypatch.setattr(docgen, "PAGES", {"same.md": lambda _: "as it was", "old.md": lambda text: text + "and more"})
    (tmp_path / "same.md").write_text("as it was\n", encoding="utf-8")
    (tmp_path / "old.md").write_text("old\n", encoding="utf-8")

    monkeypatch.setattr(sys, "argv", ["docgen", "--check"])
    assert docgen.main() == 1
    assert capsys.readouterr().err == "old.md is out of date; run 'make fix' and commit the result\n"
    assert (tmp_path / "old.md").read_text("utf-8") == "old\n"

    monkeypatch.setattr(sys, "argv", ["docgen"])
    assert docgen.main() == 0
    assert (tmp_path / "old.md").read_text("utf-8") == "old\nand more\n"


def test_what_stands_above_the_mark_is_kept() -> None:
    """It is written by hand."""
    assert replace_below_mark(f"by hand\n{MARK}\nold", ["new", ""]) == f"by hand\n{MARK}\n\nnew\n"
    with pytest.raises(ValueError, match="no line"):
        replace_below_mark("by hand", [])
