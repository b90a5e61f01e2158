"""Paths into reports: what they mean, and where one that means nothing goes wrong."""

from __future__ import annotations

import pytest

from deltaci.protocol.patterns.path_patterns import BadPattern
from deltaci.protocol.reports.report_paths import Element, JsonPath, ReportPath, XmlPath, parse


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("total", JsonPath(("total",))),
        ("totals.percent_covered", JsonPath(("totals", "percent_covered"))),
        ("runs[0].line-rate", JsonPath(("runs", 0, "line-rate"))),
        ("[2][3]", JsonPath((2, 3))),
        ('files["src/a.py"].n', JsonPath(("files", "src/a.py", "n"))),
        ('["a@b"]', JsonPath(("a@b",))),
        ("größe.😀", JsonPath(("größe", "😀"))),
        ("./@line-rate", XmlPath((), "line-rate")),
        ("@line-rate", XmlPath((), "line-rate")),
        ("/coverage/@line-rate", XmlPath((Element("coverage"),), "line-rate", is_absolute=True)),
        ("package/@name", XmlPath((Element("package"),), "name")),
        ("./total", XmlPath((Element("total"),))),
        ("a/b[2]/c[@type='LINE']/@n", XmlPath((Element("a"), Element("b", 2), Element("c", 0, "type", "LINE")), "n")),
        ("a[@n='x/y.z']/b", XmlPath((Element("a", 0, "n", "x/y.z"), Element("b")))),
    ],
)
def test_a_path_is_read(text: str, path: ReportPath) -> None:
    assert parse(text) == path


@pytest.mark.parametrize(
    ("text", "column", "found"),
    [
        ("", 1, "nothing"),
        ("  ", 1, "nothing"),
        ("a" * 1001, 1001, "1001 characters"),
        (".".join("a" * 33), 1, "33 parts"),
        ("a\\b", 2, "a control character or '\\'"),
        ('["a\tb"]', 4, "a control character or '\\'"),
        ("a..b", 3, "'.'"),
        (".a", 1, "'.'"),
        ("a.", 3, "the end"),
        ("a b", 2, "' '"),
        ("a[x]", 2, "'['"),
        ("a[0", 2, "'['"),
        ('a[""]', 2, "'['"),
        ("a[1000]", 2, "'[1000]'"),
        ("a]", 2, "']'"),
        ("/", 2, "the end"),
        ("a/", 3, "the end"),
        ("a//b", 3, "'/'"),
        ("a/@", 3, "'@'"),
        ("a/@b/c", 5, "'/' behind an attribute"),
        ("a[0]/b", 2, "'[0]'"),
        ("a[@b=c]/d", 2, "'['"),
        ("a/*", 3, "'*'"),
        ("../a", 1, "'.'"),
    ],
)
def test_what_is_no_path_says_where(text: str, column: int, found: str) -> None:
    with pytest.raises(BadPattern) as bad:
        parse(text)

    assert (bad.value.column, bad.value.found.removeprefix("a path of ")) == (column, found)
    assert bad.value.expected
