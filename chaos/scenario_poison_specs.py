"""Job specifications that make no sense: refused at the door or failed with a cause, and the next job runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from chaos.deployment import Deployment, deployed
from chaos.jobs import over
from chaos.rows import Row, measured
from chaos.stage import Stage, TimedOut
from deltaci.core.attempt import SUCCEEDED
from deltaci.core.errors import Refused

FAULT: Final = "poison job spec"
TTL_SECONDS: Final = 11
MEGABYTE: Final = 1 << 20
HONEST: Final = {"steps": ["true"], "executor": "process"}


def deep(levels: int) -> Any:
    """A list in a list in a list …"""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


# Each is what somebody enqueued; `steps` would succeed if the rest made sense.
SPECS: Final[Mapping[str, Any]] = {
    "nothing": None,
    "a number": 5,
    "a text": "true",
    "a list": ["true"],
    "steps that are a text": {"steps": "true"},
    "steps that are numbers": {"steps": [1, 2]},
    "steps by name": {"steps": {"first": "true"}},
    "a step without a command": {"steps": [{"name": "x"}]},
    "a step with an unknown key": {"steps": [{"run": "true", "uses": "x"}]},
    "an unknown key": {"stepz": ["true"]},
    "variables in a list": {"steps": ["true"], "env": ["A=1"]},
    "a variable that is a number": {"steps": ["true"], "env": {"A": 1}},
    "a variable with = in its name": {"steps": ["true"], "env": {"A=B": "1"}},
    "a variable without a name": {"steps": ["true"], "env": {"": "1"}},
    "a variable with NUL": {"steps": ["true"], "env": {"A": "1\0"}},
    "a variable with NUL in its name": {"steps": ["true"], "env": {"A\0": "1"}},
    "a command with NUL": {"steps": ["true\0"]},
    "a lone surrogate": {"steps": ["echo \ud800"]},
    "a lone surrogate in a name": {"steps": [{"run": "true", "name": "\udfff"}]},
    "limits below nothing": {"steps": ["true"], "limits": {"memory_bytes": -1}},
    "limits that are no number": {"steps": ["true"], "limits": {"cpus": float("nan")}},
    "a limit of one byte": {"steps": ["true"], "limits": {"memory_bytes": 1}, "executor": "process"},
    "an executor that is none": {"steps": ["true"], "executor": "magic"},
    "an image that is an option": {"steps": ["true"], "image": "--privileged"},
    "a folder outside": {"steps": ["true"], "workdir": "../../.."},
    "an absolute folder": {"steps": ["true"], "workdir": "/etc"},
    "a folder with NUL": {"steps": ["true"], "workdir": "a\0b"},
    "an output outside": {"steps": ["true"], "output_path": "../../../etc/passwd"},
    "a pattern that is none": {"steps": ["true"], "artifacts": [{"path_glob": "[z-a]/../../*"}]},
    "a pattern that explodes": {"steps": ["true"], "artifacts": [{"path_glob": "**/" * 600 + "x"}]},
    "a cache of everything": {"steps": ["true"], "caches": [{"key": "k", "paths": ["/", "..", "~"]}]},
    "a cache with an odd key": {"steps": ["true"], "caches": [{"key": "../../\x1b]0;x\x07", "paths": ["a"]}]},
    "a secret that is none": {"steps": ["true"], "secrets": ["../server.key"]},
    "deeply nested": {"steps": ["true"], "env": deep(500)},
    "more deeply nested": {"steps": ["true"], "env": deep(100_000)},
    "a thousand and one steps": {"steps": ["true"] * 1001},
    "a step of a megabyte": {"steps": ["# " + "x" * MEGABYTE]},
    "five megabytes of steps": {"steps": ["# " + "x" * 90_000] * 55},
    "a hundred megabytes": {"steps": ["x" * 100 * MEGABYTE]},
    "a very long name": {"name": "x" * MEGABYTE, "steps": ["true"]},
    "a time below nothing": {"steps": [{"run": "true", "timeout_seconds": -5}]},
}


async def run(stage: Stage) -> AsyncIterator[Row]:
    """All of them, and then an honest job."""
    async with deployed(stage, "poison", ttl_seconds=TTL_SECONDS) as deployment:
        runner = deployment.add_runner("r1", slots=4)
        await over(deployment, await deployment.work.ask(HONEST))
        keeper = deployment.keeper(runner)
        specs = dict(list(SPECS.items())[: stage.size(len(SPECS), 4)])
        wrong, refused, ids = await _enqueued(deployment, specs)
        stage.log(f"{len(refused)} of {len(specs)} are refused when they are enqueued")
        told: list[str] = []
        for name, id in ids.items():
            try:
                record = await over(deployment, id, 60.0)
            except TimedOut:
                wrong.append(f"{name}: not over")
                continue
            told.append(f"{name}: {record.error.code if record.error else record.state}")
            if record.state != SUCCEEDED and (record.error is None or not record.error.message):
                wrong.append(f"{name}: {record.state} without a cause")
        stage.log("; ".join(told))
        last = await over(deployment, await deployment.work.ask(HONEST))
        crashed = [part.name for part in (*deployment.servers, runner) if not part.is_running]
        if not crashed and deployment.keeper(runner) != keeper:
            crashed.append("the keeper")
        injected = f"{len(specs)} specifications"
        note = f"{len(refused)} refused at the door, the others ended with a cause"
        yield measured(FAULT, injected, "quarantined, with a cause", len(wrong), "violations", 0,
                       "; ".join(wrong) or note)  # fmt: skip
        yield measured(FAULT, injected, "server and runner go on", len(crashed), "crashes", 0, str(crashed))
        is_done = last.state == SUCCEEDED
        yield measured(FAULT, injected, "the next job runs", 0 if is_done else 1, "failures", 0)
        yield (await deployment.verdict()).row(FAULT, injected)


async def _enqueued(deployment: Deployment, specs: Mapping[str, Any]) -> tuple[list[str], list[str], dict[str, str]]:
    """What is wrong, what was refused, and the ids of the others."""
    wrong: list[str] = []
    refused: list[str] = []
    ids: dict[str, str] = {}
    for name, spec in specs.items():
        try:
            ids[name] = await asyncio.wait_for(deployment.work.ask(spec), 30.0)
        except Refused as why:
            refused.append(f"{name}: {why.code}")
        except Exception as error:
            wrong.append(f"{name}: enqueued, it raises {type(error).__name__}: {str(error)[:80]}")
    return wrong, refused, ids
