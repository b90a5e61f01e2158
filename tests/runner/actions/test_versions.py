"""Version specs of setup-python and setup-node."""

from __future__ import annotations

import pytest

from deltaci.core.errors import Refused
from deltaci.runner.actions import node, python
from deltaci.runner.actions.versions import parse_version, version_matches


@pytest.mark.parametrize(
    "version_spec", ["latest", "3.x.y.z", "three", ">=", "3.11; rm", "3..1", "1" * 300, "3.1234567"]
)
def test_an_invalid_version_spec_is_refused(version_spec: str) -> None:
    with pytest.raises(Refused, match="version"):
        version_matches(version_spec, (3, 11, 4))


@pytest.mark.parametrize(
    ("version_spec", "expected"),
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
        ("^*", "2.7.18 3.9.1 3.11.4 3.12.0"),
        ("~*", "2.7.18 3.9.1 3.11.4 3.12.0"),
        ("!=3.11, >=3", "3.9.1 3.12.0"),
        ("2.7 || 3.12", "2.7.18 3.12.0"),
    ],
)
def test_matching_versions_are_found(version_spec: str, expected: str) -> None:
    installed = [(2, 7, 18), (3, 9, 1), (3, 11, 4), (3, 12, 0)]

    matches = [".".join(map(str, version)) for version in installed if version_matches(version_spec, version)]

    assert matches == expected.split()


def test_versions_are_parsed_from_the_output_of_programs() -> None:
    assert parse_version("v18.19.1\n") == (18, 19, 1)
    assert parse_version("3.14.0rc1") == (3, 14, 0)
    assert parse_version("") is None


def test_version_files_are_parsed() -> None:
    assert python.parse_version_file(".python-version", "# comment\n3.11.2\n3.12\n") == ["3.11.2"]
    assert python.parse_version_file("pyproject.toml", '[project]\nrequires-python = ">=3.10"\n') == [">=3.10"]
    assert python.parse_version_file(".tool-versions", "nodejs 20\npython 3.12.1\n") == ["3.12.1"]
    assert node.parse_version_file(".nvmrc", "v20.1\n") == "v20.1"
    assert node.parse_version_file("package.json", '{"engines": {"node": ">=18"}}') == ">=18"
    assert [node.normalize_version_spec(text) for text in ("lts/*", "lts/Iron", "latest", "20.x")] == [
        "*",
        "20",
        "*",
        "20.x",
    ]
    with pytest.raises(Refused, match="TOML"):
        python.parse_version_file("pyproject.toml", "[")
    with pytest.raises(Refused, match="JSON"):
        node.parse_version_file("package.json", "[" * 100_000)
