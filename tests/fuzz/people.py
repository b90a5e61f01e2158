"""People with keys, templates, and runs in many states, on a real server: so that what is asked about is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx

from deltaci.app import registration_token
from tests.fuzz.prey import Prey
from tests.server.rest.site import Caller, ScriptedRunner, gate, task

TENANT: Final = "default"
WAIT_SECONDS: Final = 30.0
LABEL: Final = "nobody-has-this"
REPOSITORY: Final = "https://127.0.0.1/acme/shop.git"  # A private host: nothing is sent there.
ARTIFACT: Final = "out/report.txt"
WITH_FILES: Final = ("build", "done")  # The jobs that leave it behind.
LOG: Final = b"made \xff something\n" * 20
SPARE_KEYS: Final = 5
SPARE_WORKERS: Final = 5
PLAYER: Final = "player"


class People(NamedTuple):
    """The tokens of those who ask. A stranger has none."""

    admin: str
    operator: str
    reader: str
    stranger: str = ""


async def _key(operator: Caller, person: str, *scopes: str) -> str:
    reply = await operator.post("/keys", {"person": person, "scopes": scopes, "roles": ["lead"]})
    assert reply.status == 201, reply
    return str(reply.body["token"])


async def _player(http: httpx.AsyncClient, folder: Path, name: str) -> ScriptedRunner:
    body = {"token": registration_token(folder, name, TENANT), "capabilities": [], "slots": 100}
    answer = await http.post("/runner/v1/register", json=body)
    return ScriptedRunner(http, name, answer.json()["credential"], [])


async def _play(ada: Caller, player: ScriptedRunner) -> None:
    """One run for each way in which a run can be."""
    await ada.start(task("build"), gate("release"), task("deploy"), project="shop", branch="main", labels=["x", "y"])
    lease = await player.take()
    await player.log(lease, LOG)
    await player.upload_artifact(lease, ARTIFACT, b"0123456789" * 10)
    await player.finish(lease, output={"size": 3}, cost={"cpu_seconds": 1.5})
    await ada.start(task("broken"), task("never"), project="shop")
    await player.fail(await player.take(), log_tail=["fatal: no"])
    await ada.start(task("again", retry={"max_attempts": 9, "base_delay_seconds": 5000}))
    await player.fail(await player.take(), log_tail=["fatal: No space left on device"])
    await ada.start(task("done"))
    lease = await player.take()
    await player.log(lease, LOG)
    await player.upload_artifact(lease, ARTIFACT, b"")
    await player.finish(lease)
    await ada.start(task("on"))
    await player.log(await player.take(), LOG)
    stopped = await ada.start(task("stopped", runs_on=[LABEL]), gate("g", ["stopped"]))
    await ada.post(f"/runs/{stopped}/cancel")
    await ada.start(gate("alone", approvers=2, role="lead"), task("after", runs_on=[LABEL]))
    for name in ("second", "third", "fourth"):
        await ada.start(gate(name, approvers=2, role="lead"))
    await ada.start(*(task(f"wide{n}", needs=[], runs_on=[LABEL]) for n in range(4)))
    rule = {"choices": ["eu", "us"], "default": "eu"}
    for _ in range(2):
        plan = {"jobs": [task("templated", runs_on=[LABEL])]}
        await ada.ask("PUT", "/templates/nightly", {"plan": plan, "inputs": {"region": rule}})
        await ada.post("/runs", {"template": "nightly", "inputs": {"region": "us"}})


async def _tell(ada: Caller) -> None:
    """A repository, and something that happened in it."""
    policies = {"schedules": False}
    await ada.ask("PUT", "/projects/shop", {"url": REPOSITORY, "default_branch": "main", "policies": policies})
    gone = {"ref": "refs/heads/old", "before": "a" * 40, "after": "0" * 40}
    await ada.post("/projects/shop/pushes", {"delivery": "delivery-1", "refs": [gone]})


async def _settled(here: Prey) -> People:
    token = here.operator()
    async with httpx.AsyncClient(base_url=here.url, timeout=WAIT_SECONDS) as http:
        operator = Caller(http, token)
        admin = await _key(operator, "admin", "admin")
        reader = await _key(operator, "reader", "read")
        for n in range(SPARE_KEYS):
            await _key(operator, f"spare{n}", "run")
        for n in range(SPARE_WORKERS):
            await _player(http, here.folder, f"spare{n}")
        await _play(Caller(http, admin), await _player(http, here.folder, PLAYER))
        await _tell(Caller(http, admin))
    return People(admin, token, reader)


def settle(here: Prey) -> People:
    """All of it, on a server that runs."""
    return asyncio.run(_settled(here))


class Known(NamedTuple):
    """A run that is there: enough to ask about any part of it."""

    id: str
    status: str
    plan_hash: str
    jobs: list[tuple[str, int]]  # The name of each, and how many attempts it has.


class Directory:
    """What there is on the server, as its administrator sees it."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=WAIT_SECONDS
        )
        self.runs: list[Known] = []
        self.with_files: list[Known] = []
        self.waiting: list[Known] = []
        self.cursors: list[str] = []
        self.templates: list[str] = []
        self.workers: list[str] = []
        self.keys: list[str] = []
        self.projects: list[str] = []
        self.changes: list[str] = []
        self.workstreams: list[str] = []

    def read(self) -> None:
        """Look again."""
        page = self._get("/runs?limit=30")
        ids = [run["id"] for run in page["runs"]] + [run.id for run in self.runs[-20:]]
        runs = [self._get(f"/runs/{id}") for id in dict.fromkeys(ids)]
        self.runs = [known for known in map(_known, runs) if known.jobs]
        self.waiting = [run for run in self.runs if run.status == "WAITING_APPROVAL"]
        self.with_files = [run for run in self.runs if run.jobs[0][0] in WITH_FILES]
        self.cursors = [str(self._get("/runs?limit=2")["next"]), str(self._get("/workers?limit=1")["next"] or "")]
        self.templates = [template["name"] for template in self._get("/templates?limit=50")["templates"]]
        self.workers = [worker["id"] for worker in self._get("/workers?limit=50")["workers"]]
        self.projects = [project["name"] for project in self._get("/projects?limit=50")["projects"]]
        self.changes = [change["id"] for change in self._get("/changes?limit=50")["changes"]]
        self.workstreams = [workstream["id"] for workstream in self._get("/workstreams?limit=5")["workstreams"]]
        # Never those with which we ask ourselves: who revokes them finds nothing more.
        keys = self._get("/keys?limit=200")["keys"]
        self.keys = [key["id"] for key in keys if key["person"] not in ("admin", "reader")]

    def close(self) -> None:
        """Look no more."""
        self._http.close()

    def _get(self, path: str) -> Any:
        answer = self._http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _known(run: Any) -> Known:
    """Only jobs whose names stand in an address as they are: schemathesis reads addresses as they are written."""
    jobs = [(job["name"], len(job["tries"])) for job in run["jobs"][:20]]
    return Known(
        run["id"], run["status"], run["plan_hash"], [each for each in jobs if quote(each[0], safe="") == each[0]]
    )
