"""`deltaci web`: a link for whoever operates a server on this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.terminal import Terminal
from tests.support.plain_http import NO_TLS

BROWSER = """
import sys, urllib.request
open(sys.argv[0] + ".seen", "wb").write(urllib.request.urlopen(sys.argv[1]).read())
"""


def entered(terminal: Terminal, link: str) -> httpx.Response:
    """The page that somebody sees who follows the link."""
    address, _, token = link.strip().partition("#token=")
    with httpx.Client(verify=NO_TLS, base_url=terminal.hosted.url, trust_env=False, timeout=30) as http:
        assert address == f"{terminal.hosted.url}/sign-in"
        answer = http.post("/sign-in", data={"key": token}, headers={"Origin": terminal.hosted.url})
        assert answer.status_code == 303, answer.text
        return http.get("/runs")


def test_the_link_signs_in_as_who_sits_here(terminal: Terminal) -> None:
    """Also with somebody's key in the environment: the link is the operator's own."""
    assert "<strong>ada</strong> to <strong>default</strong>" in entered(terminal, terminal.text("web", "--print")).text
    link = terminal.text("web", "--print", "--tenant", "team", DELTACI_KEY="dck_x")
    assert "<strong>ada</strong> to <strong>team</strong>" in entered(terminal, link).text


def test_a_browser_is_given_a_file_that_only_we_can_read(terminal: Terminal, tmp_path: Path) -> None:
    """What a program is started with, everybody on the machine can read; and without a browser it is said."""
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)

    with terminal.program("web", env={"BROWSER": f"{sys.executable} {browser} %s", "USER": "ada"}) as opened:
        printed = opened.communicate(timeout=60)[0].decode()

    assert opened.returncode == 0
    [link] = re.findall(r"url=([^\"]+)\"", (tmp_path / "browser.py.seen").read_text())
    assert printed.strip() == link
    assert entered(terminal, link).status_code == 200
    assert (terminal.folder / ".state" / "web.html").stat().st_mode & 0o777 == 0o600

    alone = terminal.deltaci("web", BROWSER="none-such-browser", PATH="", DISPLAY="")
    assert alone.exit_code == 0
    assert "no browser found" in alone.stderr


@pytest.mark.parametrize(
    ("code", "words", "why"),
    [
        (4, ("--data", "nowhere"), "no server key in nowhere"),
        (4, ("--server", "https://ci.example.org"), "open https://ci.example.org/sign-in and sign in with an API key"),
        (2, ("--server", "here"), "is not a server URL"),
        (2, ("--tenant", "ä"), "--tenant has 1 to 200 printable ASCII"),
        (5, ("--server", "http://127.0.0.1:1"), "cannot be reached"),
    ],
)
def test_where_there_is_no_such_server_it_says_what_to_do(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, code: int, words: tuple[str, ...], why: str
) -> None:
    """One line, and nothing is printed that could be mistaken for a link."""
    monkeypatch.setattr("deltaci.cli.commands.web.PATIENCE_SECONDS", 0.0)

    assert why in terminal.refused(code, "web", "--print", *words)


def test_a_key_that_is_not_the_servers_makes_no_link(terminal: Terminal, tmp_path: Path) -> None:
    """It would open nothing."""
    (tmp_path / "server.key").write_bytes(b"k" * 32)

    assert "token was not signed by this server" in terminal.refused(
        4, "web", "--data", str(tmp_path), "--server", terminal.hosted.url
    )
