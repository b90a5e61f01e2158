"""`deltaci failure-rules`: shown, set and tried; and the server's own file."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from deltaci.cli.app import app
from tests.cli.terminal import Terminal
from tests.client.hosted import Player, plan, task

RULES = "rules:\n  - name: gpu\n    class: INFRA\n    log: 'gpu .* lost'\n"


def test_rules_are_set_shown_and_tried(terminal: Terminal) -> None:
    """A mistake is told with its place, and nothing is set."""
    (terminal.folder / "rules.yml").write_text(RULES)
    (terminal.folder / "bad.yml").write_text(RULES.replace("INFRA", "INFRO"))
    (terminal.folder / "build.log").write_text("one\nGPU 7 was lost\nConnection reset by peer\nmake: *** Error 1\n")

    refused = terminal.deltaci("failure-rules", "set", "bad.yml")
    assert refused.exit_code == 2
    assert "bad.yml:3:12" in refused.stderr
    assert "rule network: INFRA" in terminal.text("failure-rules", "test", "build.log")
    tried = terminal.text("failure-rules", "test", "build.log", "--rules", "rules.yml")
    assert tried.startswith("rule gpu: INFRA, retryable\nbecause of the line: GPU 7 was lost\n")
    assert terminal.text("failure-rules", "set", "rules.yml") == "set version 1: 1 rule\n"
    found = terminal.json("failure-rules", "test", "build.log")
    assert found["verdict"]["rule"] == "gpu"
    assert [(line["line"], line["rule"]) for line in found["lines"]] == [(2, "gpu"), (3, "network")]
    assert "no rule matches" in terminal.text("failure-rules", "test", "-", input="fine\n")
    assert "rule own" not in terminal.text("failure-rules", "test", "-", "--exit-code", "127", input="fine\n")
    shown = terminal.text("failure-rules", "show")
    assert "log gpu .* lost" in shown
    assert "version 1, set" in shown
    assert terminal.text("failure-rules", "show", "--text") == RULES
    assert terminal.json("failure-rules", "show")["rules"][0]["name"] == "gpu"
    assert "stale_version" in terminal.refused(3, "failure-rules", "set", "rules.yml", "--expect", "0")


def test_what_is_flaky_is_listed(terminal: Terminal, player: Player) -> None:
    """The job itself and its tests; after two attempts of the same commit that disagree."""
    assert terminal.text("flaky") == "no flaky tests or jobs are known\n"
    about = ("--project", "shop", "--commit", "c0ffee")
    for failed in (["net.test_slow"], []):
        terminal.submit(*about, plan=plan(task("check")))
        told = {"total": 3, "failed": len(failed), "failures": [{"name": name} for name in failed]}
        if failed:
            player.fail(player.take(), tests=told)
        else:
            player.finish(player.take(), tests=told)
    terminal.hosted.learn()

    [job] = terminal.json("flaky", "--project", "shop")
    assert [test["name"] for test in job["tests"]] == ["net.test_slow"]
    shown = terminal.text("flaky")
    assert "(the job itself)" in shown
    assert "net.test_slow" in shown
    assert terminal.json("flaky", "--project", "other") == []


def test_a_server_does_not_start_with_rules_that_are_none(tmp_path: Path) -> None:
    """Better now than when something fails."""
    bad = tmp_path / "rules.yml"
    bad.write_text("rules: [{name: a, class: INFRA}]")

    words = ["server", "--data", str(tmp_path), "--store", f"sqlite:{tmp_path}/x.db", "--failure-rules", str(bad)]
    done = CliRunner().invoke(app, words)

    assert done.exit_code == 1
    assert "rules.yml:1:9" in done.output
    assert "which every failure matches" in done.output
