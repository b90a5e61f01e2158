"""Which versions people mean."""

from __future__ import annotations

import pytest

from deltaci.core.errors import Refused
from deltaci.runner.actions.node import plain, version_in
from deltaci.runner.actions.python import versions_in
from deltaci.runner.actions.versions import fits, version_of


@pytest.mark.parametrize("wanted", ["latest", "3.x.y.z", "three", ">=", "3.11; rm", "3..1", "1" * 300, "3.1234567"])
def test_what_is_no_version_is_refused(wanted: str) -> None:
    with pytest.raises(Refused, match="version"):
        fits(wanted, (3, 11, 4))


@pytest.mark.parametrize(
    ("wanted", "those"),
    [
        ("3.11", "3.11.4"),
        ("3", "3.9.1 3.11.4 3.12.0"),
        ("3.x", "3.9.1 3.11.4 3.12.0"),
        ("*", "2.7.18 3.9.1 3.11.4 3.12.0"),
        ("3.11.4", "3.11.4"),
        ("v3.11.4", "3.11.4"),
        ("3.11.5", ""),
        (">=3.10", "3.11.4 3.12.0"),
        (">3.11", "3.12.0"),
        (">3.11.3", "3.11.4 3.12.0"),
        ("<3.11", "2.7.18 3.9.1"),
        ("<=3.11", "2.7.18 3.9.1 3.11.4"),
        (">=3.9, <3.12", "3.9.1 3.11.4"),
        (">=3.9 <3.12", "3.9.1 3.11.4"),
        (">= 3.9 < 3.12", "3.9.1 3.11.4"),
        ("3.9 - 3.11", "3.9.1 3.11.4"),
        ("~3.11.1", "3.11.4"),
        ("~=3.9", "3.9.1 3.11.4 3.12.0"),
        ("~=3.11.2", "3.11.4"),
        ("^3.10", "3.11.4 3.12.0"),
        ("!=3.11, >=3", "3.9.1 3.12.0"),
        ("2.7 || 3.12", "2.7.18 3.12.0"),
    ],
)
def test_those_that_fit_are_found(wanted: str, those: str) -> None:
    there = [(2, 7, 18), (3, 9, 1), (3, 11, 4), (3, 12, 0)]

    assert [".".join(map(str, each)) for each in there if fits(wanted, each)] == those.split()


def test_versions_are_read_from_what_programs_say() -> None:
    assert version_of("v18.19.1\n") == (18, 19, 1)
    assert version_of("3.14.0rc1") == (3, 14, 0)
    assert version_of("") is None


def test_files_name_versions() -> None:
    assert versions_in(".python-version", "# ours\n3.11.2\n3.12\n") == ["3.11.2"]
    assert versions_in("pyproject.toml", '[project]\nrequires-python = ">=3.10"\n') == [">=3.10"]
    assert versions_in(".tool-versions", "nodejs 20\npython 3.12.1\n") == ["3.12.1"]
    assert version_in(".nvmrc", "v20.1\n") == "v20.1"
    assert version_in("package.json", '{"engines": {"node": ">=18"}}') == ">=18"
    assert [plain(each) for each in ("lts/*", "lts/Iron", "latest", "20.x")] == ["*", "20", "*", "20.x"]
    with pytest.raises(Refused, match="TOML"):
        versions_in("pyproject.toml", "[")
    with pytest.raises(Refused, match="JSON"):
        version_in("package.json", "[" * 100_000)
