"""Caches and artifacts that try to get out: through a real server, to a real runner, on a small disk.

A liar with a lease of its own puts forged archives under keys that an honest job then asks for; a hostile job leaves
files behind that are none, and paths are forged on the way to the server.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from chaos import archives, liar
from chaos.deployment import Deployment, deployed
from chaos.jobs import MEGABYTE, over, peak_bytes, read_log, small_disk, small_disk_unavailable_reason
from chaos.rows import Row, measured
from chaos.stage import Stage
from deltaci.conformance.http_client import HttpClient
from deltaci.conformance.scripted_runner import HeldLease
from deltaci.core.attempt import SUCCEEDED

FAULT: Final = "zip slip, symlink, hardlink, device, bomb"
TTL_SECONDS: Final = 11
DISK_BYTES: Final = 256 * MEGABYTE
GROWTH_MEGABYTES: Final = 128.0
ODD: Final = r"""
find . \( -not -type f -not -type d -o -type f \( -links +1 -o -perm /7000 \) \) -printf 'ODD %y %p -> %l\n'
ls -A .. | grep -vx -e log -e workspace | sed 's/^/ODD beside the workspace: /' || true"""
OUTSIDE: Final = "nothing outside of the workspace is made, changed or read"

# What a job may leave behind. The first one is all that may be kept.
LEFT: Final = """
mkdir -p left && cd left
echo kept > kept
ln -s /etc/passwd link; ln -s SECRET secret; ln SECRET hard || true; ln -s ../../.. up; ln -s SECRET.d folder
mkfifo fifo; mknod null c 1 3; mknod disk b 7 0
PYTHON -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
ln -s loop loop
"""
REPORTS: Final = {
    "entities.xml": '<!DOCTYPE a [<!ENTITY a "'
    + "x" * 1000
    + '">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1 if n else chr(32)};" * 10}">' for n in range(9))
    + "]><testsuite><testcase name='&a8;'/></testsuite>",
    "file.xml": '<!DOCTYPE a [<!ENTITY x SYSTEM "file://SECRET">]>'
    "<testsuite><testcase name='t'><failure>&x;</failure></testcase></testsuite>",
}
PATHS: Final = (
    "../escaped", "a/../../escaped", "%2e%2e/escaped", "..%2f..%2fescaped", "/etc/escaped", "//escaped", "a//b",
    "./escaped", "a/./b", "a%00b", "..\\escaped", "%5c..%5cescaped", "a/..", "~/escaped", "a" * 700, "%c0%ae%c0%ae/x",
    "a/" * 299 + "b", "escaped%0d%0aX:%20y", "%ff%fe", ".hidden/../../../../server.key",
)  # fmt: skip


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Caches first, then artifacts, reports and paths."""
    outside = stage.make_folder("outside")
    told = secrets.token_hex(16)
    (outside / "secret").write_text(told)
    (outside / "secret.d").mkdir()
    (outside / "secret.d" / "inner").write_text(told)
    async with deployed(stage, "archives", ttl_seconds=TTL_SECONDS) as deployment:
        caller = HttpClient(f"http://127.0.0.1:{deployment.ports()[0]}")
        visitor = await asyncio.to_thread(liar.register_runner, caller, deployment.data, "liar")
        await deployment.work.ask({"steps": ["true"]})
        held = await asyncio.to_thread(liar.lease_job, visitor)
        runner = deployment.add_runner(
            "r1", wrapper=() if small_disk_unavailable_reason() else small_disk(deployment.folder / "r1", DISK_BYTES)
        )
        yield await _caches(stage, deployment, held, outside)
        await asyncio.to_thread(held.send, "Heartbeat")
        yield await _artifacts(stage, deployment, outside, told)
        yield await _reports(stage, deployment, outside, told)
        yield await _paths(stage, deployment, held)
        await asyncio.to_thread(held.send, "Complete")
        crashed = [part.name for part in (*deployment.servers, runner) if not part.is_running]
        yield measured(FAULT, "all of these", "runner and server survive", len(crashed), "crashes", 0, str(crashed))
        yield (await deployment.verdict()).row(FAULT, "all of these")


async def _caches(stage: Stage, deployment: Deployment, held: HeldLease, outside: Path) -> Row:
    malicious_archives = dict(list(archives.malicious_archives("cached", outside).items())[: stage.size(100, 5)])
    lease = {"Delta_Lease": held.granted.lease_id}
    keys = {}
    for number, (name, data) in enumerate(malicious_archives.items()):
        keys[f"forged-{number}"] = name
        reply = await asyncio.to_thread(held.runner.request, "PUT", f"caches/forged-{number}", data, **lease)
        assert reply.status == 200, f"{name}: {reply}"
        await asyncio.to_thread(held.send, "Heartbeat")
    stage.log(f"{len(malicious_archives)} archives are kept by the server; jobs ask for them now")
    wrong, names, refused = [], list(keys), []
    for some in (names[at : at + 10] for at in range(0, len(names), 10)):
        for key in some:  # Each for itself: what one leaves must not hide what the next one does.
            spec = {"steps": [ODD], "executor": "process", "caches": [{"key": key, "paths": ["cached"]}]}
            record = await over(deployment, await deployment.work.ask(spec), 60.0)
            log = read_log(deployment, record).decode(errors="replace")
            if "continuing without it" in log:
                refused.append(keys[key])
            elif f"cache '{key}'" not in log:
                wrong.append(f"{keys[key]}: the runner does not speak of it")
            if record.state != SUCCEEDED:
                wrong.append(f"{keys[key]}: the job is {record.state}")
            wrong += [f"{keys[key]}: {line}" for line in log.splitlines() if line.startswith("ODD")]
        await asyncio.to_thread(held.send, "Heartbeat")
    # The runner's disk is a mount of its own, which is seen through its process.
    seen = Path(f"/proc/{deployment.runners['r1'].pid}/root{deployment.folder}")
    brought = [path for path in _marked(seen, outside) if not path.is_relative_to(seen / "data" / "blobs")]
    wrong += [f"{path} has what an archive brought" for path in brought]
    wrong += _changed(outside)
    harmless = [name for name in malicious_archives if name not in refused]
    note = "; ".join(wrong[:5]) or f"{len(refused)} refused; harmless: {', '.join(harmless)}"
    return measured(FAULT, f"{len(malicious_archives)} forged caches", OUTSIDE, len(wrong), "escapes", 0, note)


async def _artifacts(stage: Stage, deployment: Deployment, outside: Path, told: str) -> Row:
    stage.log("a job leaves links, devices and pipes behind")
    script = LEFT.replace("SECRET", str(outside / "secret")).replace("PYTHON", sys.executable)
    spec = {"steps": [script], "executor": "process", "artifacts": [{"path_glob": "left/**"}, {"path_glob": "left"}]}
    record = await over(deployment, await deployment.work.ask(spec))
    kept = sorted(str(each["uri"]).rpartition("/left/")[2] for each in _artifacts_of(record.report))
    # A hard link to a file of its own user on its own disk is that file: the job could as well have copied it.
    wrong = [f"{name!r} was kept" for name in kept if name not in ("kept", "hard")]
    if "kept" not in kept:
        wrong.append(f"the one honest file was not kept: {record.state}, {record.error}")
    if "hard" not in kept and _holds(deployment.data / "blobs", told):
        wrong.append("what is outside was kept")
    wrong += _changed(outside)
    return measured(FAULT, "a job's links, devices, pipes", OUTSIDE, len(wrong), "escapes", 0, "; ".join(wrong))


async def _reports(stage: Stage, deployment: Deployment, outside: Path, told: str) -> Row:
    stage.log("test reports with entities")
    runner = deployment.runners["r1"]
    before = peak_bytes(runner.pid)
    texts = {name: text.replace("SECRET", str(outside / "secret")) for name, text in REPORTS.items()}
    write = "".join(f"cat > {name} <<'END'\n{text}\nEND\n" for name, text in texts.items())
    write += f"{sys.executable} -c \"print('<a>' * 100_000)\" > deep.xml\n"
    rule = [{"path_glob": "*.xml", "type": "junit"}]
    record = await over(
        deployment, await deployment.work.ask({"steps": [write], "executor": "process", "artifacts": rule})
    )
    grown = (peak_bytes(runner.pid) - before) / MEGABYTE
    wrong = [] if record.state == SUCCEEDED else [f"the job is {record.state}: {record.error}"]
    if told in f"{record}" + read_log(deployment, record).decode(errors="replace"):
        wrong.append("a report was told what is outside")
    if grown > GROWTH_MEGABYTES:
        wrong.append(f"the runner grew by {grown:.0f} MiB")
    note = "; ".join([*wrong, f"{grown:.0f} MiB more"])
    return measured(
        FAULT,
        "entities that grow, entities that read, and endless depth in test reports",
        OUTSIDE,
        len(wrong),
        "escapes",
        0,
        note,
    )


async def _paths(stage: Stage, deployment: Deployment, held: HeldLease) -> Row:
    stage.log(f"{len(PATHS)} forged paths")
    lease = {"Delta_Lease": held.granted.lease_id}
    answers: list[str] = []
    for path in PATHS:
        for kind in ("artifacts", "caches"):
            reply = await asyncio.to_thread(held.runner.request, "PUT", f"{kind}/{path}", archives.MARK, **lease)
            answers.append(f"{kind}/{path[:40]}: {reply}")
    wrong = [
        f"{each} was written"
        for each in _marked(deployment.folder)
        if not each.is_relative_to(deployment.data / "blobs")
    ]
    wrong += [answer for answer in answers if ": 5" in answer]
    note = "; ".join(wrong[:5]) or f"{sum(': 200' in each for each in answers)} kept under a name of their own"
    injected = f"{len(answers)} forged paths of artifacts and caches"
    return measured(FAULT, injected, "nothing outside of the store of blobs", len(wrong), "escapes", 0, note)


def _artifacts_of(report: Any) -> list[dict[str, Any]]:
    found = report.get("artifacts", []) if isinstance(report, dict) else []
    return [each for each in found if each.get("type") != "log"]


def _marked(*folders: Path) -> Iterator[Path]:
    """Every file that has the mark in it, but for the logs of the scenario itself."""
    for folder in (*folders, *(Path("/").glob("escaped*")), *(Path("/tmp").glob("escaped*"))):
        for path in (folder, *folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and _has(path, archives.MARK):
                yield path


def _holds(folder: Path, text: str) -> bool:
    return any(path.is_file() and _has(path, text.encode()) for path in folder.rglob("*"))


def _has(path: Path, data: bytes) -> bool:
    with path.open("rb") as file:
        return data in file.read(4 * MEGABYTE)


def _changed(outside: Path) -> list[str]:
    found = sorted(str(path.relative_to(outside)) for path in outside.rglob("*"))
    return [] if found == ["secret", "secret.d", "secret.d/inner"] else [f"outside there is {found}"]
