"""The schema for editors agrees with the reader as far as a schema can."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from deltaci.pipeline.parse import json_schema
from tests.pipeline.parse import broken, good

jsonschema_rs = pytest.importorskip("jsonschema_rs")
VALIDATOR = jsonschema_rs.validator_for(json_schema.schema())


def plain(text: str) -> Any:
    """A file as an editor sees it."""
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("name", list(good.ALL))
def test_a_good_file_is_good_for_editors(name: str) -> None:
    """Nobody should be told to change what is right."""
    errors = [error.message for error in VALIDATOR.iter_errors(plain(good.ALL[name]))]

    assert not errors


@pytest.mark.parametrize("each", [each for each in broken.ALL if each.is_for_schema], ids=lambda each: each.name)
def test_what_a_schema_can_find_is_found_while_typing(each: broken.Broken) -> None:
    """What it cannot: bad YAML, jobs that do not exist, how a number was written."""
    assert isinstance(each.text, str)

    assert not VALIDATOR.is_valid(plain(each.text))


def test_most_of_what_is_yaml_is_found() -> None:
    """More than half of all broken files that can be read at all, beside expressions, which no schema reads."""
    readable = 0
    for each in (*broken.SYNTAX, *broken.KEYS, *broken.VALUES):
        try:
            readable += plain(each.text if isinstance(each.text, str) else "") is not None
        except (YAMLError, ValueError):
            continue

    assert sum(each.is_for_schema for each in broken.ALL) > readable / 2
