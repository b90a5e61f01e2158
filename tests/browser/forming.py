"""What cases about forms have in common."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.browser.browsing import Person

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"&amp;"


def refused(person: Person, label: str, says: str) -> Locator:
    """The page says no at this field, which has the focus; what the browser says about the answer is expected."""
    field = person.page.get_by_label(label, exact=True)
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    described = field.get_attribute("aria-describedby") or ""
    expect(person.page.locator(f"[id='{described.split()[0]}']")).to_contain_text(says)
    expected(person, 422)
    return field


def expected(person: Person, status: int) -> None:
    """A browser complains about a page that is an answer of this status: that is as it should be."""
    assert any(f"status of {status}" in complaint for complaint in person.complaints), person.complaints
    person.complaints[:] = [complaint for complaint in person.complaints if f"status of {status}" not in complaint]


def said(page: Page, text: str) -> None:
    """The page says on top what was done."""
    expect(page.locator("#said")).to_contain_text(text)


def is_text(page: Page, what: Locator) -> None:
    """A hostile name is there, as text, and nothing came of it."""
    expect(what).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
