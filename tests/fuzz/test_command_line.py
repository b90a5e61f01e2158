"""Every command with any words: it ends, says what is wrong in a line, and never shows a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st

from tests.fuzz.calls import Caller, caller
from tests.fuzz.profile import fuzzed

FILES: Final = (
    "a-file",
    "a-folder",
    "missing",
    "a-file/below",
    "",
    "/dev/null",
    "/proc/self/mem",
    "/nowhere/below",
    "ä\n",
)
NUMBERS: Final = ("0", "-1", "1", "1e3", "x", "99999999999999999999", "")
URLS: Final = (
    "",
    "http://",
    "http://[",
    "http://127.0.0.1:1",
    "http://h:99999",
    "nats://[",
    "ftp://x",
    "s3://",
    "://",
    "☃",
)
STORES: Final = (
    "sqlite:",
    "sqlite:/nowhere/x.db",
    "sqlite:a-folder",
    "sqlite:a-file",
    "memory:",
    "postgresql://[",
    "x:",
)
NAMES: Final = ("w1", "", "a/b", "ä", "x" * 300, "A_B", "-", "--", "\x1b[31m")

FILE: Final = st.sampled_from(FILES)
NUMBER: Final = st.sampled_from(NUMBERS)
NAME: Final = st.sampled_from(NAMES)
URL: Final = st.sampled_from(URLS)
STORE: Final = st.sampled_from(STORES)

OPTIONS: Final[dict[str, dict[str, st.SearchStrategy[str] | None]]] = {
    "token": {"": NAME, "--tenant": NAME, "--data": FILE, "--hours": NUMBER, "--again": None},
    "verify": {"": FILE, "--format": NAME, "--limit": NUMBER, "--json": None},
    "secret set": {"": NAME, "--tenant": NAME, "--data": FILE, "--blobs": FILE},
    "secret list": {"--tenant": NAME, "--data": FILE, "--blobs": FILE | URL},
    "secret remove": {"": NAME, "--tenant": NAME, "--data": FILE},
    # What would begin to serve gets an address of which there is none here.
    "server --host 192.0.2.1": {
        "--store": STORE,
        "--data": FILE,
        "--blobs": FILE | URL,
        "--port": NUMBER,
        "--lease-ttl": NUMBER,
        "--nats": URL,
        "--nats-credentials": FILE,
        "--tls-cert": FILE,
        "--tls-key": FILE,
        "--client-ca": FILE,
        "--oidc-issuer": URL,
        "--oidc-audience": NAME,
        "--oidc-runner-claim": NAME,
    },
    "runner": {
        "--server": URL,
        "--token": NAME,
        "--token-file": FILE,
        "--work": FILE,
        "--labels": NAME,
        "--slots": NUMBER,
        "--nats": URL,
        "--nats-credentials": FILE,
        "--ca": FILE,
        "--client-cert": FILE,
        "--client-key": FILE,
        "--oidc-token-file": FILE,
        "--drain-seconds": NUMBER,
    },
    "conformance server": {"": URL, "--token": NAME, "--store": STORE, "--patience": NUMBER, "--only": NAME},
    "conformance runner": {"": st.sampled_from(("missing-program", "")), "--only": NAME, "--timeout": NUMBER},
    "sim --hours 0.1 --seeds 1": {"--seed": NUMBER, "--json": None},
    "up --once --port x": {"--data": FILE},
    "": {"": NAME, "--version": None, "--help": None},
}


@st.composite
def calls(draw: st.DrawFn) -> list[str]:
    """A command, some of its options, and odd values for them."""
    command = draw(st.sampled_from(sorted(OPTIONS)))
    words = command.split()
    known = OPTIONS[command]
    for option in draw(st.lists(st.sampled_from(sorted(known)), max_size=5, unique=True)):
        value = known[option]
        words += [option] if option else []
        words += [draw(value)] if value is not None else []
    return words + draw(st.lists(st.sampled_from(("--nonsense", "-x", "extra", "--")), max_size=1))


@pytest.fixture
def called(tmp_path: Path) -> Iterator[Caller]:
    """The command line, in a folder in which there is something."""
    (tmp_path / "a-file").write_bytes(b"\xff\0\n")
    (tmp_path / "a-folder").mkdir()
    with caller(tmp_path) as found:
        yield found


@fuzzed(30, words=calls())
def test_a_call_ends_with_a_word_and_no_traceback(called: Caller, words: list[str]) -> None:
    """People mistype, scripts pass empty variables, paths are of another kind than expected."""
    found = called.call(*words)

    assert "Traceback" not in found.told, f"{words}\n{found.told}"
    if not found.is_stopped:  # It waits for a server that is not there.
        assert found.code in (0, 1, 2), (words, found)
        assert found.code == 0 or found.told.strip(), words
