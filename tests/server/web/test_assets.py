"""The files of the web interface: whole, packed, and asked for in time."""

from __future__ import annotations

import gzip
import re

import pytest

from deltaci.server.web.assets import FOLDER, Assets, packed, takes_gzip
from deltaci.server.web.layout import IMPORTED


@pytest.mark.parametrize(
    ("accepts", "is_taken"),
    [
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, GZIP;q=0.8, *;q=0.1", True),
        ("gzip;q=0.001", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, br", False),
        ("br, notgzip", False),
        ("identity", False),
        ("", False),
    ],
)
def test_a_file_is_packed_only_for_who_can_unpack_it(accepts: str, is_taken: bool) -> None:
    """A browser says so in its own words."""
    assert takes_gzip(accepts) is is_taken


def test_what_is_packed_is_the_same_file() -> None:
    """And smaller."""
    assets = Assets()
    for path in FOLDER.iterdir():
        found = assets.find(assets.address(path.name))
        assert found is not None
        asset, is_current = found
        assert is_current
        assert asset.body == path.read_bytes()
        assert not asset.packed or (gzip.decompress(asset.packed) == asset.body and len(asset.packed) < len(asset.body))


@pytest.mark.parametrize(
    ("accepts", "site", "is_packed"),
    [
        ("gzip", "same-origin", True),
        ("gzip", "none", True),
        ("br", "same-origin", False),
        ("gzip", "cross-site", False),
        ("gzip", "same-site", False),
        ("gzip", "", False),
    ],
)
def test_a_page_is_packed_only_when_no_other_site_asked_for_it(accepts: str, site: str, is_packed: bool) -> None:
    """Another site could make a browser ask again and again, and learn what a form carries from the size."""
    page = b"<p>a page</p>" * 1000

    found = packed(page, accepts, site)

    assert (found is not None) is is_packed
    assert found is None or gzip.decompress(found) == page
    assert packed(b"<p>small</p>", accepts, site) is None


def test_an_address_of_another_build_is_not_kept() -> None:
    """A page of an older server still gets its scripts, and asks for them again next time."""
    assets = Assets()

    found = assets.find("/assets/0123456789abcdef/page.js")

    assert found is not None
    assert not found[1]
    assert assets.find(f"/assets/{assets.build}/../app.py") is None


def _imports(name: str) -> set[str]:
    """What a module needs, and what that needs."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    found = set(re.findall(r'from "\./([a-z_]+\.js)"', text))
    return found.union(*(_imports(each) for each in found))


def test_a_page_asks_for_its_modules_all_at_once() -> None:
    """Otherwise a browser finds out about each only when it has read the one before."""
    assert set(IMPORTED) == _imports("page.js")


def test_every_module_that_is_imported_is_there() -> None:
    """No page finds out first."""
    for path in FOLDER.glob("*.js"):
        assert all((FOLDER / each).exists() for each in _imports(path.name)), path.name
