"""Archives of caches: unpacking restores what was packed, and forged archives do no harm."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.runner.workspace.archive import ArchiveLimits, move_if_absent, pack, unpack, workspace_relative_path

SMALL = ArchiveLimits(entries=20, bytes=10_000, depth=5)


def pack_paths(root: Path, *paths: str, limits: ArchiveLimits = SMALL) -> bytes:
    """Return an archive of some paths."""
    out = io.BytesIO()
    pack(root, list(paths), out, limits)
    return out.getvalue()


def forge(*entries: tuple[tarfile.TarInfo, bytes], squeeze: Callable[[bytes], bytes] = gzip.compress) -> io.BytesIO:
    """Return an archive that `pack` would never write."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in entries:
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data) if data else None)
    return io.BytesIO(squeeze(out.getvalue()))


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    """Return one entry of a forged archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o777
    return info, data


def tree(root: Path) -> dict[str, str]:
    """Return everything below a folder, by path."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        found[name] = f"-> {os.readlink(path)}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
    return found


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """Return a root to unpack into, beside a folder that must not change."""
    (tmp_path / "outside").write_text("untouched")
    made = tmp_path / "root"
    made.mkdir()
    return made


# -- refusals

ESCAPES = {
    "parent": [entry("../outside", data=b"x")],
    "parent inside": [entry("a/../../outside", data=b"x")],
    "absolute": [entry("/outside", data=b"x")],
    "empty name": [entry("a//b", data=b"x")],
    "link to the parent": [entry("l", tarfile.SYMTYPE, "..")],
    "link to a neighbour": [entry("l", tarfile.SYMTYPE, "../outside")],
    "absolute link": [entry("l", tarfile.SYMTYPE, "/etc/passwd")],
    "link that climbs late": [entry("l", tarfile.SYMTYPE, "a/../../outside")],
    "empty link": [entry("l", tarfile.SYMTYPE, "")],
    "hard link": [entry("l", tarfile.LNKTYPE, "../outside")],
    "hard link inside": [entry("a", data=b"x"), entry("l", tarfile.LNKTYPE, "a")],
    "device": [entry("d", tarfile.CHRTYPE)],
    "block device": [entry("d", tarfile.BLKTYPE)],
    "fifo": [entry("f", tarfile.FIFOTYPE)],
    "sparse": [entry("s", tarfile.GNUTYPE_SPARSE)],
    "through a link": [entry("d", tarfile.DIRTYPE), entry("l", tarfile.SYMTYPE, "d"), entry("l/x", data=b"x")],
    "over a link": [entry("l", tarfile.SYMTYPE, "a"), entry("l", data=b"x")],
    "twice": [entry("a", data=b"x"), entry("a", data=b"y")],
    "too many": [entry(f"f{n}", data=b"x") for n in range(21)],
    "too much": [entry("a", data=b"x" * 9000), entry("b", data=b"x" * 2000)],
    "too deep": [entry("/".join("abcdefgh"), data=b"x")],
}


@pytest.mark.proves("PRO-X4")
@pytest.mark.parametrize("case", ESCAPES)
def test_entries_that_lead_outside_or_are_no_files_are_refused(inside: Path, case: str) -> None:
    """Zip slip in all forms: nothing outside is created, changed or read."""
    with pytest.raises(Refused) as refused:
        unpack(inside, forge(*ESCAPES[case]), SMALL)

    assert refused.value.code in ("unreadable", "too_large")
    assert tree(inside.parent)["outside"] == "untouched"
    assert sorted(os.listdir(inside.parent)) == ["outside", "root"]


@pytest.mark.proves("PRO-X4")
def test_a_compression_bomb_is_refused(inside: Path) -> None:
    """It is read only up to the maximum size."""
    zeros = gzip.compress(bytes(50_000_000), 9)
    info, _ = entry("a")
    info.size = 50_000_000
    head = gzip.compress(info.tobuf())
    pax = tarfile.TarInfo("p")
    pax.type, pax.size = tarfile.XHDTYPE, 2**33

    for bomb in (head + zeros, gzip.compress(pax.tobuf()) + zeros):
        assert len(bomb) < 100_000
        with pytest.raises(Refused):
            unpack(inside, io.BytesIO(bomb), SMALL)

    assert sum(path.stat().st_size for path in inside.rglob("*")) <= SMALL.bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(data=st.data())
def test_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any bytes are either refused or unpacked safely."""
    inside = tmp_path_factory.mktemp("root")
    good = bytearray(gzip.decompress(forge(entry("d", tarfile.DIRTYPE), entry("d/a", data=b"x" * 600)).getvalue()))
    for _ in range(data.draw(st.integers(1, 5))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))

    with suppress(Refused):
        unpack(inside, io.BytesIO(gzip.compress(bytes(good[:cut]), 1)), SMALL)
    with suppress(Refused):
        unpack(inside, io.BytesIO(bytes(good[:cut])), SMALL)


@pytest.mark.parametrize("path", ["", "/", "/etc", "..", "a/../..", "~", "~/", "~/..", ".", "a\0b"])
def test_a_path_outside_the_workspace_is_refused(path: str) -> None:
    """Nor can the whole workspace be a cache."""
    with pytest.raises(Refused, match="not inside the workspace"):
        workspace_relative_path(path)


def test_too_much_is_not_packed(tmp_path: Path) -> None:
    """An archive that exceeds the limits could not be unpacked."""
    (tmp_path / "a").write_bytes(b"x" * 10_001)
    deep = tmp_path / "b" / "c" / "d" / "e" / "f" / "g" / "h"
    deep.mkdir(parents=True)

    for path in ("a", "b"):
        with pytest.raises(Refused, match="cache"):
            pack_paths(tmp_path, path)


# -- what is kept


def test_unpacking_restores_what_was_packed(tmp_path: Path, inside: Path) -> None:
    """Files, empty folders, modes, times and inner links; no owners, and no special files."""
    source = tmp_path / "source"
    (source / "d" / "empty").mkdir(parents=True)
    (source / "d" / "tool").write_text("run")
    (source / "d" / "tool").chmod(0o4755)
    os.utime(source / "d" / "tool", (1000, 1000))
    (source / "d" / "ü\n").write_text("odd")
    (source / "d" / "inner").symlink_to("tool")
    (source / "d" / "up").symlink_to("../other")
    (source / "d" / "out").symlink_to("/etc/passwd")
    (source / "d" / "far").symlink_to("../../x")
    os.mkfifo(source / "d" / "pipe")
    (source / "other").write_text("not asked for")
    (source / "file").write_text("alone")

    archive = pack_paths(source, "d", "file", "missing")
    found = unpack(inside, io.BytesIO(archive), SMALL)

    expected = {"d": "/", "d/empty": "/", "d/tool": "run", "d/ü\n": "odd", "d/inner": "-> tool", "d/up": "-> ../other"}
    assert tree(inside) == {**expected, "file": "alone"}
    assert found.entries == 7
    status = (inside / "d" / "tool").stat()
    assert (status.st_mode & 0o7777, int(status.st_mtime)) == (0o755, 1000)
    assert archive == pack_paths(source, "file", "d")


def test_a_folder_that_is_a_link_is_not_packed(tmp_path: Path) -> None:
    """A job may have replaced a folder by a link, which is not followed."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hush")
    source = tmp_path / "source"
    source.mkdir()
    (source / "d").symlink_to("../secret")

    for path in ("d/key", "d"):
        assert b"hush" not in gzip.decompress(pack_paths(source, path))


def test_only_requested_paths_are_moved_and_nothing_is_overwritten(tmp_path: Path) -> None:
    """A cache must not add files that its rule does not name."""
    staged, root = tmp_path / "staged", tmp_path / "root"
    for path in ("a/b/x", "c/x", "evil"):
        (staged / path).parent.mkdir(parents=True, exist_ok=True)
        (staged / path).write_text("new")
    (root / "c").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (root / "l").symlink_to("../elsewhere")
    (staged / "l").mkdir()
    (staged / "l" / "x").write_text("new")

    assert [move_if_absent(staged, root, path) for path in ("a/b", "c", "missing")] == [True, False, False]
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        move_if_absent(staged, root, "l/x")

    assert tree(root) == {"a": "/", "a/b": "/", "a/b/x": "new", "c": "/", "l": "-> ../elsewhere"}
    assert os.listdir(tmp_path / "elsewhere") == []
    assert workspace_relative_path("~/a/./b/") == "a/b"


def test_missing_parent_folders_are_created(tmp_path: Path, inside: Path) -> None:
    """`~/.cache/pip` is packed without an entry for `.cache`."""
    (tmp_path / "home" / ".cache" / "pip").mkdir(parents=True)
    (tmp_path / "home" / ".cache" / "pip" / "wheel").write_text("w")

    unpack(inside, io.BytesIO(pack_paths(tmp_path, "home/.cache/pip")), SMALL)

    assert tree(inside)["home/.cache/pip/wheel"] == "w"
