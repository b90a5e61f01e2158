"""A plan as people write it: where in it something is wrong."""

from __future__ import annotations

import pytest

from deltaci.api.schemas.inputs import JobInput, PlanInput
from deltaci.server.web.views.templates.plan_text import JsonSyntaxError, place_of, read, written

TEXT = """{
  "fail_fast": true, "odd \\" key": [[1, 2], {"a}": "]"}],
  "jobs": [
    {"name": "a", "needs": []},
    {"name": "b",
     "work": {"steps": ["x"]}}
  ]
}"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", (1, 1)),
        (".jobs", (3, 11)),
        (".jobs[0]", (4, 5)),
        (".jobs[0].needs", (4, 28)),
        (".jobs[1]", (5, 5)),
        (".jobs[1].work.steps[0]", (6, 25)),
        (".jobs[...].work", (3, 11)),  # Of which job, nobody says.
        (".jobs[7]", (3, 11)),  # What is not there is missing where it should be.
        (".jobs[1].nothing", (5, 5)),
        (".fail_fast.deeper", (2, 16)),
    ],
)
def test_a_path_has_a_place_in_the_text(path: str, place: tuple[int, int]) -> None:
    """Line and column as editors count them."""
    assert place_of(TEXT, path) == place


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("", (1, 1), "empty"),
        ("  \n", (1, 1), "empty"),
        ('{\n  "a": 1\n  "b": 2}', (3, 3), "line 3, column 3"),
        ("{'a': 1}", (1, 2), "property name"),
        ("[" * 100_000, (1, 1), "cannot be read"),
    ],
)
def test_what_is_not_json_says_where(text: str, place: tuple[int, int], says: str) -> None:
    """Never anything but NotJson."""
    with pytest.raises(JsonSyntaxError) as wrong:
        read(text)

    assert says in wrong.value.message
    assert wrong.value.place == place


def test_a_plan_is_written_to_be_read_and_reads_as_it_was() -> None:
    """Without what is as it always is."""
    plan = PlanInput(jobs=[JobInput(name="ä", needs=["b"])])

    text = written(plan)

    assert read(text) == {"jobs": [{"name": "ä", "needs": ["b"]}]}
    assert text.splitlines()[0] == "{"
