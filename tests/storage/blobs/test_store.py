"""The contract of every store of blobs. A new one joins by a name in STORES and a case in `blobs`."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.storage.blobs.memory import MemoryBlobStore
from deltaci.storage.blobs.s3 import open_s3
from deltaci.storage.blobs.store import MAX_LISTED, BlobEntry, BlobStat, BlobStore, FolderBlobStore
from tests.storage.blobs.s3 import S3

STORES = ("folder", "memory", "s3")
BAD_KEYS = ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\nb", "\ud800", "x" * 201, "x/" * 450 + "x"]


@pytest.fixture(params=STORES)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """An empty store that takes blobs of up to 1000 bytes."""
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        return open_s3(s3.url(), max_bytes=1000)
    return (
        FolderBlobStore(tmp_path / "blobs", max_bytes=1000)
        if request.param == "folder"
        else MemoryBlobStore(max_bytes=1000)
    )


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Broken(io.BytesIO):
    """A source that breaks off."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell():
            raise ConnectionResetError("gone")
        return super().read(3)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_bad_key_is_refused_everywhere(blobs: BlobStore, key: str) -> None:
    """A key comes from a job's file names, among others."""
    for act in (
        lambda: blobs.put(key, b"x"),
        lambda: blobs.put_if_absent(key, b"x"),
        lambda: blobs.get(key),
        lambda: blobs.stat(key),
        lambda: blobs.delete(key),
    ):
        with pytest.raises(Refused) as refused:
            act()
        assert refused.value.code == "bad_request"


def test_what_is_not_there_is_told(blobs: BlobStore) -> None:
    """Also by those who look at a store that was never written to."""
    with pytest.raises(Refused) as refused:
        blobs.get("a")

    assert refused.value.code == "not_found"
    assert (blobs.stat("a"), blobs.list(), blobs.delete("a")) == (None, [], False)


def test_too_much_is_refused_and_nothing_changes(blobs: BlobStore) -> None:
    """What was there stays there."""
    blobs.put("a", b"old")

    for source in (b"x" * 1001, io.BytesIO(b"x" * 1001)):
        with pytest.raises(Refused) as refused:
            blobs.put("a", source)
        assert refused.value.code == "too_large"

    assert blobs.get("a") == b"old"


def test_a_source_that_breaks_off_changes_nothing(blobs: BlobStore) -> None:
    """Half a blob is worse than none."""
    blobs.put("a", b"old")

    for key in ("a", "b"):
        with pytest.raises(ConnectionResetError):
            blobs.put(key, Broken(b"new bytes"))
    with pytest.raises(ConnectionResetError):
        blobs.put_if_absent("b", Broken(b"new bytes"))

    assert blobs.get("a") == b"old"
    assert blobs.list() == [BlobEntry("a", 3)]


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, -1)])
def test_no_one_reads_before_the_beginning(blobs: BlobStore, offset: int, limit: int) -> None:
    """A negative number would mean something else to each store."""
    blobs.put("a", b"abc")

    with pytest.raises(Refused):
        blobs.get("a", offset, limit)


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 1000, bytes(range(256))])
def test_what_was_put_is_got(blobs: BlobStore, content: bytes) -> None:
    """From bytes or from a file, with its size and checksum."""
    stored = BlobStat(len(content), sha256(content))

    assert blobs.put("a/b", content) == stored
    assert blobs.put("a/c", io.BytesIO(content)) == stored
    assert blobs.get("a/b") == blobs.get("a/c") == content
    assert blobs.stat("a/b") == blobs.stat("a/c") == stored


def test_a_part_is_read_by_offset_and_limit(blobs: BlobStore) -> None:
    """Beyond the end there is nothing, and nothing of the store's own."""
    blobs.put("a", b"0123456789")

    assert blobs.get("a", 3, 4) == b"3456"
    assert blobs.get("a", 8, 100) == b"89"
    assert blobs.get("a", 10, 5) == blobs.get("a", 99) == blobs.get("a", 0, 0) == b""


def test_a_second_put_replaces_the_first(blobs: BlobStore) -> None:
    """All of it, also if it is shorter."""
    blobs.put("a", b"long content")
    blobs.put("a", b"short")

    assert (blobs.get("a"), blobs.stat("a")) == (b"short", BlobStat(5, sha256(b"short")))


def test_only_the_first_put_if_absent_counts(blobs: BlobStore) -> None:
    """A cache is written once; whoever was later uses what is there."""
    assert blobs.put_if_absent("a", b"") == BlobStat(0, sha256(b""))
    assert blobs.put_if_absent("a", b"") is None
    assert blobs.put_if_absent("a", b"other") is None
    assert blobs.get("a") == b""


def test_of_many_at_once_exactly_one_is_first(blobs: BlobStore) -> None:
    """Two runners finish with the same key in the same moment."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: blobs.put_if_absent("a/b", b"%d" % number), range(40)))

    [winner] = [number for number, answer in enumerate(answers) if answer is not None]
    assert blobs.get("a/b") == b"%d" % winner


def test_readers_see_whole_blobs_while_they_are_replaced(blobs: BlobStore) -> None:
    """Old or new, never a mixture, never nothing."""
    contents = [bytes([digit]) * (100 + digit) for digit in range(8)]
    blobs.put("a", contents[0])

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(blobs.put, "a", content) for content in contents * 5]
        seen = {blobs.get("a") for _ in range(200)}
        assert all(each.result() for each in writing)

    assert seen <= set(contents)


def test_writers_and_deleters_do_not_trip_over_each_other(blobs: BlobStore) -> None:
    """A folder that becomes empty must not take a blob with it that just arrives."""

    def come_and_go(number: int) -> bool:
        blobs.put(f"a/b/{number}", b"x")
        return blobs.delete(f"a/b/{number}")

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(come_and_go, range(60)))
    assert blobs.list() == []


def test_a_blob_is_forgotten_once(blobs: BlobStore) -> None:
    """A repeat is no error."""
    blobs.put("a/b", b"x")

    assert (blobs.delete("a/b"), blobs.delete("a/b"), blobs.stat("a/b")) == (True, False, None)
    blobs.put("a/b", b"y")
    assert blobs.get("a/b") == b"y"


KEYS = st.lists(st.text("ab-+=.~é ", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(keys=st.sets(KEYS, max_size=8), prefix=st.text("ab-/", max_size=3), after=st.text("ab-/", max_size=3))
def test_a_listing_is_by_prefix_and_in_order(blobs: BlobStore, keys: set[str], prefix: str, after: str) -> None:
    """Keys are texts: `a`, `a-b` and `a/b` live side by side, in the order of their characters."""
    good = {key for key in keys if not {".", ".."} & set(key.split("/"))}
    for listed in blobs.list():
        blobs.delete(listed.key)
    for key in good:
        blobs.put(key, key.encode())

    expected = [BlobEntry(k, len(k.encode())) for k in sorted(good) if k.startswith(prefix) and k > after]
    assert blobs.list(prefix, after) == expected
    assert blobs.list(prefix, after, 2) == expected[:2]
    assert [blobs.get(key) for key in good] == [key.encode() for key in good]


def test_a_long_listing_comes_in_pages(blobs: BlobStore) -> None:
    """Every list has a limit; the last key is where the next page begins."""
    if isinstance(blobs, MemoryBlobStore):
        for number in range(MAX_LISTED + 5):
            blobs.put(f"k/{number:05}", b"x")
        page = blobs.list("k/", limit=10**9)
        assert (len(page), len(blobs.list("k/", page[-1].key))) == (MAX_LISTED, 5)


# --- What only a folder has to prove ---------------------------------------------------------------


def test_a_folder_keeps_its_blobs_over_a_restart(tmp_path: Path) -> None:
    """And shares them with other processes."""
    FolderBlobStore(tmp_path).put("a/b", b"x")

    assert FolderBlobStore(tmp_path).get("a/b") == b"x"


def test_nothing_unfinished_is_left_and_a_crash_is_swept_up(tmp_path: Path) -> None:
    """What a killed process left is removed when it is old, and never seen."""
    blobs = FolderBlobStore(tmp_path, max_bytes=10)
    blobs.put("a", b"x")
    with pytest.raises(Refused):
        blobs.put("b", b"x" * 11)
    assert list((tmp_path / "unfinished").iterdir()) == []

    left = tmp_path / "unfinished" / "left"
    left.write_bytes(b"half")

    assert blobs.list() == [BlobEntry("a", 1)]
    assert blobs.sweep(before=left.stat().st_mtime) == 0
    assert blobs.sweep(before=left.stat().st_mtime + 1) == 1
