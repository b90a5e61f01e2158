"""The page of the administrative log."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import httpx

from tests.contract.backends import on_loop
from tests.server.web.pages import pages


def text_of(answer: httpx.Response) -> str:
    """Return the text of a page."""
    return unescape(re.sub(r"<[^>]+>", "", answer.text))


@on_loop
async def test_administrators_see_who_changed_what(tmp_path: Path) -> None:
    """With the fields that changed; the navigation leads there only whom the page would tell something."""
    async with pages(tmp_path) as site:
        for description in ("first", "second"):
            body = {"url": "https://example.org/shop.git", "description": description}
            await site.api("PUT", "/projects/shop", body)
        await site.api("PUT", "/secrets/TOKEN", {"value": "hunter2"})
        admin, reader = await site.signed_in("admin"), await site.signed_in("read", person="bob")

        page, home, other = (
            await admin.get("/audit?kind=project"),
            await reader.get("/runs"),
            await reader.get("/audit"),
        )
        every = await admin.get("/audit")

        text = text_of(page)
        assert "description: first → second" in text
        assert "root" in text
        assert "TOKEN" not in text
        assert "TOKEN" in text_of(every)
        assert "hunter2" not in every.text
        assert 'href="/audit"' in every.text
        assert 'href="/audit"' not in home.text
        assert other.status_code == 403
        assert "No change matches" in (await admin.get("/audit?name=none")).text
