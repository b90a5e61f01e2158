"""Built-in steps against a real server, in real cells."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.runner.actions import node, python
from deltaci.runner.actions.artifacts import download, upload
from deltaci.runner.actions.cache import cache
from deltaci.runner.actions.context import JobContext, StepFailed
from tests.contract.backends import on_loop
from tests.runner.leased_job import LeasedJob, running_server
from tests.runner.scenarios import run_scenario, run_scenario_on


def write(folder: Path, **files: str) -> None:
    """Files; `__` for a slash and `_` for a dot in their names."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tree(folder: Path) -> dict[str, str]:
    """What is in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


# -- artifacts


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({}, "needs the input 'path'"),
        ({"path": "x", "name": "a/b"}, "not a valid name of an artifact"),
        ({"path": "x", "name": "n" * 200}, "not a valid name of an artifact"),
        ({"path": "../x"}, "not in the job's"),
        ({"path": "/etc/passwd"}, "not in the job's"),
        ({"path": "x", "if-no-files-found": "cry"}, "warn, error or ignore"),
        ({"path": "x", "nmae": "x"}, "is not known"),
    ],
)
@on_loop
async def test_an_upload_that_makes_no_sense_is_refused(inputs: dict[str, str], why: str, tmp_path: Path) -> None:
    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        with pytest.raises(Refused, match=why):
            await upload(job, inputs)

    await run_scenario(tmp_path, scenario)


@on_loop
async def test_nothing_to_upload_is_told_or_a_failure(tmp_path: Path) -> None:
    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        assert await upload(job, {"path": "none"}) == {}
        assert "nothing is uploaded" in leased_job.log_lines[-1]
        with pytest.raises(StepFailed, match="no file matches"):
            await upload(job, {"path": "none", "if-no-files-found": "error"})
        with pytest.raises(StepFailed, match=r"uploaded an artifact 'none'; available: none"):
            await download(job, {"name": "none"})

    await run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "more", "wanted"),
    [
        ("dist", {}, ["a.txt", "deep/b.txt"]),
        ("dist/*.txt", {}, ["a.txt"]),
        ("dist/a.txt", {}, ["a.txt"]),
        ("dist\nother.md", {}, ["dist/a.txt", "dist/deep/b.txt", "other.md"]),
        ("dist/**\n!dist/deep/**", {}, ["a.txt"]),
        ("dist", {"include-hidden-files": "true"}, [".hidden", "a.txt", "deep/b.txt"]),
        ("dist/.hidden", {}, [".hidden"]),
        ("~/x.md", {}, ["x.md"]),
        (".", {}, ["dist/a.txt", "dist/deep/b.txt", "other.md"]),
    ],
)
@on_loop
async def test_what_an_artifact_holds(path: str, more: dict[str, str], wanted: list[str], tmp_path: Path) -> None:
    """As GitHub's does: what all of its paths have in common is left out of the names."""

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        write(job.layout.workspace, dist__a_txt="a", dist__deep__b_txt="b", dist___hidden="h", other_md="o")
        write(job.layout.home, x_md="x")
        (job.layout.workspace / "dist" / "leak").symlink_to("/etc/hostname")
        (job.layout.workspace / "dist" / "a.txt").chmod(0o755)

        outputs = await upload(job, {"path": path, "name": "my dist (1)", **more})
        await download(job, {"name": "my dist (1)", "path": "got"})

        got = job.layout.workspace / "got"
        assert sorted(tree(got)) == wanted
        assert outputs["artifact-id"] == job.collector.collected.artifacts[0].uri
        if (got / "a.txt").exists():
            assert stat.S_IMODE((got / "a.txt").stat().st_mode) == 0o755
        with pytest.raises(StepFailed, match="has uploaded an artifact"):
            await upload(job, {"path": path, "name": "my dist (1)", **more})
        await upload(job, {"path": path, "name": "my dist (1)", "overwrite": "true", **more})
        assert len(job.collector.collected.artifacts) == 1

    await run_scenario(tmp_path, scenario)


@on_loop
async def test_a_download_goes_among_what_is_there_and_through_no_link(tmp_path: Path) -> None:
    """Outside of the cell the runner can write where the job cannot."""
    precious = tmp_path / "precious"
    write(precious, a_txt="precious")

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        work = job.layout.workspace
        write(work, dist__a_txt="new", dist__d__b_txt="new")
        await upload(job, {"path": "dist"})
        write(work, got__left="left")
        (work / "got" / "d").symlink_to(precious)
        (work / "got" / "a.txt").symlink_to(precious / "a.txt")

        await download(job, {"path": "got", "merge-multiple": "true"})

        assert tree(work / "got") == {"left": "left", "a.txt": "new", "d/b.txt": "new"}
        shutil.rmtree(work)
        work.symlink_to(precious)
        with pytest.raises(StepFailed, match="no file matches"):
            await upload(job, {"path": ".", "name": "stolen", "if-no-files-found": "error"})

    await run_scenario(tmp_path, scenario)
    assert tree(precious) == {"a.txt": "precious"}


# -- caches


@on_loop
async def test_a_cache_is_found_by_its_key_or_by_its_beginning(tmp_path: Path) -> None:
    """`cache-hit` only by the whole key; what was not found under it is kept at the end."""
    inputs = {"path": "~/.cache/tool\nvendor", "key": "os-tool-1", "restore-keys": "os-tool-\nos-"}

    async def first(job: JobContext, _desk: LeasedJob) -> None:
        assert (await cache(job, inputs))["cache-hit"] == ""
        write(job.layout.home, _cache__tool__x="kept")
        write(job.layout.workspace, vendor__y="too")
        await job.caches.save()

    async def second(job: JobContext, _desk: LeasedJob) -> None:
        found = await cache(job, {**inputs, "key": "os-tool-2"})
        assert (found["cache-hit"], found["cache-matched-key"]) == ("false", "os-tool-1")
        assert (job.layout.home / ".cache/tool/x").read_text() == "kept"
        assert (job.layout.workspace / "vendor/y").read_text() == "too"
        assert job.caches.has_unsaved

    async def third(job: JobContext, _desk: LeasedJob) -> None:
        assert (await cache(job, inputs))["cache-hit"] == "true"
        assert not job.caches.has_unsaved
        with pytest.raises(StepFailed, match="fail-on-cache-miss"):
            await cache(job, {"path": "x", "key": "other", "fail-on-cache-miss": "true"})
        with pytest.raises(Refused, match="needs the inputs"):
            await cache(job, {"key": "x"})

    async with running_server(tmp_path) as job_server:
        for scenario in (first, second, third):
            await run_scenario_on(job_server, scenario)


@on_loop
async def test_no_trouble_with_a_cache_is_the_jobs(tmp_path: Path) -> None:
    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        found = await cache(job, {"path": "/usr/share\n**/x", "key": "k"})

        assert found["cache-matched-key"] == ""
        assert any("is a pattern" in line for line in leased_job.log_lines)
        assert any("not in the job's" in line for line in leased_job.log_lines)

    await run_scenario(tmp_path, scenario)


# -- tools


@on_loop
async def test_a_python_that_is_there_is_first_on_the_path_of_its_own(tmp_path: Path) -> None:
    """In the sandbox too, where only what the cell shows can be found."""

    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        with pytest.raises(StepFailed, match=r"Python '2\.1' is not installed; found: 3\.") as failed:
            await python.setup(job, {"python-version": "2.1"})
        assert failed.value.code == "BAD_SPEC"

        found = await python.setup(job, {"python-version": "3.x", "cache": "pip"})

        assert found["python-version"].startswith("3.")
        assert found["python-path"] == f"{job.paths[0]}/python"
        heard = bytearray()
        await job.cell.run(
            "python -c 'import sys; print(sys.prefix)'; pip --version",
            env={"PATH": f"{job.paths[0]}:/usr/bin:/bin"},
            workdir=job.layout.workspace,
            timeout_seconds=60,
            on_output=heard.extend,
        )
        assert heard.decode().splitlines()[0] == str(job.layout.tools / f"python-{found['python-version']}")
        assert heard.decode().splitlines()[1].startswith("pip ")
        assert any("'cache' is ignored" in line for line in leased_job.log_lines)

    await run_scenario(tmp_path, scenario, "sandbox")


@on_loop
async def test_a_node_that_fits_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("18.2.0", "20.1.1"):
        path = tmp_path / "nvm" / "versions" / "node" / f"v{version}" / "bin" / "node"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho v{version}\n")
        path.chmod(0o755)
    monkeypatch.setenv("NVM_DIR", str(tmp_path / "nvm"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        job.env = {"PATH": str(tmp_path / "bin")}
        found = await node.setup(job, {"node-version": "18.x", "registry-url": "https://npm.example"})

        assert found["node-version"] == "v18.2.0"
        assert job.paths == [str(tmp_path / "nvm/versions/node/v18.2.0/bin")]
        npmrc = Path(job.set_env["NPM_CONFIG_USERCONFIG"]).read_text()
        assert npmrc == "//npm.example/:_authToken=${NODE_AUTH_TOKEN}\nregistry=https://npm.example\n"
        write(job.layout.workspace, _nvmrc="lts/iron\n")
        assert (await node.setup(job, {"node-version-file": ".nvmrc"}))["node-version"] == "v20.1.1"
        (job.layout.workspace / ".nvmrc").unlink()
        os.symlink("/etc/hostname", job.layout.workspace / ".nvmrc")
        with pytest.raises(Refused, match="cannot be read"):
            await node.setup(job, {"node-version-file": ".nvmrc"})
        with pytest.raises(StepFailed, match=r"Node '19' is not installed; found: 20\.1\.1, 18\.2\.0"):
            await node.setup(job, {"node-version": "19"})

    await run_scenario(tmp_path, scenario)
