"""The failure rules of a tenant over the API: they are set, listed and applied before all others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from deltaci.core.failures import RULES
from tests.contract.backends import on_loop
from tests.server.rest.site import ApiSite, Caller, ScriptedRunner, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
GPU = "rules: [{name: gpu, class: INFRA, log: 'gpu .* lost'}, {name: mine, class: USER, signals: 9}]"


async def failed_once(here: ApiSite, caller: Caller, runner: ScriptedRunner, **fields: Any) -> Any:
    """Return a job with two attempts, of which the first failed with these fields."""
    run = await caller.start(task("a", retry={"max_attempts": 2}))
    await runner.fail(await runner.take(), **fields)
    [job] = (await caller.run(run))["jobs"]
    await caller.post(f"/runs/{run}/cancel")
    return job


@on_loop
async def test_invalid_rules_are_refused_and_change_nothing(site: Opened) -> None:
    """The error has the lines of the problems."""
    async with site() as here:
        admin = await here.key("ada", "admin")
        assert (await admin.ask("PUT", "/failure-rules", {"text": GPU})).body["version"] == 1

        bad = await admin.ask("PUT", "/failure-rules", {"text": "rules:\n - {name: x, class: INFRA, log: '(a+)+'}"})
        late = await admin.ask("PUT", "/failure-rules", {"text": "rules: []", "expected_version": 0})

        assert (bad.code, late.code) == ("bad_request", "stale_version")
        assert "failure-rules.yml:2:" in bad.body["message"]
        assert (await admin.get("/failure-rules")).body["text"] == GPU


@on_loop
async def test_rules_of_a_tenant_come_first_and_apply_only_to_it(site: Opened) -> None:
    """They can turn a USER failure of the built-in rules into an INFRA failure, and vice versa."""
    async with site() as here:
        us, them = await here.key("ada", "admin", tenant="us"), await here.key("eve", "admin", tenant="them")
        ours, theirs = await here.register_runner(tenant="us"), await here.register_runner(tenant="them")
        assert (await us.ask("PUT", "/failure-rules", {"text": GPU})).status == 200
        lines = ["begin", "GPU 3 was lost", "end"]

        lost = await failed_once(here, us, ours, log_tail=lines)
        other = await failed_once(here, them, theirs, log_tail=lines)
        killed = await failed_once(here, us, ours, exit_code=137, signal=9)
        usual = await failed_once(here, us, ours, exit_code=127)

        assert [lost["last_error"][each] for each in ("failure_class", "rule", "line")] == ["INFRA", "gpu", lines[1]]
        assert lost["state"] == "RETRYING"
        assert (other["last_error"]["rule"], other["state"]) == ("failed", "FAILED")
        assert (killed["last_error"]["rule"], killed["state"]) == ("mine", "FAILED")
        assert usual["last_error"]["rule"] == "tool-missing"
        told = [
            event.metadata["error"] for event in await here.log() if event.entity == "attempt" and event.to == "FAILED"
        ]
        assert [(each["rule"], each["line"]) for each in told][:1] == [("gpu", lines[1])]


@on_loop
async def test_rules_are_listed_in_the_order_of_application(site: Opened) -> None:
    """With the author and the time of the tenant's rules; other tenants see only the rules that apply to them."""
    async with site() as here:
        admin, other = await here.key("ada", "admin"), await here.key("eve", "read", tenant="them")
        before = (await admin.get("/failure-rules")).body
        await admin.ask("PUT", "/failure-rules", {"text": GPU, "expected_version": 0})

        found = (await admin.get("/failure-rules")).body

        assert (before["version"], before["set_at"], before["text"]) == (0, None, "")
        assert [rule["name"] for rule in before["rules"]] == [rule.name for rule in RULES]
        assert [(rule["name"], rule["of"]) for rule in found["rules"]][:3] == [
            ("gpu", "tenant"),
            ("mine", "tenant"),
            ("lease-lost", "built-in"),
        ]
        assert (found["version"], found["set_by"]) == (1, "ada")
        assert (await other.get("/failure-rules")).body == before
