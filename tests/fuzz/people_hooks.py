"""What schemathesis cannot know from a document about the API: which runs, jobs, keys and templates there are.

It is loaded by schemathesis itself (`SCHEMATHESIS_HOOKS`). A value is only ever put in place of another one that fits
the same schema, so what is wrong with a request stays wrong.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import schemathesis

from deltaci.api.routes import LAST_EVENT_HEADER, MAX_SEQ_DIGITS, PARAMETERS
from deltaci.api.schemas import inputs as api_input
from deltaci.api.schemas import projects as api_projects
from deltaci.api.schemas import workstreams as api_workstreams
from deltaci.protocol.decoding import with_integers
from tests.fuzz.people import ARTIFACT, PLAYER, REPOSITORY, TENANT, Directory, Known

Case = schemathesis.Case[Any]

LIVE: Final = 0.85  # How often something real is put in place of what was made up.
LOOK_AGAIN: Final = 150
NOBODY: Final = "0000"
SECRET: Final = "SECRET"
OTHER_TENANT: Final = "others"  # Whose quotas may be anything: ours must let us in.
REACHED: Final = Path(os.environ["FUZZ_REACHED"])
OWN: Final = os.environ["FUZZ_OWN_KEYS"].split()


class Insider:
    """Knows what is on the server."""

    def __init__(self) -> None:
        self._there = Directory(os.environ["FUZZ_URL"], os.environ["FUZZ_ADMIN"])
        self._random = random.Random(int(os.environ["FUZZ_SEED"]))
        self._calls = 0
        self._reached: set[str] = set()

    def improve(self, case: Case) -> None:
        """Let it get further than somebody who guesses would."""
        if not self._calls % LOOK_AGAIN:
            self._there.read()
        self._calls += 1
        is_live = self._random.random() < LIVE
        run = self._random.choice(self._fitting(case))
        job, tries = self._random.choice(run.jobs)
        real = {
            **{"run": run.id, "job": job, "index": self._random.randint(1, max(1, tries)), "path": ARTIFACT},
            **{"template": self._one(self._there.templates), "version": self._random.randint(1, 2)},
            **{"worker": self._one(self._there.workers), "key": self._one(self._there.keys), "secret": SECRET},
            **{"project": self._one(self._there.projects), "change": self._one(self._there.changes)},
            "workstream": self._one(self._there.workstreams),
        }
        self._path(case, real if is_live else {})
        self._query(case)
        self._headers(case)
        if case.operation.path.endswith("/workstreams") and _fits(case.body, api_workstreams.WorkstreamInput):
            tasks = [{"name": "a", "run": "true"}]
            spec: Any = {"workstream": "one", "project": real["project"] or "shop", "tasks": tasks}
            case.body = {"spec": spec}
        if isinstance(case.body, dict):
            case.body = self._body(case.body, run.plan_hash, job if is_live else None)

    def hear(self, label: str, status: int) -> None:
        """Remember where a request got what it asked for."""
        if status < 300 and label not in self._reached:
            self._reached.add(label)
            REACHED.write_text("\n".join(sorted(self._reached)), encoding="utf-8")

    def _fitting(self, case: Case) -> list[Known]:
        """The runs of which this can be asked."""
        if "path" in case.path_parameters:
            return self._there.with_files
        if case.operation.path.endswith(("/approve", "/reject")):
            return self._there.waiting or self._there.runs
        return self._there.runs

    def _one(self, some: list[str]) -> str:
        return self._random.choice(some) if some else ""

    def _path(self, case: Case, real: dict[str, Any]) -> None:
        given = case.path_parameters
        for name, value in given.items():
            if real.get(name) and _fits(unquote(str(value)), PARAMETERS[name]):
                given[name] = real[name]
            elif value == "":  # E.g. `key_id` of an operator: without it this would be another address.
                given[name] = NOBODY
        if unquote(str(given.get("key", ""))) in OWN:
            given["key"] = NOBODY
        if case.operation.path.endswith("/remove") and unquote(str(given.get("worker", ""))) == PLAYER:
            given["worker"] = NOBODY  # Who has left can be asked nothing more: one of them stays.
        if unquote(str(given.get("tenant", ""))) == TENANT:
            given["tenant"] = OTHER_TENANT

    def _query(self, case: Case) -> None:
        query = case.query
        if _fits(query.get("follow"), _FOLLOW):
            query["follow"] = "0"  # Nobody waits for long here.
        if query.get("cursor") and _fits(query["cursor"], api_input.Cursor):
            is_of_runs = case.operation.path.endswith("/runs")
            query["cursor"] = self._there.cursors[0] if is_of_runs else ""

        if "/secrets/" in case.operation.path and _is_scope(query):
            query.update(_scope(query))

    def _headers(self, case: Case) -> None:
        if case.meta is not None and case.meta.generation.mode.is_negative:
            return  # With a header that was set here schemathesis would send one that it had taken away, too.
        told = str(case.headers.get(LAST_EVENT_HEADER, ""))
        if told.isascii() and told.isdecimal() and len(told) <= MAX_SEQ_DIGITS:
            case.headers[LAST_EVENT_HEADER] = "1"  # One that there is.

    def _body(self, body: dict[str, Any], plan_hash: str, job: str | None) -> dict[str, Any]:
        found = dict(body)
        if _fits(found, api_input.SecretInput):
            found |= {"value": "hunter2", **_scope(found)}
        if _fits(found, api_projects.ProjectInput):
            found["url"] = "https://git.example.org/acme/shop.git"
        if _fits(found, api_input.FailureRulesInput):
            found["text"] = "rules: []"
            found.pop("expected_version", None)
        if isinstance(found.get("plan"), dict):
            found["plan"] = _sensible(found["plan"])
        if _fits(found.get("url"), api_projects.Url):
            found["url"] = REPOSITORY  # Nothing is ever fetched from there; and no schema can say which make sense.
        if found.get("api_url") and _fits(found["api_url"], api_projects.Url):
            found["api_url"] = REPOSITORY
        if "plan" in found and _fits(found.get("inputs"), _RULES):
            found["inputs"] = _one_name_each(found["inputs"])
        if job is None:
            return found
        if _fits(found.get("template"), api_input.TemplateName) and self._there.templates:
            found["template"] = self._one(self._there.templates)
        if _fits(found.get("version"), api_input.Positive):
            found["version"] = 1
        if "template" in found and _fits(found.get("inputs"), _INPUTS):
            found["inputs"] = {}
        if found.get("plan_hash") and _fits(found["plan_hash"], api_input.LineText):
            found["plan_hash"] = plan_hash
        if _fits(found.get("job"), api_input.JobName):
            found["job"] = job
        return found


def _type(of: type[msgspec.Struct], field: str) -> Any:
    return next(each.type for each in msgspec.structs.fields(of) if each.name == field)


_FOLLOW: Final = _type(api_input.LogQuery, "follow")
_INPUTS: Final = _type(api_input.RunInput, "inputs")
_RULES: Final = _type(api_input.TemplateInput, "inputs")


def _fits(value: object, kind: Any) -> bool:
    if value is None:
        return False
    try:
        # Whole numbers may be written as `2.0`.
        msgspec.convert(with_integers(value), kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        return False
    return True


def _is_scope(asked: Any) -> bool:
    return all(_fits(asked.get(name, ""), api_input.LineText) for name in ("project", "branch"))


def _scope(asked: Any) -> dict[str, str]:
    """A pattern that is one, and of a project: no schema can say that."""
    if asked.get("branch"):
        return {"project": "shop", "branch": "main"}
    return {"project": "shop"} if asked.get("project") else {}


def _sensible(plan: dict[str, Any]) -> dict[str, Any]:
    """No name twice, and needs that are names of jobs before it: no schema can say that."""
    jobs = plan.get("jobs")
    if not isinstance(jobs, list) or not all(_has_name(job) for job in jobs):
        return plan
    names: list[str] = []
    made = []
    for job in jobs:
        name = job["name"] if job["name"] not in names else f"{job['name'][:90]}{len(names)}"
        changed = {**job, "name": name}
        if job.get("group") and _fits(job["group"], api_input.LineText):  # It can be printed; an approval has none.
            changed["group"] = "" if job.get("kind") == "approval" else "group"
        if isinstance(job.get("work"), dict) and isinstance(job["work"].get("contexts"), dict):
            changed["work"] = {**job["work"], "contexts": {}}  # Any JSON, but no number beyond 64 bits.
        if isinstance(changed.get("work"), dict) and isinstance(changed["work"].get("tree"), dict):
            changed["work"] = {**changed["work"], "tree": None}  # Only the tasks of workstreams have one.
        if job.get("needs") and _fits(job["needs"], list[api_input.JobName]):
            changed["needs"] = names[-len(job["needs"]) :]
        if job.get("after") and _fits(job["after"], list[api_input.JobName]):
            changed["after"] = [] if changed.get("needs") else names[-len(job["after"]) :]
        if job.get("group") and _fits(job["group"], api_input.LineText):
            changed["group"] = "one"  # No schema can say what can be printed.
        names.append(name)
        made.append(changed)
    return {**plan, "jobs": made}


def _has_name(job: object) -> bool:
    return isinstance(job, dict) and _fits(job.get("name"), api_input.JobName)


def _optional(rule: dict[str, Any]) -> dict[str, Any]:
    return {**rule, "required": False} if rule.get("required") else rule


def _one_name_each(rules: dict[str, Any]) -> dict[str, Any]:
    """No two names that differ only in case, and no default that is not a choice; who starts it gives none of them."""
    found = {}
    for name, rule in {name.upper(): (name, rule) for name, rule in rules.items()}.values():
        is_odd = rule.get("default") and rule.get("choices") and rule["default"] not in rule["choices"]
        found[name] = _optional({**rule, "choices": []} if is_odd else rule)
    return found


_insider = Insider()


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Before every request."""
    _insider.improve(case)


@schemathesis.hook
def after_call(context: schemathesis.HookContext, case: Case, response: schemathesis.Response) -> None:
    """After every answer."""
    _insider.hear(case.operation.label, response.status_code)
