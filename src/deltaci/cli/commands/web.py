"""`deltaci web`: open the web interface of a server on this machine, signed in by a link."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from html import escape
from pathlib import Path
from typing import Annotated, Final

import typer

from deltaci.cli.session import (
    KEY_FILE,
    NOT_ALLOWED,
    PATIENCE_SECONDS,
    CaOption,
    DataOption,
    ServerOption,
    TenantOption,
    fail,
    person,
    reported,
)
from deltaci.client import server_address
from deltaci.client.blocking import Client
from deltaci.client.retry import Patience
from deltaci.server.auth.credentials import Signer, is_tenant_name, load_server_key

app = typer.Typer(add_completion=False)

LINK_SECONDS: Final = 600
CHECK_SECONDS: Final = 60
DOOR_FILE: Final = "web.html"
NO_KEY: Final = (
    "no server key in {folder}: run this in the folder of the server, or name it with --data. Elsewhere, open "
    "{url}/sign-in and sign in with an API key from 'deltaci key create NAME'"
)


def signed_link(url: str, folder: Path, tenant: str) -> str:
    """A link that signs in whoever can read the server's key. Good for minutes; what follows # is never sent."""
    return f"{url}/sign-in#token={_signer(folder).sign('enter', person(), tenant, LINK_SECONDS)}"


def _signer(folder: Path) -> Signer:
    return Signer(load_server_key(folder / KEY_FILE), time.time)


@app.command("web")
def web_command(
    is_printed: Annotated[bool, typer.Option("--print", help="Print the link without opening a browser.")] = False,
    server: ServerOption = None,
    data: DataOption = None,
    tenant: TenantOption = "default",
    ca: CaOption = None,
) -> None:
    """Open the web interface of a server on this machine, signed in, and print the link.

    The link expires in ten minutes, the session in twelve hours. Anyone with the link can sign in as the operator.

    Example:

      deltaci web --print
    """
    with reported("web"):
        folder = data or server_address.DATA_FOLDER
        url = server_address.checked_url(server or server_address.server_url(folder))
        is_meant = data is not None or server_address.is_at_home(url, folder)
        if not is_meant or not os.access(folder / KEY_FILE, os.R_OK):
            fail("web", NO_KEY.format(folder=folder, url=url), NOT_ALLOWED)
        if not is_tenant_name(tenant):
            raise ValueError("--tenant has 1 to 200 printable ASCII characters")
        _check_fits(url, folder, tenant, ca)
        link = signed_link(url, folder, tenant)
        print(link, flush=True)
        if not is_printed and not _is_opened(link, folder):
            print("no browser found; open the link in a browser on this machine", file=sys.stderr)


def _check_fits(url: str, folder: Path, tenant: str, ca: Path | None) -> None:
    """The server is there, and the key is its own."""
    token = _signer(folder).sign("operate", person(), tenant, CHECK_SECONDS)
    with Client(url, token, ca=ca, patience=Patience(give_up_seconds=PATIENCE_SECONDS)) as client:
        client.me()


def _is_opened(link: str, folder: Path) -> bool:
    """By a file that only we can read: what a program is started with, everybody on the machine can."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    path = folder / DOOR_FILE
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        file.write(
            f'<!doctype html><title>Delta CI</title><meta http-equiv="refresh" content="0;url={escape(link)}">\n'
        )
    return browser.open(path.resolve().as_uri())
