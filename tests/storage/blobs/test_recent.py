"""The newest cache by the beginning of its key."""

from __future__ import annotations

from deltaci.storage.blobs.keys import cache_key, newest_cache, remember_cache
from deltaci.storage.blobs.memory import MemoryBlobStore

LONG = "k-" + "ü" * 100


def kept(*keys: str, scope: str = "") -> MemoryBlobStore:
    """Caches that were kept one after the other."""
    blobs = MemoryBlobStore()
    for at, key in enumerate(keys):
        blobs.put(cache_key("t", scope, key), b"x")
        remember_cache(blobs, "t", scope, key, at)
    return blobs


def test_the_last_one_that_begins_so_is_found() -> None:
    blobs = kept("k-2", "k-1", "other", "k!1", "k-3", "k-0")

    assert newest_cache(blobs, "t", "", "k-") == "k-0"
    assert newest_cache(blobs, "t", "", "k") == "k-0"
    assert newest_cache(blobs, "t", "", "k-3") == "k-3"
    assert newest_cache(blobs, "t", "", "k!") == "k!1"
    assert newest_cache(blobs, "t", "", "") == "k-0"


def test_only_of_this_scope_and_tenant_and_only_what_is_there() -> None:
    blobs = kept("a-1", "a-2")
    blobs.delete(cache_key("t", "", "a-2"))

    assert newest_cache(blobs, "t", "", "a-") == "a-1"
    assert newest_cache(blobs, "t", "fork", "a-") == ""
    assert newest_cache(blobs, "u", "", "a-") == ""


def test_a_long_key_is_found_by_any_beginning() -> None:
    """Its name in the store is cut; the key that is answered is whole."""
    blobs = kept(LONG, f"{LONG}x", f"{LONG}y")

    assert newest_cache(blobs, "t", "", "k-") == f"{LONG}y"
    assert newest_cache(blobs, "t", "", f"{LONG}x") == f"{LONG}x"
    assert newest_cache(blobs, "t", "", f"{LONG}z") == ""
