"""Limits are enforced where the kernel allows it, and the description says where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import cgroups
from deltaci.runner.sandbox.cgroups import Hierarchies
from deltaci.runner.sandbox.environment import interpreter
from tests.runner.cells import Bench, in_cell

NO_PID = 1 << 22  # Linux gives out smaller ones only.
EVERYTHING = Limits(memory_bytes=1 << 28, processes=10, cpus=1.5)


def files(folder: Path, **texts: str) -> Path:
    """Return a fake cgroup; `__` stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_limit_that_cannot_be_enforced_is_described(tmp_path: Path) -> None:
    """A silently ignored limit would be worse than none."""

    async def check(bench: Bench) -> None:
        assert "10 processes NOT in force" in bench.cell.description
        assert "1.5 CPUs NOT in force" in bench.cell.description
        assert "memory 268435456 bytes (rlimit, each process)" in bench.cell.description

    in_cell("process-without-cgroup", tmp_path, check, EVERYTHING)


def test_without_a_cgroup_memory_is_limited_per_process(tmp_path: Path) -> None:
    """Weaker than requested, but no single process can use all memory."""

    async def check(bench: Bench) -> None:
        allocate = f"{interpreter()} -I -S -c 'len(bytes(MEGABYTES << 20))'"
        small = await bench.run(allocate.replace("MEGABYTES", "64"))
        large = await bench.run(allocate.replace("MEGABYTES", "512"))

        assert (small.exit_code, large.exit_code) == (0, 1)
        assert b"MemoryError" in bench.output

    in_cell("process-without-cgroup", tmp_path, check, EVERYTHING)


def test_a_cgroup_that_cannot_be_created_is_no_error(tmp_path: Path) -> None:
    """Many runners may not create cgroups; their jobs run all the same."""
    nowhere = Hierarchies(tmp_path / "absent", {"pids": tmp_path / "absent", "memory": tmp_path / "absent"})

    assert cgroups.create("deltaci-1-x", EVERYTHING, hierarchies=nowhere) == cgroups.Groups()


def test_the_runners_own_groups_are_found(tmp_path: Path) -> None:
    """Versions 1 and 2 side by side, and a mount that shows only a part of its hierarchy, as in a container."""
    own = "5:cpu,cpuacct:/\n4:memory:/docker/abc/inner\n1:name=systemd:/init\n0::/user.slice/runner\n"
    seen = (
        "30 25 0:26 / /cg/unified rw - cgroup2 cgroup2 rw\n"
        "31 25 0:27 /docker/abc /cg/memory rw - cgroup cgroup rw,memory\n"
        "32 25 0:28 / /cg/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    )
    files(tmp_path, cgroup=own, mountinfo=seen)

    found = cgroups.find_hierarchies(tmp_path)

    assert found.v2 == Path("/cg/unified/user.slice/runner")
    assert found.v1 == {"memory": Path("/cg/memory/inner"), "cpu": Path("/cg/cpu"), "cpuacct": Path("/cg/cpu")}


def test_version_2_sets_every_limit_it_has(tmp_path: Path) -> None:
    """Controllers are enabled for child groups first; the executor's own processes do not count."""
    home = files(
        tmp_path / "runner", cgroup__controllers="cpu memory pids", cgroup__subtree_control="", cgroup__procs=""
    )
    job = files(home / "deltaci-1-x", memory__max="", memory__swap__max="", pids__max="", cpu__max="", cgroup__kill="")

    groups = cgroups.create("deltaci-1-x", EVERYTHING, executor_process_count=2, hierarchies=Hierarchies(home, {}))

    assert (groups.paths, groups.tracker) == ((job,), str(job))
    assert sorted(groups.in_force) == ["cpu", "memory", "pids"]
    assert (home / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert [(job / n).read_text() for n in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")] == [
        *(str(1 << 28), "0", "12", "150000 100000")
    ]


def test_version_1_sets_every_limit_in_its_own_hierarchy(tmp_path: Path) -> None:
    """For machines that mount both versions, where version 2 has no controllers."""
    v2 = files(tmp_path / "v2" / "deltaci-1-x", cgroup__kill="").parent
    memory = files(tmp_path / "memory" / "deltaci-1-x", memory__limit_in_bytes="", memory__memsw__limit_in_bytes="")
    pids = files(tmp_path / "pids" / "deltaci-1-x", pids__max="")
    cpu = files(tmp_path / "cpu" / "deltaci-1-x", cpu__cfs_period_us="", cpu__cfs_quota_us="")
    v1 = {"memory": memory.parent, "pids": pids.parent, "cpu": cpu.parent, "freezer": tmp_path / "absent"}

    groups = cgroups.create("deltaci-1-x", EVERYTHING, hierarchies=Hierarchies(v2, v1))

    assert groups.tracker == str(v2 / "deltaci-1-x")
    assert sorted(groups.in_force) == ["cpu", "memory", "pids"]
    assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 28)
    assert (pids / "pids.max").read_text() == "10"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"


def test_only_empty_groups_of_dead_runners_are_removed(tmp_path: Path) -> None:
    """A new group is empty, too, but its runner is alive."""
    living = cgroups.name_for("living")
    gone, busy = (living.replace(f".{os.getpid()}-living", f".{NO_PID}-{marker}") for marker in ("gone", "busy"))
    for name in (gone, living, "deltaci-runner", "others"):
        (tmp_path / name).mkdir()
    files(tmp_path / busy, cgroup__procs="1")

    assert cgroups.remove_stale(Hierarchies(tmp_path, {})) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([busy, living, "deltaci-runner", "others"])


def test_groups_of_another_pid_namespace_are_not_removed(tmp_path: Path) -> None:
    """Namespaces may share a hierarchy, and a runner of another one cannot be seen here."""
    own = os.stat("/proc/self/ns/pid").st_ino
    here, elsewhere = (f"deltaci-{namespace}.{NO_PID}-job" for namespace in (own, own + 1))
    for name in (here, elsewhere):
        (tmp_path / name).mkdir()

    assert cgroups.remove_stale(Hierarchies(tmp_path, {})) == 1
    assert [path.name for path in tmp_path.iterdir()] == [elsewhere]


@pytest.mark.parametrize("kind", ["process", "sandbox"])
def test_a_cpu_limit_is_set_in_the_cgroup(kind: str, tmp_path: Path) -> None:
    """The kernel's own file shows it."""

    async def check(bench: Bench) -> None:
        if "CPUs (cgroup)" not in bench.cell.description:
            pytest.skip(f"no cpu cgroup can be had here: {bench.cell.description}")
        name = cgroups.name_for(bench.cell.handle.marker)
        hierarchies = cgroups.find_hierarchies()
        texts = [
            path.read_text()
            for path in (
                *([hierarchies.v2 / name / "cpu.max"] if hierarchies.v2 else []),
                *([hierarchies.v1["cpu"] / name / "cpu.cfs_quota_us"] if "cpu" in hierarchies.v1 else []),
            )
            if path.exists()
        ]

        assert [text.split()[0] for text in texts] == ["50000"]

    in_cell(kind, tmp_path, check, Limits(cpus=0.5))
