"""Commits that only servers have: imported from jobs' bundles, and rebuilt where they are missing."""

from __future__ import annotations

import hashlib
import io
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.controllers.projects import Project
from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.records import IntegratedTask, Workstream
from deltaci.core.attempt import Attempt
from deltaci.git import bundles
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder, MergeConflict
from deltaci.git.mirrors import Mirrors
from deltaci.storage.blobs.memory import MemoryBlobStore
from tests.contract.backends import on_loop
from tests.controllers.site import LOCAL
from tests.support.upstream import Upstream, git


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Return a repository."""
    return Upstream(tmp_path / "upstream", {"a": "1\n", "b": "1\n"})


def shop(folder: Path, upstream: Upstream) -> CommitBuilder:
    """Return the commit builder of one server."""
    mirrors = Mirrors(folder, LOCAL, lambda *_: "")
    return CommitBuilder(mirrors.for_project(Project(name="shop", tenant="t", url=upstream.url)))


def bundle(upstream: Upstream, head: str, start: str, name: str = "some.bundle") -> Path:
    """Return a bundle as a runner would send it."""
    file = upstream.tree.parent / name
    git(upstream.tree, "update-ref", "refs/heads/sent", head)
    git(upstream.tree, "bundle", "create", "--quiet", str(file), "refs/heads/sent", f"^{start}")
    return file


def raw(upstream: Upstream, kind: str, data: bytes) -> str:
    """Write an object that git itself would not create."""
    words = ["git", "hash-object", "-w", "--literally", "-t", kind, "--stdin"]
    done = subprocess.run(words, cwd=upstream.tree, input=data, capture_output=True, timeout=60, check=True)
    return done.stdout.decode().strip()


def odd_commit(upstream: Upstream, tree: str, parent: str) -> str:
    """Create a commit with this tree on the parent."""
    return git(upstream.tree, "commit-tree", tree, "-p", parent, "-m", "odd")


def packs(builder: CommitBuilder) -> list[str]:
    """Return the mirror's packs and temporary files beside them."""
    found = [path.name for path in (builder.mirror.folder / "objects" / "pack").iterdir()]
    return sorted([*found, *(path.name for path in builder.mirror.folder.parent.glob(".*"))])


@on_loop
async def test_a_bundle_is_imported_without_its_refs(tmp_path: Path, upstream: Upstream) -> None:
    """The commit is present with all of its objects; no ref of the bundle is."""
    here = shop(tmp_path, upstream)
    await here.mirror.ensure_commit(upstream.first)
    head = upstream.commit({"a": "2\n"})
    refs = git(here.mirror.folder, "for-each-ref")

    await here.import_bundle(bundle(upstream, head, upstream.first), head, upstream.first)

    assert await here.mirror.read_file(head, "a") == b"2\n"
    git(here.mirror.folder, "fsck", "--strict", head)
    assert git(here.mirror.folder, "for-each-ref") == refs
    assert not list(here.mirror.folder.parent.glob(".*"))
    await here.import_bundle(tmp_path / "nothing", head, upstream.first)  # It is there.


@on_loop
async def test_a_commit_that_does_not_descend_from_the_start_is_refused(tmp_path: Path, upstream: Upstream) -> None:
    """So is one that is missing in the bundle, or an invalid name; no objects stay."""
    second = upstream.push({"a": "2\n"})
    upstream.switch("other", upstream.first)
    head = upstream.commit({"b": "2\n"})
    here = shop(tmp_path, upstream)
    await here.mirror.ensure_commit(second)
    before = packs(here)
    file = bundle(upstream, head, upstream.first)

    with pytest.raises(GitFailed, match="does not descend from"):
        await here.import_bundle(file, head, second)
    with pytest.raises(GitFailed, match="does not contain the commit"):
        await here.import_bundle(file, "a" * 40, upstream.first)
    with pytest.raises(GitFailed, match="not the full name"):
        await here.import_bundle(file, "sent", upstream.first)
    assert packs(here) == before
    assert not await here.mirror.has_commit(head)


@on_loop
async def test_malformed_objects_are_refused(tmp_path: Path, upstream: Upstream) -> None:
    """A path into a repository, a link instead of the submodule file, a commit with a missing object."""
    here = shop(tmp_path, upstream)
    await here.mirror.ensure_commit(upstream.first)
    before = packs(here)
    blob = raw(upstream, "blob", b"[core]\n")
    bad = [b"100644 .git\0", b"100644 .GIT\0", b"100644 ..\0", b"120000 .gitmodules\0"]
    trees = [raw(upstream, "tree", each + bytes.fromhex(blob)) for each in bad]
    for tree in trees:
        head = odd_commit(upstream, tree, upstream.first)
        with pytest.raises(GitFailed, match="index-pack"):
            await here.import_bundle(bundle(upstream, head, upstream.first), head, upstream.first)
    whole = upstream.commit({"c": "3\n"})
    file = bundle(upstream, whole, upstream.first)
    data = file.read_bytes()
    for broken in (data[:-30], data[: len(data) // 2], data[:-25] + b"x" * 25, b"", b"hello\n"):
        file.write_bytes(broken)
        with pytest.raises(GitFailed):
            await here.import_bundle(file, whole, upstream.first)
    assert packs(here) == before


@on_loop
async def test_a_commit_with_missing_objects_is_refused(tmp_path: Path, upstream: Upstream) -> None:
    """All objects that it refers to must be present."""
    here = shop(tmp_path, upstream)
    await here.mirror.ensure_commit(upstream.first)
    head = upstream.commit({"c": "3\n"})
    words = ["git", "pack-objects", "--stdout"]
    done = subprocess.run(words, cwd=upstream.tree, input=f"{head}\n".encode(), capture_output=True, check=True)
    file = tmp_path / "hole.bundle"
    file.write_bytes(f"# v2 git bundle\n{head} refs/heads/x\n\n".encode() + done.stdout)

    with pytest.raises(GitFailed, match="index-pack"):
        await here.import_bundle(file, head, upstream.first)
    file.write_bytes(b"# v3 git bundle\n@filter=blob:none\n" + f"{head} refs/heads/x\n\n".encode() + done.stdout)
    with pytest.raises(GitFailed, match="leaves objects out"):
        await here.import_bundle(file, head, upstream.first)
    file.write_bytes(b"# v2 git bundle\n" + b"x" * bundles.MAX_HEADER_BYTES * 2)
    with pytest.raises(GitFailed, match="header of the bundle has no end"):
        await here.import_bundle(file, head, upstream.first)


@on_loop
async def test_the_size_of_a_bundle_is_limited(tmp_path: Path, upstream: Upstream) -> None:
    """Packed and unpacked: a few bytes may expand to any size."""
    here = shop(tmp_path, upstream)
    await here.mirror.ensure_commit(upstream.first)
    head = upstream.commit({"c": "3\n"})

    with pytest.raises(GitFailed, match="expected at most 100"):
        await bundles.import_bundle(
            here.mirror, bundle(upstream, head, upstream.first), head, upstream.first, max_bytes=100
        )
    file = tmp_path / "bomb.bundle"
    file.write_bytes(f"# v2 git bundle\n{head} refs/heads/x\n\n".encode() + _bomb())
    assert file.stat().st_size < 100_000
    with pytest.raises(GitFailed, match=r"(?i)memory"):
        await here.import_bundle(file, head, upstream.first)


def _bomb() -> bytes:
    """Return a pack with a file of 16 MiB, and one that repeats it 400 times: 6 GiB."""
    size, times = 16 * 1024**2 - 1, 400
    first = _entry(3, size) + zlib.compress(bytes(size), 9)
    delta = _varint(size) + _varint(size * times) + b"\xf0\xff\xff\xff" * times
    second = _entry(6, len(delta)) + _offset(len(first)) + zlib.compress(delta, 9)
    pack = b"PACK" + struct.pack(">II", 2, 2) + first + second
    return pack + hashlib.sha1(pack).digest()


def _entry(kind: int, size: int) -> bytes:
    first, size = (kind << 4) | (size & 15), size >> 4
    return bytes([first | (0x80 if size else 0)]) + (_varint(size) if size else b"")


def _varint(value: int) -> bytes:
    found = bytearray()
    while True:
        found.append((value & 127) | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(found)


def _offset(value: int) -> bytes:
    found = [value & 127]
    while value := value >> 7:
        value -= 1
        found.append(128 | (value & 127))
    return bytes(reversed(found))


@on_loop
async def test_writing_a_bundle_leaves_no_refs(tmp_path: Path, upstream: Upstream) -> None:
    """A repository with the start can read it; an empty bundle is not written."""
    second = upstream.push({"a": "2\n"})
    here, there = shop(tmp_path / "here", upstream), shop(tmp_path / "there", upstream)
    await here.mirror.ensure_commit(second, "refs/heads/main")
    await there.mirror.ensure_commit(upstream.first)
    refs = git(here.mirror.folder, "for-each-ref")

    await here.write_bundle(second, [upstream.first], tmp_path / "ours.bundle")
    with pytest.raises(GitFailed, match="empty bundle"):
        await here.write_bundle(second, [second], tmp_path / "empty.bundle")

    await there.import_bundle(tmp_path / "ours.bundle", second, upstream.first)
    assert await there.mirror.has_commit(second)
    assert git(here.mirror.folder, "for-each-ref") == refs


# -- a workstream's commits


def sent(blobs: MemoryBlobStore, upstream: Upstream, name: str, head: str, start: str) -> str:
    """Store a bundle among the blobs, and return its key."""
    blobs.put(f"artifacts/t/{name}/1/tree", bundle(upstream, head, start).read_bytes())
    return f"artifacts/t/{name}/1/tree"


async def joined(
    here: CommitBuilder, blobs: MemoryBlobStore, stream: Workstream, task: str, bundle: str, head: str
) -> Workstream:
    """Integrate commits as the workstream controller does."""
    start = await commits.taken(here, stream, blobs, bundle, head)
    tip = await commits.join(here, stream.tip, task, head)
    one = IntegratedTask(task=task, attempt_id=task, bundle=bundle, start=start, head=head, tip=tip)
    fields = {name: getattr(stream, name) for name in Workstream.__struct_fields__}
    return Workstream(**{**fields, "joined": (*stream.joined, one)})


def begun(upstream: Upstream) -> Workstream:
    """Return a workstream without tasks."""
    return Workstream(
        id="run", tenant="t", name="w", project="shop", base="main", spec={}, base_commit=upstream.first, branch="ws/w"
    )


@on_loop
async def test_rebuilding_commits_gives_the_same_ids(tmp_path: Path, upstream: Upstream) -> None:
    """In order, side by side, and without a change; then on a server that has no commits."""
    blobs, here, there = MemoryBlobStore(), shop(tmp_path / "here", upstream), shop(tmp_path / "there", upstream)
    one = upstream.commit({"a": "2\n"})
    upstream.switch("own", one)
    left = upstream.commit({"left": "1\n"})
    upstream.switch("own2", one)
    right = upstream.commit({"right": "1\n"})

    stream = begun(upstream)
    stream = await joined(here, blobs, stream, "one", sent(blobs, upstream, "one", one, upstream.first), one)
    stream = await joined(here, blobs, stream, "left", sent(blobs, upstream, "left", left, one), left)
    stream = await joined(here, blobs, stream, "right", sent(blobs, upstream, "right", right, one), right)
    stream = await joined(here, blobs, stream, "none", "", one)
    assert [each.start for each in stream.joined] == [upstream.first, one, one, one]
    assert stream.joined[1].tip == left
    assert stream.joined[2].tip == stream.joined[3].tip not in (left, right)
    await commits.restored(there, stream, blobs)

    assert await there.mirror.list_files(stream.tip) == [".deltaci.yml", "README", "a", "b", "left", "right"]
    shutil.rmtree(here.mirror.folder)
    await commits.restored(here, stream, blobs)
    assert await here.mirror.has_commit(stream.tip)
    assert not list(here.mirror.folder.parent.glob(".*"))


@on_loop
async def test_commits_outside_of_the_workstream_are_refused(tmp_path: Path, upstream: Upstream) -> None:
    """Another history, a conflict, a missing bundle, and one that gives other commits than before."""
    blobs, here = MemoryBlobStore(), shop(tmp_path / "here", upstream)
    git(upstream.tree, "checkout", "-q", "--orphan", "alone")
    alone = upstream.commit({"z": "1\n"})
    upstream.switch("one", upstream.first)
    one = upstream.commit({"a": "2\n"})
    upstream.switch("two", upstream.first)
    two = upstream.commit({"a": "3\n"})
    stream = begun(upstream)

    with pytest.raises(GitFailed, match="does not descend from"):
        await commits.taken(here, stream, blobs, sent(blobs, upstream, "alone", alone, upstream.first), alone)
    with pytest.raises(GitFailed, match="no longer exists"):
        await commits.taken(here, stream, blobs, "artifacts/t/gone/1/tree", one)
    with pytest.raises(GitFailed, match="cannot be read"):
        await commits.taken(here, stream, blobs, "artifacts/t/../x", one)
    with pytest.raises(GitFailed, match="does not descend from"):
        await commits.taken(here, stream, blobs, "", one)
    with pytest.raises(GitFailed, match="not a full commit hash"):
        await commits.taken(here, stream, blobs, "", "main")
    stream = await joined(here, blobs, stream, "one", sent(blobs, upstream, "one", one, upstream.first), one)
    with pytest.raises(MergeConflict, match="conflicts in a"):
        await joined(here, blobs, stream, "two", sent(blobs, upstream, "two", two, upstream.first), two)


def test_an_attempt_can_only_refer_to_its_own_bundle() -> None:
    """A runner names its artifacts, and must not name another attempt's."""
    own = {"type": "tree", "uri": "artifact:a.1/1/tree"}
    other = {"type": "tree", "uri": "artifact:b.1/1/tree"}

    def told(*artifacts: dict[str, str]) -> tuple[str, str]:
        return commits.sent(Attempt(id="a.1", tenant="t", report={"head": "c", "artifacts": list(artifacts)}))

    assert told(other) == ("c", "")
    assert told({"type": "log", "uri": "artifact:a.1/1/log"}, own) == ("c", "artifacts/t/a.1/1/tree")
    assert commits.sent(Attempt(id="a.1", tenant="t")) == ("", "")


@given(st.binary(max_size=300).map(lambda data: b"# v2 git bundle\n" + data) | st.binary(max_size=100))
def test_any_bytes_are_a_valid_bundle_or_refused(data: bytes) -> None:
    """The server parses the head of a bundle, and never fails on it."""
    try:
        at = bundles.pack_offset(io.BytesIO(data))
    except GitFailed:
        return
    assert data[:at].endswith(b"\n\n")
