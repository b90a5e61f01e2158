"""What jobs leave behind and say: masked logs, sections, test reports, archives, patterns. Jobs are hostile."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.core.text import plain_line
from deltaci.protocol.messages import ArtifactRule, CacheRule
from deltaci.protocol.reports import junit
from deltaci.runner.log.masking import Mask
from deltaci.runner.log.secret_encodings import secret_forms
from deltaci.runner.log.sections import SectionWriter, sections, sections_from
from deltaci.runner.workspace import archive
from deltaci.runner.workspace.artifacts import find_files, open_file
from deltaci.runner.workspace.cache_keys import cache_key
from tests.fuzz.profile import fuzzed

NONCE: Final = "0123456789abcdef" * 2

# -- masking

SECRETS: Final = st.lists(st.text("ab*-~/+=é", min_size=4, max_size=40) | st.text(min_size=4, max_size=20), max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[str], list[bytes]]:
    """Secrets, and an output that is full of them and of parts of them, cut anywhere."""
    secrets = draw(SECRETS)
    forms = [form for secret in secrets for form in secret_forms(secret)] or [b"none"]
    whole = b"".join(
        form[slice(*sorted((draw(st.integers(0, len(form))), draw(st.integers(0, len(form))))))]
        if draw(st.booleans())
        else form
        for form in draw(st.lists(st.sampled_from(forms) | st.binary(max_size=5), max_size=12))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return secrets, [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@fuzzed(150, given_=streams())
def test_how_output_is_cut_never_changes_what_is_shown(given_: tuple[list[str], list[bytes]]) -> None:
    """The kernel cuts output where it likes; a job may cut it where it hurts."""
    secrets, parts = given_
    cut, whole = Mask(secrets), Mask(secrets)

    shown = b"".join(map(cut.feed, parts)) + cut.flush()

    assert shown == whole.feed(b"".join(parts)) + whole.flush()
    for secret in secrets:
        assert all(form not in shown for form in secret_forms(secret))


# -- sections


@fuzzed(
    200,
    steps=st.lists(
        st.tuples(
            st.text(max_size=20),
            st.binary(max_size=30) | st.just(b"::step x begin\n"),
            st.none() | st.integers(0, 255),
            st.floats(),
        ),
        max_size=5,
    ),
    is_ended=st.booleans(),
)
def test_every_step_is_found_again_byte_by_byte(
    steps: list[tuple[str, bytes, int | None, float]], is_ended: bool
) -> None:
    """Whatever a step is called and writes."""
    writer = SectionWriter(NONCE)
    log = writer.header()
    for index, (name, output, code, seconds) in enumerate(steps):
        log += writer.begin(index, name) + writer.output(output)
        if is_ended or index + 1 < len(steps):
            log += writer.end(index, code, seconds)

    found = sections(log)

    assert [(each.name, log[each.start : each.stop]) for each in found] == [(name, out) for name, out, _, _ in steps]


NAMED: Final = (b'"x"', b'"\\q"', b'"\\u12"', b'"\xff"', b'"\\ud800"', b'"\\', b'""', b'"a" cut=1', b'"\t"')
BEGIN: Final = st.sampled_from(NAMED).map(lambda name: b"::step %s begin index=0 name=%s\n" % (NONCE.encode(), name))
ENDED: Final = (b"0 seconds=0.000", b"none seconds=1.500 cut=1", b"-9 seconds=999999999999.999", b"x", b"0 seconds=0")
END: Final = st.sampled_from(ENDED).map(lambda end: b"::step %s end index=0 exit=%s\n" % (NONCE.encode(), end))


@fuzzed(100, parts=st.lists(BEGIN | END | st.binary(max_size=5) | st.just(b"\n"), max_size=8))
def test_a_log_of_any_bytes_has_sections_or_none(parts: list[bytes]) -> None:
    """A log that was cut, or of which the nonce got out."""
    log = b"".join(parts)

    for each in (*sections(SectionWriter(NONCE).header() + log), *sections_from(log, NONCE, 7)):
        assert each.start <= each.stop


# -- texts


@fuzzed(300, text=st.text(st.characters() | st.sampled_from("\x1b\x9b[]P;m\x07\x9c\\")), most=st.integers(0, 50))
def test_a_plain_text_is_plain(text: str, most: int) -> None:
    """Names and messages are shown by terminals."""
    shown = plain_line(text, most)

    assert len(shown) <= most
    assert shown.isprintable()


# -- test reports

TAGS: Final = st.sampled_from(("testsuites", "testsuite", "testcase", "failure", "error", "skipped", "x:testcase", "p"))
ATTRIBUTES: Final = st.dictionaries(
    st.sampled_from(("name", "classname", "time", "status", "message", "file", "xmlns:x")),
    st.text(st.characters(codec="utf-8", exclude_characters='<&"\0'), max_size=8)
    | st.sampled_from(("1e999", "nan", "-5", "1,000.5s", "failed", "&amp;", "&x;", "&#0;", "&#x10FFFF;")),
)


@st.composite
def reports(draw: st.DrawFn, depth: int = 3) -> bytes:
    """XML that looks like a report."""
    tag = draw(TAGS) if depth < 3 else draw(st.sampled_from(("testsuites", "testsuite", "testcase", "p")))
    words = "".join(f' {name}="{value}"' for name, value in draw(ATTRIBUTES).items())
    inner = b"".join(draw(st.lists(reports(depth - 1), max_size=3))) if depth else b""
    return (
        f"<{tag}{words}>".encode() + inner + draw(st.sampled_from((f"</{tag}>".encode(), b"</p>", b"", b"<![CDATA[")))
    )


HEADS: Final = st.sampled_from(
    (
        b"",
        b'<?xml version="1.0"?>',
        b'<?xml version="1.0" encoding="utf-16"?>',
        b'<?xml version="1.0" encoding="cp037"?>',
        b'<?xml version="1.0" encoding="rot13"?>',
        b'<!DOCTYPE x [<!ENTITY x "y">]>',
        b"\xef\xbb\xbf",
        b"\xff\xfe",
    )
)


@fuzzed(120, head=HEADS, body=reports() | st.binary(max_size=40))
def test_a_report_is_read_or_refused(head: bytes, body: bytes) -> None:
    """Reports come from any tool, and from anybody."""
    with suppress(Refused):
        found = junit.read([("r.xml", head + body)])
        assert found.tests == found.passed + found.failed + found.errors + found.skipped


# -- archives

NAMES: Final = st.sampled_from(
    ("a", "a/b", "a/b/c", "../x", "/x", "a/../b", ".", "", "a//b", "x" * 300, "ä\udcff", "l")
)
PAX: Final = st.dictionaries(
    st.sampled_from(
        (
            "path",
            "size",
            "mtime",
            "linkpath",
            "mode",
            "uid",
            "GNU.sparse.major",
            "GNU.sparse.map",
            "GNU.sparse.realsize",
        )
    ),
    st.sampled_from(
        ("inf", "-inf", "nan", "1e999", "-1", "99999999999999999999", "1", "0", "a", "../x", "1,2", "", "b/")
    ),
    max_size=2,
)


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Archives of nearly everything that a header can say, with a few bytes changed."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=draw(st.sampled_from((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
    ) as tar:
        for _ in range(draw(st.integers(0, 5))):
            info = tarfile.TarInfo(draw(NAMES))
            info.type = draw(st.sampled_from((b"0", b"0", b"5", b"2", b"1", b"3", b"6", b"7", b"L", b"K", b"x", b"S")))
            info.linkname = draw(NAMES)
            info.mode = draw(st.sampled_from((0o644, 0, 0o7777)))
            info.size = draw(st.integers(0, 600))
            if tar.format == tarfile.PAX_FORMAT:
                info.pax_headers = draw(PAX)
            with suppress(ValueError, UnicodeError):
                tar.addfile(info, io.BytesIO(bytes(info.size)))
    raw = bytearray(out.getvalue())
    for _ in range(draw(st.integers(0, 4))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        for at in range(0, len(raw) - 511, 512):  # With sums that are right again, or nobody would look further.
            if raw[at + 257 : at + 262] == b"ustar":
                raw[at + 148 : at + 156] = b" " * 8
                raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    squeezed = gzip.compress(bytes(raw), 1)
    return squeezed[: draw(st.integers(0, len(squeezed)))] if draw(st.booleans()) else squeezed


@fuzzed(150, data=archives() | st.binary(max_size=60) | st.binary(max_size=60).map(gzip.compress))
def test_an_archive_is_unpacked_inside_or_refused(data: bytes) -> None:
    """A cache may come from anybody who could write one."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        root.mkdir()
        with suppress(Refused):
            archive.unpack(root, io.BytesIO(data), archive.ArchiveLimits(entries=20, bytes=10_000, depth=5))

        assert sorted(path.name for path in Path(folder).iterdir()) == ["root"]
        for path in root.rglob("*"):
            # A link to itself leads nowhere, and not outside.
            assert Path(os.path.realpath(path)).is_relative_to(root.resolve())


# -- patterns and lock files

PATTERNS: Final = st.text(st.sampled_from("ab*?[]!-/.\\{}^é\0~"), max_size=14) | st.sampled_from(
    ("[b-a]", "[!b-a]", "[[:x:]]", "**/" * 70, "*" * 500 + "b", "a*" * 200 + "b", "[" * 200, "..", "~/x", "a/**/b/**/c")
)


@fuzzed(150, pattern=PATTERNS, name=st.text(st.sampled_from("ab.[]é-"), min_size=1, max_size=40))
def test_a_pattern_finds_files_or_is_refused(pattern: str, name: str) -> None:
    """Patterns come with the job, names from what it ran."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        if name not in (".", ".."):
            (workspace / name).write_bytes(b"x")
        with suppress(Refused):
            for file in find_files(workspace, [ArtifactRule(path_glob=pattern)]):
                open_file(workspace, file).close()
        with suppress(Refused, OSError):
            cache_key(workspace, CacheRule(key="k-{lock_hash}", paths=["x"], lock_files=[pattern]))
        with suppress(Refused, OSError):  # Whoever packs expects both.
            inner = archive.workspace_relative_path(pattern)
            assert not re.search(r"(^|/)\.\.(/|$)|^/", inner)
            archive.pack(workspace, [inner], io.BytesIO())
