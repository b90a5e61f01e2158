"""All commands: where each one is, and what is said of it in the list. None is imported before it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Entry(NamedTuple):
    """Where a command is, and the first line of its help: what is only listed is not imported."""

    module: str
    panel: str
    line: str


RUNS, LEFT, PEOPLE, SERVER, PROOF = "Runs", "What runs leave behind", "People and the fleet", "Servers", "Proofs"

# Each command is in a module of its own in `commands/`, which is imported when the command is called: starting a
# runner should not wait for the imports of the simulator.
COMMANDS: Final = {
    "up": Entry("up", SERVER, "Start everything here: a server, a runner, SQLite in .state; and show a first run."),
    "submit": Entry(
        "submit", RUNS, "Start a run, from a template, from a plan or from a repository, and print its id."
    ),
    "runs": Entry("runs", RUNS, "Show runs, the newest first."),
    "show": Entry("runs", RUNS, "Show a run with its jobs: how far each is, what it waits for, why it failed."),
    "changes": Entry("changes", RUNS, "Show what happened in repositories, and what came of it, the newest first."),
    "logs": Entry("logs", RUNS, "Print the log of a job's last attempt, or of the attempt that you name."),
    "explain": Entry("runs", RUNS, "Say why a run, a job or an attempt is as it is, and what led to it."),
    "approve": Entry("decide", RUNS, "Approve what waits for it in a run, and show what that opens."),
    "reject": Entry("decide", RUNS, "Reject what waits for approval in a run: it fails."),
    "cancel": Entry("runs", RUNS, "Stop a run, or one job of it."),
    "rerun": Entry("submit", RUNS, "Start a new run that does the same again, or only what failed, and print its id."),
    "ws": Entry(
        "ws", RUNS, "Start workstreams: several tasks on one branch, validated and merged; look at them, stop them."
    ),
    "artifacts": Entry("results", LEFT, "List and get the files that jobs left behind."),
    "outputs": Entry("results", LEFT, "Show what the jobs of a run gave as their results."),
    "costs": Entry("results", LEFT, "Show what a run used: each attempt, and the sum."),
    "events": Entry("events", LEFT, "Export or follow the log of everything that happened."),
    "flaky": Entry("flaky", LEFT, "List jobs and tests that are known to fail now and then."),
    "failure-rules": Entry("failures", PEOPLE, "Show, set and try the rules by which failures are classed."),
    "template": Entry("template", PEOPLE, "Save, list and look at templates: plans to be used again."),
    "project": Entry("project", PEOPLE, "Tell a server of repositories, list and change them."),
    "workers": Entry("workers", PEOPLE, "List workers, drain, resume or remove one, let a new one in."),
    "key": Entry("key", PEOPLE, "Make, list and revoke API keys."),
    "whoami": Entry("me", PEOPLE, "Show who you are to the server, and what you may do."),
    "tenant": Entry("me", PEOPLE, "What a tenant may use and what it uses."),
    "web": Entry("web", SERVER, "Open the web interface of a server on this machine, signed in; and print the link."),
    "server": Entry("server", SERVER, "Run a server."),
    "token": Entry("server", SERVER, "Make a registration token for a runner: it is good once."),
    "runner": Entry("runner", SERVER, "Run a runner."),
    "secret": Entry("secret", SERVER, "Set, list and remove the secrets that jobs may name."),
    "plan": Entry("plan", RUNS, "Show what would run here, what would not, and why."),
    "run": Entry("run", RUNS, "Run the pipelines of this repository here and now. No server is needed."),
    "init": Entry("init", RUNS, "Look at what is in a repository, and write a pipeline file for it."),
    "lint": Entry("lint", RUNS, "Check pipeline files: every problem with its place, and what was probably meant."),
    "import": Entry(
        "importing", RUNS, "Convert GitHub's workflows to pipeline files, and tell job by job what can run here."
    ),
    "verify": Entry("verify", PROOF, "Check that a log is legal: every transition, owner, number, time and invariant."),
    "conformance": Entry("conformance", PROOF, "Check a runner or a server against the runner protocol."),
    "sim": Entry("sim", PROOF, "Simulate servers, runners, users and faults in virtual time, and check every event."),
    "completion": Entry(
        "completion", SERVER, "Print a script that lets your shell complete commands, options and the ids of runs."
    ),
}


class Commands(TyperGroup):
    """The commands, each imported when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A line of the list, or none."""
        entry = COMMANDS.get(cmd_name)
        return entry and TyperCommand(cmd_name, help=entry.line, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called."""
        if args and args[0] in COMMANDS:
            return args[0], loaded(args[0]), args[1:]
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """The command itself."""
    found = get_command(import_module(f"deltaci.cli.commands.{COMMANDS[name].module}").app)
    # A module with several commands is a group of them, unless it is one in its own right.
    found = getattr(found, "commands", {}).get(name) or found
    found.name = name
    return found
