"""The routes of `/api/v1`: the table by which the server routes, authorises and decodes requests.

The client and the OpenAPI document use the same table.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from deltaci.api.schemas import audit as api_audit
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

# Any valid key; only a key of the server's operator; otherwise one of the scopes of a key.
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
    """What an error code means: its HTTP status, its title, and a hint for the caller."""

    status: int
    title: str
    hint: str


REFUSALS: Final[dict[str, Refusal]] = {
    "bad_json": Refusal(400, "the body is not JSON", "send valid JSON in UTF-8"),
    "bad_request": Refusal(400, "the request is invalid", "correct what the message names, and send it again"),
    "dependency_cycle": Refusal(
        400, "jobs depend on each other in a cycle", "remove one of the dependencies that the message names"
    ),
    "bad_credential": Refusal(401, "no API key, or an invalid one", "send 'Authorization: Bearer <API key>'"),
    "expired_credential": Refusal(401, "the key is expired", "ask an administrator of your tenant for a new one"),
    "missing_scope": Refusal(403, "the key lacks a scope", "use a key with the scope that the message names"),
    "not_allowed": Refusal(403, "this person may not do this", "ask a person that the message describes"),
    "not_found": Refusal(404, "it does not exist", "check the id and the tenant of your key"),
    "wrong_method": Refusal(405, "the path does not support this method", "use one that the Allow header names"),
    "too_slow": Refusal(408, "the body did not arrive in time", "send it again"),
    "request_id_reused": Refusal(
        409, "the idempotency key was used for another request", "send a new key for a new request"
    ),
    "stale_version": Refusal(409, "it was changed in the meantime", "read it again before changing it"),
    "wrong_state": Refusal(409, "its state does not allow this", "read it again to see what happened"),
    "plan_changed": Refusal(409, "the run has a different plan", "read the plan again before deciding"),
    "no_secret": Refusal(409, "this server cannot store secrets", "install what the message names on the server"),
    "too_large": Refusal(413, "the request exceeds a limit", "send less per request"),
    "wrong_media_type": Refusal(415, "the Content-Type is not JSON", "send it as application/json"),
    "bad_range": Refusal(416, "the requested bytes do not exist", "request a range within the size"),
    "bad_message": Refusal(422, "a field is missing, unknown or out of its range", "correct the field that is named"),
    "over_quota": Refusal(
        429, "the tenant has used up its quota", "wait until something ends, or ask for a larger one"
    ),
    "too_many_requests": Refusal(429, "the tenant sends too many requests", "wait as long as Retry-After says"),
    "internal": Refusal(500, "internal error", "report it with the request_id"),
    "overloaded": Refusal(503, "too many requests are pending", "try again later"),
    "unavailable": Refusal(
        503, "the server cannot answer now", "repeat the request; this is safe with an idempotency key"
    ),
    "unreadable": Refusal(503, "the record cannot be read by this version", "update the server, or try another one"),
}


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path of `/api/v1`. `codes` are its error codes besides those of every route."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    id: str
    summary: str
    required_scope: RequiredScope = "read"
    query: type[api_input.RequestSchema] | None = None
    body: type[api_input.RequestSchema] | None = None
    is_body_optional: bool = False
    response: Any
    response_kind: ResponseKind = "json"
    status: int = 200
    is_repeatable: bool = False  # Accepts an Idempotency-Key: the repeat of a 201 is a 200.
    former_id: str = ""  # A deprecated operation id.
    codes: tuple[str, ...] = ()

    @property
    def path_parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(path_part.strip("{}*") for path_part in self.path.split("/") if path_part.startswith("{"))


_RUN: Final = "/runs/{run}"
_JOB: Final = "/runs/{run}/jobs/{job}"
_ATTEMPT: Final = "/runs/{run}/jobs/{job}/attempts/{index}"

# fmt: off
ROUTES: Final[tuple[Route, ...]] = (
    # -- runs
    Route(
        method="POST", path="/runs", id="startRun", required_scope="run",
        summary="start a run from a template, a plan or a repository",
        body=api_input.RunInput, response=api.Run, status=201, is_repeatable=True,
        codes=("dependency_cycle", "not_allowed", "not_found", "over_quota", "unreadable"),
    ),
    Route(
        method="GET", path="/runs", id="listRuns", summary="list runs, newest first",
        query=api_input.RunQuery, response=api.RunPage,
    ),
    Route(
        method="GET", path=_RUN, id="readRun", summary="read a run with its jobs and their attempts",
        response=api.RunWithJobs, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/cancel", id="cancelRun", required_scope="run",
        summary="cancel a run; safe to repeat",
        body=api_input.CancelInput, is_body_optional=True, response=api.Run,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/approve", id="approveRun", required_scope="approve",
        summary="approve waiting approval jobs; safe to repeat",
        body=api_input.DecisionInput, is_body_optional=True, response=api.DecisionResult,
        codes=("not_found", "wrong_state", "not_allowed", "plan_changed", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/reject", id="rejectRun", required_scope="approve",
        summary="reject waiting approval jobs",
        body=api_input.DecisionInput, is_body_optional=True, response=api.DecisionResult,
        codes=("not_found", "wrong_state", "not_allowed", "plan_changed", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_RUN}/rerun", id="rerunRun", required_scope="run",
        summary="start a new run with the same plan, or with its failed jobs only",
        body=api_input.RerunInput, is_body_optional=True, response=api.Run, status=201, is_repeatable=True,
        codes=("not_found", "wrong_state", "over_quota", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/explain", id="explainRun", summary="explain the state of a run",
        response=api.Explanation, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/timeline", id="readTimeline", summary="read the timeline of a run",
        response=api_timeline.Timeline, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/plan", id="readPlan", summary="read the plan of a run",
        response=api.Plan, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/events", id="readRunEvents", response_kind="events",
        summary="read the run's events, or follow them as server-sent events",
        query=api_input.EventQuery, response=api.EventPage, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/transitions", id="readTransitions",
        summary="read the run's events in the vocabulary of a source document",
        query=api_history.TransitionQuery, response=api_history.TransitionPage, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/tests", id="readTests",
        summary="read the run's test results, failures first, with the earlier outcomes of each test",
        query=api_tests.RunTestQuery, response=api_tests.RunTests, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/artifacts", id="listRunArtifacts", summary="list the artifacts of a run",
        response=api.Artifacts, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/outputs", id="readOutputs", summary="read the outputs of the run's jobs",
        response=api.Outputs, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_RUN}/costs", id="readCosts", summary="read the resources that the run used",
        response=api.Costs, codes=("not_found", "unreadable"),
    ),
    # -- jobs and attempts
    Route(
        method="GET", path=f"{_RUN}/jobs", id="listJobs", summary="read the run's jobs, page by page",
        query=api_input.PageQuery, response=api.JobPage, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=_JOB, id="readJob", summary="read a job with its attempts",
        response=api.Job, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path=f"{_JOB}/cancel", id="cancelJob", required_scope="run",
        summary="cancel one job; safe to repeat",
        body=api_input.CancelInput, is_body_optional=True, response=api.Job,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_JOB}/explain", id="explainJob", summary="explain the state of a job",
        response=api.Explanation, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_JOB}/log", id="readJobLog", response_kind="log",
        summary="read the log of the job's last attempt",
        query=api_input.LogQuery, response=bytes, codes=("not_found", "bad_range", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_JOB}/attempts", id="listAttempts", summary="read the job's attempts",
        response=api.Attempts, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=_ATTEMPT, id="readAttempt", summary="read an attempt",
        response=api.Attempt, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/explain", id="explainAttempt", summary="explain the state of an attempt",
        response=api.Explanation, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/log", id="readLog", response_kind="log", summary="read an attempt's log",
        query=api_input.LogQuery, response=bytes, codes=("not_found", "bad_range", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/log/index", id="readLogIndex",
        summary="read the positions of the lines and steps in an attempt's log",
        query=api_input.LogIndexQuery, response=api_logs.LogIndex, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/artifacts", id="listArtifacts", summary="list the artifacts of an attempt",
        response=api.Artifacts, codes=("not_found", "unreadable"),
    ),
    Route(
        method="GET", path=f"{_ATTEMPT}/artifacts/{{path*}}", id="readArtifact", response_kind="file",
        summary="read an artifact of an attempt", response=bytes, codes=("not_found", "bad_range", "unreadable"),
    ),
    # -- events of the whole tenant
    Route(
        method="GET", path="/events", id="readEvents", response_kind="events",
        summary="read all events of the tenant, or follow them as server-sent events",
        query=api_input.EventQuery, response=api.EventPage,
    ),
    # -- templates
    Route(
        method="GET", path="/templates", id="listTemplates", summary="list templates by name",
        query=api_input.PageQuery, response=api.TemplatePage,
    ),
    Route(
        method="PUT", path="/templates/{template}", id="saveTemplate", required_scope="admin",
        summary="save a new version of a template; runs keep the version that they started with",
        body=api_input.TemplateInput, response=api.Template, codes=("dependency_cycle", "stale_version"),
    ),
    Route(
        method="GET", path="/templates/{template}", id="readTemplate", summary="read the newest version of a template",
        response=api.Template, codes=("not_found",),
    ),
    Route(
        method="DELETE", path="/templates/{template}", id="removeTemplate", required_scope="admin",
        summary="delete a template; one saved later under its name continues its version numbers",
        response=api.TemplateSummary, codes=("not_found", "stale_version"),
    ),
    Route(
        method="GET", path="/templates/{template}/versions", id="listVersions",
        summary="list the versions of a template",
        query=api_input.PageQuery, response=api.TemplatePage, codes=("not_found",),
    ),
    Route(
        method="GET", path="/templates/{template}/versions/{version}", id="readVersion",
        summary="read one version of a template", response=api.Template, codes=("not_found",),
    ),
    # -- projects and changes
    Route(
        method="GET", path="/projects", id="listProjects", summary="list projects by name",
        query=api_input.PageQuery, response=api_projects.ProjectPage,
    ),
    Route(
        method="PUT", path="/projects/{project}", id="saveProject", required_scope="admin",
        summary="create or change a project",
        body=api_projects.ProjectInput, response=api_projects.Project,
        codes=("not_allowed", "over_quota", "stale_version"),
    ),
    Route(
        method="GET", path="/projects/{project}", id="readProject", summary="read a project",
        response=api_projects.Project, codes=("not_found",),
    ),
    Route(
        method="DELETE", path="/projects/{project}", id="removeProject", required_scope="admin",
        summary="delete a project; its runs are kept", response=api_projects.Project,
        codes=("not_found", "stale_version"),
    ),
    Route(
        method="POST", path="/projects/{project}/pushes", id="reportPush", former_id="tellPushes", required_scope="run",
        summary="report a push to a repository, as its hook does; safe to repeat",
        body=api_projects.PushInput, response=api_projects.AcceptedChanges, codes=("not_found",),
    ),
    Route(
        method="GET", path="/changes", id="listChanges",
        summary="list changes in repositories and their outcome, newest first",
        query=api_projects.ChangeQuery, response=api_projects.ChangePage,
    ),
    Route(
        method="GET", path="/changes/{change}", id="readChange", summary="read a change and its outcome",
        response=api_projects.Change, codes=("not_found",),
    ),
    Route(
        method="POST", path="/changes/{change}/redeliver", id="redeliverChange", required_scope="run",
        summary="handle a change again that could not be handled", response=api_projects.Change,
        codes=("not_found", "wrong_state"),
    ),
    Route(
        method="GET", path="/projects/{project}/deliveries", id="listDeliveries",
        summary="list the last 500 webhook deliveries to a project, newest first",
        query=api_input.PageQuery, response=api_projects.DeliveryPage, codes=("not_found",),
    ),
    # -- workstreams
    Route(
        method="POST", path="/workstreams", id="createWorkstream", required_scope="run",
        summary="start a workstream from its file",
        body=api_workstreams.WorkstreamInput, response=api_workstreams.Workstream, status=201, is_repeatable=True,
        codes=("not_found", "over_quota", "unreadable"),
    ),
    Route(
        method="GET", path="/workstreams", id="listWorkstreams", summary="list workstreams, newest first",
        query=api_workstreams.WorkstreamQuery, response=api_workstreams.WorkstreamPage,
    ),
    Route(
        method="GET", path="/workstreams/{workstream}", id="readWorkstream",
        summary="read a workstream with its tasks, their commits and the progress of its merge",
        response=api_workstreams.Workstream, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path="/workstreams/{workstream}/cancel", id="cancelWorkstream", required_scope="run",
        summary="cancel a workstream; safe to repeat",
        body=api_input.CancelInput, is_body_optional=True, response=api_workstreams.Workstream,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="GET", path="/merge-queues", id="listMergeQueues",
        summary="list merge queues with their entries and batches",
        query=api_workstreams.MergeQuery, response=api_workstreams.MergeQueues,
    ),
    # -- the queue
    Route(
        method="GET", path="/queue", id="listQueue",
        summary="list waiting attempts in the order of claims, and running ones",
        query=api_queue.QueueQuery, response=api_queue.Queue,
    ),
    # -- workers
    Route(
        method="GET", path="/workers", id="listWorkers", summary="list workers, newest first",
        query=api_input.WorkerQuery, response=api.WorkerPage,
    ),
    Route(
        method="POST", path="/workers/tokens", id="makeWorkerToken", required_scope="runner",
        summary="create a registration token for a runner, valid once",
        body=api_input.WorkerTokenInput, response=api.WorkerToken, status=201,
    ),
    Route(
        method="GET", path="/workers/{worker}", id="readWorker", summary="read a worker",
        response=api.Worker, codes=("not_found", "unreadable"),
    ),
    Route(
        method="POST", path="/workers/{worker}/drain", id="drainWorker", required_scope="runner",
        summary="give a worker no new jobs until it is resumed; safe to repeat",
        body=api_input.DrainInput, is_body_optional=True, response=api.Worker,
        codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="POST", path="/workers/{worker}/resume", id="resumeWorker", required_scope="runner",
        summary="give a drained or quarantined worker new jobs again; safe to repeat",
        response=api.Worker, codes=("not_found", "wrong_state", "unreadable"),
    ),
    Route(
        method="POST", path="/workers/{worker}/remove", id="removeWorker", required_scope="runner",
        summary="remove a worker after its current jobs; it needs a new token to return; safe to repeat",
        response=api.Worker, codes=("not_found", "wrong_state", "unreadable"),
    ),
    # -- keys, and the caller
    Route(
        method="GET", path="/keys", id="listKeys", required_scope="admin", summary="list API keys",
        query=api_input.PageQuery, response=api.KeyPage,
    ),
    Route(
        method="POST", path="/keys", id="makeKey", required_scope="admin",
        summary="create an API key; its secret is shown once",
        body=api_input.KeyInput, response=api.NewKey, status=201,
    ),
    Route(
        method="GET", path="/keys/{key}", id="readKey", required_scope="admin",
        summary="read an API key, without its secret",
        response=api.Key, codes=("not_found",),
    ),
    Route(
        method="POST", path="/keys/{key}/revoke", id="revokeKey", required_scope="admin",
        summary="revoke an API key; it can still be read; safe to repeat",
        response=api.Key, codes=("not_found", "stale_version"),
    ),
    # -- secrets
    Route(
        method="GET", path="/secrets", id="listSecrets", required_scope="admin",
        summary="list secrets, without their values",
        query=api_input.PageQuery, response=api.SecretPage,
    ),
    Route(
        method="PUT", path="/secrets/{secret}", id="setSecret", required_scope="admin",
        summary="set a secret, which is stored encrypted; replaces the one with the same scope",
        body=api_input.SecretInput, response=api.Secret, codes=("no_secret", "stale_version"),
    ),
    Route(
        method="DELETE", path="/secrets/{secret}", id="removeSecret", required_scope="admin",
        summary="delete the secret with exactly this scope",
        query=api_input.SecretQuery, response=api.Secret, codes=("not_found", "stale_version"),
    ),
    # -- the administrative log
    Route(
        method="GET", path="/audit", id="listAudit", required_scope="admin",
        summary="list changes of keys, projects, secrets, workers and other administrative objects, newest first",
        query=api_audit.AuditQuery, response=api_audit.AuditPage,
    ),
    # -- failures
    Route(
        method="GET", path="/failure-rules", id="readFailureRules", response=api_failures.FailureRules,
        summary="read the rules that classify failures, in order of evaluation",
    ),
    Route(
        method="PUT", path="/failure-rules", id="setFailureRules", required_scope="admin",
        summary="set the tenant's own rules, which are evaluated before all others",
        body=api_input.FailureRulesInput, response=api_failures.FailureRules, codes=("stale_version",),
    ),
    Route(
        method="GET", path="/flaky", id="listFlaky", summary="list flaky jobs and tests",
        query=api_input.FlakyQuery, response=api_failures.FlakyPage,
    ),
    Route(method="GET", path="/me", id="readMe", required_scope=ANY_KEY,
        summary="read the identity of the caller", response=api.Me),
    # -- the tenant
    Route(
        method="GET", path="/tenant", id="readTenant", summary="read the quotas and the usage of the tenant",
        response=api.Tenant,
    ),
    Route(
        method="PUT", path="/tenants/{tenant}/quotas", id="setQuotas", required_scope=OPERATOR,
        summary="set the quotas of a tenant; only for the operator of the server",
        body=api_input.Quotas, response=api.Tenant, codes=("stale_version",),
    ),
)

# fmt: on

# Error codes of any request, of any route, and of any route with a body.
EVERY_REQUEST: Final = ("bad_request", "too_large", "too_slow", "bad_credential", "expired_credential")
EVERY_ROUTE: Final = ("missing_scope", "too_many_requests", "overloaded", "unavailable")
WITH_BODY: Final = ("bad_json", "bad_message", "wrong_media_type")


def error_codes(route: Route) -> tuple[str, ...]:
    """Return all error codes that a request to this route may get, without duplicates."""
    repeatable_codes = ("request_id_reused",) if route.is_repeatable else ()
    body_codes = WITH_BODY if route.body is not None else ()
    query_codes = ("bad_message",) if route.query is not None else ()
    path_codes = ("not_found",) if route.path_parameters else ()
    codes = (*EVERY_REQUEST, *EVERY_ROUTE, *body_codes, *query_codes, *path_codes, *repeatable_codes, *route.codes)
    return tuple(dict.fromkeys(codes))
