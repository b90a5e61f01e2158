"""No secret leaves in a log: not split, not encoded, not in lines; and nothing else is touched or kept back."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from time import process_time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltaci.runner.log.masking import BLOCK_BYTES, Mask
from deltaci.runner.log.secret_encodings import secret_forms

SECRET = "s3cr3t/of the+house'\"$&é"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"

# Few characters, so that secrets overlap with each other, with themselves and with their surroundings.
NARROW = st.text("ab*\n", min_size=1, max_size=24)
PERIODIC = st.builds(lambda part, times: part * times, st.text("ab", min_size=1, max_size=4), st.integers(1, 15))
SECRETS = st.lists(st.one_of(NARROW, PERIODIC, st.text(max_size=12)), max_size=5)
PIECES = st.one_of(st.text("ab*\n", max_size=30).map(str.encode), st.binary(max_size=20))


def masked(secrets: list[str], *parts: bytes) -> bytes:
    mask = Mask(secrets)
    return b"".join(mask.feed(part) for part in parts) + mask.flush()


def plainly(secrets: list[str], text: bytes) -> bytes:
    """What `Mask` promises, written down without a thought of speed."""
    forms = {form for secret in secrets for form in secret_forms(secret)}
    places = sorted((at, at + len(f)) for f in forms for at in range(len(text)) if text.startswith(f, at))
    out, covered = b"", 0
    for start, stop in places:
        if start >= covered:
            out += text[covered:start] + Mask(secrets).mark
        covered = max(covered, stop)
    return out + text[covered:]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[str], list[bytes]]:
    """Secrets, and a text cut anywhere that has them, their forms and parts of them in it."""
    secrets = draw(SECRETS)
    forms = sorted({form for secret in secrets for form in secret_forms(secret)})
    inside = st.one_of(PIECES, st.sampled_from(forms)) if forms else PIECES
    partly = st.builds(lambda piece, cut: piece[: max(0, len(piece) - cut)], inside, st.integers(0, 3))
    text = b"".join(draw(st.lists(partly, max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return secrets, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(deadline=None, max_examples=400)
@given(streams())
@example((["aaaa"], [b"aaaaa", b"aaa", b"b"]))
@example((["bbbb", "a***"], [b"abbbb"]))
@example((["****"], [b"*****x", b"****"]))
def test_no_secret_comes_out_and_cutting_changes_nothing(case: tuple[list[str], list[bytes]]) -> None:
    """Against the plain definition: any secrets, any text, any cut."""
    secrets, parts = case
    text = b"".join(parts)

    shown = masked(secrets, *parts)

    assert shown == plainly(secrets, text)
    assert shown == masked(secrets, text)
    assert not any(form in shown for secret in secrets for form in secret_forms(secret))


@settings(deadline=None)
@given(streams())
def test_only_a_possible_beginning_is_kept_back(case: tuple[list[str], list[bytes]]) -> None:
    """A log that lags behind its job makes people believe that it hangs."""
    secrets, parts = case
    forms = {form for secret in secrets for form in secret_forms(secret)}
    mask = Mask(secrets)

    for part in parts:
        mask.feed(part)
        kept = mask._pending
        assert not kept or any(form.startswith(kept) and form != kept for form in forms)


@settings(deadline=None)
@given(SECRETS, st.binary(max_size=200))
def test_a_text_without_secrets_is_untouched(secrets: list[str], text: bytes) -> None:
    """Also if it looks like a mark, or is no text at all."""
    forms = {form for secret in secrets for form in secret_forms(secret)}
    if not any(form in text for form in forms):
        assert masked(secrets, text) == text


@pytest.mark.parametrize("secret", [SECRET, KEY, "abcd", "x" * 40])
def test_a_secret_is_masked_at_every_split(secret: str) -> None:
    """Pipes cut where they like."""
    text = b"before " + secret.strip().encode() + b" after"

    for cut in range(len(text)):
        assert masked([secret], text[:cut], text[cut:]) == b"before *** after"
    assert masked([secret], *(text[at : at + 1] for at in range(len(text)))) == b"before *** after"


def test_a_secret_across_the_blocks_of_one_large_part_is_masked() -> None:
    """A large part is looked at block by block."""
    for shift in range(-len(SECRET) - 3, 3):
        text = b"-" * (BLOCK_BYTES + shift) + SECRET.encode() + b"-" * BLOCK_BYTES
        assert masked([SECRET], text) == text.replace(SECRET.encode(), b"***")


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "URL": lambda raw: quote(raw).encode(),
    "URL, all": lambda raw: quote(raw, safe="").encode(),
    "form": lambda raw: quote_plus(raw).encode(),
    "URL, lower": lambda raw: re.sub("%..", lambda found: found[0].lower(), quote(raw, safe="")).encode(),
    "JSON": lambda raw: json.dumps(raw.decode()).encode(),
    "JSON, UTF-8": lambda raw: json.dumps(raw.decode(), ensure_ascii=False).encode(),
    "JSON in JSON": lambda raw: json.dumps(json.dumps(raw.decode())).encode(),
    "hex": lambda raw: raw.hex().encode(),
    "hex, upper": lambda raw: raw.hex().upper().encode(),
    "HTML": lambda raw: html.escape(raw.decode()).encode(),
    "XML": lambda raw: html.escape(raw.decode(), quote=False).encode(),
    "bash %q, C": lambda raw: (
        subprocess.run(
            ["bash", "-c", 'printf %q "$0"', raw], capture_output=True, check=True, env={"LC_ALL": "C"}
        ).stdout
    ),
    "shlex": lambda raw: shlex.quote(raw.decode()).encode(),
    "bash -x": lambda raw: subprocess.run(["bash", "-xc", ': "$0"', raw], capture_output=True, check=True).stderr,
    "bash %q": lambda raw: (
        subprocess.run(["bash", "-c", 'printf %q "$0"', raw], capture_output=True, check=True).stdout
    ),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "secret", ['it\'s 100%/of "it"', "plain-token-1234", "a b&c<d>e+f=g", "hé 'b&c<token>'", "two words\nand two lines"]
)
def test_an_encoded_secret_is_masked(encoding: str, secret: str) -> None:
    """What tools print is rarely the bare value."""
    encoded = ENCODINGS[encoding](secret.encode())

    shown = masked([secret], b"x=" + encoded + b";")

    assert b"***" in shown
    assert not any(part in shown for part in (b"100", b"token", b"words", b"lines", b"b&c", b"f=g", b"f%3D"))


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", [b"", b"u", b"us", b"use", b"user:"])
@pytest.mark.parametrize("after", [b"", b"\n", b":x"])
def test_base64_is_masked_wherever_the_secret_stands(
    encode: Callable[[bytes], bytes], before: bytes, after: bytes
) -> None:
    """`user:password` in a Basic header hides the password from a search for its own base64."""
    secret = b"\xc3\xbf~?>secret\xc3\xbe"

    shown = masked([secret.decode()], encode(before + secret + after))

    visible = b"".join(shown.split(b"***"))
    assert b"***" in shown
    assert len(visible) <= len(encode(before)) + len(encode(after)) + 4


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_key_is_masked_whole_and_by_line(end: str) -> None:
    """A tool that indents or cuts a key still shows its lines."""
    lines = KEY.strip().split("\n")

    assert masked([KEY], f"[{end.join(lines)}]".encode()) == b"[***]"
    for line in lines:
        assert masked([KEY], f"  > {line} <".encode()) == b"  > *** <"


@pytest.mark.parametrize("columns", [64, 76])
def test_base64_that_is_broken_into_lines_is_masked(columns: int) -> None:
    """`base64 file` breaks at 76, `openssl` at 64."""
    encoded = base64.b64encode(KEY.encode()).decode()
    lines = [encoded[at : at + columns] for at in range(0, len(encoded), columns)]

    shown = masked([KEY], "\n".join(lines).encode())

    assert len(shown.replace(b"***", b"").replace(b"\n", b"")) <= 4


def test_short_secrets_are_not_masked() -> None:
    """Masking "1" would hide half of every log; so nobody can set one that is so short."""
    mask = Mask(["1", "long enough", "abc", "  x \n"])

    assert mask.feed(b"1 abc x") + mask.flush() == b"1 abc x"


def test_overlapping_secrets_are_masked_together() -> None:
    """Masking only the first would leave the rest of the second."""
    assert masked(["abcdef", "efghij"], b"-abcdefghij-") == b"-***-"
    assert masked(["abcdef", "efghij"], b"-abcdef", b"ghij-") == b"-***-"
    assert masked(["abcd"], b"abcdabcd") == b"******"


def test_a_mask_goes_on_after_a_flush() -> None:
    """A step ends and its output is flushed; the next step has the same secrets."""
    mask = Mask(["secret"])

    assert mask.feed(b"a secr") == b"a "
    assert mask.flush() == b"secr"
    assert mask.feed(b"et secret") + mask.flush() == b"et ***"


def test_masking_is_fast_on_plain_text(record_property: Callable[[str, object], None]) -> None:
    """A log must never be what a job waits for. The bound is a quarter of the goal, for slow machines."""
    secrets = [base64.b85encode(bytes([place, *range(30)])).decode() for place in range(20)]
    text = b"".join(b"2031-05-01T12:00:00Z INFO compiled module %d of 99999 in 12 ms\n" % at for at in range(150_000))
    mask = Mask(secrets)

    start = process_time()
    shown = sum(len(mask.feed(text[at : at + BLOCK_BYTES])) for at in range(0, len(text), BLOCK_BYTES))
    seconds = process_time() - start

    speed = len(text) / seconds / 1e6
    record_property("figure", f"masking: {speed:.0f} MB/s of plain text with {len(secrets)} secrets")
    assert shown + len(mask.flush()) == len(text)
    assert speed > 12.5


def test_a_periodic_secret_costs_no_more_than_its_length() -> None:
    """A secret that overlaps itself must not turn a log into a quadratic puzzle."""
    secret = "ab" * 20_000 + "c"
    text = b"ab" * 500_000

    start = process_time()
    shown = masked([secret], text)

    assert shown == text
    assert process_time() - start < 5
