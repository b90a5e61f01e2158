"""Every call of `/api/v1`: the request and the type of its response.

A function here returns a `Call` and sends nothing. Both clients turn each into a method with the same parameters.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec

from deltaci.api.routes import IDEMPOTENCY_HEADER, LAST_EVENT_HEADER, MAX_KEY_CHARS, ROOT, ROUTES, Route
from deltaci.api.schemas import audit as api_audit
from deltaci.api.schemas import failures as api_failures
from deltaci.api.schemas import inputs as api_input
from deltaci.api.schemas import logs as api_logs
from deltaci.api.schemas import projects as api_projects
from deltaci.api.schemas import queue as api_queue
from deltaci.api.schemas import records as api
from deltaci.api.schemas import timeline as api_timeline
from deltaci.api.schemas.inputs import PlanInput, Quotas, Scope
from deltaci.client.run_refs import RunRef

T = TypeVar("T")

BY_ID: Final[dict[str, Route]] = {route.id: route for route in ROUTES}
# Saying these twice changes nothing, though they carry no key.
SAFE: Final = frozenset(
    {"cancelRun", "cancelJob", "cancelWorkstream", "approveRun", "revokeKey", "setQuotas", "reportPush", "setSecret"}
    | {"drainWorker", "resumeWorker", "removeWorker"}
)
EVENT_STREAM: Final = "text/event-stream"


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A request that is not sent yet. `reads` is the type of its response; None if the response is streamed."""

    method: str
    path: str
    reads: type[T]
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = {}
    body: bytes | None = None
    is_repeatable: bool = False


def _call(
    id: str,
    reads: type[T],
    *,
    query: Mapping[str, Any] | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    once: str = "",
    **parts: str | int,
) -> Call[T]:
    route = BY_ID[id]
    if not (once.isascii() and once.isprintable() and len(once) <= MAX_KEY_CHARS):
        raise ValueError(f"an idempotency key has at most {MAX_KEY_CHARS} printable ASCII characters")
    path = route.path
    for name, part in parts.items():
        path = path.replace(f"{{{name}}}", quote(str(part), safe="")).replace(f"{{{name}*}}", quote(str(part)))
    sent = {**(headers or {}), **({IDEMPOTENCY_HEADER: once} if once else {})}
    return Call(
        method=route.method,
        path=ROOT + path,
        reads=reads,
        query=tuple(_query(query or {})),
        headers=sent,
        body=None if body is None else msgspec.json.encode(body),
        is_repeatable=route.method == "GET" or bool(once) or id in SAFE,
    )


def _query(asked: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the query parameters that are set, as text."""
    found: list[tuple[str, str]] = []
    for name, value in asked.items():
        if isinstance(value, (list, tuple)):
            found += [(name, each) for each in value]
        elif isinstance(value, bool):
            found += [(name, "true")] if value else []
        elif isinstance(value, datetime):
            found.append((name, value.isoformat()))
        elif value not in (None, ""):
            found.append((name, str(value)))
    return found


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are neither empty nor False."""
    return {name: value for name, value in fields.items() if value is not False and value not in (None, "", [], {})}


def new_key() -> str:
    """Return a random idempotency key."""
    return secrets.token_urlsafe(18)


# -- runs


def start(
    *,
    template: str | None = None,
    version: int | None = None,
    inputs: Mapping[str, str] | None = None,
    plan: PlanInput | Mapping[str, Any] | None = None,
    project: str = "",
    branch: str = "",
    repository: str = "",
    commit: str = "",
    file: str = "",
    title: str = "",
    labels: Sequence[str] = (),
    idempotency_key: str = "",
) -> Call[api.Run]:
    """Start a run from a template, a plan or a repository. Safe to repeat: the same key gives the same run."""
    body = _given(
        **{"template": template, "version": version, "inputs": dict(inputs or {}), "plan": plan, "project": project},
        **{"branch": branch, "repository": repository, "commit": commit, "title": title, "labels": list(labels)},
        file=file,
    )
    return _call("startRun", api.Run, body=body, once=idempotency_key or new_key())


def runs(
    *,
    state: str | None = None,
    status: str | None = None,
    project: str | None = None,
    branch: str | None = None,
    labels: Sequence[str] = (),
    person: str | None = None,
    template: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = api_input.DEFAULT_PAGE,
    cursor: str = "",
) -> Call[api.RunPage]:
    """Return a page of the runs that match all given filters, the newest first."""
    query: dict[str, Any] = {"state": state, "status": status, "project": project, "branch": branch}
    query |= {"label": list(labels), "person": person, "template": template, "since": since, "until": until}
    return _call("listRuns", api.RunPage, query={**query, "limit": limit, "cursor": cursor})


def run(run_id: str) -> Call[api.RunWithJobs]:
    """Return a run with its first jobs and their attempts."""
    return _call("readRun", api.RunWithJobs, run=run_id)


def cancel(run_id: str, reason: str = "") -> Call[api.Run]:
    """Cancel a run. Safe to repeat."""
    return _call("cancelRun", api.Run, body=_given(reason=reason), run=run_id)


def approve(run_id: str, *, job: str | None = None, comment: str = "", plan_hash: str = "") -> Call[api.DecisionResult]:
    """Approve one or all waiting approval jobs of a run. Safe to repeat."""
    return _call(
        "approveRun", api.DecisionResult, body=_given(job=job, comment=comment, plan_hash=plan_hash), run=run_id
    )


def reject(run_id: str, *, job: str | None = None, comment: str = "", plan_hash: str = "") -> Call[api.DecisionResult]:
    """Reject one or all waiting approval jobs of a run."""
    return _call(
        "rejectRun", api.DecisionResult, body=_given(job=job, comment=comment, plan_hash=plan_hash), run=run_id
    )


def rerun(run_id: str, *, failed_only: bool = False, idempotency_key: str = "") -> Call[api.Run]:
    """Start a new run with all jobs of an earlier run, or only with the failed ones. Safe to repeat, like `start`."""
    once = idempotency_key or new_key()
    return _call("rerunRun", api.Run, body=_given(failed_only=failed_only), once=once, run=run_id)


def explain_name(name: RunRef) -> Call[api.Explanation]:
    """Explain the state of a run, a job or an attempt."""
    if name.index:
        return _call("explainAttempt", api.Explanation, run=name.run, job=name.job, index=name.index)
    if name.job:
        return _call("explainJob", api.Explanation, run=name.run, job=name.job)
    return _call("explainRun", api.Explanation, run=name.run)


def plan(run_id: str) -> Call[api.Plan]:
    """Return the plan of a run, and why it has its jobs."""
    return _call("readPlan", api.Plan, run=run_id)


def timeline(run_id: str) -> Call[api_timeline.Timeline]:
    """Return the times of the phases of a run's jobs."""
    return _call("readTimeline", api_timeline.Timeline, run=run_id)


def events(run_id: str = "", *, after: int = 0, limit: int = api_input.MAX_EVENTS) -> Call[api.EventPage]:
    """Return a page of the events of a run, or of the whole tenant, in the order of the log."""
    query = {"after": after, "limit": limit}
    if run_id:
        return _call("readRunEvents", api.EventPage, query=query, run=run_id)
    return _call("readEvents", api.EventPage, query=query)


def event_stream(run_id: str, after: int) -> Call[bytes]:
    """Stream the events of a run, or of the whole tenant, as server-sent events: past and future ones after `after`."""
    headers = {"Accept": EVENT_STREAM, LAST_EVENT_HEADER: str(after)}
    if run_id:
        return _call("readRunEvents", bytes, headers=headers, run=run_id)
    return _call("readEvents", bytes, headers=headers)


def artifacts(run_id: str, job: str = "", index: int = 0) -> Call[api.Artifacts]:
    """Return the artifacts of all jobs of a run, or of one attempt of a job."""
    if job:
        return _call("listArtifacts", api.Artifacts, run=run_id, job=job, index=index or 1)
    return _call("listRunArtifacts", api.Artifacts, run=run_id)


def artifact(run_id: str, job: str, index: int, path: str, start: int = 0) -> Call[bytes]:
    """Stream an artifact of an attempt from the byte `start` on."""
    headers = {"Range": f"bytes={start}-"} if start else {}
    return _call("readArtifact", bytes, headers=headers, run=run_id, job=job, index=index, path=path)


def outputs(run_id: str) -> Call[api.Outputs]:
    """Return the outputs of the run's jobs."""
    return _call("readOutputs", api.Outputs, run=run_id)


def costs(run_id: str) -> Call[api.Costs]:
    """Return the costs that runners reported for the run's attempts."""
    return _call("readCosts", api.Costs, run=run_id)


# -- jobs and attempts


def jobs(run_id: str, *, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api.JobPage]:
    """Return a page of the run's jobs, in the order of the plan."""
    return _call("listJobs", api.JobPage, query={"limit": limit, "cursor": cursor}, run=run_id)


def job(run_id: str, job: str) -> Call[api.Job]:
    """Return a job with its attempts."""
    return _call("readJob", api.Job, run=run_id, job=job)


def cancel_job(run_id: str, job: str, reason: str = "") -> Call[api.Job]:
    """Cancel one job. Safe to repeat."""
    return _call("cancelJob", api.Job, body=_given(reason=reason), run=run_id, job=job)


def attempts(run_id: str, job: str) -> Call[api.Attempts]:
    """Return the attempts of a job, the first one first."""
    return _call("listAttempts", api.Attempts, run=run_id, job=job)


def attempt(run_id: str, job: str, index: int) -> Call[api.Attempt]:
    """Return an attempt of a job."""
    return _call("readAttempt", api.Attempt, run=run_id, job=job, index=index)


def log(
    run_id: str, job: str, index: int = 0, *, lease: int = 0, start: int = 0, end: int | None = None
) -> Call[bytes]:
    """Return the log of an attempt, or of the job's last one, from byte `start` up to but not including byte `end`."""
    return log_stream(run_id, job, index, lease=lease, start=start, end=end, follow_seconds=0)


def log_stream(
    run_id: str, job: str, index: int, *, lease: int, start: int, end: int | None = None, follow_seconds: int
) -> Call[bytes]:
    """Stream the log of an attempt, with what is appended to it in the next `follow_seconds`."""
    headers = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
    query = {"lease": lease, "follow": follow_seconds}
    if index:
        return _call("readLog", bytes, query=query, headers=headers, run=run_id, job=job, index=index)
    return _call("readJobLog", bytes, query=query, headers=headers, run=run_id, job=job)


def log_index(run_id: str, job: str, index: int, *, lease: int = 0, block: int = 0) -> Call[api_logs.LogIndex]:
    """Return the positions of lines and steps in the log of an attempt. The line counts begin with this block."""
    query = {"lease": lease, "block": block}
    return _call("readLogIndex", api_logs.LogIndex, query=query, run=run_id, job=job, index=index)


# -- templates


def templates(*, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api.TemplatePage]:
    """Return a page of templates, ordered by name."""
    return _call("listTemplates", api.TemplatePage, query={"limit": limit, "cursor": cursor})


def template(name: str, version: int | None = None) -> Call[api.Template]:
    """Return a version of a template, by default the newest."""
    if version is None:
        return _call("readTemplate", api.Template, template=name)
    return _call("readVersion", api.Template, template=name, version=version)


def save_template(
    name: str,
    plan: PlanInput | Mapping[str, Any],
    *,
    description: str = "",
    inputs: Mapping[str, api_input.InputRule | Mapping[str, Any]] | None = None,
    expected_version: int | None = None,
) -> Call[api.Template]:
    """Save a new version of a template. With `expected_version`, only if that is the newest one."""
    body = {"plan": plan, **_given(description=description, inputs=dict(inputs or {}))}
    if expected_version is not None:
        body["expected_version"] = expected_version
    return _call("saveTemplate", api.Template, body=body, template=name)


def remove_template(name: str) -> Call[api.TemplateSummary]:
    """Remove a template, so that no more runs can be started from it."""
    return _call("removeTemplate", api.TemplateSummary, template=name)


def versions(name: str, *, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api.TemplatePage]:
    """Return a page of the versions of a template, the oldest first."""
    return _call("listVersions", api.TemplatePage, query={"limit": limit, "cursor": cursor}, template=name)


# -- projects and changes


def projects(*, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api_projects.ProjectPage]:
    """Return a page of projects, ordered by name."""
    return _call("listProjects", api_projects.ProjectPage, query={"limit": limit, "cursor": cursor})


def project(name: str) -> Call[api_projects.Project]:
    """Return a project."""
    return _call("readProject", api_projects.Project, project=name)


def save_project(name: str, project: api_projects.ProjectInput | Mapping[str, Any]) -> Call[api_projects.Project]:
    """Create a project or change it."""
    return _call("saveProject", api_projects.Project, body=project, project=name)


def remove_project(name: str) -> Call[api_projects.Project]:
    """Remove a project."""
    return _call("removeProject", api_projects.Project, project=name)


def report_push(
    name: str, refs: Sequence[api_projects.PushedRef | Mapping[str, str]], *, delivery: str = "", pusher: str = ""
) -> Call[api_projects.AcceptedChanges]:
    """Report a push to a repository. Safe to repeat with the same delivery."""
    body = {"delivery": delivery or new_key(), "refs": list(refs), **_given(pusher=pusher)}
    return _call("reportPush", api_projects.AcceptedChanges, body=body, project=name)


def changes(
    *, project: str | None = None, limit: int = api_input.DEFAULT_PAGE, cursor: str = ""
) -> Call[api_projects.ChangePage]:
    """Return a page of changes (pushes, pull requests and others), the newest first."""
    return _call("listChanges", api_projects.ChangePage, query={"project": project, "limit": limit, "cursor": cursor})


def audit(
    *,
    kind: str | None = None,
    name: str | None = None,
    actor: str | None = None,
    since: datetime | None = None,
    limit: int = api_input.DEFAULT_PAGE,
    cursor: str = "",
) -> Call[api_audit.AuditPage]:
    """Return a page of the administrative log, the newest event first."""
    query = {"kind": kind, "name": name, "actor": actor, "since": since, "limit": limit, "cursor": cursor}
    return _call("listAudit", api_audit.AuditPage, query=query)


def change(change_id: str) -> Call[api_projects.Change]:
    """Return a change and the runs that it started."""
    return _call("readChange", api_projects.Change, change=change_id)


def redeliver(change_id: str) -> Call[api_projects.Change]:
    """Let a change be handled again that could not be handled."""
    return _call("redeliverChange", api_projects.Change, change=change_id)


def deliveries(
    project: str, *, limit: int = api_input.DEFAULT_PAGE, cursor: str = ""
) -> Call[api_projects.DeliveryPage]:
    """Return a page of the webhook deliveries to a project, the newest first."""
    return _call("listDeliveries", api_projects.DeliveryPage, query={"limit": limit, "cursor": cursor}, project=project)


# -- the queue


def queue(
    *,
    part: Literal["all", "running"] = "all",
    reason: str = "",
    label: str = "",
    project: str = "",
    limit: int = api_input.DEFAULT_PAGE,
    cursor: str = "",
) -> Call[api_queue.Queue]:
    """Return a page of the waiting work with the reasons, and the running attempts.

    An empty filter selects everything.
    """
    query = {"part": part, **_given(reason=reason, label=label, project=project)}
    return _call("listQueue", api_queue.Queue, query={**query, "limit": limit, "cursor": cursor})


# -- workers, keys, the tenant


def workers(*, gone: bool = False, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api.WorkerPage]:
    """Return a page of workers, the newest first; with `gone`, of those that were shut down."""
    return _call("listWorkers", api.WorkerPage, query={"gone": gone, "limit": limit, "cursor": cursor})


def worker(name: str) -> Call[api.Worker]:
    """Return a worker."""
    return _call("readWorker", api.Worker, worker=name)


def worker_token(name: str, *, again: bool = False, expires_seconds: int = 86400) -> Call[api.WorkerToken]:
    """Create a token with which a runner of this name can register once."""
    body = {**_given(name=name, again=again), "expires_seconds": expires_seconds}
    return _call("makeWorkerToken", api.WorkerToken, body=body)


def drain_worker(name: str, reason: str = "") -> Call[api.Worker]:
    """Give a worker no new work until it is resumed. Safe to repeat."""
    return _call("drainWorker", api.Worker, body=_given(reason=reason), worker=name)


def resume_worker(name: str) -> Call[api.Worker]:
    """Let a worker get work again. Safe to repeat."""
    return _call("resumeWorker", api.Worker, worker=name)


def remove_worker(name: str) -> Call[api.Worker]:
    """Remove a worker after its current jobs. It cannot return without a new token. Safe to repeat."""
    return _call("removeWorker", api.Worker, worker=name)


def keys(*, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api.KeyPage]:
    """Return a page of API keys."""
    return _call("listKeys", api.KeyPage, query={"limit": limit, "cursor": cursor})


def key(key_id: str) -> Call[api.Key]:
    """Return an API key, without its secret."""
    return _call("readKey", api.Key, key=key_id)


def make_key(
    person: str,
    scopes: Sequence[Scope],
    *,
    roles: Sequence[str] = (),
    description: str = "",
    expires_seconds: int = 0,
) -> Call[api.NewKey]:
    """Create an API key. Its secret is only in this response."""
    body = _given(
        person=person,
        scopes=list(scopes),
        roles=list(roles),
        description=description,
        expires_seconds=expires_seconds,
    )
    return _call("makeKey", api.NewKey, body=body)


def revoke_key(key_id: str) -> Call[api.Key]:
    """Revoke an API key. Safe to repeat."""
    return _call("revokeKey", api.Key, key=key_id)


def secret_page(*, limit: int = api_input.DEFAULT_PAGE, cursor: str = "") -> Call[api.SecretPage]:
    """Return a page of secrets, without their values."""
    return _call("listSecrets", api.SecretPage, query={"limit": limit, "cursor": cursor})


def set_secret(name: str, value: str, *, project: str = "", branch: str = "") -> Call[api.Secret]:
    """Set a secret for all jobs, for a project, or for its branches that match a pattern."""
    body = {"value": value, **_given(project=project, branch=branch)}
    return _call("setSecret", api.Secret, body=body, secret=name)


def remove_secret(name: str, *, project: str = "", branch: str = "") -> Call[api.Secret]:
    """Remove the secret with exactly this scope."""
    return _call("removeSecret", api.Secret, query={"project": project, "branch": branch}, secret=name)


def failure_rules() -> Call[api_failures.FailureRules]:
    """Return the rules that classify failures, in the order in which they are applied."""
    return _call("readFailureRules", api_failures.FailureRules)


def set_failure_rules(text: str, *, expected_version: int | None = None) -> Call[api_failures.FailureRules]:
    """Replace the tenant's own failure rules. With `expected_version`, only if that is the stored one."""
    body: dict[str, Any] = {"text": text}
    if expected_version is not None:
        body["expected_version"] = expected_version
    return _call("setFailureRules", api_failures.FailureRules, body=body)


def flaky(
    *, project: str | None = None, limit: int = api_input.DEFAULT_PAGE, cursor: str = ""
) -> Call[api_failures.FlakyPage]:
    """Return a page of jobs and tests that are known to be flaky."""
    return _call("listFlaky", api_failures.FlakyPage, query={"project": project, "limit": limit, "cursor": cursor})


def me() -> Call[api.Me]:
    """Return the caller as the server authenticated it."""
    return _call("readMe", api.Me)


def tenant() -> Call[api.Tenant]:
    """Return the quotas and the usage of the caller's tenant."""
    return _call("readTenant", api.Tenant)


def set_quotas(tenant: str, quotas: Quotas) -> Call[api.Tenant]:
    """Set the quotas of a tenant. Only the operator of the server may do this."""
    return _call("setQuotas", api.Tenant, body=quotas, tenant=tenant)
