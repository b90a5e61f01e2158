"""Check out real repositories at exactly one commit, whatever a repository or a job has planted."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deltaci.core.errors import Refused
from deltaci.git.command import RUNNER, Git, GitFailed, environment
from deltaci.runner.actions.checkout import check_out
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.workspace.checkout import CheckoutSpec, _submodule_remote, fetch_and_check_out
from deltaci.runner.workspace.mirrors import LAST_USED_FILE, prune
from deltaci.runner.workspace.source_policy import (
    KNOWN_PROTOCOLS,
    PROTOCOLS,
    allowed_protocols,
    check_commit,
    check_ref,
    check_url,
    make_remote,
)
from deltaci.server.secrets import Secrets
from tests.contract.backends import on_loop
from tests.e2e.pipes import Death
from tests.runner.leased_job import TENANT, LeasedJob
from tests.runner.scenarios import run_scenario
from tests.support.git_repositories import ENV, Repository

MAIN = "refs/heads/main"
HOST = "https://host.example:8443"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository with three commits on main."""
    made = Repository(tmp_path / "origin")
    for number in range(3):
        made.commit(a_txt=f"{number}\n")
    return made


def checked_out(repository: Repository, tmp_path: Path, ref: str = "", **wanted: Any) -> Path:
    """Return a work tree of the repository's last commit."""
    root = tmp_path / "job" / "workspace"
    root.mkdir(parents=True, exist_ok=True)
    remote = make_remote(str(repository.path), KNOWN_PROTOCOLS)
    what = CheckoutSpec(**{"commit": repository.git("rev-parse", "HEAD"), "ref": MAIN, **wanted})
    asyncio.run(fetch_and_check_out(remote, what, ref, tmp_path / "mirrors", root, print))
    assert sorted(path.name for path in root.parent.iterdir()) == ["workspace"]
    return root / what.path


def git_output(tree: Path, *words: str) -> str:
    """Return the output of git in a work tree."""
    done = subprocess.run(("git", *words), cwd=tree, env=ENV, capture_output=True, check=False, timeout=60)
    return (done.stdout + done.stderr).decode().strip()


# -- refusals


@pytest.mark.parametrize(
    "url",
    [
        *("ext::sh -c 'touch /tmp/x'", "--upload-pack=x", "-x", "https://", "https://user:pw@host/x", "https://-x/y"),
        *(
            "ssh://-oProxyCommand=x/y",
            "-oProxyCommand=x:y",
            "host:-x",
            "ftp://host/x",
            "a\nb",
            "a\0b",
            "fd::3",
            "ext::x",
            "",
        ),
        "ssh://-x@host/y",
    ],
)
def test_a_url_that_git_would_misread_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="repository") as refused:
        check_url(url, KNOWN_PROTOCOLS)

    assert refused.value.code == "bad_spec"
    assert "pw" not in refused.value.message


def test_local_folders_must_be_allowed_explicitly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users who start jobs must not read every repository of the machine."""
    assert allowed_protocols() == PROTOCOLS
    for url in ("/srv/x.git", "file:///srv/x.git"):
        with pytest.raises(Refused, match="DELTACI_GIT_PROTOCOLS=file"):
            check_url(url, allowed_protocols())

    monkeypatch.setenv("DELTACI_GIT_PROTOCOLS", "https, file,ext")

    assert allowed_protocols() == ("https", "file")
    assert check_url("/srv/x.git", allowed_protocols()) == "/srv/x.git"


@pytest.mark.parametrize("ref", ["-x", "main", "refs/heads/-x", "refs/heads/a..b", "refs/heads/a b", "refs/heads/a\0b"])
def test_an_invalid_ref_name_is_refused(ref: str) -> None:
    with pytest.raises(Refused, match="not the full name of a branch"):
        check_ref(ref)


@pytest.mark.parametrize("commit", ["HEAD", "-x", "abc", "A" * 40, "0" * 41, "0" * 39 + "\n"])
def test_an_abbreviated_commit_is_refused(commit: str) -> None:
    with pytest.raises(Refused, match="not the full name"):
        check_commit(commit)


def test_a_missing_commit_is_named(repository: Repository, tmp_path: Path) -> None:
    for ref in ("", MAIN):
        with pytest.raises(GitFailed, match=r"not our ref|does not contain the commit"):
            checked_out(repository, tmp_path, commit="0" * 39 + "1", ref="", depth=1 if ref else 0)


def test_a_missing_branch_is_named(repository: Repository, tmp_path: Path) -> None:
    """The job names it, so its failure is not the worker's: the code is not CHECKOUT."""
    with pytest.raises(Refused, match="has no refs/heads/other and no refs/tags/other"):
        checked_out(repository, tmp_path, ref="other")


@on_loop
async def test_a_timeout_ends_git_and_its_child_processes(tmp_path: Path) -> None:
    """A server that never answers must not occupy a job or leave processes."""
    repository = Repository(tmp_path / "r")
    config = repository.path / ".git" / "config"
    config.write_text(config.read_text() + '[alias]\n\twait = "!echo $$ > ../new; mv ../new ../pid; sleep 1000"\n')

    with pytest.raises(GitFailed, match="took longer than"):
        await Git(RUNNER).run(["wait"], folder=repository.path, timeout_seconds=5)

    with suppress(ProcessLookupError):  # It is killed; when it ends is for the machine to say.
        await Death(int((tmp_path / "pid").read_text()))()


# -- what is brought


def test_the_work_tree_is_exactly_the_commit_with_its_own_repository(repository: Repository, tmp_path: Path) -> None:
    commit = repository.git("rev-parse", "HEAD~1")
    tree = checked_out(repository, tmp_path, commit=commit)

    assert (tree / "a.txt").read_text() == "1\n"
    assert git_output(tree, "rev-parse", "HEAD") == commit
    assert git_output(tree, "status", "--porcelain", "--branch") == "## main"
    assert git_output(tree, "remote", "get-url", "origin") == str(repository.path)
    assert git_output(tree, "rev-list", "--count", "HEAD") == "1"
    assert not (tree / ".git" / "hooks").exists()
    assert not (tree / ".git" / "objects" / "info" / "alternates").exists()


def test_the_history_has_the_requested_depth(repository: Repository, tmp_path: Path) -> None:
    """Also if another job wanted less before, or the same commit again later."""
    repository.git("tag", "v1")
    repository.git("branch", "side", "HEAD~1")
    first = repository.git("rev-parse", "HEAD~1")

    counts = [
        git_output(checked_out(repository, tmp_path, depth=depth, **more), "rev-list", "--count", "HEAD")
        for depth, more in [(1, {}), (2, {}), (1, {}), (2, {"commit": first}), (0, {}), (2, {}), (0, {"commit": first})]
    ]

    assert counts == ["1", "2", "1", "2", "3", "2", "2"]
    tree = checked_out(repository, tmp_path, depth=0)
    assert git_output(tree, "tag") == "v1"
    assert git_output(tree, "branch", "--remotes") == "origin/main\n  origin/side"


def test_a_branch_or_tag_can_be_checked_out_by_name(repository: Repository, tmp_path: Path) -> None:
    repository.git("tag", "--annotate", "--message", "x", "v1", "HEAD~1")
    repository.git("branch", "side", "HEAD~2")

    assert (checked_out(repository, tmp_path, ref="side") / "a.txt").read_text() == "0\n"
    assert (checked_out(repository, tmp_path, ref="v1") / "a.txt").read_text() == "1\n"
    assert (checked_out(repository, tmp_path, ref="refs/tags/v1", depth=0) / "a.txt").read_text() == "1\n"


def test_only_new_objects_are_fetched(repository: Repository, tmp_path: Path) -> None:
    """A commit in the mirror needs no request: the repository may be unreachable."""
    checked_out(repository, tmp_path)
    repository.commit(b_txt="new")
    checked_out(repository, tmp_path)
    repository.path.rename(tmp_path / "away")
    here = Repository.__new__(Repository)
    here.path = tmp_path / "away"
    commit = here.git("rev-parse", "HEAD")
    root = tmp_path / "second" / "workspace"
    root.mkdir(parents=True)

    remote = make_remote(str(repository.path), KNOWN_PROTOCOLS)
    asyncio.run(fetch_and_check_out(remote, CheckoutSpec(commit=commit), "", tmp_path / "mirrors", root, print))

    assert (root / "b.txt").read_text() == "new"


def test_existing_files_are_replaced_or_kept(repository: Repository, tmp_path: Path) -> None:
    tree = checked_out(repository, tmp_path)
    (tree / "left").write_text("x")
    (tree / "a.txt").write_text("changed")

    assert (checked_out(repository, tmp_path, is_clean=False) / "left").exists()
    assert (tree / "a.txt").read_text() == "2\n"
    assert not (checked_out(repository, tmp_path) / "left").exists()


def test_submodules_of_the_same_server_are_checked_out(repository: Repository, tmp_path: Path) -> None:
    inner = Repository(tmp_path / "inner")
    inner.commit(deep_txt="deep")
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", "../inner", "sub")
    repository.commit()

    assert not (checked_out(repository, tmp_path) / "sub" / "deep.txt").exists()
    assert (checked_out(repository, tmp_path, submodules="recursive") / "sub" / "deep.txt").read_text() == "deep"


def test_a_corrupt_mirror_is_replaced(repository: Repository, tmp_path: Path) -> None:
    """A full disk or a power loss must not fail all later jobs."""
    checked_out(repository, tmp_path)
    for part in (tmp_path / "mirrors").glob("*.git/objects/??/*"):
        part.chmod(0o644)
        part.write_bytes(b"")

    assert (checked_out(repository, tmp_path) / "a.txt").read_text() == "2\n"


def test_unused_mirrors_are_removed(repository: Repository, tmp_path: Path) -> None:
    checked_out(repository, tmp_path)
    folder = tmp_path / "mirrors"
    [kept] = folder.glob("*.git")
    for name in ("old.git", "young.git"):
        (folder / name).mkdir()
        (folder / name / LAST_USED_FILE).touch()
        (folder / name / "pack").write_bytes(b"x" * 1000)
    os.utime(folder / "old.git" / LAST_USED_FILE, (0, 0))

    assert prune(folder, kept) == [folder / "old.git"]
    assert prune(folder, kept, max_bytes=0) == [folder / "young.git"]
    assert kept.exists()


# -- hostile


def test_programs_in_a_repository_are_never_run(repository: Repository, tmp_path: Path) -> None:
    """Filters, hooks and submodule commands run only if the user configures them."""
    mark = tmp_path / "ran"
    repository.commit(
        _gitattributes="* filter=evil diff=evil\n",
        _gitmodules=f'[submodule "x"]\n\tpath = x\n\turl = ../inner\n\tupdate = "!touch {mark}"\n',
        _gitconfig=f'[core]\n\tfsmonitor = "touch {mark}"\n[filter "evil"]\n\tsmudge = touch {mark}\n',
    )
    (repository.path / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in ("post-checkout", "post-update", "reference-transaction", "post-receive"):
        path = repository.path / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {mark}\n")
        path.chmod(0o755)

    tree = checked_out(repository, tmp_path, depth=0)

    assert (tree / ".gitconfig").exists()
    assert not mark.exists()


@pytest.mark.parametrize("url", ["ext::sh -c touch% MARK", "--upload-pack=touch MARK", "fd::17"])
def test_a_submodule_url_that_is_a_command_is_refused(url: str, repository: Repository, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (repository.path / ".gitmodules").write_text(
        f'[submodule "x"]\n\tpath = x\n\turl = "{url.replace("MARK", str(mark))}"\n'
    )
    head = repository.git("rev-parse", "HEAD")
    (repository.path / "x").mkdir()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},x")
    repository.commit()

    with pytest.raises(GitFailed):
        checked_out(repository, tmp_path, submodules="true")

    assert not mark.exists()


@pytest.mark.parametrize(
    ("url", "is_trusted", "wanted"),
    [
        ("https://h/x", True, (("http", "https", "git"), "token", "")),
        ("https://h/x", False, (("http", "https", "git"), "", "")),
        ("ssh://h/x", True, (KNOWN_PROTOCOLS, "token", "key")),
        ("ssh://h/x", False, (("http", "https", "git"), "", "")),
        ("/x", True, (("http", "https", "git", "file"), "token", "")),
    ],
)
def test_submodules_cannot_use_the_runners_credentials(url: str, is_trusted: bool, wanted: Any) -> None:
    """A stranger's change may name any repository as a submodule."""
    remote = make_remote(url, KNOWN_PROTOCOLS, credential="token", key_file="key")
    used = _submodule_remote(remote, is_trusted)

    assert (used.protocols, used.credential, used.key_file) == wanted


def test_links_and_hooks_in_the_workspace_are_replaced_and_never_followed(
    repository: Repository, tmp_path: Path
) -> None:
    """Git outside of the cell must not read links, hooks or configuration of the job."""
    root, precious, mark = tmp_path / "job" / "workspace", tmp_path / "precious", tmp_path / "ran"
    precious.mkdir()
    (precious / "a.txt").write_text("precious")
    root.mkdir(parents=True)
    for plant in (".git", "sub", "a.txt"):
        (root / plant).unlink(missing_ok=True)
        (root / plant).symlink_to(precious)
        checked_out(repository, tmp_path, path="sub" if plant == "sub" else ".")
    tree = root
    (tree / ".git" / "hooks").mkdir()
    hook = tree / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    with (tree / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {mark}"\n\tsshCommand = "touch {mark}"\n')
    checked_out(repository, tmp_path)

    assert (tree / "a.txt").read_text() == "2\n"
    assert [path.name for path in precious.iterdir()] == ["a.txt"]
    assert (precious / "a.txt").read_text() == "precious"
    assert not mark.exists()


# -- credentials


def test_a_credential_is_sent_only_to_its_host_and_is_in_no_argument() -> None:
    remote = make_remote(f"{HOST}/a/b.git", ("https",), credential="tok-123456")
    env = environment(RUNNER, remote)

    config = {env[f"GIT_CONFIG_KEY_{n}"]: env[f"GIT_CONFIG_VALUE_{n}"] for n in range(int(env["GIT_CONFIG_COUNT"]))}
    assert [key for key in config if key.endswith(".helper")] == ["credential.helper", f"credential.{HOST}.helper"]
    assert config["credential.helper"] == ""
    assert "tok-123456" not in str(config)
    assert env["DELTACI_PASSWORD"] == "tok-123456"
    assert (env["GIT_TERMINAL_PROMPT"], env["GIT_ALLOW_PROTOCOL"]) == ("0", "https")
    assert "tok" not in str(environment(RUNNER, make_remote("/x", ("file",), credential="tok-123456")))


@pytest.mark.parametrize(("host", "password"), [("host.example:8443", "tok-123456"), ("other.example", None)])
def test_git_asks_for_the_credential_of_its_host_only(host: str, password: str | None) -> None:
    env = environment(RUNNER, make_remote(f"{HOST}/a/b.git", ("https",), credential="tok-123456"))
    question = f"protocol=https\nhost={host}\n\n".encode()
    answer = subprocess.run(
        ("git", "credential", "fill"), input=question, env=env, capture_output=True, check=False, timeout=60
    )

    lines = dict(line.split("=", 1) for line in answer.stdout.decode().splitlines())
    assert lines.get("password") == password


# -- as a step


def source(repository: Repository, **more: Any) -> dict[str, Any]:
    """Return the source in a job's specification."""
    return {"url": str(repository.path), "commit": repository.git("rev-parse", "HEAD"), "ref": MAIN, **more}


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"repository": "other/thing"}, "another repository"),
        ({"lfs": "true"}, "lfs"),
        ({"submodules": "maybe"}, "submodules"),
        ({"fetch-depth": "-1"}, "whole number"),
        ({"path": "../x"}, "not in the job's"),
        ({"clean": "perhaps"}, "true or false"),
        ({"ssh-key": "x"}, "is not known"),
        ({"ref": "-x"}, "not the full name of a branch"),
    ],
)
@on_loop
async def test_an_invalid_input_is_the_authors_mistake(
    inputs: dict[str, str], why: str, repository: Repository, tmp_path: Path
) -> None:
    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        with pytest.raises(Refused, match=why) as refused:
            await check_out(job, inputs)
        assert refused.value.code == "bad_spec"

    await run_scenario(tmp_path, scenario, source=source(repository))


@on_loop
async def test_an_unreachable_repository_is_not_the_jobs_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another runner, or the same one later, may reach it."""
    monkeypatch.setattr("deltaci.runner.workspace.mirrors.FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("deltaci.runner.workspace.mirrors.MAX_PAUSE_SECONDS", 0.001)

    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        with pytest.raises(StepFailed, match="does not appear to be a git repository") as failed:
            await check_out(job, {})
        assert failed.value.code == "CHECKOUT"
        assert sum("retrying" in line for line in leased_job.log_lines) == 3

    await run_scenario(tmp_path, scenario, source={"url": str(tmp_path / "none"), "commit": "1" * 40})


@on_loop
async def test_a_credential_is_fetched_by_the_runner_also_for_forks_and_never_shown(
    repository: Repository, tmp_path: Path
) -> None:
    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        Secrets(leased_job.service.blobs, (tmp_path / "data" / "server.key").read_bytes()).set(
            TENANT, "READ", "hunter2-token"
        )
        outputs = await check_out(job, {"repository": "Acme/Shop", "ref": "main", "fetch-depth": "0"})
        job.log.write_line("it was hunter2-token")

        assert outputs["commit"] == job.spec.source.commit  # type: ignore[union-attr]
        assert (job.layout.workspace / "a.txt").exists()
        assert (job.layout.home / ".gitconfig").exists()
        assert "it was ***" in leased_job.log_lines
        assert "hunter2" not in (job.layout.workspace / ".git" / "config").read_text()

    await run_scenario(tmp_path, scenario, source=source(repository, credential="READ"), cache_scope="fork")
