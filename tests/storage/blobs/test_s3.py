"""What only S3 has to prove, and how a store of blobs is named."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.storage.blobs import open_blob_store
from deltaci.storage.blobs import s3 as module
from deltaci.storage.blobs.memory import MemoryBlobStore
from deltaci.storage.blobs.s3 import open_s3
from deltaci.storage.blobs.store import BlobEntry, BlobStoreUnavailable, FolderBlobStore
from tests.storage.blobs.s3 import S3

LARGE_BYTES = 64 * 1024**2
MAX_GROWTH_BYTES = LARGE_BYTES * 3 // 4

# Puts and gets blobs of this size, and says how much memory that took at most beyond what it had before.
BUSY = """
import hashlib, re, sys
from deltaci.storage.blobs import open_blob_store, s3

s3.PART_BYTES, s3.PARTS_AT_ONCE = 5 << 20, 2

class Source:
    left = int(sys.argv[2])
    def seekable(self): return False
    def read(self, size):
        size = min(size, self.left)
        self.left -= size
        return bytes(size)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

blobs = open_blob_store(sys.argv[1])
blobs.put("warm", b"x")
before = peak()
stored = getattr(blobs, sys.argv[3])("large", Source())
digest, at = hashlib.sha256(), 0
while part := blobs.get("large", at, 5 << 20):
    digest.update(part)
    at += len(part)
assert (stored.bytes, stored.sha256) == (at, digest.hexdigest()), (stored, at)
print(peak() - before)
"""


@pytest.mark.parametrize(
    "url", ["", "file:", "gs://bucket", "s3://", "s3:///prefix", "s3://b/p?color=red", "s3://b?region=a&region=b"]
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """With what would name one."""
    with pytest.raises(ValueError, match="names no blob store; expected"):
        open_blob_store(url)


def test_a_url_is_no_place_for_keys() -> None:
    """It is seen in lists of processes and in logs; so it is not even repeated."""
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY") as refused:
        open_blob_store("s3://who:hush@bucket/p")

    assert "hush" not in str(refused.value)


def test_a_part_that_is_not_installed_is_named() -> None:
    """Whoever asks for S3 is told what to install; whoever does not never needs it."""
    code = "import sys; sys.modules['obstore'] = None; from deltaci.storage.blobs import open_blob_store; "
    done = [
        subprocess.run([sys.executable, "-c", code + ask], capture_output=True, text=True, check=False, timeout=60)
        for ask in ("open_blob_store('s3://b')", "open_blob_store('folder')")
    ]

    assert [each.returncode for each in done] == [1, 0]
    assert "deltaci[s3]" in done[0].stderr


def test_a_store_that_is_away_is_no_mistake_of_the_caller(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same again later may succeed."""
    monkeypatch.setattr(module, "TRIES", 0)
    nobody = open_blob_store("s3://bucket/p?endpoint=http://127.0.0.1:1&allow_http=true")

    for act in (lambda: nobody.stat("a"), lambda: nobody.put("a", b"x"), nobody.list):
        with pytest.raises(BlobStoreUnavailable, match="does not answer"):
            act()


def test_every_name_leads_to_its_store(tmp_path: Path, s3: S3) -> None:
    """A folder is what one gets without asking."""
    assert isinstance(open_blob_store(str(tmp_path)), FolderBlobStore)
    assert isinstance(open_blob_store(f"file:{tmp_path}"), FolderBlobStore)
    assert isinstance(open_blob_store("memory:"), MemoryBlobStore)
    open_blob_store(s3.url("one/two")).put("a/b", b"x")
    assert open_blob_store(s3.url("one/two")).get("a/b") == b"x"
    assert "one/two/blobs/a/b" in s3.names()


@pytest.mark.parametrize("way", ["put", "put_if_absent"])
def test_memory_stays_small_however_large_the_blob(s3: S3, way: str) -> None:
    """Both ways; the server has better uses for it."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY, s3.url(), str(LARGE_BYTES), way],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=dict(os.environ),
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MAX_GROWTH_BYTES


def test_of_many_large_ones_at_once_exactly_one_is_first(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of those who came too late are not kept, and nothing unfinished is ever listed."""
    monkeypatch.setattr(module, "SINGLE_BYTES", 10)
    url = s3.url()
    blobs = open_s3(url, max_bytes=100)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: blobs.put_if_absent("a/b", b"%d" % number * 20), range(1, 9)))

    [winner] = [number for number, answer in enumerate(answers, 1) if answer is not None]
    assert blobs.get("a/b") == b"%d" % winner * 20
    assert blobs.get("a/b", 5, 3) == b"%d" % winner * 3
    assert blobs.get("a/b", 0, 0) == blobs.get("a/b", 20) == b""
    assert blobs.stat("a/b") == answers[winner - 1]
    assert blobs.list() == [BlobEntry("a/b", 20)]
    place = url.partition("?")[0].rpartition("/")[2]
    assert len([name for name in s3.names() if name.startswith(f"{place}/contents/")]) == 1


def test_a_large_one_is_forgotten_or_replaced_as_a_whole(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays behind."""
    monkeypatch.setattr(module, "SINGLE_BYTES", 10)
    url = s3.url()
    blobs = open_s3(url, max_bytes=100)
    for key in ("a", "b"):
        blobs.put_if_absent(key, b"x" * 20)

    assert blobs.put("a", b"short").bytes == 5
    assert (blobs.delete("b"), blobs.delete("b")) == (True, False)

    place = url.partition("?")[0].rpartition("/")[2]
    assert [name for name in s3.names() if name.startswith(f"{place}/")] == [f"{place}/blobs/a"]
    with pytest.raises(Refused, match="no blob"):
        blobs.get("b")


def test_a_checksum_that_nobody_wrote_down_is_counted(s3: S3) -> None:
    """An object may have been put there by other means."""
    import obstore

    blobs = open_s3(s3.url())
    obstore.put(blobs._blobs, "a", b"by hand")

    stored = blobs.stat("a")

    assert stored is not None
    assert stored == blobs.put("b", b"by hand")
