"""Generate the examples and tables of docs/explain.md: `python -m tests.audit.explain_page`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

from deltaci.audit.explain import Explanation, format_lines
from deltaci.audit.explain.codes import ENDED, STEPS, WAITS
from deltaci.core import attempt, job, worker
from deltaci.core.approvals import Gate
from deltaci.core.failures import Facts
from tests.audit.explanations import why
from tests.support.lab import Lab, gate, task

PAGE = Path(__file__).parent.parent.parent / "docs" / "explain.md"
WIDTH = 118

_EXAMPLE = re.compile(r"(<!-- example: (\w+) -->\n```text\n).*?(\n```)", re.DOTALL)
_TABLE = re.compile(r"(<!-- codes: (\w+) -->\n).*?(\n\n|\Z)", re.DOTALL)


def label() -> Explanation:
    """No worker can run the job that the others wait for."""
    lab = Lab().plan(task("build"), task("test", "build", queue_key="gpu,linux"), task("deploy", "test"))
    for id, labels in (("atlas", ("linux",)), ("boreas", ("linux", "arm")), ("ceres", ("windows",))):
        lab.register(id, labels=labels)
    lab.after(2)
    lease = lab.claim(lab.attempt("build"), by="atlas")
    lab.after(41).complete(lease)
    return why(lab.after(300), lab.job("deploy"))


def approval() -> Explanation:
    """Two people must approve, and one has."""
    settings = Gate(role="release", approvers=2, not_by_starter=True)
    lab = Lab().plan(gate("ship", approval_seconds=86_400, gate=settings), task("deploy", "ship"), started_by="bob")
    approve = job.Approve(id="r1/ship", actor="user:ada", roles=("release",), comment="the numbers look good")
    lab.after(600).do(approve)
    return why(lab.after(60), lab.run())


def retry() -> Explanation:
    """The network failed, and the job is retried."""
    lab = Lab().plan(task("build", max_attempts=3))
    lab.register("atlas")
    lease = lab.after(1).claim(lab.attempt("build"), by="atlas")
    lab.send(attempt.Start, lease)
    tail = ("Fetching dependencies", "curl: (6) Could not resolve host: registry.example.org")
    lab.after(12).complete(lease, ok=False, exit_code=6, facts=Facts(log_tail=tail))
    return why(lab.after(5), lab.job("build"))


def blocked() -> Explanation:
    """A test failed, and the jobs that need it could not start."""
    lab = Lab().plan(task("lint", is_required=False), task("test"), task("package", "test"), task("deploy", "package"))
    lab.register("atlas", slots=2)
    lint, test = lab.claim(lab.attempt("lint"), by="atlas"), lab.claim(lab.attempt("test"), by="atlas")
    lab.after(9).complete(lint, ok=False)
    facts = Facts(failed_tests=("test_login",), message="1 of 812 tests failed: test_login")
    lab.after(80).complete(test, ok=False, facts=facts)
    return why(lab, lab.run())


def lost() -> Explanation:
    """A worker stopped answering, and the job stays with it until its lease ends."""
    lab = Lab().plan(task("build"))
    lab.register("atlas")
    lab.register("boreas")
    lab.send(attempt.Start, lab.claim(lab.attempt("build"), by="atlas"))
    lab.after(60).do(worker.MissHealthChecks(id="atlas"))
    return why(lab.after(5), lab.job("build"))


def forced() -> Explanation:
    """A run was cancelled, and a worker did not stop."""
    lab = Lab().plan(task("build"), task("test", "build"))
    lab.register("atlas")
    lab.send(attempt.Start, lab.claim(lab.attempt("build"), by="atlas"))
    lab.after(20).cancel_run(reason="wrong branch")
    lab.after(30).do(attempt.ForceCancel(id="r1/build.1"))
    return why(lab, lab.run())


EXAMPLES: Mapping[str, Callable[[], Explanation]] = {
    build.__name__: build for build in (label, approval, retry, lost, blocked, forced)
}
TABLES = {"waits": WAITS, "ends": ENDED, "steps": STEPS}


def example(name: str) -> str:
    """Return the command and its output on a terminal of WIDTH columns."""
    explanation = EXAMPLES[name]()
    lines = [
        textwrap.fill(line, WIDTH, subsequent_indent="  " if line[:1] == "-" else "")
        for line in format_lines(explanation)
    ]
    return "\n".join([f"$ deltaci explain {explanation.id}", *lines])


def table(name: str) -> str:
    """Return the Markdown table of the codes of one kind."""
    return "\n".join(
        ["| code | meaning |", "|---|---|", *(f"| `{code}` | {text} |" for code, text in TABLES[name].items())]
    )


def generate(page: str) -> str:
    """Return the page with current examples and tables."""
    page = _EXAMPLE.sub(lambda match: f"{match[1]}{example(match[2])}{match[3]}", page)
    return _TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
