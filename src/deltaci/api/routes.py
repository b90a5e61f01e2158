"""The addresses of `/api/v1`: one table that routes, authorises and reads requests, and draws the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from deltaci.api.schemas import failures as api_failures
from deltaci.api.schemas import history as api_history
from deltaci.api.schemas import inputs as api_input
from deltaci.api.schemas import logs as api_logs
from deltaci.api.schemas import projects as api_projects
from deltaci.api.schemas import queue as api_queue
from deltaci.api.schemas import records as api
from deltaci.api.schemas import tests as api_tests
from deltaci.api.schemas import timeline as api_timeline
from deltaci.api.schemas import workstreams as api_workstreams
from deltaci.api.schemas.inputs import JobName, Scope, TemplateName

ROOT: Final = "/api/v1"
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
REPLAYED_HEADER: Final = "Idempotency-Replayed"
REQUEST_ID_HEADER: Final = "Delta-Request-Id"
LEASE_NUMBER_HEADER: Final = "Delta-Lease-Number"
LAST_EVENT_HEADER: Final = "Last-Event-ID"
MAX_KEY_CHARS: Final = 200
MAX_SEQ_DIGITS: Final = 15

# Whoever is let in may ask; only who operates the server may; otherwise one of the scopes of a key.
ANY_KEY: Final = "anybody"
OPERATOR: Final = "operator"
RequiredScope = Scope | Literal["anybody", "operator"]

ResponseKind = Literal["json", "events", "log", "file"]

PARAMETERS: Final[dict[str, Any]] = {
    "run": Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f\x7f]+$(?!\n)")],
    "workstream": Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f\x7f]+$(?!\n)")],
    "job": JobName,
    "index": Annotated[int, Meta(ge=1, le=10_000)],
    "path": Annotated[str, Meta(min_length=1, max_length=600)],
    "template": TemplateName,
    "version": Annotated[int, Meta(ge=1, le=2**31 - 1)],
    "worker": api_input.RunnerName,
    "key": Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9]+$(?!\n)")],
    "secret": api_input.SecretName,
    "project": api_projects.ProjectName,
    "change": Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9]+$(?!\n)")],
    "tenant": Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[ -.0-~]+$(?!\n)")],
}


class Refusal(msgspec.Struct, frozen=True):
    """What a code is sent with, what it means and what to do about it."""

    status: int
    title: str
    hint: str


REFUSALS: Final[dict[str, Refusal]] = {
    "bad_json": Refusal(400, "the body is not JSON", "send valid JSON in UTF-8"),
    "bad_request": Refusal(400, "the request makes no sense", "correct what the message names, and send it again"),
    "dependency_cycle": Refusal(400, "jobs wait for each other in a circle", "remove one of the needs that it names"),
    "bad_credential": Refusal(401, "no key, or not a good one", "send 'Authorization: Bearer <API key>'"),
    "expired_credential": Refusal(401, "the key is too old", "ask an administrator of your tenant for a new one"),
    "missing_scope": Refusal(403, "the key may not do this", "use a key with the scope that the message names"),
    "not_allowed": Refusal(403, "this person may not decide this", "ask somebody whom the message describes"),
    "not_found": Refusal(404, "there is no such thing", "check the id and the tenant of your key"),
    "wrong_method": Refusal(405, "the address takes another method", "use one that the Allow header names"),
    "too_slow": Refusal(408, "the body stopped coming", "send it again"),
    "request_id_reused": Refusal(
        409, "the idempotency key was used for another request", "send a new key for a new request"
    ),
    "stale_version": Refusal(409, "somebody else changed it first", "read it again, and decide anew"),
    "wrong_state": Refusal(409, "it is in a state in which this cannot be done", "read it again to see what happened"),
    "plan_changed": Refusal(
        409, "the run has another plan than the one looked at", "look at the plan, and decide anew"
    ),
    "no_secret": Refusal(409, "secrets cannot be kept here", "install what the message names where the server runs"),
    "too_large": Refusal(413, "more than fits into one request", "send less at once"),
    "wrong_media_type": Refusal(415, "the body says that it is not JSON", "send it as application/json"),
    "bad_range": Refusal(416, "there are no such bytes", "ask for bytes that exist"),
    "bad_message": Refusal(422, "a field is missing, unknown or out of its range", "correct the field that is named"),
    "over_quota": Refusal(
        429, "the tenant has used up its quota", "wait until something ends, or ask for a larger one"
    ),
    "too_many_requests": Refusal(429, "the tenant asks too often", "wait as long as Retry-After says"),
    "internal": Refusal(500, "an error of ours", "report it with the request_id"),
    "overloaded": Refusal(503, "too much waits already", "try again later"),
    "unavailable": Refusal(503, "the server cannot answer now", "say the same again; a repeat is safe with a key"),
    "unreadable": Refusal(503, "the record cannot be read by this version", "update the server, or try another one"),
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one address. What it may be refused with besides what every request may."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    id: str
    does: str
    needs: RequiredScope = "read"
    query: type[api_input.RequestSchema] | None = None
    body: type[api_input.RequestSchema] | None = None
    is_body_optional: bool = False
    answer: Any
    answers: ResponseKind = "json"
    status: int = 200
    is_repeatable: bool = False  # Takes an Idempotency-Key: the repeat of a 201 is a 200.
    codes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What the address leaves open."""
        return tuple(part.strip("{}*") for part in self.path.split("/") if part.startswith("{"))


_RUN: Final = "/runs/{run}"
_JOB: Final = "/runs/{run}/jobs/{job}"
_ATTEMPT: Final = "/runs/{run}/jobs/{job}/attempts/{index}"

# fmt: off
ROUTES: Final[tuple[Route, ...]] = (
    # -- runs
    Route(
        method="POST", path="/runs", id="startRun", needs="run",
        does="start a run from a template, a plan or a repository",
        body=api_input.RunInput, answer=api.Run, status=201, is_repeatable=True,
        codes=("dependency_cycle", "not_allowed", "not_found", "over_quota", "unreadable"),
    ),
    Route(
        method="GET", path="/runs", id="listRuns", does="find runs, the newest first",
        query=api_input.RunQuery, answer=api.RunPage,
    ),
    Route(
        method="GET", path=_RUN, id="readRun", does="read a run with its jobs and their attempts",
        answer=api.RunWithJobs, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/cancel", id="cancelRun", needs="run", does="stop a run; safe to repeat",
        body=api_input.CancelInput, is_body_optional=True, answer=api.Run,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/approve", id="approveRun", needs="approve",
        does="approve what waits for it; safe to repeat",
        body=api_input.DecisionInput, is_body_optional=True, answer=api.DecisionResult,
        codes=("not_found", "wrong_state", "not_allowed", "plan_changed", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/reject", id="rejectRun", needs="approve", does="reject what waits for approval",
        body=api_input.DecisionInput, is_body_optional=True, answer=api.DecisionResult,
        codes=("not_found", "wrong_state", "not_allowed", "plan_changed", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/rerun", id="rerunRun", needs="run",
        does="start a new run that does the same again, or only what failed",
        body=api_input.RerunInput, is_body_optional=True, answer=api.Run, status=201, is_repeatable=True,
        codes=("not_found", "wrong_state", "over_quota", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/explain", id="explainRun", does="say why the run is as it is",
        answer=api.Explanation, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/timeline", id="readTimeline", does="read when the run did what",
        answer=api_timeline.Timeline, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/plan", id="readPlan", does="read what the run does",
        answer=api.Plan, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/events", id="readRunEvents", answers="events",
        does="read the run's events, or follow them as server-sent events",
        query=api_input.EventQuery, answer=api.EventPage, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/transitions", id="readTransitions",
        does="read the run's events in the words of one of the documents",
        query=api_history.TransitionQuery, answer=api_history.TransitionPage, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/tests", id="readTests",
        does="read what the run's test reports say, failures first, with what is known of each test from before",
        query=api_tests.RunTestQuery, answer=api_tests.RunTests, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/artifacts", id="listRunArtifacts", does="list what the run's jobs left behind",
        answer=api.Artifacts, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/outputs", id="readOutputs", does="read the results of the run's jobs",
        answer=api.Outputs, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/costs", id="readCosts", does="read what the run used",
        answer=api.Costs, codes=("not_found", "unreadable"),
    ),
    # -- jobs and attempts
    Route(
        method="GET", path=f"{_RUN}/jobs", id="listJobs", does="read the run's jobs, page by page",
        query=api_input.PageQuery, answer=api.JobPage, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=_JOB, id="readJob", does="read a job with its attempts",
        answer=api.Job, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_JOB}/cancel", id="cancelJob", needs="run", does="stop one job; safe to repeat",
        body=api_input.CancelInput, is_body_optional=True, answer=api.Job,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_JOB}/explain", id="explainJob", does="say why the job is as it is",
        answer=api.Explanation, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_JOB}/log", id="readJobLog", answers="log", does="read the log of the job's last attempt",
        query=api_input.LogQuery, answer=bytes, codes=("not_found", "bad_range", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_JOB}/attempts", id="listAttempts", does="read the job's attempts",
        answer=api.Attempts, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=_ATTEMPT, id="readAttempt", does="read an attempt",
        answer=api.Attempt, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/explain", id="explainAttempt", does="say why the attempt is as it is",
        answer=api.Explanation, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/log", id="readLog", answers="log", does="read an attempt's log",
        query=api_input.LogQuery, answer=bytes, codes=("not_found", "bad_range", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/log/index", id="readLogIndex",
        does="say where the lines and steps of an attempt's log are",
        query=api_input.LogIndexQuery, answer=api_logs.LogIndex, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/artifacts", id="listArtifacts", does="list what an attempt left behind",
        answer=api.Artifacts, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/artifacts/{{path*}}", id="readArtifact", answers="file",
        does="read a file that an attempt left behind", answer=bytes, codes=("not_found", "bad_range", "unreadable"),
    ),
    # -- events of the whole tenant
    Route(
        method="GET", path="/events", id="readEvents", answers="events",
        does="read all events of the tenant, or follow them as server-sent events",
        query=api_input.EventQuery, answer=api.EventPage,
    ),
    # -- templates
    Route(
        method="GET", path="/templates", id="listTemplates", does="list templates by name",
        query=api_input.PageQuery, answer=api.TemplatePage,
    ),
    Route(
        method="PUT", path="/templates/{template}", id="saveTemplate", needs="admin",
        does="save a new version of a template; runs keep the version that they started with",
        body=api_input.TemplateInput, answer=api.Template, codes=("dependency_cycle", "stale_version"),
    ),
    Route(
        method="GET", path="/templates/{template}", id="readTemplate", does="read the newest version of a template",
        answer=api.Template, codes=("not_found",),
    ),
    Route(
        method="DELETE", path="/templates/{template}", id="removeTemplate", needs="admin",
        does="let nobody start runs from it any more; a template saved later under its name goes on counting",
        answer=api.TemplateSummary, codes=("not_found", "stale_version"),
    ),
    Route(
        method="GET", path="/templates/{template}/versions", id="listVersions", does="list the versions of a template",
        query=api_input.PageQuery, answer=api.TemplatePage, codes=("not_found",),
    ),
    Route(
        method="GET", path="/templates/{template}/versions/{version}", id="readVersion",
        does="read one version of a template", answer=api.Template, codes=("not_found",),
    ),
    # -- projects and changes
    Route(
        method="GET", path="/projects", id="listProjects", does="list the repositories that the server knows, by name",
        query=api_input.PageQuery, answer=api_projects.ProjectPage,
    ),
    Route(
        method="PUT", path="/projects/{project}", id="saveProject", needs="admin",
        does="tell the server of a repository, or change what it knows of it",
        body=api_projects.ProjectInput, answer=api_projects.Project,
        codes=("not_allowed", "over_quota", "stale_version"),
    ),
    Route(
        method="GET", path="/projects/{project}", id="readProject", does="read what the server knows of a repository",
        answer=api_projects.Project, codes=("not_found",),
    ),
    Route(
        method="DELETE", path="/projects/{project}", id="removeProject", needs="admin",
        does="let the server forget a repository; its runs stay", answer=api_projects.Project,
        codes=("not_found", "stale_version"),
    ),
    Route(
        method="POST", path="/projects/{project}/pushes", id="tellPushes", needs="run",
        does="say what was pushed to a repository, as its hook does; safe to repeat",
        body=api_projects.PushInput, answer=api_projects.AcceptedChanges, codes=("not_found",),
    ),
    Route(
        method="GET", path="/changes", id="listChanges",
        does="list what happened in repositories and what came of it, the newest first",
        query=api_projects.ChangeQuery, answer=api_projects.ChangePage,
    ),
    Route(
        method="GET", path="/changes/{change}", id="readChange", does="read what came of a change",
        answer=api_projects.Change, codes=("not_found",),
    ),
    # -- workstreams
    Route(
        method="POST", path="/workstreams", id="createWorkstream", needs="run", does="start a workstream from its file",
        body=api_workstreams.WorkstreamInput, answer=api_workstreams.Workstream, status=201, is_repeatable=True,
        codes=("not_found", "over_quota", "unreadable"),
    ),
    Route(
        method="GET", path="/workstreams", id="listWorkstreams", does="find workstreams, the newest first",
        query=api_workstreams.WorkstreamQuery, answer=api_workstreams.WorkstreamPage,
    ),
    Route(
        method="GET", path="/workstreams/{workstream}", id="readWorkstream",
        does="read a workstream: its tasks, what they added, how far its merge is",
        answer=api_workstreams.Workstream, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path="/workstreams/{workstream}/cancel", id="cancelWorkstream", needs="run",
        does="stop a workstream; safe to repeat",
        body=api_input.CancelInput, is_body_optional=True, answer=api_workstreams.Workstream,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="GET", path="/merge-queues", id="listMergeQueues",
        does="read what waits to be merged, and what is being tested",
        query=api_workstreams.MergeQuery, answer=api_workstreams.MergeQueues,
    ),
    # -- the queue
    Route(
        method="GET", path="/queue", id="listQueue",
        does="read what waits and why, in the order in which it is claimed, and what workers have",
        query=api_queue.QueueQuery, answer=api_queue.Queue,
    ),
    # -- workers
    Route(
        method="GET", path="/workers", id="listWorkers", does="list workers, the newest first",
        query=api_input.WorkerQuery, answer=api.WorkerPage,
    ),
    Route(
        method="POST", path="/workers/tokens", id="makeWorkerToken", needs="runner",
        does="make a token with which a runner can come in, once",
        body=api_input.WorkerTokenInput, answer=api.WorkerToken, status=201,
    ),
    Route(
        method="GET", path="/workers/{worker}", id="readWorker", does="read a worker",
        answer=api.Worker, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path="/workers/{worker}/drain", id="drainWorker", needs="runner",
        does="give a worker nothing new until it is resumed; what it has it finishes; safe to repeat",
        body=api_input.DrainInput, is_body_optional=True, answer=api.Worker,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="POST", path="/workers/{worker}/resume", id="resumeWorker", needs="runner",
        does="let a worker that was drained or quarantined have work again; safe to repeat",
        answer=api.Worker, codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="POST", path="/workers/{worker}/remove", id="removeWorker", needs="runner",
        does="send a worker away, after its current jobs; it stays out until there is a new token; safe to repeat",
        answer=api.Worker, codes=("not_found", "wrong_state", "unreadable"),
    ),
    # -- keys, and who asks
    Route(
        method="GET", path="/keys", id="listKeys", needs="admin", does="list API keys",
        query=api_input.PageQuery, answer=api.KeyPage,
    ),
    Route(
        method="POST", path="/keys", id="makeKey", needs="admin", does="make an API key; its secret is shown once",
        body=api_input.KeyInput, answer=api.NewKey, status=201,
    ),
    Route(
        method="GET", path="/keys/{key}", id="readKey", needs="admin", does="read an API key, without its secret",
        answer=api.Key, codes=("not_found",),
    ),
    Route(
        method="POST", path="/keys/{key}/revoke", id="revokeKey", needs="admin",
        does="let nobody in with this key any more; safe to repeat, and who did it can still be read",
        answer=api.Key, codes=("not_found", "stale_version"),
    ),
    # -- secrets
    Route(
        method="GET", path="/secrets", id="listSecrets", needs="admin", does="list secrets, without their values",
        query=api_input.PageQuery, answer=api.SecretPage,
    ),
    Route(
        method="PUT", path="/secrets/{secret}", id="setSecret", needs="admin",
        does="keep a secret, sealed, in place of the one with the same scope",
        body=api_input.SecretInput, answer=api.Secret, codes=("no_secret",),
    ),
    Route(
        method="DELETE", path="/secrets/{secret}", id="removeSecret", needs="admin",
        does="forget the secret with exactly this scope",
        query=api_input.SecretQuery, answer=api.Secret, codes=("not_found",),
    ),
    # -- failures
    Route(
        method="GET", path="/failure-rules", id="readFailureRules", answer=api_failures.FailureRules,
        does="read the rules by which failures are classed, in the order in which they are asked",
    ),
    Route(
        method="PUT", path="/failure-rules", id="setFailureRules", needs="admin",
        does="set the tenant's own rules, which are asked before all others",
        body=api_input.FailureRulesInput, answer=api_failures.FailureRules, codes=("stale_version",),
    ),
    Route(
        method="GET", path="/flaky", id="listFlaky", does="list jobs and tests that are known to fail now and then",
        query=api_input.FlakyQuery, answer=api_failures.FlakyPage,
    ),
    Route(method="GET", path="/me", id="readMe", needs=ANY_KEY, does="say who asks", answer=api.Me),
    # -- the tenant
    Route(
        method="GET", path="/tenant", id="readTenant", does="read what the tenant may use and what it uses",
        answer=api.Tenant,
    ),
    Route(
        method="PUT", path="/tenants/{tenant}/quotas", id="setQuotas", needs=OPERATOR,
        does="say what a tenant may use; only who operates the server may",
        body=api_input.Quotas, answer=api.Tenant, codes=("stale_version",),
    ),
)

# fmt: on

# What any request may be refused with, whatever the address.
EVERY_REQUEST: Final = ("bad_request", "too_large", "too_slow", "bad_credential", "expired_credential")
EVERY_ROUTE: Final = ("missing_scope", "too_many_requests", "overloaded", "unavailable")
WITH_BODY: Final = ("bad_json", "bad_message", "wrong_media_type")


def error_codes(route: Route) -> tuple[str, ...]:
    """Everything that a request to it may be refused with."""
    repeatable = ("request_id_reused",) if route.is_repeatable else ()
    with_body = WITH_BODY if route.body is not None else ()
    with_query = ("bad_message",) if route.query is not None else ()
    named = ("not_found",) if route.names else ()
    found = (*EVERY_REQUEST, *EVERY_ROUTE, *with_body, *with_query, *named, *repeatable, *route.codes)
    return tuple(dict.fromkeys(found))
