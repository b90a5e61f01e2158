"""Templates, keys, workers, tenants on the command line."""

from __future__ import annotations

from tests.cli.desk import Desk
from tests.client.hosted import Player, gate, plan, task


def test_templates_are_saved_listed_shown_and_removed(desk: Desk) -> None:
    """From a plan alone, or with what it asks for."""
    assert desk.text("template", "list") == "no templates; save one with 'deltaci template save'\n"
    bare = desk.file("bare.json", plan(task("build", runs_on=["linux"]), gate("ok")))
    asks = {"env": {"required": True, "choices": ["dev", "prod"], "description": "where to"}}
    full = desk.file("full.json", {"plan": plan(task("a")), "inputs": asks, "description": "two"})

    assert desk.text("template", "save", "deploy", bare, "--description", "one") == "saved deploy@1\n"
    assert desk.json("template", "save", "deploy", full, "--expect", "1")["version"] == 2
    assert "stale_version" in desk.refused(3, "template", "save", "deploy", full, "--expect", "1")
    assert [each["version"] for each in desk.json("template", "versions", "deploy")] == [1, 2]
    assert "one" in desk.text("template", "versions", "deploy")
    assert desk.text("template", "list").splitlines()[1].split()[:2] == ["deploy", "2"]
    shown = desk.text("template", "show", "deploy")
    assert "dev, prod" in shown
    assert "where to" in shown
    first = desk.text("template", "show", "deploy@1")
    assert "(previous)" in first
    assert "linux" in first
    assert desk.json("template", "show", "deploy@1")["description"] == "one"
    assert "needs the input 'env'" in desk.refused(3, "submit", "--template", "deploy")
    assert "it may be dev, prod" in desk.refused(3, "submit", "--template", "deploy", "--input", "env=x")
    assert desk.text("template", "remove", "deploy").startswith("removed deploy")
    assert "not_found" in desk.refused(3, "template", "show", "deploy")
    assert "has a field" in desk.refused(2, "template", "save", "x", desk.file("x.json", {"plan": {}, "y": 1}))


def test_a_key_lets_somebody_in_until_it_is_revoked(desk: Desk) -> None:
    """Its secret is shown once, or kept in a file that only its owner reads."""
    made = desk.deltaci("key", "create", "bob", "--scope", "read", "--role", "ops", "--expires", "30d")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert "shown only once" in made.stderr

    assert desk.json("whoami", DELTACI_KEY=secret)["person"] == "bob"
    assert "missing_scope" in desk.refused(4, "submit", desk.file("p.json", plan(task("a"))), DELTACI_KEY=secret)
    desk.text("key", "create", "eve", "-o", "eve.key")
    assert (desk.folder / "eve.key").stat().st_mode & 0o777 == 0o600
    assert desk.json("whoami", "--key-file", "eve.key")["person"] == "eve"
    assert "exists" in desk.refused(2, "key", "create", "eve", "-o", "eve.key")
    found = {each["person"]: each for each in desk.json("key", "list")}
    assert set(found) == {"bob", "eve"}
    shown = desk.text("key", "list")
    assert secret not in shown
    id = found["bob"]["id"]
    assert "ops" in desk.text("key", "show", id)
    assert desk.json("key", "show", id)["person"] == "bob"
    assert "revoked" in desk.text("key", "revoke", id)
    assert desk.json("key", "revoke", id)["revoked_by"] == "ada"
    assert desk.json("key", "create", "joe")["token"].startswith("dck_")
    assert "bad_credential" in desk.refused(4, "whoami", DELTACI_KEY="dck_wrong")


def test_the_fleet_is_seen_and_joined(desk: Desk, player: Player) -> None:
    """`deltaci workers` alone lists them."""
    assert desk.text("workers").splitlines()[1].split()[0] == player.name
    assert desk.json("workers")[0]["id"] == player.name
    assert desk.json("workers", "list", "--gone") == []
    assert desk.text("workers", "list", "--gone") == "no workers were shut down\n"
    assert player.name in desk.text("workers", "show", player.name)
    assert desk.json("workers", "show", player.name)["slots"] == 10
    assert desk.text("workers", "token", "new").startswith("dci_")
    assert desk.json("workers", "token", "new", "--expires", "1h")["name"] == "new"
    assert "not_found" in desk.refused(3, "workers", "show", "none")
    assert "and add new ones" in desk.text("workers", "--help")


def test_who_asks_and_what_may_be_used(desk: Desk) -> None:
    """Whoever can read the server's folder operates it."""
    assert desk.json("whoami")["is_operator"]
    shown = desk.text("whoami")
    assert "ada" in shown
    assert desk.hosted.url in shown
    assert desk.json("whoami", "--tenant", "acme")["tenant"] == "acme"
    assert desk.json("whoami", USER="no good name")["person"] == "operator"
    assert desk.json("tenant")["quotas"]["running_jobs"] == 0
    assert "any" in desk.text("tenant")
    assert desk.json("tenant", "set-quotas", "acme", "--queued-runs", "5")["quotas"]["queued_runs"] == 5
    assert "5" in desk.text("tenant", "show", "--tenant", "acme")


def test_an_operators_token_is_shown_only_to_its_own_server(desk: Desk) -> None:
    """Another one could use it against ours; whoever means it names the folder."""
    told = desk.refused(4, "whoami", "--server", "http://ci.example.org")

    assert "no API key" in told
    assert desk.json("whoami", "--server", desk.hosted.url, "--data", ".state")["is_operator"]


def test_a_refusal_begins_with_all_that_was_called(desk: Desk) -> None:
    """`deltaci show:` is another command than `deltaci ws show:`."""
    assert desk.refused(3, "template", "show", "none").startswith("deltaci template show: ")
    assert desk.refused(3, "workers", "drain", "none").startswith("deltaci workers drain: ")
    assert desk.refused(3, "artifacts", "list", "none").startswith("deltaci artifacts list: ")
    assert desk.refused(3, "show", "none").startswith("deltaci show: ")


def test_a_worker_is_drained_resumed_and_removed(desk: Desk, player: Player) -> None:
    """Each shows the worker as it is then; removing asks, and where nobody is there to answer it needs a word more."""
    name = player.name
    assert desk.json("workers", "drain", name, "--reason", "new disk", "--wait")["hold"] == "DRAINED"
    assert "drained" in desk.text("workers")
    assert "new disk" in desk.text("workers", "show", name)
    assert "in document 003: idle" in desk.text("workers", "resume", name)
    assert desk.json("workers", "resume", name)["hold"] == ""
    assert "was not removed; use --yes to skip the confirmation" in desk.refused(2, "workers", "remove", name)
    assert "REMOVED" in desk.text("workers", "remove", name, "--yes")
    assert desk.json("workers", "list", "--gone")[0]["shutdown_reason"] == "REMOVED"
    assert "wrong_state" in desk.refused(3, "workers", "drain", name)
    assert "not_found" in desk.refused(3, "workers", "remove", "none", "--yes")
