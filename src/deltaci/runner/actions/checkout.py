"""`uses: checkout`: fetches the job's source into the workspace, at the commit of the run."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.git.command import GitFailed, GitRemote
from deltaci.protocol.messages import Source
from deltaci.runner.actions.context import JobContext, StepFailed, boolean_input, check_inputs, integer_input
from deltaci.runner.client import RunnerClient
from deltaci.runner.workspace.checkout import (
    CheckoutSpec,
    credential_encodings,
    fetch_and_check_out,
    trust_any_owner,
)
from deltaci.runner.workspace.source_policy import make_remote, url_scheme

INPUTS: Final = (
    *("repository", "ref", "token", "path", "clean", "fetch-depth", "fetch-tags", "submodules", "lfs"),
    *("persist-credentials", "set-safe-directory", "show-progress", "sparse-checkout", "sparse-checkout-cone-mode"),
    *("filter", "github-server-url", "allow-unsafe-pr-checkout"),
)
CODE: Final = "CHECKOUT"
_SUBMODULES: Final = {"": "", "false": "", "true": "true", "recursive": "recursive"}


async def check_out(job: JobContext, value_by_input: dict[str, str]) -> dict[str, str]:
    """Check out the job's source into the workspace and return the step's outputs.

    A failure of git fails the step with an error code that allows a retry.
    """
    check_inputs(value_by_input, INPUTS)
    source = job.spec.source
    if source is None:
        raise Refused("bad_spec", "the job has no source to check out; start it from a repository")
    _check_repository(job, source, value_by_input.get("repository", ""))
    if boolean_input(value_by_input, "lfs", False):
        raise Refused("bad_spec", "checkout with 'lfs' is not supported; fetch the files in a step: git lfs pull")
    submodules = value_by_input.get("submodules", "").strip().lower()
    if submodules not in _SUBMODULES:
        raise Refused("bad_spec", f"the input 'submodules' is {submodules[:80]!r}; expected false, true or recursive")
    layout = job.layout
    target_path = (
        layout.resolve(value_by_input.get("path", "").strip() or ".")
        if not layout.is_single_folder
        else _plain_path(value_by_input)
    )
    ref = value_by_input.get("ref", "").strip()
    if ref in (source.commit, source.ref, source.ref.removeprefix("refs/heads/")):
        ref = ""
    checkout_spec = CheckoutSpec(
        commit=source.commit,
        ref=source.ref,
        depth=integer_input(value_by_input, "fetch-depth", source.depth),
        path=target_path,
        submodules=_SUBMODULES[submodules],
        is_clean=boolean_input(value_by_input, "clean", True),
        has_tags=boolean_input(value_by_input, "fetch-tags", False),
        is_trusted=not job.spec.cache_scope,
    )
    for input_name in ("sparse-checkout", "filter"):
        if value_by_input.get(input_name, "").strip():
            job.log.write_line(f"checkout: {input_name!r} is ignored; everything is checked out")
    if boolean_input(value_by_input, "persist-credentials", False):
        job.log.write_line("checkout: 'persist-credentials' is ignored; the credential is not stored in the worktree")
    try:
        async with open_remote(job, source, value_by_input.get("token", "")) as remote:
            checked_out_ref, commit = await fetch_and_check_out(
                remote, checkout_spec, ref, job.mirrors, layout.root, job.log.write_line
            )
    except GitFailed as failed:
        raise StepFailed(f"checkout: {failed}", CODE) from failed
    if not layout.is_single_folder and boolean_input(value_by_input, "set-safe-directory", True):
        await asyncio.to_thread(trust_any_owner, layout.root, layout.home.relative_to(layout.root).as_posix())
    job.log.write_line(f"checkout: {source.url} at {commit}{f' ({checked_out_ref})' if checked_out_ref else ''}")
    return {"ref": checked_out_ref, "commit": commit}


@asynccontextmanager
async def open_remote(job: JobContext, source: Source, input_token: str = "") -> AsyncIterator[GitRemote]:
    """Yield the source's repository with its credential. A private key exists as a file only within the block."""
    credential = await _credential(job, source, input_token)
    job.log.add_secrets(credential_encodings(credential) if credential else [])
    with _key_file(job, source, credential) as key_file:
        yield make_remote(source.url, job.protocols, "" if key_file else credential, key_file)


def _plain_path(value_by_input: dict[str, str]) -> str:
    """Return the input `path` relative to the workspace. Raise `Refused` if it leads outside."""
    relative_path = value_by_input.get("path", "").strip() or "."
    path_names = [folder_name for folder_name in relative_path.split("/") if folder_name not in ("", ".")]
    if relative_path.startswith("/") or ".." in path_names or "\0" in relative_path:
        raise Refused("bad_spec", f"the path {relative_path[:80]!r} is outside of the workspace; name a folder inside")
    return "/".join(path_names) or "."


def _check_repository(job: JobContext, source: Source, repository_name: str) -> None:
    """Raise `Refused` for any repository except the job's, since the credential must not be used for another one."""
    repository_name = repository_name.strip().removesuffix(".git").lower()
    job_repository = str(job.expressions.github.get("repository") or "").lower()
    job_url = source.url.rstrip("/").removesuffix(".git").lower()
    if (
        not repository_name
        or repository_name in (job_repository, job_url)
        or job_url.endswith((f"/{repository_name}", f":{repository_name}"))
    ):
        return
    message = (
        f"checkout of another repository, {repository_name[:80]!r}, is not supported; clone it in a step of the job"
    )
    raise Refused("bad_spec", message)


async def _credential(job: JobContext, source: Source, input_token: str) -> str:
    """Return the credential for the source: the input `token`, or else the one that the server has; empty if none."""
    if input_token.strip():
        return input_token.strip()
    if not source.credential:
        return ""
    try:
        return (await job.transfers.call(RunnerClient.source_credential)).strip()
    except Refused as refused:
        raise StepFailed(f"checkout: {refused.message}", "SECRETS") from refused


@contextmanager
def _key_file(job: JobContext, source: Source, credential: str) -> Iterator[str]:
    """Write a private key for SSH to a temporary file and yield its path; an empty string for other credentials."""
    if url_scheme(source.url) != "ssh" or "PRIVATE KEY" not in credential:
        yield ""
        return
    job.mirrors.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, key_path = tempfile.mkstemp(dir=job.mirrors, prefix="key-")
    try:
        with os.fdopen(descriptor, "w") as key_file:
            key_file.write(credential + "\n")
        yield key_path
    finally:
        Path(key_path).unlink(missing_ok=True)
