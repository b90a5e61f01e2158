"""What holds for every page, whatever it shows: taken from the table of addresses, so that none can be forgotten."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, Request

from deltaci.server.web.page_route import PageRoute
from deltaci.server.web.routes import PAGES
from tests.browser import pictures
from tests.browser.browsing import LARGE, Person
from tests.browser.scene import Scene

MAX_BYTES: Final = 100_000  # Of the first view: the page and all that it loads.
MAX_REQUESTS: Final = 25
# Addresses that show no page: what they are instead.
OTHERWISE: Final = {
    "/": "the way to the runs",
    "/live": "a stream of hints",
    "/runs/{run}/events.jsonl": "a file",
    "/let-in": "a redirect to /runners/new",
    "/sign-in/oidc": "the way to an issuer",
    "/sign-in/oidc/back": "the way back from it",
}
SHOWN: Final = [each for each in PAGES if each.path not in OTHERWISE and (each.get or each.enter)]

# Whoever goes through a page by Tab sees where they are, comes by everything, and gets out again.
TABBED: Final = """
() => {
  const here = document.activeElement;
  if (!here || here === document.body) return null;
  const style = getComputedStyle(here);
  const box = here.getBoundingClientRect();
  const isSeen = box.width > 0 && box.height > 0;
  const isThick = (each) => parseFloat(getComputedStyle(each).strokeWidth) >= 2;
  const isDrawn = here.ownerSVGElement && [...here.querySelectorAll("rect")].some(isThick);
  const isMarked = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || isDrawn;
  window.reached ??= new Set();
  window.reached.add(here);
  return { name: `${here.localName} ${here.id} ${here.textContent.trim().slice(0, 40)}`, isSeen, isMarked };
}
"""
LEFT_OUT: Final = """
() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
  .filter((each) => each.checkVisibility({ visibilityProperty: true }) && !each.disabled)
  .filter((each) => each.tabIndex >= 0 && each.type !== "radio" && !window.reached.has(each))
  .map((each) => each.outerHTML.slice(0, 120))
"""
# What is wider than the page, the innermost of it.
WIDE: Final = """
() => [...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".skip, .main-nav"))
  .map((each) => each.outerHTML.slice(0, 150)).slice(-3)
"""
# WCAG 1.4.12: nothing may be lost when somebody needs more space between letters, words and lines.
SPACED: Final = """
() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("* { line-height: 1.5 !important; letter-spacing: .12em !important;" +
    "word-spacing: .16em !important } p { margin-bottom: 2em !important }");
  document.adoptedStyleSheets.push(sheet);
}
"""


@pytest.fixture(scope="module")
def somebody(browser: Any, scene: Scene) -> Iterator[Person]:
    """Who looks at all of them, one after the other, as people do."""
    person = Person(browser, scene.house).let_in(scene.house.key("ada"))
    yield person
    person.context.close()


def address(route: PageRoute, ids: dict[str, str]) -> str:
    """Where an example of it is. A new word in an address needs an example in scene.py."""
    return re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], route.path)


@pytest.mark.parametrize("route", SHOWN, ids=lambda route: route.path)
def test_every_page(route: PageRoute, scene: Scene, somebody: Person, visitor: Callable[..., Person]) -> None:
    """It is there, small, alone, sound, and for everybody."""
    path = address(route, scene.ids)
    _is_small_and_alone(visitor(of=scene.house), scene, path)
    somebody.complaints.clear()
    page = somebody.go(path)
    try:
        _is_well_formed(page)
        somebody.check(has_contrast=True)
        somebody.check_fits(LARGE)
        _can_be_walked_through(page)
        _has_room(page)
    finally:
        page.emulate_media(color_scheme=None, reduced_motion=None)
    somebody.check(is_accessible=False)


def _is_small_and_alone(person: Person, scene: Scene, path: str) -> None:
    """For somebody whose browser has seen nothing yet, also when it is not signed in."""
    if not path.startswith("/sign-in"):
        person.let_in(scene.house.key("ada"))
    requests: list[Request] = []
    person.page.on("requestfinished", lambda request: requests.append(request))  # noqa: PLW0108
    person.page.goto(path, wait_until="load")
    person.page.locator("h1").wait_for()
    first = [each for each in requests if "delta-live" not in each.headers]
    sizes = {each.url: sum(each.sizes()[key] for key in ("responseBodySize", "responseHeadersSize")) for each in first}
    assert all(url.startswith(scene.house.url) for url in sizes), sizes
    assert sum(sizes.values()) < MAX_BYTES, sizes
    assert len(sizes) <= MAX_REQUESTS, sizes
    assert person.complaints == []


def _is_well_formed(page: Page) -> None:
    """A title, one heading of the first level, and no level left out."""
    found = page.evaluate("""() => ({
      title: document.title,
      levels: [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
        .filter((each) => !each.closest("dialog")).map((each) => Number(each.localName[1])),
      ids: [...document.querySelectorAll("[id]")].map((each) => each.id),
      tabs: [...document.querySelectorAll("[tabindex]")].filter((each) => each.tabIndex > 0).length,
      styled: document.querySelectorAll("main [style]:not([data-keep] *)").length,
    })""")
    assert found["title"].endswith("· Delta CI")
    assert found["levels"].count(1) == 1, found["levels"]
    assert all(b - a <= 1 for a, b in zip(found["levels"], found["levels"][1:], strict=False)), found["levels"]
    assert len(found["ids"]) == len(set(found["ids"])), sorted(found["ids"])
    assert found["tabs"] == 0


def _can_be_walked_through(page: Page) -> None:
    """By Tab alone: everything is reached, and whoever is there sees where."""
    page.evaluate("window.reached = new Set(); document.querySelector('.skip').focus()")
    for _ in range(300):
        here = page.evaluate(TABBED)
        if here is None:
            break
        assert here["isSeen"], here
        assert here["isMarked"], here
        page.keyboard.press("Tab")
    else:
        pytest.fail(f"{page.url}: Tab does not come to an end")
    assert page.evaluate(LEFT_OUT) == []


def _has_room(page: Page) -> None:
    """For more space in the text, at 320 px (1280 px at 400 %), and nothing moves for those who do not want that."""
    page.emulate_media(reduced_motion="reduce")
    moving = page.evaluate("document.getAnimations().filter((each) => each.playState === 'running').length")
    assert moving == 0, page.url
    before = page.viewport_size
    page.set_viewport_size({"width": 320, "height": 640})
    for name, then in (("320 px", "() => 0"), ("more space in the text", SPACED)):
        page.evaluate(then)
        if page.evaluate("document.documentElement.scrollWidth") > 320:
            pytest.fail(f"{page.url} does not fit with {name}: {page.evaluate(WIDE)}")
    page.set_viewport_size(before or {"width": 1280, "height": 720})


def test_every_other_address_is_known() -> None:
    """What is left out of this is named, and is there."""
    paths = {page.path for page in PAGES if page.get or page.enter}

    assert {*OTHERWISE} - paths <= {"/sign-in/oidc", "/sign-in/oidc/back"}


# -- the pictures of the README: here, because they show the same scene


def test_pictures_are_made(scene: Scene, visitor: Callable[..., Person], tmp_path: Path) -> None:
    """Each of a page with something on it, small enough for a README."""
    folder = pictures.FOLDER if os.environ.get("PICTURES") else tmp_path
    folder.mkdir(exist_ok=True)
    ada = visitor(of=scene.house, viewport={"width": pictures.WIDTH, "height": pictures.HEIGHT}).let_in(
        scene.house.key("ada")
    )
    blank = ada.context.new_page()
    ada.page.bring_to_front()

    for name, scheme in pictures.PICTURES.items():
        ada.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page = pictures.shown(ada, name, scene.ids)
        picture = pictures.packed(blank, page.screenshot())
        (folder / f"{name}.png").write_bytes(picture)

        assert struct.unpack(">II", picture[16:24]) == (pictures.WIDTH, pictures.HEIGHT)
        assert 8_000 < len(picture) <= pictures.MAX_BYTES, f"{name}: {len(picture)} bytes"
    ada.check(is_accessible=False)


def test_the_readme_shows_them() -> None:
    """Nothing that is shown is missing, and nothing is kept that nobody sees."""
    readme = (pictures.ROOT / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"docs/images/(web-[a-z]+)\.png", readme))

    assert shown == set(pictures.PICTURES)
    for name in shown:
        picture = (pictures.FOLDER / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(picture) <= pictures.MAX_BYTES
