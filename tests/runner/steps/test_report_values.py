"""One number out of a report: as tools write them, and as nobody should."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.protocol.patterns.path_patterns import BadPattern
from deltaci.protocol.reports.report_paths import parse
from deltaci.runner.steps.report_values import MAX_REPORT_BYTES, read_number

# As coverage.py writes it, less its lists of lines.
COVERAGE_JSON = json.dumps(
    {
        "meta": {"format": 3, "version": "7.6.1", "branch_coverage": True, "show_contexts": False},
        "files": {
            "src/shop/cart.py": {
                "executed_lines": [1, 2, 5],
                "summary": {"covered_lines": 3, "num_statements": 4, "percent_covered": 75.0},
                "missing_lines": [7],
            }
        },
        "totals": {
            "covered_lines": 8,
            "num_statements": 10,
            "percent_covered": 71.42857142857143,
            "percent_covered_display": "71",
            "num_branches": 4,
        },
    }
)
# As coverage.py, gcovr and Istanbul write Cobertura's form: some name a document type, which is nowhere to be fetched.
COVERAGE_XML = """<?xml version="1.0" ?>
<!DOCTYPE coverage SYSTEM "http://cobertura.example/xml/coverage-04.dtd">
<coverage version="7.6.1" lines-valid="14" lines-covered="10" line-rate="0.7143" branch-rate="0">
  <!-- written by a tool -->
  <sources><source>/src</source></sources>
  <packages>
    <package name="shop" line-rate="0.75" branch-rate="0"><classes/></package>
    <package name="shop.admin" line-rate="0.5" branch-rate="0"><classes/></package>
  </packages>
</coverage>
"""
JACOCO = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE report PUBLIC "-//JACOCO//DTD Report 1.1//EN" "report.dtd">
<report name="shop"><package name="a"><counter type="LINE" missed="9" covered="1"/></package>
<counter type="INSTRUCTION" missed="3" covered="70"/><counter type="LINE" missed="2" covered="18"/></report>
"""
ISTANBUL = '{"total": {"lines": {"total": 20, "covered": 17, "skipped": 0, "pct": 85}}}'


@pytest.mark.parametrize(
    ("report", "at", "number", "written"),
    [
        (COVERAGE_JSON, "totals.percent_covered", 71.42857142857143, "71.42857142857143"),
        (COVERAGE_JSON, "totals.percent_covered_display", 71, "71"),
        (COVERAGE_JSON, 'files["src/shop/cart.py"].summary.percent_covered', 75, "75.0"),
        (COVERAGE_JSON, 'files["src/shop/cart.py"].executed_lines[2]', 5, "5"),
        (ISTANBUL, "total.lines.pct", 85, "85"),
        ('[[1, 2], {"a": "-1.5e3 %"}]', "[1].a", -1500, "-1.5e3 %"),
        ("7", "a", None, "has another type"),
        ('\ufeff{"a": 1}', "a", 1, "1"),
        ('{"a": 1, "a": 2}', "a", 2, "2"),
        ('{"\\u00fc": {"found": 3}}', "ü.found", 3, "3"),
        (COVERAGE_XML, "./@line-rate", 0.7143, "0.7143"),
        (COVERAGE_XML, "@line-rate", 0.7143, "0.7143"),
        (COVERAGE_XML, "/coverage/@lines-valid", 14, "14"),
        (COVERAGE_XML, "packages/package/@line-rate", 0.75, "0.75"),
        (COVERAGE_XML, "packages/package[2]/@line-rate", 0.5, "0.5"),
        (COVERAGE_XML, "packages/package[@name='shop.admin']/@line-rate", 0.5, "0.5"),
        (JACOCO, "counter[@type='LINE']/@missed", 2, "2"),
        ("<a><b>\n 4 <c>9</c></b></a>", "./b", 4, "4"),
        ("<x:a xmlns:x='u'><x:b n='4'/></x:a>", "b/@n", 4, "4"),
    ],
)
def test_the_number_that_a_path_leads_to(report: str, at: str, number: float | None, written: str) -> None:
    """As it is written, so that people recognise it."""
    if number is None:
        with pytest.raises(Refused, match=written):
            read_number(report.encode(), parse(at))
        return

    assert read_number(report.encode(), parse(at)) == (number, written)


def test_a_report_in_another_encoding_is_read() -> None:
    """XML says itself how it is encoded."""
    text = '<a n="4"/>'

    assert read_number(text.encode("utf-16"), parse("./@n"))[0] == 4


NESTED = b"[" * 1_000_000
BOMB = b'<!DOCTYPE a [<!ENTITY b "1"><!ENTITY c "&b;&b;">]><a n="1">&c;</a>'


@pytest.mark.parametrize(
    ("report", "at", "said"),
    [
        (b"", "a", "not JSON"),
        (b'{"a": 1', "a", "truncated"),
        (b'{"a": 1} {', "a", "trailing characters"),
        (b'{"a": NaN}', "a", "not JSON"),
        (b'{"a": 1, "b": Infinity}', "a", "not JSON"),
        (b'{"a": "NaN"}', "a", "'NaN', which is not a number"),
        (b'{"a": 1e999}', "a", "1e999', which is not a number"),
        (b'{"a": "1e999"}', "a", "which is not a number"),
        (b'{"a": "\xff"}', "a", "not JSON"),
        (b'{"a": true}', "a", "a boolean at 'a'"),
        (b'{"a": null}', "a", "null at 'a'"),
        (b'{"a": {}}', "a", "an object at 'a'"),
        (b'{"a": [1]}', "a[1]", "nothing at 'a[1]'"),
        (b'{"a": {"b": 1}}', "a.c.d", "nothing at 'a.c'"),
        (b'{"a": [1]}', "a.b", "has another type"),
        (b'{"a": "' + b"9" * 1000 + b'"}', "a", "…'"),
        (NESTED, "[0]", "too deep"),
        (b'{"a": ' + NESTED, "a", "too deep"),
        (b'{"a": 1}', "./@n", "a path for XML"),
        (b"<a n='1'/>", "n", "a path for JSON"),
        (b"<a n='1'>", "./@n", "not XML: no element found, in line 1"),
        (b"<a n='1'/><b/>", "./@n", "not XML"),
        (b"<a n='\xff'/>", "./@n", "not XML"),
        (b'<?xml version="1.0" encoding="x-no"?><a n="1"/>', "./@n", "encoding"),
        (b"<a n='1'>&b;</a>", "./@n", "undefined entity"),
        (BOMB, "./@n", "a document type with definitions"),
        (b"<a>" * 1000, "./@n", "more than 256 elements deep"),
        (b"<a n='1'/>", "./@m", "no element matches"),
        (b"<a><b/><b n='1'/></a>", "b[3]/@n", "no element matches"),
        (b"<a n='one'/>", "./@n", "'one', which is not a number"),
        (b"<a> " + b"7 " * 10_000 + b"</a>", "/a", "which is not a number"),
    ],
)
def test_what_is_no_report_is_refused(report: bytes, at: str, said: str) -> None:
    """A job that breaks its report must not pass by that, and must not break its runner."""
    with pytest.raises(Refused) as refused:
        read_number(report, parse(at))

    assert said in refused.value.message
    assert len(refused.value.message) < 300


def test_a_huge_report_is_not_read() -> None:
    """It says how large it may be."""
    with pytest.raises(Refused, match="at most"):
        read_number(bytes(MAX_REPORT_BYTES + 1), parse("a"))


@pytest.mark.parametrize(
    ("report", "at"),
    [
        (b'{"x": [' + b"[]," * 1_000_000 + b'1], "a": 1}', "a"),
        (b'{"x": {' + b'"k":{},' * 500_000 + b'"z": 1}, "a": 1}', "a"),
        (b"<a n='1'>" + b"<b c='d'>e</b>" * 100_000 + b"</a>", "./@n"),
    ],
)
def test_nothing_of_a_report_is_kept_but_the_number(report: bytes, at: str) -> None:
    """A report of some megabytes may not cost its runner gigabytes."""
    path = parse(at)
    tracemalloc.start()
    try:
        assert read_number(report, path) == (1, "1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2 * len(report) + 1_000_000


PIECES = ("a", "b", ".", "[0]", '["a.b"]', "/", "@", "n", "[2]", "[@n='1']", "\\", "ü", "'", '"', "[", " ")
CONTENT = (
    '{"a":',
    "[",
    "]",
    "}",
    '"a.b":',
    "1",
    "NaN",
    '"7 %"',
    ",",
    "<a n='1'>",
    "<b>",
    "</b>",
    "</a>",
    "&x;",
    "<!--",
)


@given(
    at=st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    report=st.lists(st.sampled_from(CONTENT), max_size=10).map("".join) | st.binary(max_size=40),
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_job_writes_is_a_number_or_a_refusal(at: str, report: str | bytes) -> None:
    """Anything else would end the runner's work on the job with an error of ours."""
    data = report if isinstance(report, bytes) else report.encode()
    try:
        value, written = read_number(data, parse(at))
    except (BadPattern, Refused):
        return

    assert abs(value) < float("inf")
    assert written
