"""The web interface as a browser without scripts sees it: real HTTP, cookies, forms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from html import unescape
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from deltaci.api.routes import ROOT
from deltaci.app import HttpListener, Server
from deltaci.server.web import routes
from deltaci.server.web.components import hidden
from deltaci.server.web.markup import form
from deltaci.server.web.page_request import HtmlPage, PageRequest, PageResponse, Redirect
from deltaci.server.web.page_route import PageRoute
from deltaci.storage import open_store
from tests.support.plain_http import NO_TLS

WAIT_SECONDS: Final = 30.0
TENANT: Final = "default"
_CSRF: Final = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Reader:
    """One browser. It says where its forms come from, keeps cookies, and follows nothing by itself."""

    def __init__(self, site: PagesSite) -> None:
        self.site = site
        self.http = httpx.AsyncClient(verify=NO_TLS, base_url=site.url, timeout=WAIT_SECONDS, trust_env=False)
        self.csrf = ""

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """Look at a page; its forms' token is remembered."""
        told = {"Accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
        answer = await self.http.get(path, headers=told)
        if found := _CSRF.search(answer.text):
            self.csrf = found[1]
        return answer

    async def post(self, path: str, fields: dict[str, str], headers: dict[str, str] | None = None) -> httpx.Response:
        """Send a form, as a page of ours does unless the headers say otherwise."""
        return await self.http.post(
            path, data=fields, headers={"Origin": self.site.url} if headers is None else headers
        )

    async def sign_in(self, key: str, **fields: str) -> httpx.Response:
        """By the form."""
        return await self.post("/sign-in", {"key": key, **fields})

    async def send(self, path: str, **fields: str) -> httpx.Response:
        """Send a form with the token of the page that was seen last."""
        return await self.post(path, {"csrf": self.csrf, **fields})

    def cookie(self, name: str = "deltaci_session") -> str:
        """What the browser keeps under this name."""
        return self.http.cookies.get(name) or ""

    def set_cookie(self, value: str, name: str = "deltaci_session") -> None:
        """As somebody does who means no good."""
        self.http.cookies.clear()
        self.http.cookies.set(name, value, domain="127.0.0.1", path="/")


class PagesSite:
    """One server that runs."""

    def __init__(self, service: Server, url: str, folder: Path) -> None:
        self.service = service
        self.url = url
        self.folder = folder
        self._readers: list[Reader] = []
        self._api = httpx.AsyncClient(verify=NO_TLS, base_url=f"{url}{ROOT}", timeout=WAIT_SECONDS, trust_env=False)

    def reader(self) -> Reader:
        """Another browser."""
        self._readers.append(Reader(self))
        return self._readers[-1]

    async def signed_in(self, *scopes: str, tenant: str = TENANT, person: str = "ada") -> Reader:
        """Another browser, with somebody signed in who has a page before them."""
        reader = self.reader()
        assert (await reader.sign_in(await self.key(*scopes, tenant=tenant, person=person))).status_code == 303
        await reader.get("/runs")
        return reader

    def operator(self, tenant: str = TENANT, seconds: float = 3600) -> str:
        """The token of who runs the server."""
        return self.service.signer.sign("operate", "root", tenant, seconds)

    async def key(self, *scopes: str, tenant: str = TENANT, person: str = "ada", **fields: Any) -> str:
        """A new API key."""
        asked = {"person": person, "scopes": list(scopes or ("admin",)), **fields}
        return str((await self.api("POST", "/keys", asked, tenant))["token"])

    async def api(self, method: str, path: str, body: Any = None, tenant: str = TENANT) -> Any:
        """Ask the API, as the operator."""
        headers = {"Authorization": f"Bearer {self.operator(tenant)}"}
        answer = await self._api.request(method, path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json()

    async def revoke(self, key: str, tenant: str = TENANT) -> None:
        """Let nobody in with it any more."""
        await self.api("POST", f"/keys/{key.split('_')[1]}/revoke", tenant=tenant)

    def later(self, seconds: float) -> None:
        """So much time passes, for everything that ends by itself."""
        signer = self.service.signer
        clock = signer._clock
        signer._clock = lambda: clock() + seconds

    async def close(self) -> None:
        """All browsers."""
        for reader in self._readers:
            await reader.http.aclose()
        await self._api.aclose()


@asynccontextmanager
async def pages(folder: Path, **options: Any) -> AsyncIterator[PagesSite]:
    """A server, listening, until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Server(open_store("memory:"), folder, **options) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        site = PagesSite(service, listener.url, folder)
        try:
            yield site
        finally:
            await site.close()
            listener.stop()
            await asyncio.wait_for(serving, WAIT_SECONDS)


class Probe:
    """A page of the test's own at /probe: its form does something that can be seen, and it breaks when told to."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def get(self, visit: PageRequest) -> PageResponse:
        """A form, or an accident."""
        if "break" in visit.query:
            raise RuntimeError("an accident of the test's own")
        return HtmlPage(title="Probe", body=form(hidden(visit), method="post", action="/probe"))

    async def post(self, visit: PageRequest) -> PageResponse:
        """Something that changes."""
        self.done.append(visit.who.tenant)
        return Redirect(to=visit.field("to", "/probe"), said=visit.field("said", "done"))


@contextmanager
def probing() -> Iterator[Probe]:
    """The page is there until the end of the block."""
    probe = Probe()
    before = routes._BY_PARTS
    route = PageRoute(path="/probe", get=probe.get, post=probe.post)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "_BY_PARTS", (*before, (("probe",), route)))
        routes._find.cache_clear()
        try:
            yield probe
        finally:
            routes._find.cache_clear()


def said(answer: httpx.Response) -> str:
    """What a page says on top, or what the next one will."""
    told = httpx.Cookies()
    told.extract_cookies(answer)
    for name in ("deltaci_said", "__Host-deltaci_said"):
        if found := told.get(name):
            return httpx.QueryParams(f"x={found}")["x"]
    return unescape(" ".join(re.findall(r'class="said[^>]*>(.*?)</p>', answer.text)))
