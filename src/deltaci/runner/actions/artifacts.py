"""`uses: upload-artifact` and `download-artifact`: named sets of files, passed from one job of a run to another.

An artifact is a gzipped tar file, which keeps file modes and has room for any number of files. A downloaded artifact is
untrusted: it is unpacked beside the workspace and then moved in without following links.
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
from deltaci.protocol.artifact_paths import shared_path
from deltaci.protocol.messages import MAX_ARTIFACT_BYTES, Artifact, ArtifactRule
from deltaci.protocol.responses import SharedArtifact
from deltaci.runner.actions.context import JobContext, StepFailed, boolean_input, check_inputs, non_empty_lines
from deltaci.runner.client import RunnerClient
from deltaci.runner.transfers import PATIENCE_SECONDS
from deltaci.runner.workspace.archive import COMPRESSION, unpack
from deltaci.runner.workspace.artifacts import ArtifactFile, SearchLimits, find_files, open_file
from deltaci.runner.workspace.safe_fs import merge_tree

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
MAX_NAME_BYTES: Final = 150
MAX_FILES: Final = SearchLimits(files=200_000, bytes=20 * 1024**3)
_NAME: Final = re.compile(r'[^\x00-\x1f\x7f"*/:<>?\\|]+')
_GLOB: Final = re.compile(r"[*?\[]")
_PART_BYTES: Final = 1024 * 1024


async def upload(job: JobContext, value_by_input: dict[str, str]) -> dict[str, str]:
    """Upload the matching files as a named artifact. Return the step's outputs, none if no file matches."""
    check_inputs(value_by_input, UPLOAD_INPUTS)
    artifact_name = _check_name(value_by_input.get("name", "").strip() or "artifact")
    if_no_files_found = value_by_input.get("if-no-files-found", "").strip() or "warn"
    if if_no_files_found not in ("warn", "error", "ignore"):
        message = f"the input 'if-no-files-found' is {if_no_files_found[:80]!r}; expected warn, error or ignore"
        raise Refused("bad_spec", message)
    collected_outputs = job.collector.collected
    name_is_used = any(
        uploaded_artifact.type == KIND and uploaded_artifact.name == artifact_name
        for uploaded_artifact in collected_outputs.artifacts
    )
    if name_is_used and not boolean_input(value_by_input, "overwrite", False):
        raise StepFailed(
            f"this job has uploaded an artifact {artifact_name!r}; use another name, or set 'overwrite'", CODE
        )
    if job.log.masked(artifact_name) != artifact_name:
        raise StepFailed("the name of the artifact contains a secret; use another", CODE)
    path_patterns = non_empty_lines(value_by_input.get("path", ""))
    named_files = await job.transfers.run_in_thread(_find_files, job, path_patterns, _includes_hidden(value_by_input))
    if not named_files:
        if if_no_files_found == "error":
            raise StepFailed(f"artifact {artifact_name!r}: no file matches {value_by_input.get('path', '')!r}", CODE)
        if if_no_files_found == "warn":
            job.log.write_line(
                f"artifact {artifact_name!r}: no file matches {value_by_input.get('path', '')!r}; nothing is uploaded"
            )
        return {}
    with tempfile.TemporaryFile(dir=job.layout.root.parent) as archive_file:
        await job.transfers.run_in_thread(_pack, job.layout.root, named_files, archive_file)
        archive_bytes = archive_file.tell()
        if archive_bytes > MAX_ARTIFACT_BYTES:
            message = f"it has {archive_bytes} bytes, the limit is {MAX_ARTIFACT_BYTES}; upload less"
            raise StepFailed(f"artifact {artifact_name!r}: {message}", CODE)
        try:
            url_path = f"artifacts/{quote(shared_path(artifact_name))}"
            uploaded = await job.transfers.upload(
                url_path, lambda: _rewound(archive_file), archive_bytes, PATIENCE_SECONDS
            )
        except Refused as refused:
            raise StepFailed(f"artifact {artifact_name!r}: {refused.message}", CODE) from refused
    other_artifacts = [
        uploaded_artifact
        for uploaded_artifact in collected_outputs.artifacts
        if (uploaded_artifact.type, uploaded_artifact.name) != (KIND, artifact_name)
    ]
    collected_outputs.artifacts = [
        *other_artifacts,
        Artifact(type=KIND, uri=uploaded.uri, name=artifact_name, bytes=uploaded.bytes),
    ]
    job.log.write_line(f"artifact {artifact_name!r}: {len(named_files)} files, {archive_bytes} bytes")
    return {"artifact-id": uploaded.uri, "artifact-url": uploaded.uri, "artifact-digest": uploaded.sha256}


async def download(job: JobContext, value_by_input: dict[str, str]) -> dict[str, str]:
    """Download artifacts of this job, or of ended jobs of this run, into the workspace. Return the step's outputs."""
    check_inputs(value_by_input, DOWNLOAD_INPUTS)
    for input_name in ("artifact-ids", "repository", "run-id"):
        current_value = str(job.expressions.github.get(input_name.replace("-", "_")) or "")
        if value_by_input.get(input_name, "").strip() not in ("", current_value):
            message = (
                f"download-artifact with {input_name!r} is not supported; only artifacts of this run are available"
            )
            raise Refused("bad_spec", message)
    artifact_name, name_pattern = value_by_input.get("name", "").strip(), value_by_input.get("pattern", "").strip()
    available_artifacts = await job.transfers.call(RunnerClient.shared_artifacts)
    selected_artifacts = _select_artifacts(available_artifacts, artifact_name, name_pattern)
    if artifact_name and not selected_artifacts:
        joined_names = (
            ", ".join(sorted({repr(artifact.name or artifact.job) for artifact in available_artifacts})) or "none"
        )
        raise StepFailed(
            f"no ended job of this run has uploaded an artifact {artifact_name!r}; available: {joined_names}", CODE
        )
    target_path = value_by_input.get("path", "").strip() or "."
    is_merged = bool(artifact_name) or boolean_input(value_by_input, "merge-multiple", False)
    for artifact in selected_artifacts:
        subfolder = (artifact.name or artifact.job).replace("/", "-")
        await _download(
            job, artifact, _path_from_root(job, target_path if is_merged else f"{target_path.rstrip('/')}/{subfolder}")
        )
    if not selected_artifacts:
        job.log.write_line("no artifact was found; nothing is downloaded")
    return {"download-path": str(job.layout.root / _path_from_root(job, target_path))}


def _select_artifacts(available: list[SharedArtifact], artifact_name: str, name_pattern: str) -> list[SharedArtifact]:
    """Return the artifacts with the name or, if no name is given, all artifacts that match the pattern.

    An artifact without a name is selected by the name of its job, with or without the values of a matrix.
    """
    if artifact_name:
        return [artifact for artifact in available if artifact.name == artifact_name] or [
            artifact
            for artifact in available
            if not artifact.name and artifact_name in (artifact.job, artifact.job.partition(" (")[0])
        ]
    return [
        artifact
        for artifact in available
        if not name_pattern or fnmatch.fnmatchcase(artifact.name or artifact.job, name_pattern)
    ]


async def _download(job: JobContext, artifact: SharedArtifact, folder_path: str) -> None:
    """Download one artifact and put its files into this folder of the workspace."""
    with tempfile.TemporaryFile(dir=job.layout.root.parent) as downloaded_file:
        url_path = f"run-artifact/{quote(artifact.uri, safe='')}"
        downloaded_bytes = await job.transfers.download(url_path, downloaded_file, MAX_ARTIFACT_BYTES, PATIENCE_SECONDS)
        try:
            await job.transfers.run_in_thread(_unpack, job.layout.root, downloaded_file, folder_path, artifact.path)
        except Refused as refused:
            raise StepFailed(f"artifact {artifact.name or artifact.path!r}: {refused.message}", CODE) from refused
    job.log.write_line(f"artifact {artifact.name or artifact.path!r} of {artifact.job}: {downloaded_bytes} bytes")


def _unpack(root: Path, downloaded_file: BinaryIO, folder_path: str, single_file_path: str) -> None:
    """Merge a downloaded artifact into the folder `folder_path` below the root.

    It is an archive or, if `single_file_path` is not empty, one file that gets this path within the folder.
    """
    staging_folder = Path(tempfile.mkdtemp(dir=root.parent, prefix="artifact-"))
    try:
        downloaded_file.seek(0)
        if single_file_path:
            (staging_folder / single_file_path).parent.mkdir(parents=True, exist_ok=True)
            with (staging_folder / single_file_path).open("wb") as output_file:
                shutil.copyfileobj(downloaded_file, output_file, _PART_BYTES)
        else:
            unpack(staging_folder, downloaded_file)
        merge_tree(staging_folder, root, folder_path)
    finally:
        shutil.rmtree(staging_folder, ignore_errors=True)


def _path_from_root(job: JobContext, path_from_workspace: str) -> str:
    """Return a path that starts at the workspace as a path that starts at the root of the job's folders."""
    if job.layout.is_single_folder and path_from_workspace.strip("./") == "":
        return "."
    return job.layout.resolve(path_from_workspace)


def _check_name(artifact_name: str) -> str:
    """Return the name. Raise `Refused` if an artifact cannot have it."""
    if (
        not _NAME.fullmatch(artifact_name)
        or len(artifact_name.encode()) > MAX_NAME_BYTES
        or artifact_name in (".", "..")
    ):
        message = f"{artifact_name[:80]!r} is not a valid name of an artifact; use no slashes, quotes, colons or stars"
        raise Refused("bad_spec", message)
    return artifact_name


def _includes_hidden(value_by_input: dict[str, str]) -> bool:
    """Return whether hidden files are uploaded: if the input says so, or if a path names one."""
    is_named = any(
        pattern_part.startswith(".") and pattern_part.strip(".")
        for path_pattern in non_empty_lines(value_by_input.get("path", ""))
        for pattern_part in path_pattern.lstrip("!").split("/")
    )
    return is_named or boolean_input(value_by_input, "include-hidden-files", False)


def _find_files(job: JobContext, path_patterns: list[str], includes_hidden: bool) -> list[tuple[str, ArtifactFile]]:
    """Return the matching files with their names in the artifact, relative to the common folder of all patterns."""
    job_root = job.layout.root
    included_patterns = [_path_from_root(job, pattern) for pattern in path_patterns if not pattern.startswith("!")]
    excluded_patterns = [
        _path_from_root(job, pattern[1:].strip()) for pattern in path_patterns if pattern.startswith("!")
    ]
    if not included_patterns:
        raise Refused("bad_spec", "upload-artifact needs the input 'path'")
    rules = [ArtifactRule(path_glob="**" if pattern == "." else pattern) for pattern in included_patterns]
    files = find_files(job_root, rules, MAX_FILES)
    if excluded_patterns:
        excluded_files = find_files(
            job_root, [ArtifactRule(path_glob=pattern) for pattern in excluded_patterns], MAX_FILES
        )
        excluded_paths = {file.path for file in excluded_files}
        files = [file for file in files if file.path not in excluded_paths]
    common_folder = (
        os.path.commonpath([_fixed_folder(job_root, pattern) for pattern in included_patterns]) if files else ""
    )
    named_files = [(file.path[len(common_folder) + 1 :] if common_folder else file.path, file) for file in files]
    if not includes_hidden:
        named_files = [
            (name_in_artifact, file)
            for name_in_artifact, file in named_files
            if not any(path_part.startswith(".") for path_part in name_in_artifact.split("/"))
        ]
    return named_files


def _fixed_folder(root: Path, path_pattern: str) -> str:
    """Return the folder that contains every file the pattern can match: its parts before the first wildcard."""
    pattern_parts = [] if path_pattern == "." else path_pattern.split("/")
    folder_count = next(
        (index for index, pattern_part in enumerate(pattern_parts) if _GLOB.search(pattern_part)), len(pattern_parts)
    )
    if folder_count == len(pattern_parts) and pattern_parts and not (root / path_pattern).is_dir():
        folder_count -= 1
    return "/".join(pattern_parts[:folder_count])


def _pack(root: Path, named_files: list[tuple[str, ArtifactFile]], target_file: BinaryIO) -> None:
    """Write the files, under their names in the artifact, to a gzipped tar file."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=target_file, compresslevel=COMPRESSION, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
    ):
        added_folders: set[str] = set()
        for entry_name, source_file in sorted(named_files):
            for folder in _parent_folders(entry_name):
                if folder not in added_folders:
                    added_folders.add(folder)
                    tar_info = tarfile.TarInfo(folder)
                    tar_info.type, tar_info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(tar_info)
            with open_file(root, source_file) as opened_file:
                file_status = os.fstat(opened_file.fileno())
                tar_info = tarfile.TarInfo(entry_name)
                tar_info.size, tar_info.mode, tar_info.mtime = (
                    file_status.st_size,
                    file_status.st_mode & 0o777,
                    int(file_status.st_mtime),
                )
                tar.addfile(tar_info, opened_file)


def _parent_folders(file_path: str) -> Iterator[str]:
    """Yield the path of every folder that contains this name, the outermost first."""
    for character_index, character in enumerate(file_path):
        if character == "/":
            yield file_path[:character_index]


@contextmanager
def _rewound(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the file at its beginning, and leave it open for a retry."""
    file.seek(0)
    yield file
