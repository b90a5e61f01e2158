"""Webhook events of all forges: which become a change, which are ignored, and which are refused."""

from __future__ import annotations

import asyncio
import hmac
from hashlib import sha256
from typing import Any

import pytest

from deltaci.forges.projects import ForgeProject
from deltaci.forges.webhook_event import TOLERANCE_SECONDS
from deltaci.pipeline.change import Change
from deltaci.server import webhooks
from tests.contract.backends import Backend, on_loop
from tests.forges.payloads import (
    NEW,
    NOW,
    OLD,
    SECRET,
    TAG,
    ZERO,
    WebhookRequest,
    forgejo,
    gitea,
    gitea_pull_request,
    gitea_push,
    github,
    github_pull_request,
    github_push,
    gitlab,
    gitlab_merge_request,
    gitlab_push,
    plain_git,
)
from tests.forges.project_documents import TENANT, webhook_sender


async def deliver(
    memory: Backend, forge: str, sent: WebhookRequest, **fields: Any
) -> tuple[int, dict[str, Any], list[Change]]:
    """Send one delivery to a new project; return the response and the changes."""
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", forge, **fields)
        status, response = await post.send(sent)
        return status, response, await post.project_documents.changes()


PUSHES = {
    "github": github("push", github_push()),
    "gitlab": gitlab("Push Hook", gitlab_push()),
    "gitea": gitea("push", gitea_push()),
    "forgejo": forgejo("push", gitea_push()),
    "git": plain_git(),
}


@pytest.mark.parametrize("forge", PUSHES)
@on_loop
async def test_a_push_becomes_a_change(memory: Backend, forge: str) -> None:
    status, response, [change] = await deliver(memory, forge, PUSHES[forge])

    assert (status, response["result"]) == (202, "accepted")
    assert response["change"].startswith("c")
    assert (change.event, change.ref, change.branch, change.tag) == ("push", "refs/heads/main", "main", "")
    assert (change.commit, change.before, change.actor, change.is_fork) == (NEW, OLD, "ada", False)
    if forge != "git":
        assert (change.title, change.default_branch) == ("Fix the gate", "main")
        assert change.repository.count("/") == 1
        assert change.payload["head_commit"]["message"].startswith("Fix the gate")


TAGS = {
    "github": github("push", github_push("refs/tags/v1", ZERO, TAG, head_commit={"id": NEW, "message": "Release"})),
    "gitlab": gitlab("Tag Push Hook", gitlab_push("refs/tags/v1", ZERO, TAG)),
    "gitea": gitea("push", gitea_push("refs/tags/v1", ZERO, NEW)),
    "git": plain_git(ref="refs/tags/v1", before=ZERO),
}


@pytest.mark.parametrize("forge", TAGS)
@on_loop
async def test_a_tag_is_a_change_of_its_commit(memory: Backend, forge: str) -> None:
    """An annotated tag is an object; the commit that it points to is built."""
    _, _, [change] = await deliver(memory, forge, TAGS[forge])

    assert (change.event, change.ref, change.branch, change.tag) == ("push", "refs/tags/v1", "", "v1")
    assert (change.commit, change.before) == (NEW, "")


@pytest.mark.parametrize(
    ("forge", "sent"),
    [
        ("github", github("push", github_push(after=ZERO))),
        ("gitlab", gitlab("Push Hook", gitlab_push(after=ZERO))),
        ("gitea", gitea("push", gitea_push(after=ZERO))),
        ("git", plain_git(after=ZERO)),
    ],
)
@on_loop
async def test_deleting_a_branch_is_ignored(memory: Backend, forge: str, sent: WebhookRequest) -> None:
    status, response, changes = await deliver(memory, forge, sent)

    assert (status, response) == (202, {"result": "ignored", "why": "the branch 'main' was deleted"})
    assert not changes


def pull_request_event(forge: str, **fields: Any) -> WebhookRequest:
    """Return a pull request event in this forge's form."""
    if forge == "github":
        return github("pull_request", github_pull_request(**fields))
    return {"gitea": gitea, "forgejo": forgejo}[forge]("pull_request", gitea_pull_request(**fields))


@pytest.mark.parametrize("forge", ["github", "gitea", "forgejo"])
@pytest.mark.parametrize(("head_repo", "is_fork"), [("same", False), ("fork", True), (None, True)])
@on_loop
async def test_a_pull_request_is_trusted_only_from_the_same_repository(
    memory: Backend, forge: str, head_repo: Any, is_fork: bool
) -> None:
    """A deleted head repository counts as a fork."""
    _, _, [change] = await deliver(memory, forge, pull_request_event(forge, head_repo=head_repo))

    assert (change.event, change.action, change.number) == ("pull_request", "opened", 7)
    assert (change.commit, change.base, change.branch, change.head) == (NEW, OLD, "main", "gate")
    assert (change.ref, change.title, change.actor, change.is_fork) == (
        "refs/pull/7/head",
        "Close the gate",
        "ada",
        is_fork,
    )
    assert change.payload["pull_request"]["head"]["repo"]["fork"] is is_fork


@pytest.mark.parametrize(("source", "is_fork"), [(15, False), (16, True), (None, True)])
@on_loop
async def test_a_merge_request_is_trusted_only_from_the_same_project(
    memory: Backend, source: int | None, is_fork: bool
) -> None:
    sent = gitlab("Merge Request Hook", gitlab_merge_request(source=source))

    _, _, [change] = await deliver(memory, "gitlab", sent)

    assert (change.event, change.action, change.number) == ("pull_request", "opened", 7)
    assert (change.commit, change.branch, change.head) == (NEW, "main", "gate")
    assert (change.ref, change.actor, change.is_fork) == ("refs/merge-requests/7/head", "ada", is_fork)


@pytest.mark.parametrize(
    ("payload", "action"),
    [
        (gitlab_merge_request("reopen"), "reopened"),
        (gitlab_merge_request("close"), "closed"),
        (gitlab_merge_request("merge"), "closed"),
        (gitlab_merge_request("update", about={"oldrev": OLD}), "synchronize"),
        (gitlab_merge_request("update", changes={"draft": {"previous": True, "current": False}}), "ready_for_review"),
        (gitlab_merge_request("update", changes={"labels": {"previous": [], "current": [{"title": "x"}]}}), "labeled"),
        (
            gitlab_merge_request("update", changes={"labels": {"previous": [{"title": "x"}], "current": []}}),
            "unlabeled",
        ),
        (gitlab_merge_request("update", changes={"title": {"previous": "a", "current": "b"}}), None),
        (gitlab_merge_request("approved"), None),
    ],
)
@on_loop
async def test_actions_of_a_merge_request_have_the_names_of_pipelines(
    memory: Backend, payload: Any, action: str | None
) -> None:
    status, response, changes = await deliver(memory, "gitlab", gitlab("Merge Request Hook", payload))

    assert [change.action for change in changes] == ([action] if action else [])
    assert (status, response["result"]) == (202, "accepted" if action else "ignored")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("synchronized", "synchronize"),
        ("label_updated", "labeled"),
        ("label_cleared", "unlabeled"),
        ("closed", "closed"),
    ],
)
@on_loop
async def test_actions_of_gitea_have_the_names_of_pipelines(memory: Backend, theirs: str, ours: str) -> None:
    _, _, [change] = await deliver(memory, "gitea", gitea("pull_request", gitea_pull_request(theirs)))

    assert change.action == ours


@on_loop
async def test_a_ping_is_answered(memory: Backend) -> None:
    status, response, changes = await deliver(
        memory, "github", github("ping", {"zen": "Design for failure.", "hook_id": 1})
    )

    assert (status, response["result"], changes) == (200, "pong", [])


@pytest.mark.parametrize(
    ("forge", "sent", "why"),
    [
        ("github", github("star", {"action": "created"}), "the event 'star' is not supported"),
        (
            "github",
            github("pull_request", github_pull_request("assigned")),
            "the action 'assigned'",
        ),
        ("github", github("push", github_push("refs/notes/x")), "neither a branch nor a tag"),
        ("gitlab", gitlab("Pipeline Hook", {"object_kind": "pipeline"}), "is not supported"),
        ("gitea", gitea("push", gitea_push(before=NEW)), "the ref did not move"),
        ("gitea", gitea("delete", {"ref": "x", "ref_type": "branch"}), "is not supported"),
    ],
)
@on_loop
async def test_an_irrelevant_event_is_ignored_with_a_reason(
    memory: Backend, forge: str, sent: WebhookRequest, why: str
) -> None:
    status, response, changes = await deliver(memory, forge, sent)

    assert (status, response["result"], changes) == (202, "ignored", [])
    assert why in response["why"]


@pytest.mark.parametrize(
    ("repository", "result"),
    [
        ("Octo/Hello", "accepted"),
        ("git/octo/hello", "accepted"),
        ("octo/other", "ignored"),
        ("moocto/hello", "ignored"),
    ],
)
@on_loop
async def test_events_of_other_repositories_are_ignored(memory: Backend, repository: str, result: str) -> None:
    """The webhook of a whole organization sends them, with one secret for all."""
    _, response, changes = await deliver(memory, "github", PUSHES["github"], repository=repository)

    assert (response["result"], len(changes)) == (result, int(result == "accepted"))


@on_loop
async def test_a_bare_repository_has_the_name_of_its_project(memory: Backend) -> None:
    _, _, [change] = await deliver(memory, "git", PUSHES["git"], repository="gates")

    assert change.repository == "gates"


@on_loop
async def test_the_total_size_of_bodies_in_memory_is_limited(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room is released afterwards."""
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")
        with monkeypatch.context() as small:
            small.setattr(webhooks, "MAX_BUFFERED_BYTES", 100)
            status, response = await post.send(PUSHES["github"])
        assert (status, response["code"]) == (503, "overloaded")

        assert (await post.send(PUSHES["github"]))[0] == 202


# -- who is not believed

NOT_BELIEVED = {
    "another secret": ("github", github("push", github_push(), secret="a guess")),
    "an empty secret": ("github", github("push", github_push(), secret="")),
    "an altered body": (
        "github",
        WebhookRequest(PUSHES["github"].headers, PUSHES["github"].body.replace(b"main", b"evil")),
    ),
    "a body cut off": ("github", WebhookRequest(PUSHES["github"].headers, PUSHES["github"].body[:-10])),
    "no signature": ("github", WebhookRequest({"X-GitHub-Event": "push"}, PUSHES["github"].body)),
    "only the old signature": (
        "github",
        WebhookRequest({**PUSHES["github"].headers, "X-Hub-Signature-256": ""}, PUSHES["github"].body),
    ),
    "another forge": ("gitlab", PUSHES["github"]),
    "another forge still": ("github", PUSHES["gitlab"]),
    "gitlab with another token": ("gitlab", gitlab("Push Hook", gitlab_push(), token="a guess")),
    "gitlab without a token": ("gitlab", WebhookRequest({"X-Gitlab-Event": "Push Hook"}, PUSHES["gitlab"].body)),
    "gitea altered": ("gitea", WebhookRequest(PUSHES["gitea"].headers, PUSHES["gitea"].body.replace(b"main", b"evil"))),
    "a bad signature beside a good one": (
        "forgejo",
        WebhookRequest({**PUSHES["forgejo"].headers, "X-Forgejo-Signature": "0" * 64}, PUSHES["forgejo"].body),
    ),
    "a letter that is none": (
        "github",
        WebhookRequest({**PUSHES["github"].headers, "X-Hub-Signature-256": "sha256=\xe9"}, PUSHES["github"].body),
    ),
    "our hook, altered": ("git", WebhookRequest(PUSHES["git"].headers, PUSHES["git"].body.replace(b"main", b"evil"))),
    "our hook, too old": ("git", plain_git(at=NOW - int(TOLERANCE_SECONDS) - 1)),
    "our hook, too early": ("git", plain_git(at=NOW + int(TOLERANCE_SECONDS) + 1)),
    "our hook with another time": (
        "git",
        WebhookRequest(
            {**plain_git(at=NOW - 400).headers, "X-Deltaci-Timestamp": str(NOW)}, plain_git(at=NOW - 400).body
        ),
    ),
}


@pytest.mark.parametrize("case", NOT_BELIEVED)
@on_loop
async def test_an_unauthenticated_delivery_changes_nothing(memory: Backend, case: str) -> None:
    forge, sent = NOT_BELIEVED[case]
    headers = {name: value.encode("latin-1").decode("latin-1") for name, value in sent.headers.items()}

    status, response, changes = await deliver(
        memory, forge, WebhookRequest({k: v for k, v in headers.items() if v.isascii()}, sent.body)
    )

    assert (status, response["result"], response["code"], changes) == (401, "refused", "bad_credential", [])


@on_loop
async def test_a_project_that_does_not_exist_is_answered_like_a_bad_signature_and_as_late(memory: Backend) -> None:
    """Otherwise anybody could list the projects of a server."""
    clock = asyncio.get_running_loop().time
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")
        await post.project_documents.add("open", "github", webhook_secret="")

        answers, times = [], []
        for tenant, project in (
            (TENANT, "p"),
            (TENANT, "nobody"),
            ("others", "p"),
            (TENANT, "open"),
            (TENANT, "x" * 999),
        ):
            began = clock()
            answers.append(await post.send(github("push", github_push(), secret="a guess"), project, tenant))
            times.append(clock() - began)

        assert all(answer == answers[0] for answer in answers)
        assert answers[0][0] == 401
        assert min(times) >= webhooks.REFUSED_AFTER_SECONDS * 0.9


@on_loop
async def test_a_project_without_a_secret_accepts_no_delivery(memory: Backend) -> None:
    """Anybody could sign with an empty secret."""
    async with memory.opened() as store, webhook_sender(store) as post:
        unsigned = {
            "github": github("push", github_push(), secret=""),
            "gitlab": gitlab("Push Hook", gitlab_push(), token=""),
            "gitea": gitea("push", gitea_push(), secret=""),
            "git": plain_git(secret=""),
        }
        for forge, sent in unsigned.items():
            await post.project_documents.add(forge, forge, webhook_secret="")

            assert (await post.send(sent, forge))[0] == 401


# -- what makes no sense, though it is signed


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (github("push", [1, 2]), 422),
        (github("push", {"ref": "refs/heads/main"}), 422),
        (github("push", github_push(after="main")), 422),
        (github("push", github_push(after=NEW.upper())), 422),
        (github("push", github_push(after=f"{NEW}\n")), 422),
        (github("push", github_push(ref="refs/heads/main\n")), 422),
        (github("push", github_push(ref="refs/heads/a\nb")), 422),
        (github("push", github_push(ref="x" * 2000)), 422),
        (github("pull_request", github_pull_request(number=0)), 422),
        (github("pull_request", github_push()), 422),
    ],
)
@on_loop
async def test_a_signed_but_invalid_event_is_refused(memory: Backend, sent: WebhookRequest, status: int) -> None:
    actual_status, response, changes = await deliver(memory, "github", sent)

    assert (actual_status, response["result"], changes) == (status, "refused", [])


def signed(body: bytes, **headers: str) -> WebhookRequest:
    """Return any bytes, signed as GitHub does."""
    made = hmac.new(SECRET.encode(), body, sha256).hexdigest()
    return WebhookRequest({"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={made}", **headers}, body)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (signed(b""), 400, "bad_request"),
        (signed(b"{"), 400, "bad_json"),
        (signed(b"\xff\xfe"), 400, "bad_json"),
        (signed(b'{"ref": "refs/heads/m\xe4in"}'), 400, "bad_json"),
        (signed(b'{"filler":' + b"[" * 100_000), 400, "bad_json"),
        (
            signed(b"payload=%7B%7D", **{"Content-Type": "application/x-www-form-urlencoded"}),
            415,
            "wrong_media_type",
        ),
    ],
)
@on_loop
async def test_bytes_that_are_no_event_are_refused(
    memory: Backend, sent: WebhookRequest, status: int, code: str
) -> None:
    actual_status, response, changes = await deliver(memory, "github", sent)

    assert (actual_status, response["code"], changes) == (status, code, [])


@on_loop
async def test_a_push_of_the_largest_size_that_a_forge_sends_is_accepted(memory: Backend) -> None:
    """GitHub sends up to 25 MB: a push of thousands of commits that change many files."""
    big = github("push", github_push(filler="x" * 24_900_000))

    assert (await deliver(memory, "github", big))[0] == 202


@on_loop
async def test_a_body_that_is_too_large_is_refused_unread(memory: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MAX_BYTES", 2000)
    big = github("push", github_push(filler="x" * 3000))

    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")

        complete = await post.http.post("/hooks/acme/p", content=big.body, headers=big.headers)
        streamed = await post.http.post(
            "/hooks/acme/p", content=big.body, headers={**big.headers, "Content-Length": "9"}
        )

        assert [complete.status_code, streamed.status_code] == [413, 413]
        assert not await post.project_documents.changes()


@on_loop
async def test_a_webhook_url_names_a_tenant_and_a_project(memory: Backend) -> None:
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github", tenant="default")

        short = await post.http.post("/hooks/p", content=PUSHES["github"].body, headers=PUSHES["github"].headers)
        wrong = [await post.http.post(path) for path in ("/hooks/", "/hooks/a/b/c", "/hooks//p", "/hook/p")]
        get = await post.http.get("/hooks/p")

        assert short.status_code == 202
        assert {each.status_code for each in wrong} == {404}
        assert (get.status_code, get.headers["allow"]) == (405, "POST")


def test_a_project_never_shows_its_secrets() -> None:
    project = ForgeProject(tenant="t", name="p", forge="github", webhook_secret=SECRET, api_token="also secret")

    assert "secret" not in repr(project)
