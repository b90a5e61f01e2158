"""Repeated webhook deliveries have no effect, and signatures with a time are valid only for some minutes."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core.listing import ALL_TENANTS
from deltaci.forges import delivery_dedupe
from deltaci.forges.deliveries import DeliveryEntry, DeliveryLog
from tests.contract.backends import Backend, on_loop
from tests.forges.payloads import (
    NOW,
    SECRET,
    TAG,
    ZERO,
    WebhookRequest,
    gitea,
    gitea_push,
    github,
    github_pull_request,
    github_push,
    gitlab,
    gitlab_push,
    gitlab_signed,
    plain_git,
)
from tests.forges.project_documents import TENANT, WebhookSender, webhook_sender
from tests.forges.test_webhooks import PUSHES, deliver

SIGNING = "whsec_" + "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="  # 32 times k


async def send_twice(post: WebhookSender, first: WebhookRequest, second: WebhookRequest) -> list[str]:
    return [(await post.send(each))[1]["result"] for each in (first, second)]


@pytest.mark.proves("ORC-I1")
@pytest.mark.parametrize("forge", PUSHES)
@on_loop
async def test_a_repeated_delivery_has_no_effect(memory: Backend, forge: str) -> None:
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", forge)

        assert await send_twice(post, PUSHES[forge], PUSHES[forge]) == ["accepted", "duplicate"]
        assert len(await post.project_documents.changes()) == 1


@on_loop
async def test_a_push_signed_anew_under_the_same_id_has_no_effect(memory: Backend) -> None:
    """The hook of a bare repository repeats a request with a new time."""
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "git")

        assert await send_twice(post, plain_git(), plain_git(at=NOW + 100)) == ["accepted", "duplicate"]


@pytest.mark.parametrize(
    ("forge", "again"),
    [
        ("github", github("push", github_push(), delivery="")),
        ("gitea", gitea("push", gitea_push(), delivery="")),
    ],
)
@on_loop
async def test_a_delivery_without_an_id_is_recognized_by_its_content(
    memory: Backend, forge: str, again: WebhookRequest
) -> None:
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", forge)

        assert await send_twice(post, again, again) == ["accepted", "duplicate"]


@pytest.mark.parametrize(
    ("forge", "other"),
    [
        ("github", github("push", github_push(), delivery="2")),
        ("github", github("push", github_push(before=TAG), delivery="2")),
        ("github", github("push", github_push(repository={"id": 35129377, "pushed_at": 1767513699}), delivery="2")),
        ("gitlab", gitlab("Push Hook", gitlab_push(), uuid="2")),
        ("gitea", gitea("push", gitea_push(), delivery="2")),
        ("gitea", gitea("push", gitea_push(before=TAG), delivery="2")),
        ("git", plain_git(delivery="another push")),
    ],
)
@on_loop
async def test_another_event_is_another_change(memory: Backend, forge: str, other: WebhookRequest) -> None:
    """Another id is another event: also the same commit, pushed to the same branch again."""
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", forge)

        assert await send_twice(post, PUSHES[forge], other) == ["accepted", "accepted"]


@on_loop
async def test_two_labels_added_in_the_same_second_are_two_changes(memory: Backend) -> None:
    """To the same pull request."""
    first, second = (
        github("pull_request", github_pull_request("labeled", label={"id": 1, "name": name}), delivery=name)
        for name in ("bug", "urgent")
    )
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")

        assert await send_twice(post, first, second) == ["accepted", "accepted"]
        assert {change.payload["label"]["name"] for change in await post.project_documents.changes()} == {
            "bug",
            "urgent",
        }


@on_loop
async def test_two_projects_may_receive_the_same_event(memory: Backend) -> None:
    async with memory.opened() as store, webhook_sender(store) as post:
        for name in ("p", "q"):
            await post.project_documents.add(name, "github")

        response = [(await post.send(PUSHES["github"], name))[1]["result"] for name in ("p", "q")]

        assert response == ["accepted", "accepted"]


@pytest.mark.proves("ORC-I1")
@on_loop
async def test_fifty_concurrent_deliveries_create_one_change(backend: Backend) -> None:
    async with backend.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")

        response = await asyncio.gather(*(post.send(PUSHES["github"]) for _ in range(50)))

        assert sorted(each["result"] for _, each in response) == ["accepted", *["duplicate"] * 49]
        assert len({each["change"] for _, each in response}) == 1
        assert len(await post.project_documents.changes()) == 1


@on_loop
async def test_a_delivery_repeated_after_a_crash_creates_no_second_change(memory: Backend) -> None:
    """The change was stored, but not yet the record of the delivery."""
    async with memory.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")
        _, first = await post.send(PUSHES["github"])
        [document] = await store.list_documents(delivery_dedupe.DELIVERY_KIND, ALL_TENANTS)
        await store.delete_document(document.kind, document.tenant, document.name, document.version)

        _, again = await post.send(PUSHES["github"])

        assert (again["result"], again["change"]) == ("duplicate", first["change"])
        assert len(await store.list_documents(delivery_dedupe.DELIVERY_KIND, ALL_TENANTS)) == 1


@on_loop
async def test_delivery_ids_are_remembered_for_a_month(backend: Backend) -> None:
    """GitHub offers to deliver again for 30 days. A change that is kept no longer than that is not needed for it."""
    async with backend.opened() as store, webhook_sender(store) as post:
        await post.project_documents.add("p", "github")
        await post.send(PUSHES["github"])
        deletion = github("push", github_push(after=ZERO), delivery="2")
        await post.send(deletion)
        backend.after(31 * 86400)
        assert not await delivery_dedupe.delete_expired(store)
        assert (await post.send(PUSHES["github"]))[1]["result"] == "duplicate"
        assert (await post.send(deletion))[1]["result"] == "duplicate"
        backend.after(10 * 86400)

        assert await delivery_dedupe.delete_expired(store) == 2


@on_loop
async def test_the_log_of_a_project_is_bounded(memory: Backend) -> None:
    """The newest entries stay, also of other projects."""
    async with memory.opened() as store:
        log = DeliveryLog(store)
        await log.add(TENANT, "q", DeliveryEntry(result="pong"))
        for number in range(delivery_dedupe.MAX_LOGGED + 3):
            memory.after(1)
            await log.add(TENANT, "p", DeliveryEntry(result="ignored", reason=str(number)))

        assert await delivery_dedupe.delete_expired(store) == 3

        kept = await log.page(TENANT, "p", "", 1000)
        assert len(kept) == delivery_dedupe.MAX_LOGGED
        assert [entry.reason for _, entry in kept[:2]] == ["502", "501"]
        assert len(await log.page(TENANT, "q", "", 1000)) == 1


# -- signatures of GitLab


@pytest.mark.parametrize(
    ("sent", "secret", "is_believed"),
    [
        (gitlab_signed("Push Hook", gitlab_push()), SIGNING, True),
        (gitlab_signed("Push Hook", gitlab_push(), key=SECRET.encode()), SECRET, True),
        (gitlab_signed("Push Hook", gitlab_push(), key=b"a guess"), SIGNING, False),
        (gitlab_signed("Push Hook", gitlab_push(), at=NOW - 301), SIGNING, False),
        (gitlab_signed("Push Hook", gitlab_push(), at=NOW + 301), SIGNING, False),
        (gitlab("Push Hook", gitlab_push(), token=SIGNING), SIGNING, False),
    ],
)
@on_loop
async def test_a_signature_of_gitlab_is_checked_with_its_time(
    memory: Backend, sent: WebhookRequest, secret: str, is_believed: bool
) -> None:
    """GitLab never sends a signing token itself, so a request with it is refused."""
    status, _, changes = await deliver(memory, "gitlab", sent, webhook_secret=secret)

    assert (status, len(changes)) == ((202, 1) if is_believed else (401, 0))


@on_loop
async def test_one_valid_signature_of_several_is_enough(memory: Backend) -> None:
    """While a key is rotated, GitLab sends both signatures."""
    headers, body = gitlab_signed("Push Hook", gitlab_push())
    both = {**headers, "webhook-signature": f"v1,AAAA {headers['webhook-signature']}"}

    assert (await deliver(memory, "gitlab", WebhookRequest(both, body), webhook_secret=SIGNING))[0] == 202


@on_loop
async def test_a_valid_token_does_not_outweigh_an_invalid_signature(memory: Backend) -> None:
    headers, body = gitlab_signed("Push Hook", gitlab_push(), key=b"a guess")

    assert (await deliver(memory, "gitlab", WebhookRequest({**headers, "X-Gitlab-Token": SECRET}, body)))[0] == 401
