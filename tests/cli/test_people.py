"""Templates, keys, workers, tenants on the command line."""

from __future__ import annotations

from tests.cli.terminal import Terminal
from tests.client.hosted import Player, gate, plan, task


def test_templates_are_saved_listed_shown_and_removed(terminal: Terminal) -> None:
    """From a plan alone, or with what it asks for."""
    assert terminal.text("template", "list") == "no templates; save one with 'deltaci template save'\n"
    bare = terminal.file("bare.json", plan(task("build", runs_on=["linux"]), gate("ok")))
    asks = {"env": {"required": True, "choices": ["dev", "prod"], "description": "where to"}}
    full = terminal.file("full.json", {"plan": plan(task("a")), "inputs": asks, "description": "two"})

    assert terminal.text("template", "save", "deploy", bare, "--description", "one") == "saved deploy@1\n"
    assert terminal.json("template", "save", "deploy", full, "--expect", "1")["version"] == 2
    assert "stale_version" in terminal.refused(3, "template", "save", "deploy", full, "--expect", "1")
    assert [each["version"] for each in terminal.json("template", "versions", "deploy")] == [1, 2]
    assert "one" in terminal.text("template", "versions", "deploy")
    assert terminal.text("template", "list").splitlines()[1].split()[:2] == ["deploy", "2"]
    shown = terminal.text("template", "show", "deploy")
    assert "dev, prod" in shown
    assert "where to" in shown
    first = terminal.text("template", "show", "deploy@1")
    assert "(previous)" in first
    assert "linux" in first
    assert terminal.json("template", "show", "deploy@1")["description"] == "one"
    assert "needs the input 'env'" in terminal.refused(3, "submit", "--template", "deploy")
    assert "it may be dev, prod" in terminal.refused(3, "submit", "--template", "deploy", "--input", "env=x")
    assert terminal.text("template", "remove", "deploy").startswith("removed deploy")
    assert "not_found" in terminal.refused(3, "template", "show", "deploy")
    assert "has a field" in terminal.refused(2, "template", "save", "x", terminal.file("x.json", {"plan": {}, "y": 1}))


def test_a_key_lets_somebody_in_until_it_is_revoked(terminal: Terminal) -> None:
    """Its secret is shown once, or kept in a file that only its owner reads."""
    made = terminal.deltaci("key", "create", "bob", "--scope", "read", "--role", "ops", "--expires", "30d")
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert "shown only once" in made.stderr

    assert terminal.json("whoami", DELTACI_KEY=secret)["person"] == "bob"
    assert "missing_scope" in terminal.refused(
        4, "submit", terminal.file("p.json", plan(task("a"))), DELTACI_KEY=secret
    )
    terminal.text("key", "create", "eve", "-o", "eve.key")
    assert (terminal.folder / "eve.key").stat().st_mode & 0o777 == 0o600
    assert terminal.json("whoami", "--key-file", "eve.key")["person"] == "eve"
    assert "exists" in terminal.refused(2, "key", "create", "eve", "-o", "eve.key")
    found = {each["person"]: each for each in terminal.json("key", "list")}
    assert set(found) == {"bob", "eve"}
    shown = terminal.text("key", "list")
    assert secret not in shown
    id = found["bob"]["id"]
    assert "ops" in terminal.text("key", "show", id)
    assert terminal.json("key", "show", id)["person"] == "bob"
    assert "revoked" in terminal.text("key", "revoke", id)
    assert terminal.json("key", "revoke", id)["revoked_by"] == "ada"
    assert terminal.json("key", "create", "joe")["token"].startswith("dck_")
    assert "bad_credential" in terminal.refused(4, "whoami", DELTACI_KEY="dck_wrong")


def test_the_fleet_is_seen_and_joined(terminal: Terminal, player: Player) -> None:
    """`deltaci workers` alone lists them."""
    assert terminal.text("workers").splitlines()[1].split()[0] == player.name
    assert terminal.json("workers")[0]["id"] == player.name
    assert terminal.json("workers", "list", "--gone") == []
    assert terminal.text("workers", "list", "--gone") == "no workers were shut down\n"
    assert player.name in terminal.text("workers", "show", player.name)
    assert terminal.json("workers", "show", player.name)["slots"] == 10
    assert terminal.text("workers", "token", "new").startswith("dci_")
    assert terminal.json("workers", "token", "new", "--expires", "1h")["name"] == "new"
    assert "not_found" in terminal.refused(3, "workers", "show", "none")
    assert "and add new ones" in terminal.text("workers", "--help")


def test_who_asks_and_what_may_be_used(terminal: Terminal) -> None:
    """Whoever can read the server's folder operates it."""
    assert terminal.json("whoami")["is_operator"]
    shown = terminal.text("whoami")
    assert "ada" in shown
    assert terminal.hosted.url in shown
    assert terminal.json("whoami", "--tenant", "acme")["tenant"] == "acme"
    assert terminal.json("whoami", USER="no good name")["person"] == "operator"
    assert terminal.json("tenant")["quotas"]["running_jobs"] == 0
    assert "any" in terminal.text("tenant")
    assert terminal.json("tenant", "set-quotas", "acme", "--queued-runs", "5")["quotas"]["queued_runs"] == 5
    assert "5" in terminal.text("tenant", "show", "--tenant", "acme")


def test_an_operators_token_is_shown_only_to_its_own_server(terminal: Terminal) -> None:
    """Another one could use it against ours; whoever means it names the folder."""
    told = terminal.refused(4, "whoami", "--server", "http://ci.example.org")

    assert "no API key" in told
    assert terminal.json("whoami", "--server", terminal.hosted.url, "--data", ".state")["is_operator"]


def test_a_refusal_begins_with_all_that_was_called(terminal: Terminal) -> None:
    """`deltaci show:` is another command than `deltaci ws show:`."""
    assert terminal.refused(3, "template", "show", "none").startswith("deltaci template show: ")
    assert terminal.refused(3, "workers", "drain", "none").startswith("deltaci workers drain: ")
    assert terminal.refused(3, "artifacts", "list", "none").startswith("deltaci artifacts list: ")
    assert terminal.refused(3, "show", "none").startswith("deltaci show: ")


def test_a_worker_is_drained_resumed_and_removed(terminal: Terminal, player: Player) -> None:
    """Each shows the worker as it is then; removing asks, and where nobody is there to answer it needs a word more."""
    name = player.name
    assert terminal.json("workers", "drain", name, "--reason", "new disk", "--wait")["hold"] == "DRAINED"
    assert "drained" in terminal.text("workers")
    assert "new disk" in terminal.text("workers", "show", name)
    assert "in document 003: idle" in terminal.text("workers", "resume", name)
    assert terminal.json("workers", "resume", name)["hold"] == ""
    assert "was not removed; use --yes to skip the confirmation" in terminal.refused(2, "workers", "remove", name)
    assert "REMOVED" in terminal.text("workers", "remove", name, "--yes")
    assert terminal.json("workers", "list", "--gone")[0]["shutdown_reason"] == "REMOVED"
    assert "wrong_state" in terminal.refused(3, "workers", "drain", name)
    assert "not_found" in terminal.refused(3, "workers", "remove", "none", "--yes")


def test_the_audit_log_says_who_changed_what(terminal: Terminal) -> None:
    """Newest first, by kind, name, person and time; the hash of a key is not shown."""
    assert terminal.text("audit", "--kind", "project") == "no administrative changes\n"
    terminal.text("project", "add", "shop", "https://example.org/shop.git", "--description", "first")
    terminal.text("project", "edit", "shop", "--description", "second")
    made = terminal.json("key", "create", "bob", "--scope", "read")

    lines = terminal.text("audit", "--kind", "project").splitlines()
    [key] = terminal.json("audit", "--name", made["id"])

    assert len(lines) == 3
    assert "updated" in lines[1]
    assert "description: first → second" in terminal.text("audit", "--kind", "project", COLUMNS="300")
    assert (key["action"], key["kind"], key["after"]["person"], key["is_sealed_changed"]) == (
        *("created", "key", "bob"),
        True,
    )
    assert terminal.json("audit", "--actor", "nobody") == terminal.json("audit", "--since", "2100-01-01") == []
    assert len(terminal.json("audit", "--limit", "1")) == 1
    weak = terminal.json("key", "create", "eve", "--scope", "run")["token"]
    assert "missing_scope" in terminal.refused(4, "audit", DELTACI_KEY=weak)
