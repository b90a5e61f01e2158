"""Input that is large on purpose, in a process with little memory and time: no parser is quadratic, none hoards."""

from __future__ import annotations

import gzip
import io
import json
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.fuzz.profile import EXAMPLES, target

ROOT: Final = Path(__file__).parents[2]
MEMORY_BYTES: Final = 700 * 1024**2  # Of addresses; Python and our modules take a third of that.
SECONDS: Final = 20  # Of processor time; each takes less than two where nothing is quadratic.
MB: Final = 1024 * 1024


def verify_one_long_line() -> None:
    """A line of ten megabytes."""
    _verify([b'{"seq": 1, "x": "' + b"y" * (10 * MB) + b'"}'])


def verify_one_deep_line() -> None:
    """As deep as it is long."""
    _verify([b"[" * MB + b"]" * MB])


def verify_many_lines() -> None:
    """A hundred thousand events of as many entities, none of which ever ends."""
    event = {"at": "2026-01-04T08:00:00.000000Z", "tenant": "t", "entity": "attempt", "run_id": "", "from": "CREATED"}
    more = {"to": "QUEUED", "trigger": "enqueued", "actor": "user:a", "severity": "info", "reason": "", "rev": 1}
    _verify(
        [
            json.dumps({"seq": n + 1, "entity_id": f"q{n}", **event, **more, "metadata": {}}).encode()
            for n in range(100_000)
        ]
    )


def verify_many_bad_lines() -> None:
    """A violation in each."""
    _verify([b'{"seq": 1, "entity": "attempt"}'] * 100_000)


def _verify(lines: list[bytes]) -> None:
    from deltaci.audit.verify import NotAnEventLogError, verify

    for format in ("", "canonical", "transitions", "job-events"):
        with suppress(NotAnEventLogError):
            verify(lines, format)


def decode_messages() -> None:
    """A megabyte of one message: many fields, a long text, deep nesting, a number without end."""
    from deltaci.protocol import messages as wire

    for body in (
        b"{" + b",".join(b'"a%d": 1' % n for n in range(60_000)) + b"}",
        b'{"type": "' + b"x" * MB + b'"}',
        b'{"type": "Complete", "output": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"type": "Complete", "output": ' + b"9" * MB + b"}",
        b'{"type": "Complete", "output": 1e' + b"9" * MB + b"}",
        b'{"type": "Complete", "log_tail": [' + b",".join([b'""'] * 300_000) + b"]}",
        b'{"type": "Complete", "x": [' + b",".join([b"1.0"] * 250_000) + b"]}",
    ):
        with suppress(msgspec.DecodeError):
            wire.decode_message(body)


def read_reports() -> None:
    """A report that is deep, one of a single attribute, one of very many tests, one that would explode."""
    from deltaci.core.errors import Refused
    from deltaci.protocol.reports import junit

    for body in (
        b"<testsuite>" * 100_000,
        b'<testsuite name="' + b"x" * (10 * MB) + b'"/>',
        b"<testsuite>" + b"<testcase name='a'/>" * 200_000 + b"</testsuite>",
        b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">]><testsuite name="&b;"/>',
        b"<testsuite " + b" ".join(b'a%d=""' % n for n in range(50_000)) + b"/>",
    ):
        with suppress(Refused):
            junit.read([("r.xml", body)])


def unpack_bombs() -> None:
    """A gigabyte of zeros, a million empty files, headers in headers."""
    from deltaci.core.errors import Refused
    from deltaci.runner.workspace import archive

    zeros = tarfile.TarInfo("zeros")
    zeros.size = 1024 * MB
    link = tarfile.TarInfo("././@LongLink")
    link.type, link.size = b"L", 2
    chained = (link.tobuf(tarfile.GNU_FORMAT) + b"a\0" + bytes(510)) * 5000
    for raw in (zeros.tobuf() + bytes(100 * MB), tarfile.TarInfo("a").tobuf() * 50_000, chained):
        with tempfile.TemporaryDirectory() as folder, suppress(Refused):
            archive.unpack(
                Path(folder), io.BytesIO(gzip.compress(raw, 1)), archive.ArchiveLimits(bytes=20 * MB, entries=1000)
            )


def mask_what_is_periodic() -> None:
    """Secrets and output that begin again and again, byte by byte and at once."""
    from deltaci.runner.log.masking import Mask

    for mask in (Mask(["a" * 1000 + "b", "ab" * 500, "a" * 4]), Mask([f"{n:08d}secret" for n in range(2000)])):
        for part in (b"a" * MB, b"ab" * 500_000, *([b"a"] * 4_000), b"0" * MB):
            mask.feed(part)
        mask.flush()


def read_sections() -> None:
    """A log of nothing but what looks like markers."""
    from deltaci.runner.log.sections import sections

    head = b"::log 1 nonce=" + b"0" * 32 + b"\n"
    marker = b"::step " + b"0" * 32 + b' begin index=1 name="'
    for body in (marker * 100_000, marker + b"\\" * (4 * MB), (marker + b'x"\n') * 50_000, b"::step " * 500_000):
        sections(head + body)


def match_patterns() -> None:
    """Patterns that a backtracking matcher never ends with."""
    from deltaci.core.errors import Refused
    from deltaci.protocol.messages import ArtifactRule
    from deltaci.runner.workspace.artifacts import find_files

    with tempfile.TemporaryDirectory() as folder:
        for n in range(20):
            Path(folder, "a" * (200 + n)).touch()
        for pattern in ("*a" * 100 + "b", "a*" * 900 + "b", "**/" * 60 + "b", "?" * 1900, "[a-z]*" * 300 + "b"):
            with suppress(Refused):
                find_files(Path(folder), [ArtifactRule(path_glob=pattern)])


def show_texts() -> None:
    """Escape sequences without end."""
    from deltaci.core.text import plain_line

    for text in ("\x1b[" * 500_000, "\x1b]" + "x" * MB, "\x1b[" + "0" * MB, "\n" * MB, "\x9b" * MB):
        plain_line(text, 2000)


def read_tokens() -> None:
    """Tokens and lease ids of a megabyte."""
    from deltaci.core import ids
    from deltaci.core.errors import Refused
    from deltaci.server.auth.credentials import Signer

    signer = Signer(b"k" * 32, lambda: 0.0)
    for text in (
        "dci_" + "A" * MB,
        "." * MB,
        "dci_" + "A" * MB + "." + "B" * MB,
        "a.1." + "b" * MB,
        "a." + "9" * MB + ".b",
    ):
        for read in (lambda text=text: signer.read(text, "run"), lambda text=text: ids.lease_ref(text)):
            with suppress(Refused):
                read()


TRIES: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each
    for each in (
        verify_one_long_line,
        verify_one_deep_line,
        verify_many_lines,
        verify_many_bad_lines,
        decode_messages,
        read_reports,
        unpack_bombs,
        mask_what_is_periodic,
        read_sections,
        match_patterns,
        show_texts,
        read_tokens,
    )
}


@pytest.mark.parametrize("name", TRIES)
def test_large_input_takes_little_memory_and_time(name: str) -> None:
    """Memory and time are what a stranger can take most easily."""
    EXAMPLES[target(test_large_input_takes_little_memory_and_time)] += 1

    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.test_sizes", name],
        cwd=ROOT,
        capture_output=True,
        timeout=10 * SECONDS,
        check=False,
    )

    assert done.returncode == 0, f"{name}: exit code {done.returncode}\n{done.stderr.decode()[-3000:]}"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    began = time.process_time()
    TRIES[sys.argv[1]]()
    print(f"{sys.argv[1]}: {time.process_time() - began:.2f} s")
