"""`uses: upload-artifact` and `download-artifact`: files under a name, from one job of a run to another.

An artifact is one tar file, compressed by gzip, so modes are kept and any number of files will do. What is downloaded
is unpacked beside the workspace, and trusted no more than a cache is.
"""

from __future__ import annotations

import fnmatch
import gzip
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

from deltaci.core.errors import Refused
from deltaci.protocol.messages import MAX_ARTIFACT_BYTES, Artifact, ArtifactRule
from deltaci.protocol.responses import SharedArtifact
from deltaci.runner.actions.context import JobContext, StepFailed, flag, known, lines
from deltaci.runner.client import RunnerClient
from deltaci.runner.transfers import PATIENCE_SECONDS
from deltaci.runner.workspace.archive import COMPRESSION, unpack
from deltaci.runner.workspace.artifacts import ArtifactFile, SearchLimits, find_files, open_file
from deltaci.runner.workspace.safe_fs import merge_tree
from deltaci.storage.blobs.keys import shared_path

UPLOAD_INPUTS: Final = (
    *("name", "path", "if-no-files-found", "retention-days", "compression-level", "overwrite"),
    *("include-hidden-files", "archive"),
)
DOWNLOAD_INPUTS: Final = (
    *("name", "path", "pattern", "merge-multiple", "artifact-ids", "github-token", "repository", "run-id"),
    *("skip-decompress", "digest-mismatch"),
)
KIND: Final = "archive"
CODE: Final = "ARTIFACTS"
MAX_NAME: Final = 150
MAX_FILES: Final = SearchLimits(files=200_000, bytes=20 * 1024**3)
_NAME: Final = re.compile(r'[^\x00-\x1f\x7f"*/:<>?\\|]+')
_GLOB: Final = re.compile(r"[*?\[]")
_PART: Final = 1024 * 1024


async def upload(job: JobContext, inputs: dict[str, str]) -> dict[str, str]:
    """Keep files under a name."""
    known(inputs, UPLOAD_INPUTS)
    name = _checked(inputs.get("name", "").strip() or "artifact")
    missing = inputs.get("if-no-files-found", "").strip() or "warn"
    if missing not in ("warn", "error", "ignore"):
        raise Refused("bad_spec", f"the input 'if-no-files-found' is {missing[:80]!r}; say warn, error or ignore")
    brought = job.harvester.collected
    has_one = any(each.type == KIND and each.name == name for each in brought.artifacts)
    if has_one and not flag(inputs, "overwrite", False):
        raise StepFailed(f"this job kept an artifact {name!r} already; give another name, or set 'overwrite'", CODE)
    if job.log.masked(name) != name:
        raise StepFailed("the name of the artifact has a secret in it; give another", CODE)
    files = await job.transfers.run_in_thread(_chosen, job, lines(inputs.get("path", "")), _has_hidden(inputs))
    if not files:
        if missing == "error":
            raise StepFailed(f"artifact {name!r}: no file matches {inputs.get('path', '')!r}", CODE)
        if missing == "warn":
            job.log.write_line(f"artifact {name!r}: no file matches {inputs.get('path', '')!r}; nothing is kept")
        return {}
    with tempfile.TemporaryFile(dir=job.layout.root.parent) as file:
        await job.transfers.run_in_thread(_pack, job.layout.root, files, file)
        size = file.tell()
        if size > MAX_ARTIFACT_BYTES:
            raise StepFailed(f"artifact {name!r}: it has {size} bytes, at most {MAX_ARTIFACT_BYTES}; keep less", CODE)
        try:
            address = f"artifacts/{quote(shared_path(name))}"
            kept = await job.transfers.upload(address, lambda: _again(file), size, PATIENCE_SECONDS)
        except Refused as refused:
            raise StepFailed(f"artifact {name!r}: {refused.message}", CODE) from refused
    others = [each for each in brought.artifacts if (each.type, each.name) != (KIND, name)]
    brought.artifacts = [*others, Artifact(type=KIND, uri=kept.uri, name=name, bytes=kept.bytes)]
    job.log.write_line(f"artifact {name!r}: {len(files)} files, {size} bytes")
    return {"artifact-id": kept.uri, "artifact-url": kept.uri, "artifact-digest": kept.sha256}


async def download(job: JobContext, inputs: dict[str, str]) -> dict[str, str]:
    """Bring artifacts of jobs of this run that are over, or of this one."""
    known(inputs, DOWNLOAD_INPUTS)
    for other in ("artifact-ids", "repository", "run-id"):
        own = str(job.expressions.github.get(other.replace("-", "_")) or "")
        if inputs.get(other, "").strip() not in ("", own):
            raise Refused("bad_spec", f"download-artifact with {other!r} is not supported; only this run's can be had")
    name, pattern = inputs.get("name", "").strip(), inputs.get("pattern", "").strip()
    there = await job.transfers.call(RunnerClient.shared_artifacts)
    chosen = _wanted(there, name, pattern)
    if name and not chosen:
        known_names = ", ".join(sorted({repr(each.name or each.job) for each in there})) or "none"
        raise StepFailed(f"no job of this run that is over kept an artifact {name!r}; there are: {known_names}", CODE)
    where = inputs.get("path", "").strip() or "."
    is_merged = bool(name) or flag(inputs, "merge-multiple", False)
    for each in chosen:
        folder = (each.name or each.job).replace("/", "-")
        await _bring(job, each, _inner(job, where if is_merged else f"{where.rstrip('/')}/{folder}"))
    if not chosen:
        job.log.write_line("no artifact was found; nothing is downloaded")
    return {"download-path": str(job.layout.root / _inner(job, where))}


def _wanted(there: list[SharedArtifact], name: str, pattern: str) -> list[SharedArtifact]:
    """Those that are asked for. What a job kept without a name goes by the name of its job."""
    if name:
        return [each for each in there if each.name == name] or [
            each for each in there if not each.name and name in (each.job, each.job.partition(" (")[0])
        ]
    return [each for each in there if not pattern or fnmatch.fnmatchcase(each.name or each.job, pattern)]


async def _bring(job: JobContext, artifact: SharedArtifact, path: str) -> None:
    with tempfile.TemporaryFile(dir=job.layout.root.parent) as file:
        address = f"run-artifact/{quote(artifact.uri, safe='')}"
        size = await job.transfers.download(address, file, MAX_ARTIFACT_BYTES, PATIENCE_SECONDS)
        try:
            await job.transfers.run_in_thread(_unpack, job.layout.root, file, path, artifact.path)
        except Refused as refused:
            raise StepFailed(f"artifact {artifact.name or artifact.path!r}: {refused.message}", CODE) from refused
    job.log.write_line(f"artifact {artifact.name or artifact.path!r} of {artifact.job}: {size} bytes")


def _unpack(root: Path, file: BinaryIO, path: str, one: str) -> None:
    """Put an artifact into the workspace: all that is packed in it, or the one file that it is."""
    staged = Path(tempfile.mkdtemp(dir=root.parent, prefix="artifact-"))
    try:
        file.seek(0)
        if one:
            (staged / one).parent.mkdir(parents=True, exist_ok=True)
            with (staged / one).open("wb") as made:
                shutil.copyfileobj(file, made, _PART)
        else:
            unpack(staged, file)
        merge_tree(staged, root, path)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _inner(job: JobContext, path: str) -> str:
    """From the root of the job's folders on."""
    if job.layout.is_single_folder and path.strip("./") == "":
        return "."
    return job.layout.resolve(path)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name.encode()) > MAX_NAME or name in (".", ".."):
        raise Refused("bad_spec", f"{name[:80]!r} is no name for an artifact; no slashes, quotes, colons or stars")
    return name


def _has_hidden(inputs: dict[str, str]) -> bool:
    """Whether hidden files are kept: if that is said, or if a path names one."""
    named = any(
        part.startswith(".") and part.strip(".")
        for line in lines(inputs.get("path", ""))
        for part in line.lstrip("!").split("/")
    )
    return named or flag(inputs, "include-hidden-files", False)


def _chosen(job: JobContext, patterns: list[str], has_hidden: bool) -> list[tuple[str, ArtifactFile]]:
    """The files, each with its name in the artifact: what all patterns have in common is left out of it."""
    root = job.layout.root
    wanted = [_inner(job, line) for line in patterns if not line.startswith("!")]
    unwanted = [_inner(job, line[1:].strip()) for line in patterns if line.startswith("!")]
    if not wanted:
        raise Refused("bad_spec", "upload-artifact needs the input 'path'")
    rules = [ArtifactRule(path_glob="**" if each == "." else each) for each in wanted]
    found = find_files(root, rules, MAX_FILES)
    if unwanted:
        without = {
            each.path for each in find_files(root, [ArtifactRule(path_glob=each) for each in unwanted], MAX_FILES)
        }
        found = [each for each in found if each.path not in without]
    shared = os.path.commonpath([_start(root, each) for each in wanted]) if found else ""
    named = [(each.path[len(shared) + 1 :] if shared else each.path, each) for each in found]
    if not has_hidden:
        named = [(name, each) for name, each in named if not any(part.startswith(".") for part in name.split("/"))]
    return named


def _start(root: Path, pattern: str) -> str:
    """The folder at which a pattern begins to choose."""
    parts = [] if pattern == "." else pattern.split("/")
    plain = next((at for at, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    if plain == len(parts) and parts and not (root / pattern).is_dir():
        plain -= 1
    return "/".join(parts[:plain])


def _pack(root: Path, files: list[tuple[str, ArtifactFile]], out: BinaryIO) -> None:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=COMPRESSION, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
    ):
        made: set[str] = set()
        for name, found in sorted(files):
            for folder in _above(name):
                if folder not in made:
                    made.add(folder)
                    info = tarfile.TarInfo(folder)
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(info)
            with open_file(root, found) as file:
                status = os.fstat(file.fileno())
                info = tarfile.TarInfo(name)
                info.size, info.mode, info.mtime = status.st_size, status.st_mode & 0o777, int(status.st_mtime)
                tar.addfile(info, file)


def _above(name: str) -> Iterator[str]:
    """Every folder on the way to it, the outermost first."""
    for at, character in enumerate(name):
        if character == "/":
            yield name[:at]


@contextmanager
def _again(file: BinaryIO) -> Iterator[BinaryIO]:
    file.seek(0)
    yield file
