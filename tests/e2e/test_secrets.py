"""The way of a secret's value, through real processes: request, seal, lease, environment, and nothing after that."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from deltaci.api.routes import ROOT
from deltaci.core.decide import StartRun
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin, Run
from deltaci.runner.log.secret_encodings import secret_forms
from deltaci.server.auth.credentials import Signer, load_server_key
from tests.e2e.deployment import Deployment, deployed, on_loop
from tests.support.plain_http import NO_TLS

# One of each scope, each in many lines and with signs that tools write differently.
VALUES = {
    "TENANT": "-----BEGIN T-----\ntenant/+wide+line+one\ntenant\"two'&<é>\n-----END T-----",
    "PROJECT": "-----BEGIN P-----\nproject/+wide+line+one\nproject\"two'&<é>\n-----END P-----",
    "BRANCH": "-----BEGIN B-----\nbranch/+wide+line+one\nbranch\"two'&<é>\n-----END B-----",
}
SCOPES: dict[str, dict[str, str]] = {
    "TENANT": {},
    "PROJECT": {"project": "shop"},
    "BRANCH": {"project": "shop", "branch": "release/*"},
}
# What is never to be seen, though it is set: wider ones of the same names.
HIDDEN = "this-value-belongs-to-nobody-here"


async def pushed(place: Deployment, work: dict[str, Any]) -> str:
    """A run of one job, as the planner makes it for a push to a branch; its id."""
    origin = Origin(project="shop", branch="release/1", event="push", is_on_branch=True)
    record = Run(id="pushed", run_id="pushed", tenant="default", origin=origin)
    await place.engine.do(StartRun(id="pushed", record=record, jobs=(JobSpec(name="a", work=work),), plan_hash="hash"))
    return "pushed"


def steps(name: str) -> list[dict[str, str] | str]:
    """A job's ways to say what is in this variable."""
    python = 'python3 -c \'import os, json, urllib.parse as u, html, shlex; s = os.environ["%s"]; '
    said = ("json.dumps(s)", "u.quote(s)", "html.escape(s)", "shlex.quote(s)", "s.encode().hex()")
    return [
        f"python3 -c 'import os; assert len(os.environ[\"{name}\"]) == {len(VALUES[name])}'",
        f'echo "${name}"; echo "${name}" >&2; env | sort',
        f'printf %s "${{{name}:0:30}}"; printf %s "${{{name}:30}}"; echo',
        f'printf %s "${name}" | base64; printf %s "${name}" | base64 -w0',
        f'echo "${name}" | while read line; do echo "<$line>"; done',
        *(f"{python % name}print({each})'" for each in said),
        f'echo "::warning::${name}"; mkdir -p out; echo "${name}" > "out/$(printf %s "${name}" | md5sum | cut -c1-8)"',
    ]


@pytest.mark.proves("PRO-X4")
@on_loop
async def test_a_value_of_any_scope_goes_only_where_it_belongs(tmp_path: Path) -> None:
    """Set over the API, printed in many ways by a job that fails; then every byte that is kept or answered is read."""
    async with deployed(tmp_path) as place:
        token = Signer(load_server_key(tmp_path / "server.key"), time.time).sign("operate", "root", "default", 3600)
        with httpx.Client(
            verify=NO_TLS, base_url=place.url + ROOT, headers={"Authorization": f"Bearer {token}"}, timeout=60
        ) as http:
            said: list[str] = []

            def ask(method: str, path: str, body: Any = None) -> httpx.Response:
                answer = http.request(method, path, json=body)
                assert answer.status_code < 300, answer.text
                said.append(answer.text)
                return answer

            for name, value in VALUES.items():
                ask("PUT", f"/secrets/{name}", {"value": value, **SCOPES[name]})
                if SCOPES[name]:
                    ask("PUT", f"/secrets/{name}", {"value": HIDDEN})
            place.start_runner("r1")
            prints = [step for name in VALUES for step in steps(name)]
            work = {
                "steps": [*prints, 'echo "last words: $BRANCH"; exit 3'],
                "secrets": list(VALUES),
                "executor": "process",
                "artifacts": [{"path_glob": "out/none"}],
            }
            run = await pushed(place, work)

            record = await place.outcome(f"{run}/a.1")

            assert record.error is not None
            assert record.error.failure_class == "USER", record.error
            assert record.report["steps"][-1]["exit_code"] == 3  # So all before it were well.
            log = place.log_of(record)
            assert log.count("***") > 25
            for path in (f"/runs/{run}", f"/runs/{run}/plan", f"/runs/{run}/explain", f"/runs/{run}/jobs/a/log"):
                ask("GET", path)
            for path in (f"/runs/{run}/events", f"/runs/{run}/outputs", f"/runs/{run}/jobs/a/attempts/1", "/secrets"):
                ask("GET", path)
        await place.stop()

        forms = {form for value in VALUES.values() for form in secret_forms(value)} | {HIDDEN.encode()}
        marks = {form for form in forms if b"BEGIN" not in form or len(form) > 30}
        kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        kept |= {f"answer {n}": text.encode() + json.dumps(text).encode() for n, text in enumerate(said)}
        assert len(kept) > 15
        assert not [(name, form) for name, content in kept.items() for form in marks if form in content]
