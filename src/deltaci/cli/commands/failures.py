"""`deltaci failure-rules`: show, set and test the rules that classify failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from deltaci.api.schemas import failures as api_failures
from deltaci.cli.output import TableOutput, ago, safe
from deltaci.cli.session import CommandSession, command
from deltaci.core.failures import MAX_LOG_LINES, Facts, FailureRule, classify, matches_line
from deltaci.pipeline.parse.failure_rules import DEFAULT_FILE, parse_failure_rules
from deltaci.pipeline.parse.problems import format_with_source

MAX_RULES_BYTES: Final = 64 * 1024
MAX_LOG_BYTES: Final = 1024 * 1024  # The end of it: only the last lines are looked at.
SENT_LINES: Final = 50  # So many a runner sends.

app = typer.Typer(
    name="failure-rules",
    add_completion=False,
    help="Show, set and test the rules that classify failures.",
    no_args_is_help=True,
)


def rules_in(file: Path) -> tuple[FailureRule, ...]:
    """The rules in a file; a ValueError with all of its problems otherwise."""
    return _checked(_content(str(file)), str(file))


def _checked(content: bytes, file: str) -> tuple[FailureRule, ...]:
    found = parse_failure_rules(content, file)
    if found.rules is None:
        source = content.decode("utf-8", "replace")
        raise ValueError("invalid rules:\n" + "\n".join(format_with_source(each, source) for each in found.problems))
    return found.rules


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(MAX_RULES_BYTES + 1)
    with Path(file).open("rb") as opened:
        return opened.read(MAX_RULES_BYTES + 1)


@command(app, "show")
def show_command(
    session: CommandSession,
    text: Annotated[bool, typer.Option("--text", help="Only the file of the tenant, as it was set.")] = False,
) -> None:
    """Show the rules in order of evaluation: those of the tenant, of the server, and the built-in ones.

    Example:

      deltaci failure-rules show
    """
    found = session.client.failure_rules()
    if session.is_json:
        session.print_json(found)
        return
    if text:
        print("\n".join(safe(line) for line in found.text.rstrip("\n").split("\n")))
        return
    rows = TableOutput("RULE", "OF", "CLASS", "RETRIED", "~FITS")
    for rule in found.rules:
        rows.add(rule.name, rule.source, rule.failure_class, "yes" if rule.is_retryable else "no", fits(rule))
    rows.print("no rules")
    if found.version:
        print(f"\nthe rules of the tenant are version {found.version}, set {ago(found.set_at)} by {safe(found.set_by)}")


def fits(rule: api_failures.FailureRule) -> str:
    """What a rule asks for, in a few words."""
    told = [
        ("error code", ", ".join(rule.error_codes)),
        ("exit code", ", ".join(map(str, rule.exit_codes))),
        ("signal", ", ".join(map(str, rule.signals))),
        ("log", rule.log_pattern),
    ]
    words = [f"{what} {value}" for what, value in told if value]
    words += ["only known flaky tests failed"] if rule.all_failed_tests_flaky else []
    words += ["tests failed"] if rule.has_failed_tests else []
    return " and ".join(words) or "everything else"


@command(app, "set")
def set_command(
    session: CommandSession,
    file: Annotated[str, typer.Argument(metavar="FILE", help=f"E.g. {DEFAULT_FILE}; - reads standard input.")],
    expect: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="VERSION", help="Fails unless this is the current version; 0: fails if rules exist."
        ),
    ] = None,
) -> None:
    """Replace the rules of the tenant. If the file has problems, report each with its position and change nothing.

    Example:

      deltaci failure-rules set failure-rules.yml
    """
    content = _content(file)
    _checked(content, file)
    done = session.client.set_failure_rules(content.decode(), expected_version=expect)
    if session.is_json:
        session.print_json(done)
    else:
        own = sum(1 for rule in done.rules if rule.source == "tenant")
        print(f"set version {done.version}: {own} rule{'' if own == 1 else 's'}")


@command(app, "test")
def try_command(
    session: CommandSession,
    log: Annotated[str, typer.Argument(metavar="LOGFILE", help="A log file; - reads standard input.")],
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use this file instead of the rules of the tenant.")
    ] = None,
    exit_code: Annotated[int, typer.Option(min=1, max=255, help="How the job ended.")] = 1,
    signal: Annotated[int | None, typer.Option(min=1, max=64, help="The signal that ended it.")] = None,
    error_code: Annotated[str, typer.Option(help="What the runner reported, e.g. UPLOAD.")] = "",
) -> None:
    """Show which rule would classify a failure with this log, and which lines each rule matches.

    Example:

      deltaci failure-rules test build.log --rules failure-rules.yml
    """
    tenants = list(rules_in(rules)) if rules is not None else None
    known = session.client.failure_rules().rules
    asked = [each for each in known if tenants is None or each.source != "tenant"]
    table = [*(tenants or ()), *map(_rule, asked)]
    tail = _tail(log)
    facts = Facts(exit_code=exit_code, signal=signal, error_code=error_code, log_tail=tail)
    verdict = classify(facts, table)
    lines = [
        (number, rule.name, line) for rule in table for number, line in enumerate(tail, 1) if matches_line(rule, line)
    ]
    if session.is_json:
        found = [{"line": number, "rule": name, "text": line} for number, name, line in lines]
        session.print_json({"verdict": verdict, "lines": found})
        return
    again = "retryable" if verdict.is_retryable else "not retryable"
    print(f"rule {safe(verdict.rule)}: {verdict.failure_class}, {again}")
    if verdict.line:
        print(f"because of the line: {safe(verdict.line)}")
    rows = TableOutput("#LINE", "RULE", "~TEXT")
    for number, name, line in sorted(lines):
        rows.add(number, name, line)
    print()
    rows.print(f"no rule matches a line in the last {len(tail)} lines")


def _rule(rule: api_failures.FailureRule) -> FailureRule:
    told = msgspec.to_builtins(rule)
    del told["of"]
    return msgspec.convert(told, FailureRule)


def _tail(file: str) -> tuple[str, ...]:
    """The last lines, as many as a runner sends."""
    if file == "-":
        data = sys.stdin.buffer.read()[-MAX_LOG_BYTES:]
    else:
        with Path(file).open("rb") as opened:
            opened.seek(0, 2)
            opened.seek(max(0, opened.tell() - MAX_LOG_BYTES))
            data = opened.read()
    lines = data.decode("utf-8", "replace").splitlines()
    return tuple(lines[-min(SENT_LINES, MAX_LOG_LINES) :])
