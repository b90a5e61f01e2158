"""The table of all commands with the lines of `deltaci --help`. A command is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class CommandEntry(NamedTuple):
    """The module, the help panel and the help line of a command, so that listing imports no module."""

    module: str
    panel: str
    line: str


RUNS, LEFT, PEOPLE, SERVER, PROOF = "Runs", "Results", "People and the fleet", "Servers", "Verification"

# Each command is in a module of its own in `commands/`, which is imported when the command is called: starting a
# runner should not wait for the imports of the simulator.
COMMANDS: Final = {
    "up": CommandEntry(
        "up", SERVER, "Start a server and a runner on this machine, with SQLite in .state, and show a first run."
    ),
    "submit": CommandEntry("submit", RUNS, "Start a run from a template, a plan or a repository, and print its id."),
    "runs": CommandEntry("runs", RUNS, "List runs, newest first."),
    "show": CommandEntry("runs", RUNS, "Show a run and its jobs: progress, what they wait for, why they failed."),
    "changes": CommandEntry("changes", RUNS, "List pushes and pull requests and the runs they started, newest first."),
    "deliveries": CommandEntry("changes", RUNS, "List the last webhook deliveries to a project, newest first."),
    "redeliver": CommandEntry("changes", RUNS, "Handle a change again that could not be handled."),
    "logs": CommandEntry("logs", RUNS, "Print the log of the last attempt of a job, or of a given attempt."),
    "explain": CommandEntry("runs", RUNS, "Explain the current state of a run, job or attempt."),
    "approve": CommandEntry("decide", RUNS, "Approve the waiting gates of a run."),
    "reject": CommandEntry("decide", RUNS, "Reject the waiting gates of a run; they fail."),
    "cancel": CommandEntry("runs", RUNS, "Cancel a run or one of its jobs."),
    "rerun": CommandEntry("submit", RUNS, "Start a new run of all jobs or only the failed ones, and print its id."),
    "ws": CommandEntry(
        "ws", RUNS, "Create, list, show and cancel workstreams: tasks on one branch, validated and merged."
    ),
    "artifacts": CommandEntry("results", LEFT, "List and download artifacts."),
    "outputs": CommandEntry("results", LEFT, "Show the outputs of the jobs of a run."),
    "costs": CommandEntry("results", LEFT, "Show the resource usage of a run, per attempt and in total."),
    "events": CommandEntry("events", LEFT, "Export or follow the event log."),
    "flaky": CommandEntry("flaky", LEFT, "List flaky jobs and tests."),
    "failure-rules": CommandEntry("failures", PEOPLE, "Show, set and test the rules that classify failures."),
    "template": CommandEntry("template", PEOPLE, "Save, list and show templates: reusable plans."),
    "project": CommandEntry("project", PEOPLE, "Add, list, edit and remove projects (repositories)."),
    "workers": CommandEntry("workers", PEOPLE, "List, drain, resume and remove workers, and add new ones."),
    "key": CommandEntry("key", PEOPLE, "Create, list and revoke API keys."),
    "audit": CommandEntry("audit", PEOPLE, "List changes of keys, projects, secrets, workers and so on."),
    "whoami": CommandEntry("me", PEOPLE, "Show your identity on the server and your permissions."),
    "tenant": CommandEntry("me", PEOPLE, "Show and set the quotas of a tenant."),
    "web": CommandEntry(
        "web", SERVER, "Open the web interface of a server on this machine, signed in, and print the link."
    ),
    "server": CommandEntry("server", SERVER, "Run a server."),
    "token": CommandEntry("server", SERVER, "Create a single-use registration token for a runner."),
    "runner": CommandEntry("runner", SERVER, "Run a runner."),
    "secret": CommandEntry("secret", SERVER, "Set, list and remove secrets for jobs."),
    "plan": CommandEntry("plan", RUNS, "Show which jobs would run in this repository, and why."),
    "run": CommandEntry("run", RUNS, "Run the pipelines of this repository locally, without a server."),
    "init": CommandEntry("init", RUNS, "Inspect a repository and write a pipeline file for it."),
    "lint": CommandEntry(
        "lint", RUNS, "Check pipeline files and report every problem with its position and a suggestion."
    ),
    "import": CommandEntry(
        "importing", RUNS, "Convert GitHub workflows to pipeline files and report which jobs are supported."
    ),
    "verify": CommandEntry(
        "verify", PROOF, "Verify an event log: every transition, owner, number, time and invariant."
    ),
    "conformance": CommandEntry("conformance", PROOF, "Check a runner or a server against the runner protocol."),
    "sim": CommandEntry(
        "sim", PROOF, "Simulate servers, runners, users and faults in virtual time, and check every event."
    ),
    "completion": CommandEntry(
        "completion", SERVER, "Print a shell completion script for commands, options and run ids."
    ),
}


class LazyCommands(TyperGroup):
    """A Typer group that imports the module of a command only when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in for a command with its help line, or None for an unknown command."""
        entry = COMMANDS.get(cmd_name)
        return entry and TyperCommand(cmd_name, help=entry.line, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, after importing it."""
        if args and args[0] in COMMANDS:
            return args[0], loaded(args[0]), args[1:]
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """Import the module of a command and return the command."""
    found = get_command(import_module(f"deltaci.cli.commands.{COMMANDS[name].module}").app)
    # A module with several commands is a group of them, unless it is one in its own right.
    found = getattr(found, "commands", {}).get(name) or found
    found.name = name
    return found
