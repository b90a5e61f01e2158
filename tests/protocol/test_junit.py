"""Test reports are counted in every dialect, and a bad one is refused with the place."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.protocol.reports import junit
from deltaci.protocol.reports.junit import ReportTotals, read, read_cases

PYTEST = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4" time="0.5">
<testcase classname="tests.test_a" name="test_ok" time="0.100" />
<testcase classname="tests.test_a" name="test_bad" time="0.200"><failure message="a">trace</failure></testcase>
<testcase classname="tests.test_a" name="test_skip" time="0.000"><skipped type="pytest.skip">no</skipped></testcase>
<testcase classname="tests.test_a" name="test_setup" time="0.200"><error message="boom">x</error></testcase>
</testsuite></testsuites>"""

MAVEN = """<testsuite xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" name="com.example.AppTest" tests="3">
<properties><property name="a" value="b"/></properties>
<testcase name="flaky" classname="com.example.AppTest" time="1,000.5">
  <flakyFailure message="first" type="X"><stackTrace>…</stackTrace><system-out>failure</system-out></flakyFailure>
  <flakyError message="second" type="X"/></testcase>
<testcase name="broken" classname="com.example.AppTest" time="2">
  <failure message="x" type="Y">…</failure><rerunFailure message="x" type="Y"/><rerunError message="x"/></testcase>
<testcase name="fine" classname="com.example.AppTest" time=""/>
</testsuite>"""

NESTED = """<testsuites><testsuite name="outer">
<testsuite name="inner"><testcase name="deep"><failure/></testcase></testsuite>
<testcase name="shallow"/></testsuite><testsuite name="empty"/></testsuites>"""

RETRIED = """<testsuite name="s"><testcase classname="c" name="t" time="1"><failure/></testcase>
<testcase classname="c" name="t" time="1"/>
<testcase classname="c" name="worse"/><testcase classname="c" name="worse"><error/></testcase>
<testcase classname="c" name="left"><failure/></testcase>
<testcase classname="c" name="left"><skipped/></testcase></testsuite>"""

GTEST = """<testsuites><testsuite name="Math">
<testcase name="Add" status="run" result="completed" classname="Math" time="0.1s"/>
<testcase name="Off" status="notrun" result="suppressed" classname="Math"/>
<testcase name="Red" status="fail" classname="Math"/></testsuite></testsuites>"""


def one(text: str | bytes) -> ReportTotals:
    return read([("report.xml", text.encode() if isinstance(text, str) else text)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, is not XML: no element found"),
        ("<testsuite>\n<testcase>\n</testsuite>", "line 3, is not XML: mismatched tag"),
        ("<testsuite>\n\n&nbsp;</testsuite>", "line 3, is not XML: undefined entity"),
        ("<html>\n</html>", "line 1, begins with <html>"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd">\n<testsuite/>', "line 1, has a document type"),
        ('\n<!DOCTYPE x [<!ENTITY a "b">]>\n<testsuite>&a;</testsuite>', "line 2, has a document type"),
        ('<?xml version="1.0" encoding="klingon"?><testsuite/>', "line 1, "),
        ('<?xml version="1.0" encoding="utf-7"?><testsuite/>', "line 1, "),
        ("<testsuite>" * 100, "line 1, is more than 64 elements deep"),
        ("<testsuite/><testsuite/>", "line 1, is not XML: junk after document element"),
    ],
)
def test_a_bad_report_is_refused_with_file_and_line(text: str, message: str) -> None:
    """Whoever wrote it can go and look."""
    with pytest.raises(Refused) as refused:
        one(text)

    assert f"report.xml, {message}" in refused.value.message
    assert refused.value.code in {"unreadable", "too_large"}


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_a_report_or_a_refusal(data: bytes) -> None:
    """Never a traceback: reports come from jobs."""
    with suppress(Refused):
        one(data)


@given(st.data())
def test_a_damaged_report_is_a_report_or_a_refusal(data: st.DataObject) -> None:
    """Cut off, doubled, altered."""
    text = data.draw(st.sampled_from([PYTEST, MAVEN, NESTED, RETRIED, GTEST])).encode()
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.one_of(st.binary(max_size=5), st.sampled_from([b"<testcase>", b"</testsuite>", b"<failure/>"])))

    with suppress(Refused):
        one(text[:at] + put + text[at + data.draw(st.integers(0, 20)) :])


def test_too_large_a_report_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes and by tests, over all files."""
    monkeypatch.setattr(junit, "MAX_TESTS", 3)
    with pytest.raises(Refused, match="more than 3 tests"):
        one(PYTEST)
    with pytest.raises(Refused, match=r"b\.xml is one too many"):
        read([("a.xml", NESTED.encode()), ("b.xml", NESTED.encode())])

    monkeypatch.setattr(junit, "MAX_REPORT_BYTES", 100)
    with pytest.raises(Refused, match="at most 100"):
        one(PYTEST)


def test_pytest() -> None:
    """Errors and failures are told apart; both are failed tests."""
    assert one(PYTEST) == ReportTotals(
        tests=4,
        passed=1,
        failed=1,
        errors=1,
        skipped=1,
        seconds=0.5,
        failed_names=("tests.test_a.test_bad", "tests.test_a.test_setup"),
        failed_messages=("a", "boom"),
    )


def test_maven_says_itself_what_is_flaky() -> None:
    """A rerun that failed too is a failure, not flaky."""
    assert one(MAVEN) == ReportTotals(
        tests=3,
        passed=2,
        failed=1,
        flaky=1,
        seconds=1002.5,
        failed_names=("com.example.AppTest.broken",),
        failed_messages=("x",),
    )


def test_suites_in_suites() -> None:
    """A test without a class is named after its nearest suite."""
    assert one(NESTED) == ReportTotals(tests=2, passed=1, failed=1, failed_names=("inner.deep",), failed_messages=("",))


def test_a_case_that_is_written_again_is_another_try() -> None:
    """Failed and then passed is flaky; passed and then failed is failed; a skipped try changes nothing."""
    assert one(RETRIED) == ReportTotals(
        tests=3,
        passed=1,
        failed=1,
        errors=1,
        flaky=1,
        seconds=2.0,
        failed_names=("c.left", "c.worse"),
        failed_messages=("", ""),
    )


def test_the_same_name_in_another_file_or_suite_explains_no_failure() -> None:
    """Python 3.11 failed and 3.12 passed: that is not flaky, that is broken."""
    bad = '<testsuite name="s"><testcase classname="c" name="t"><failure/></testcase></testsuite>'
    good = '<testsuite name="s"><testcase classname="c" name="t"/></testsuite>'

    assert read([("a.xml", bad.encode()), ("b.xml", good.encode())]).failed == 1
    assert one(f"<testsuites>{bad}{good}</testsuites>").failed_names == ("c.t",)


def test_outcomes_that_are_only_attributes() -> None:
    """GoogleTest and CTest."""
    report = ReportTotals(tests=3, passed=1, failed=1, skipped=1, seconds=0.1, failed_names=("Math.Red",))
    assert one(GTEST) == msgspec.structs.replace(report, failed_messages=("",))


def test_names_are_bounded_and_numbers_are_not() -> None:
    """A summary must fit in a message even if everything failed."""
    cases = "".join(f'<testcase name="{"x" * 600}{at}"><failure/></testcase>' for at in range(1500))

    report = one(f"<testsuite>{cases}</testsuite>")

    assert (report.tests, report.failed, len(report.failed_names)) == (1500, 1500, junit.MAX_NAMES)
    assert {len(name) for name in report.failed_names} == {junit.MAX_NAME_CHARACTERS}


def test_no_reports_are_an_empty_report() -> None:
    """A pattern that finds nothing is not an error here."""
    assert read([]) == ReportTotals()


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><testsuite><testcase name='&j;'/></testsuite>"
)


@pytest.mark.proves("PRO-X4")
def test_a_bomb_is_defused_and_the_others_are_read() -> None:
    """Ten entities of ten entities of ten …: a billion words from a kilobyte. What is wrong with it is told."""
    told: list[str] = []

    report = read(
        [("bomb.xml", BOMB.encode()), ("good.xml", PYTEST.encode())], lambda refused: told.append(refused.message)
    )

    assert report.tests == 4
    [line] = told
    assert "bomb.xml, line 1, has a document type" in line


def test_every_test_is_told_with_what_it_said_if_it_failed() -> None:
    """The text of the failure and what was printed, in the order of the report; of others nothing is kept."""
    text = """<testsuite name="s">
<testcase name="bad" time="2"><failure message="no">first <![CDATA[<b>]]></failure><system-out> printed
</system-out><properties><property name="x">not this</property></properties></testcase>
<testcase name="good"><system-out>nobody asks</system-out></testcase>
<testcase name="left"><error>kept</error></testcase><testcase name="left"><skipped>not this</skipped></testcase>
<testcase name="shaky"><flakyFailure>not this</flakyFailure></testcase></testsuite>"""

    found = {case.name: case for case in read_cases([("r.xml", text.encode())], _unexpected)}

    assert (found["s.bad"].output, found["s.bad"].message, found["s.bad"].seconds) == ("first <b>\n printed", "no", 2.0)
    assert (found["s.good"].output, found["s.good"].is_failed) == ("", False)
    assert (found["s.left"].output, found["s.left"].is_failed) == ("kept", True)
    assert (found["s.shaky"].output, found["s.shaky"].is_flaky) == ("", True)


def test_what_a_test_said_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each test, and of how many: a report may be all output."""
    monkeypatch.setattr(junit, "MAX_OUTPUT_CHARACTERS", 10)
    monkeypatch.setattr(junit, "MAX_NAMES", 2)
    cases = "".join(f"<testcase name='{n}'><failure>{'x' * 100}</failure></testcase>" for n in range(4))

    found = read_cases([("r.xml", f"<testsuite>{cases}</testsuite>".encode())], _unexpected)

    assert [each.output for each in found] == ["x" * 10, "x" * 10, "", ""]


def _unexpected(bad: Refused) -> None:
    raise AssertionError(bad.message)
