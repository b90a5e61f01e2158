"""The fixtures of the web interface's cases. One house stands for all of them; each case has runs of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.browsing import Person, browsers
from tests.browser.house import House
from tests.browser.scene import Scene


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server and a runner; each process of pytest-xdist has its own."""
    house = House(tmp_path_factory.mktemp("house")).open()
    yield house
    house.close()


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A house in which everything happens that pages show, to be looked at and left as it is."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    try:
        yield scene.open()
    finally:
        scene.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    with browsers() as browser:
        yield browser


@pytest.fixture
def visitor(browser: Browser, house: House) -> Iterator[Callable[..., Person]]:
    """Opens a browser for somebody who is not signed in: `visitor(color_scheme="dark")`."""
    people: list[Person] = []

    def open(of: House = house, **context: Any) -> Person:
        people.append(Person(browser, of, **context))
        return people[-1]

    yield open
    for person in people:
        person.context.close()


@pytest.fixture
def ada(visitor: Callable[..., Person], house: House) -> Person:
    """Somebody who may do everything, signed in before; no page is open yet."""
    return visitor().let_in(house.key("ada"))
