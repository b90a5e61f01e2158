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


RUNS, LEFT, PEOPLE, SERVER, PROOF = "Runs", "Results", "People and the fleet", "Servers", "Verification"

# Each command is in a module of its own in `commands/`, which is imported when the command is called: starting a
# runner should not wait for the imports of the simulator.
COMMANDS: Final = {
    "up": Entry(
        "up", SERVER, "Start a server and a runner on this machine, with SQLite in .state, and show a first run."
    ),
    "submit": Entry("submit", RUNS, "Start a run from a template, a plan or a repository, and print its id."),
    "runs": Entry("runs", RUNS, "List runs, newest first."),
    "show": Entry("runs", RUNS, "Show a run and its jobs: progress, what they wait for, why they failed."),
    "changes": Entry("changes", RUNS, "List pushes and pull requests and the runs they started, newest first."),
    "logs": Entry("logs", RUNS, "Print the log of the last attempt of a job, or of a given attempt."),
    "explain": Entry("runs", RUNS, "Explain the current state of a run, job or attempt."),
    "approve": Entry("decide", RUNS, "Approve the waiting gates of a run."),
    "reject": Entry("decide", RUNS, "Reject the waiting gates of a run; they fail."),
    "cancel": Entry("runs", RUNS, "Cancel a run or one of its jobs."),
    "rerun": Entry("submit", RUNS, "Start a new run of all jobs or only the failed ones, and print its id."),
    "ws": Entry("ws", RUNS, "Create, list, show and cancel workstreams: tasks on one branch, validated and merged."),
    "artifacts": Entry("results", LEFT, "List and download artifacts."),
    "outputs": Entry("results", LEFT, "Show the outputs of the jobs of a run."),
    "costs": Entry("results", LEFT, "Show the resource usage of a run, per attempt and in total."),
    "events": Entry("events", LEFT, "Export or follow the event log."),
    "flaky": Entry("flaky", LEFT, "List flaky jobs and tests."),
    "failure-rules": Entry("failures", PEOPLE, "Show, set and test the rules that classify failures."),
    "template": Entry("template", PEOPLE, "Save, list and show templates: reusable plans."),
    "project": Entry("project", PEOPLE, "Add, list, edit and remove projects (repositories)."),
    "workers": Entry("workers", PEOPLE, "List, drain, resume and remove workers, and add new ones."),
    "key": Entry("key", PEOPLE, "Create, list and revoke API keys."),
    "whoami": Entry("me", PEOPLE, "Show your identity on the server and your permissions."),
    "tenant": Entry("me", PEOPLE, "Show and set the quotas of a tenant."),
    "web": Entry("web", SERVER, "Open the web interface of a server on this machine, signed in, and print the link."),
    "server": Entry("server", SERVER, "Run a server."),
    "token": Entry("server", SERVER, "Create a single-use registration token for a runner."),
    "runner": Entry("runner", SERVER, "Run a runner."),
    "secret": Entry("secret", SERVER, "Set, list and remove secrets for jobs."),
    "plan": Entry("plan", RUNS, "Show which jobs would run in this repository, and why."),
    "run": Entry("run", RUNS, "Run the pipelines of this repository locally, without a server."),
    "init": Entry("init", RUNS, "Inspect a repository and write a pipeline file for it."),
    "lint": Entry("lint", RUNS, "Check pipeline files and report every problem with its position and a suggestion."),
    "import": Entry(
        "importing", RUNS, "Convert GitHub workflows to pipeline files and report which jobs are supported."
    ),
    "verify": Entry("verify", PROOF, "Verify an event log: every transition, owner, number, time and invariant."),
    "conformance": Entry("conformance", PROOF, "Check a runner or a server against the runner protocol."),
    "sim": Entry(
        "sim", PROOF, "Simulate servers, runners, users and faults in virtual time, and check every event."
    ),
    "completion": Entry("completion", SERVER, "Print a shell completion script for commands, options and run ids."),
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
