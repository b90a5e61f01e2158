"""A browser, and somebody who is signed in before it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults  # type: ignore[import-untyped]
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.house import House

PATIENCE_MS: Final = 120_000
expect.set_options(timeout=PATIENCE_MS)  # A machine may be busy with other things.
WORDS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
# WCAG 2.2 AA and below, and what axe calls good practice.
STANDARDS: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CONTRAST: Final = "color-contrast"  # It takes ten times as long as all other rules together.
AXE: Final = {"runOnly": STANDARDS, "rules": {CONTRAST: {"enabled": False}}, "resultTypes": ["violations"]}
AXE_WITH_CONTRAST: Final = {"runOnly": STANDARDS, "resultTypes": ["violations"]}
AXE_CONTRAST: Final = {"runOnly": [CONTRAST], "resultTypes": ["violations"]}
RUN_AXE: Final = "async (options) => (await axe.run(options)).violations"
WIDTHS: Final = ((360, 740), (1280, 800))
LARGE: Final = (3840, 2160)  # Only where pages are looked at and nothing is done: without a GPU its pictures take long.


def executable() -> str:
    """The Chromium that scripts/programs finds."""
    script = Path(__file__).parents[2] / "scripts" / "programs"
    return subprocess.run([script, "browser"], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def browsers() -> Iterator[Browser]:
    """A browser that has seen nothing. Open it for a module, not for longer: other tests need the loop it takes."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(WORDS))
        yield browser
        browser.close()


class Person:
    """Somebody before a browser of their own. Whatever the browser complains about is kept, and is a failure."""

    def __init__(self, browser: Browser, house: House, **context: Any) -> None:
        self.house = house
        self.complaints: list[str] = []
        # Without a GPU, a sign that turns costs CPU for as long as its page is open.
        options: dict[str, Any] = {"reduced_motion": "reduce", **context}
        self.context: BrowserContext = browser.new_context(base_url=house.url, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.new_page()

    def new_page(self) -> Page:
        """Another tab."""
        page = self.context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def sign_in(self, key: str) -> Person:
        """By the form, as people do."""
        self.page.goto("/sign-in")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in", exact=True).click()
        self.page.wait_for_url("**/runs")
        return self

    def let_in(self, key: str) -> Person:
        """Signed in before, as somebody who comes back: no page is looked at, so nothing is in the browser's cache."""
        cookies = self.house.sign_in(key)
        self.context.add_cookies(
            [{"name": name, "value": each, "url": self.house.url} for name, each in cookies.items()]
        )
        return self

    def go(self, path: str) -> Page:
        """Look at a page, until it says that it is live."""
        answer = self.page.goto(path)
        assert answer is not None
        assert answer.ok, f"{path}: {answer.status}"
        return self.page

    def check(self, *, is_accessible: bool = True, has_contrast: bool = False) -> None:
        """Fail if axe finds a violation on this page or the browser reported an error.

        The contrast of colors, in the light and the dark scheme, is checked only where asked for, which is for every
        page in test_every_page.py and for dialogs, messages and refused fields where they are tested.
        """
        if has_contrast:
            self._check_by_axe("light", AXE_WITH_CONTRAST)
            self._check_by_axe("dark", AXE_CONTRAST)
        elif is_accessible:
            self._check_by_axe("light", AXE)
        assert self.complaints == [], self.complaints

    def _check_by_axe(self, scheme: Literal["light", "dark"], rules: dict[str, Any]) -> None:
        self.page.emulate_media(color_scheme=scheme)
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        violations = self.page.evaluate(RUN_AXE, rules)
        if violations:
            report = AxeResults({"violations": violations}).generate_report()
            pytest.fail(f"{self.page.url} in {scheme}: {report}")

    def check_fits(self, *more: tuple[int, int]) -> None:
        """At every width: nothing is cut off, and nobody has to scroll sideways."""
        before = self.page.viewport_size
        for width, height in (*WIDTHS, *more):
            self.page.set_viewport_size({"width": width, "height": height})
            wide = self.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{self.page.url} is {wide} px wide at {width}"
        if before is not None:
            self.page.set_viewport_size(before)
