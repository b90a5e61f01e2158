"""The API against its own description, by people who may do more or less, see `api`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deltaci.api.routes import OPERATOR, ROOT, ROUTES, Route
from tests.fuzz.api import fuzz_api
from tests.fuzz.profile import SCALE, SEED, only_in_fuzz
from tests.fuzz.test_api import FIXED_SEED, judge

# No repository can be reached from here: a workstream has mostly failed before anybody can stop it.
PERHAPS = {f"POST {ROOT}/workstreams/{{workstream}}/cancel"}

Record = Callable[[str, object], None]


def label(route: Route) -> str:
    """As schemathesis names it."""
    return f"{route.method} {ROOT}{route.path.replace('*}', '}')}"


def test_an_administrator_finds_what_is_described(tmp_path: Path, record_property: Record) -> None:
    """Every status, header and body is one of those that the description promises; bad input is refused."""
    found = fuzz_api(tmp_path, SEED or FIXED_SEED, examples=round(2 * SCALE) if SCALE > 1 else 1, who="admin")

    judge(found, test_an_administrator_finds_what_is_described, record_property)
    assert found.reached | PERHAPS == {label(route) for route in ROUTES if route.required_scope != OPERATOR}


@only_in_fuzz
def test_an_operator_finds_it_in_new_ways_too(tmp_path: Path, record_property: Record) -> None:
    """Whoever operates the server may ask for anything, so this one gets everywhere."""
    found = fuzz_api(tmp_path, SEED or FIXED_SEED, examples=round(3 * SCALE), who="operator")

    judge(found, test_an_operator_finds_it_in_new_ways_too, record_property)


@only_in_fuzz
def test_one_who_may_only_read_changes_nothing(tmp_path: Path, record_property: Record) -> None:
    """With a key that may read, what changes something is refused, in a way that is described."""
    found = fuzz_api(tmp_path, SEED or FIXED_SEED, examples=round(2 * SCALE), who="reader")

    judge(found, test_one_who_may_only_read_changes_nothing, record_property)
    assert {each.partition(" ")[0] for each in found.reached} == {"GET"}


@only_in_fuzz
def test_one_without_a_key_finds_nothing(tmp_path: Path, record_property: Record) -> None:
    """Whatever is asked, the answer is that there is no key."""
    found = fuzz_api(tmp_path, SEED or FIXED_SEED, examples=round(2 * SCALE), who="stranger")

    judge(found, test_one_without_a_key_finds_nothing, record_property)
    assert not found.reached
