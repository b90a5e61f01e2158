"""The client that waits, call by call, against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.api.schemas.inputs import JobInput, PlanInput, Quotas, RetryInput
from deltaci.client import ApiError, Client, Patience, Unreachable
from deltaci.protocol.messages import JobSpec
from deltaci.server.tls import server_context
from tests.client.hosted import Hosted, Player, gate, plan, task
from tests.support.certificates import HERE, Authority


def test_a_run_from_its_start_to_its_report(client: Client, player: Player) -> None:
    """Start, look, do, decide, look again."""
    started = client.start(plan=plan(task("build"), gate("ok"), task("deploy")), branch="main", labels=["x", "y"])
    assert (started.status, started.branch, started.labels) == ("PENDING", "main", ["x", "y"])

    player.finish(player.take(), output={"n": 1}, cost={"cents": 2})
    decided = client.approve(started.id, comment="go", plan_hash=started.plan_hash)
    player.finish(player.take())
    over = client.wait(started.id)

    assert decided.jobs == ["ok"]
    assert (over.status, over.conclusion, over.job_count) == ("SUCCEEDED", "SUCCESS", 3)
    assert [job.name for job in client.iter_jobs(started.id)] == ["build", "ok", "deploy"]
    assert [job.name for job in client.jobs(started.id, limit=2).jobs] == ["build", "ok"]
    assert client.job(started.id, "build").attempts == 1
    assert [attempt.index for attempt in client.attempts(started.id, "build").attempts] == [1]
    assert client.attempt(started.id, "build", 1).worker_id == player.name
    assert client.outputs(started.id).outputs == {"build": {"n": 1}}
    assert client.costs(started.id).total == {"cents": 2}
    assert [job.name for job in client.plan(started.id).jobs] == ["build", "ok", "deploy"]
    assert [each.job for each in client.timeline(started.id).jobs] == ["build", "ok", "deploy"]
    assert client.explain(started.id).entity == "run"
    assert client.explain(f"{started.id}/build").entity == "job"
    assert client.explain(f"{started.id}/build.1").entity == "attempt"


def test_a_plan_may_be_typed(client: Client) -> None:
    """Programs in Python get their mistakes from their own tools."""
    typed = PlanInput(jobs=[JobInput(name="a", work=JobSpec(steps=["true"]), retry=RetryInput(max_attempts=3))])

    started = client.start(plan=typed)

    assert client.job(started.id, "a").max_attempts == 3
    client.cancel(started.id)


def test_the_same_key_gives_the_same_run(client: Client) -> None:
    """And the same key for something else is refused."""
    first = client.start(plan=plan(task("a")), idempotency_key="once")
    again = client.start(plan=plan(task("a")), idempotency_key="once")

    assert again.id == first.id
    with pytest.raises(ApiError) as caught:
        client.start(plan=plan(task("b")), idempotency_key="once")
    assert (caught.value.code, caught.value.status) == ("request_id_reused", 409)
    assert caught.value.hint
    client.cancel(first.id, "was a test")


def test_a_job_that_is_stopped_and_a_run_that_is_done_again(client: Client, player: Player) -> None:
    """Only what failed."""
    first = client.start(plan=plan(task("a", needs=[]), task("b", needs=[])), project="again")
    assert client.cancel_job(first.id, "b", "not needed").status == "CANCELED"
    player.finish(player.take())
    over = client.wait(first.id)

    second = client.rerun(first.id, failed_only=True)

    assert (over.status, second.rerun_of) == ("FAILED", first.id)
    assert [job.name for job in client.run(second.id).jobs] == ["b"]
    assert [run.id for run in client.iter_runs(project="again")] == [second.id, first.id]
    page = client.runs(project="again", limit=1)
    assert [run.id for run in page.runs] == [second.id]
    assert [run.id for run in client.runs(project="again", limit=1, cursor=page.next or "").runs] == [first.id]
    client.cancel(second.id)


def test_what_is_rejected_fails(client: Client) -> None:
    """A no is final."""
    started = client.start(plan=plan(gate("ok"), task("deploy")))

    decided = client.reject(started.id, job="ok", comment="no")

    assert decided.jobs == ["ok"]
    assert client.wait(started.id).status == "FAILED"


def test_templates_from_the_first_version_to_the_last(client: Client) -> None:
    """Saved, listed, used, removed."""
    rules = {"env": {"required": True, "choices": ["dev", "prod"]}}
    first = client.save_template("deploy", plan(task("a")), description="one", inputs=rules, expected_version=0)
    second = client.save_template("deploy", plan(task("b")), description="two")

    assert (first.version, second.version) == (1, 2)
    assert client.template("deploy").description == "two"
    assert client.template("deploy", 1).inputs["env"].choices == ["dev", "prod"]
    assert [version.version for version in client.iter_versions("deploy")] == [1, 2]
    assert client.versions("deploy", limit=1).next is not None
    assert "deploy" in [template.name for template in client.iter_templates()]
    assert "deploy" in [template.name for template in client.templates().templates]
    with pytest.raises(ApiError, match="stale_version"):
        client.save_template("deploy", plan(task("a")), expected_version=1)
    started = client.start(template="deploy", version=1, inputs={"env": "dev"})
    assert (started.template, started.template_version, started.inputs) == ("deploy", 1, {"env": "dev"})
    client.cancel(started.id)
    assert client.remove_template("deploy").version == 2
    with pytest.raises(ApiError, match="not_found"):
        client.template("deploy")


def test_keys_let_people_in_until_they_are_revoked(hosted: Hosted, client: Client) -> None:
    """And each for what it is for."""
    made = client.make_key("ada", ["read"], roles=["ops"], description="laptop", expires_seconds=3600)
    with Client(hosted.url, made.token) as ada:
        assert (ada.me().person, ada.me().roles) == ("ada", ["ops"])
        with pytest.raises(ApiError, match="missing_scope"):
            ada.start(plan=plan(task("a")))

    assert client.key(made.id).description == "laptop"
    assert made.id in [key.id for key in client.iter_keys()]
    assert made.id in [key.id for key in client.keys().keys]
    assert client.revoke_key(made.id).revoked_by == "root"
    assert client.revoke_key(made.id).revoked_at is not None


def test_workers_and_their_tokens(client: Client, player: Player) -> None:
    """Who is there, and how another one gets in."""
    assert client.worker(player.name).id == player.name
    assert player.name in [worker.id for worker in client.iter_workers()]
    assert player.name in [worker.id for worker in client.workers().workers]
    assert list(client.iter_workers(gone=True)) == []
    assert client.worker_token("new", expires_seconds=60).token.startswith("dci_")


def test_what_waits_and_why(client: Client) -> None:
    """Page by page, as the filters want it."""
    started = client.start(plan=plan(task("a", runs_on=["nobody-has-it"])))

    [waiting] = client.queue(label="nobody-has-it").waiting
    assert (waiting.run_id, waiting.job, waiting.reasons[0].code) == (started.id, "a", "no_fitting_worker")
    assert client.queue(label="nobody-has-it", reason="quota").waiting == []
    assert client.queue(label="nobody-has-it", project="none").count == 0
    client.cancel(started.id)


def test_a_tenant_and_its_quotas(hosted: Hosted) -> None:
    """What it may use and what it uses."""
    with hosted.client("acme") as acme:
        set_ = acme.set_quotas("acme", Quotas(queued_runs=1))
        assert set_.quotas.queued_runs == 1
        acme.start(plan=plan(task("a")))
        with pytest.raises(ApiError, match="over_quota"):
            acme.start(plan=plan(task("a")))
        assert acme.tenant().usage.queued_runs == 1


def test_another_tenants_run_is_not_there(hosted: Hosted, client: Client) -> None:
    """Not even as a refusal of another kind."""
    started = client.start(plan=plan(task("a")))
    with hosted.client("other") as other, pytest.raises(ApiError) as caught:
        other.run(started.id)

    assert (caught.value.code, caught.value.status) == ("not_found", 404)
    client.cancel(started.id)


def test_nobody_listens_there() -> None:
    """Said in one line with the address, after as much patience as was asked for."""
    patience = Patience(first_seconds=0.001, give_up_seconds=0.01)
    with Client("http://127.0.0.1:9", "key", patience=patience) as client, pytest.raises(Unreachable) as caught:
        client.me()

    assert caught.value.is_unheard
    assert "http://127.0.0.1:9 cannot be reached" in str(caught.value)


def test_the_server_and_the_key_are_found_in_the_environment(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """`deltaci.Client()` is enough in a job or a cron table."""
    monkeypatch.setenv("DELTACI_SERVER", hosted.url + "/")
    monkeypatch.setenv("DELTACI_KEY", hosted.token(person="cron"))

    with Client() as client:
        assert client.me().person == "cron"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://x", "http://", "http://u:p@h", "http://h/?q", "http://h:x", "http://a b"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """Before anything is sent anywhere."""
    with pytest.raises(ValueError, match="not a server URL"):
        Client(url, "key")


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    """A message ends up in logs."""
    with pytest.raises(ValueError, match="not an API key") as caught:
        Client("http://127.0.0.1:9", "secret\nvalue")

    assert "secret" not in str(caught.value)


def test_no_key_is_told_by_the_server(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do."""
    monkeypatch.delenv("DELTACI_KEY", raising=False)
    with Client(hosted.url) as client, pytest.raises(ApiError) as caught:
        client.me()

    assert (caught.value.status, caught.value.code) == (401, "bad_credential")
    assert caught.value.request_id


def test_https_is_trusted_by_the_authority_that_is_named(tmp_path: Path) -> None:
    """And by no other: whoever stands between gets no key."""
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    with Hosted(tmp_path / "server", server_context(*authority.issue(HERE))) as hosted:
        with Client(hosted.url, hosted.token(), ca=authority.pem) as client:
            assert client.me().person == "root"
        hasty = Patience(first_seconds=0.001, give_up_seconds=0.01)
        with (
            Client(hosted.url, hosted.token(), ca=stranger.pem, patience=hasty) as client,
            pytest.raises(Unreachable, match="certificate"),
        ):
            client.me()
