"""Broken workstream files: each with the position of its problem and parts of the expected message."""

from __future__ import annotations

from tests.pipeline.parse.broken import Broken

GOOD = """\
workstream: login
title: Log in with a key
project: shop
base: main
author: Ada <ada@example.org>
env: {CI: true}
tasks:
  - name: schema
    run: make schema
  - name: api
    needs: schema
    run: [make api, make docs]
    retry: 3
    post_execution:
      - make test
      - junit: report.xml
        min-tests: 2
  - name: notes
    critical: false
    worktree: own
    needs: [schema, api]
    run: make notes
validation: make check
merge: squash
"""


def task(lines: str, more: str = "") -> str:
    """Return a workstream with one task, whose further keys begin in line 5, column 5."""
    keys = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"workstream: x\ntasks:\n  - name: a\n    run: make\n{keys}{more}"


def top(lines: str) -> str:
    """Return a workstream with further top-level keys from line 3 on."""
    return "workstream: x\ntasks: [{name: a, run: make}]\n" + lines


B = "  - {name: b, run: make}\n"
ALL = (
    Broken("empty", "", 1, 1, ("an empty file", "workstream, and tasks with name and run"), False),
    Broken("only a comment", "# later\n", 1, 1, ("an empty file",), False),
    Broken("a list", "- a\n", 1, 1, ("a list instead of keys", "an object with workstream and tasks")),
    Broken("a tab", "workstream: x\n\ttasks:\n", 2, 1, ("a tab", "spaces"), False),
    Broken("not UTF-8", b"workstream: \xff\n", 1, 13, ("0xff", "not UTF-8"), False),
    Broken("two documents", "a: 1\n---\nb: 2\n", 2, 1, ("a second document", "one for each file"), False),
    Broken("no name", "tasks: [{name: a, run: make}]\n", 1, 1, ("a workstream without 'workstream'",)),
    Broken("no tasks", "workstream: x\n", 1, 1, ("a workstream without 'tasks'", "expected 'tasks': the tasks")),
    Broken("empty tasks", "workstream: x\ntasks: []\n", 2, 8, ("an empty list", "an object with name and run")),
    Broken("nothing as tasks", "workstream: x\ntasks:\n", 2, 1, ("nothing after 'tasks'",)),
    Broken("tasks by name", "workstream: x\ntasks: {a: {run: make}}\n", 2, 8, ("an object as 'tasks'", "a list of")),
    Broken("capitals", "workstream: Login\ntasks: [{name: a, run: b}]\n", 1, 13, ("'Login'", "lower-case letters")),
    Broken("a misspelt key", top("vaildation: make\n"), 3, 1, ("'vaildation'", "did you mean 'validation'?")),
    Broken("underscores", top("fail_fast: true\n"), 3, 1, ("did you mean 'fail-fast'?",)),
    Broken("a key of a task", top("critical: true\n"), 3, 1, ("which a workstream does not have", "belongs to a task")),
    Broken("a key of a pipeline", top("on: push\n"), 3, 1, ("'on'", "not by an event")),
    Broken("jobs", "workstream: x\njobs: {a: {steps: [b]}}\n", 2, 1, ("'jobs'", "'tasks'")),
    Broken("steps", "workstream: x\ntasks: [{name: a, steps: [b]}]\n", 2, 19, ("'steps', which a task", "'run'")),
    Broken("depends_on", task("depends_on: b", B), 5, 5, ("'depends_on'", "write 'needs'")),
    Broken("allow_failure", task("allow_failure: true"), 5, 5, ("write 'critical: false'",)),
    Broken("a key that nobody knows", task("zzzzzz: 1"), 5, 5, ("'zzzzzz'", "expected one of: artifacts, critical")),
    Broken("a misspelt rule key", task("post_execution: {run: x, fiels: y}"), 5, 30, ("a rule", "mean 'files'?")),
    Broken("a task without a name", "workstream: x\ntasks:\n  - run: make\n", 3, 5, ("a task without 'name'",)),
    Broken("a task without commands", "workstream: x\ntasks:\n  - name: a\n", 3, 5, ("a task without 'run'",)),
    Broken("a task as a text", "workstream: x\ntasks: [make]\n", 2, 9, ("'make'", "an object with name and run")),
    Broken("a blank command", task("").replace("make", "' '"), 4, 10, ("the text ' '", "a command for the shell")),
    Broken("no commands", task("").replace("make", "[]"), 4, 10, ("an empty list", "a command for the shell")),
    Broken("a bad name", task("").replace("a\n", "a b\n"), 3, 11, ("'a b'", "letters, digits")),
    Broken("a name twice", task("", "  - {name: a, run: x}\n"), 5, 12, ("'a' a second time", "line 3"), False),
    Broken("a need of nothing", task("needs: bb", B), 5, 12, ("no task 'bb'", "did you mean 'b'?"), False),
    Broken("a need of nobody", task("needs: zebra"), 5, 12, ("no task 'zebra'", "there is no other task"), False),
    Broken("a need of itself", task("needs: [a]"), 5, 13, ("the task 'a' needs itself",), False),
    Broken("a need twice", task("needs: [b, b]", B), 5, 16, ("'b' a second time", "name each task once"), False),
    Broken(
        "a cycle",
        task("needs: c", "  - {name: b, run: x, needs: a}\n  - {name: c, run: x, needs: b}\n"),
        6,
        30,
        ("tasks that wait for each other: a → c → b → a",),
        False,
    ),
    Broken("yes", task("critical: yes"), 5, 15, ("the text 'yes'", "did you mean 'true'?")),
    Broken("a tree of another kind", task("worktree: private"), 5, 15, ("'private'", "shared, own")),
    Broken("a quoted number", task("timeout-minutes: '5'"), 5, 22, ("the text '5'", "remove the quotes")),
    Broken("no minutes", task("timeout-minutes: 0"), 5, 22, ("the number 0", "from 1 to 525,600")),
    Broken("no attempts", task("retry: 0"), 5, 12, ("the number 0", "from 1 to 100")),
    Broken(
        "delays",
        task("retry: {max_attempts: 2, delay-seconds: 9, max-delay-seconds: 3}"),
        5,
        45,
        ("9 s", "3"),
        False,
    ),
    Broken("a secret", task("secrets: [a-b]"), 5, 15, ("'a-b'", "the name of a secret")),
    Broken("a rule of two kinds", task("post_execution: {run: a, junit: b}"), 5, 21, ("run and junit",), False),
    Broken("a rule of nothing", top("validation: {name: a}\n"), 3, 13, ("requires nothing",), False),
    Broken("tests of nothing", task("post_execution: {run: a, min-tests: 2}"), 5, 30, ("'min-tests'",), False),
    Broken("a bad path", top("validation: {within: 'src/[a'}\n"), 3, 27, ("in the pattern 'src/[a'",), False),
    Broken("a number of anything", top("validation: {number: {report: r.json, at: a}}\n"), 3, 22, ("min",), False),
    Broken("a bad place", top("validation: {number: {report: r, at: 'a..b', min: 1}}\n"), 3, 41, ("a key",), False),
    Broken("contents of nothing", top("validation: {run: a, contains: b}\n"), 3, 22, ("'contains'",), False),
    Broken("never mergeable", top("validation: {mergeable: false}\n"), 3, 25, ("true",), False),
    Broken("a way to merge", top("merge: rebase\n"), 3, 8, ("'rebase'", "merge, squash, fast-forward")),
    Broken("a misspelt way", top("merge: {method: sqash}\n"), 3, 17, ("did you mean 'squash'?",)),
    Broken("a merge as usual", top("merge: true\n"), 3, 8, ("true", "merge, squash, fast-forward")),
    Broken("an author", top("author: ada\n"), 3, 9, ("'ada'", "'Ada <ada@example.org>'")),
    Broken("a full ref", top("base: refs/heads/main\n"), 3, 7, ("'refs/heads/main'", "did you mean 'main'?"), False),
    Broken("two dots", top("base: a..b\n"), 3, 7, ("'a..b' as a branch", "that git allows"), False),
    Broken("an expression in a command", task("").replace("make", "echo ${{ a }}"), 4, 10, ("evaluated",), False),
    Broken("an expression in a variable", task("env: {A: '${{ vars.B }}'}"), 5, 14, ("evaluated", "script"), False),
    Broken("an expression in a label", task("runs-on: ${{ matrix.os }}"), 5, 14, ("evaluated",), False),
    Broken("an expression in a rule", task("post_execution: test ${{ a }}"), 5, 21, ("evaluated",), False),
)  # fmt: skip
