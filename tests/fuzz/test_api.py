"""The runner protocol over HTTP against its own description, see `api`. A failure prints the seed that repeats it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from deltaci.api import openapi
from deltaci.protocol.routes import MAX_PATH_BYTES, PROTOCOL_ROUTES, REFUSALS
from deltaci.storage.blobs import keys
from tests.fuzz.api import Found, fuzz_api
from tests.fuzz.profile import EXAMPLES, SCALE, SEED, only_in_fuzz, target

ROOT = Path(__file__).parents[2]
FIXED_SEED = 20260104


def judge(found: Found, test: Callable[..., object], record: Callable[[str, object], None]) -> None:
    """No failure, and that it did try."""
    EXAMPLES[target(test)] += found.cases
    record("figure", f"fuzz: {found.cases} HTTP requests from the description, {found.failures} failures")
    assert not found.failures, found.told
    assert found.cases > 100, found.told


def test_a_runner_finds_what_is_described(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Every status, header and body is one of those that the description promises; bad input is refused."""
    found = fuzz_api(tmp_path, SEED or FIXED_SEED, examples=round(2 * SCALE) if SCALE > 1 else 1)

    judge(found, test_a_runner_finds_what_is_described, record_property)


@only_in_fuzz
def test_a_runner_finds_it_in_new_ways_too(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The same requests each time would only ever find the same."""
    found = fuzz_api(tmp_path, SEED or FIXED_SEED, examples=round(6 * SCALE), phases="fuzzing,stateful")

    judge(found, test_a_runner_finds_it_in_new_ways_too, record_property)


@only_in_fuzz
def test_a_stranger_is_told_who_may_come_in(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Without a credential nothing but registration and the description is answered."""
    found = fuzz_api(
        tmp_path, SEED or FIXED_SEED, examples=round(4 * SCALE), phases="fuzzing,stateful", who="no runner"
    )

    judge(found, test_a_stranger_is_told_who_may_come_in, record_property)


# -- the document


def test_every_address_is_described_with_every_refusal() -> None:
    """An address that is missing there is one that nobody tests."""
    document = json.loads(openapi.openapi_text())

    for address in PROTOCOL_ROUTES:
        operation = document["paths"][address.path.replace("<", "{").replace(">", "}")][address.method.lower()]
        assert {str(REFUSALS[code].status) for code in address.codes} < set(operation["responses"])
    assert keys.MAX_PATH_BYTES == MAX_PATH_BYTES
