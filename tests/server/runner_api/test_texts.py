"""Texts from jobs are plain text when they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.attempt import Attempt
from deltaci.core.text import plain_line
from tests.contract.backends import on_loop
from tests.server.site import OpenSite

HOSTILE = "\x1b[31mred\x1b[0m \x1b]8;;http://evil\x07link\x1b]8;;\x1b\\ \x9b2J\u202egnp.exe\x00 <b>&\r\nforged\tline"
PLAIN = "red link \N{REPLACEMENT CHARACTER}gnp.exe\N{REPLACEMENT CHARACTER} <b>& forged line"


@given(st.text(), st.integers(0, 50))
def test_any_text_becomes_one_printable_line(text: str, most: int) -> None:
    """No escape, no control character, no second line, nothing that turns it around."""
    shown = plain_line(text, most)

    assert shown.isprintable()
    assert len(shown) <= most


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=50))
def test_plain_text_is_unchanged(text: str) -> None:
    """No name is damaged."""
    assert plain_line(text, 50) == text


@pytest.mark.proves("PRO-X4")
@on_loop
async def test_what_a_runner_reports_of_a_job_is_cleaned_before_it_is_kept_or_analysed(site: OpenSite) -> None:
    """Its summary, the names of steps, tests and files, and the tail of its log, by which a failure is classified."""
    async with site() as here:
        await here.server.enqueue("q1")
        lease = await (await here.runner()).take()

        await lease.send(
            "Complete",
            status="FAILED",
            exit_code=1,
            summary=HOSTILE,
            log_tail=["Connection \x1b[1mreset\x1b[0m by peer"],
            steps=[{"index": 0, "exit_code": 1, "seconds": 1, "name": HOSTILE}],
            tests={"total": 1, "failures": []},
            artifacts=[{"type": "file", "uri": "artifact:x", "name": HOSTILE}],
            cost={HOSTILE: HOSTILE},
        )

        record = await here.server.find("q1", Attempt)
        assert record.error is not None
        assert (record.error.message, record.error.rule) == (PLAIN, "network")
        assert record.error.line == "Connection reset by peer"
        report = record.report
        assert report["summary"] == report["steps"][0]["name"] == report["artifacts"][0]["name"] == PLAIN
        assert report["cost"] == {PLAIN: PLAIN}
        assert report["tests"] == {"total": 1}


@on_loop
async def test_failed_tests_determine_the_class_of_the_failure(site: OpenSite) -> None:
    """Failed tests are the author's to fix: another attempt would waste time."""
    async with site() as here:
        await here.server.enqueue("q1")
        lease = await (await here.runner()).take()

        tests = {"total": 2, "passed": 1, "failed": 1, "failures": [{"name": "t", "message": "m"}]}
        await lease.send("Complete", status="FAILED", exit_code=1, tests=tests, log_tail=["Connection reset by peer"])

        record = await here.server.find("q1", Attempt)
        assert record.error is not None
        assert (record.error.rule, record.error.is_retryable) == ("failed-tests", False)
        assert record.report["tests"] == tests
