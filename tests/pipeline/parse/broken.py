"""Invalid pipeline files, each with the position of its problem and parts of the message."""

from __future__ import annotations

from typing import NamedTuple


class Broken(NamedTuple):
    """The text of a file, the position of its first problem, and parts of the message."""

    name: str
    text: str | bytes
    line: int
    column: int
    said: tuple[str, ...]
    is_for_schema: bool = True  # whether the schema for editors finds it, too


def job(lines: str) -> str:
    """Return a pipeline with one job. Its keys begin in line 4, column 5."""
    return "jobs:\n  test:\n    steps: [make]\n" + "".join(f"    {line}\n" for line in lines.splitlines())


def top(lines: str) -> str:
    """Return a pipeline with top-level keys from line 3 on."""
    return "jobs:\n  test: {steps: [make]}\n" + lines


DEEP = "jobs: " + "[" * 40 + "]" * 40
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)

SYNTAX = (
    Broken("empty", "", 1, 1, ("an empty file", "jobs"), False),
    Broken("only a comment", "# nothing\n", 1, 1, ("an empty file",), False),
    Broken("a text", "hello", 1, 1, ("the text 'hello' instead of keys", "an object with jobs")),
    Broken("a list", "- a\n- b\n", 1, 1, ("a list instead of keys",)),
    Broken("a tab", "jobs:\n\ttest:\n", 2, 1, ("a tab", "spaces"), False),
    Broken("two colons", "name: a: b\n", 1, 8, ("':' where no key can be", "quote the text"), False),
    Broken("a quote that never ends", "jobs:\n  a: 'x\n", 2, 6, ("a quote that never ends",), False),
    Broken("a list that never ends", "a: [1, 2\nb: 3\n", 1, 4, ("a list that is not closed",), False),
    Broken("an object that never ends", "a: {b: 1\nc: 3\n", 1, 4, ("an object that is not closed",), False),
    Broken("indentation", "jobs:\n  - x\n b: 1\n", 3, 2, ("indented unlike",), False),
    Broken("a line without a colon", "jobs:\n  a: 1\n  b\n", 3, 3, ("a line without ':'",), False),
    Broken("an at sign", "name: @x\n", 1, 7, ("'@' at the beginning of a text", "in quotes"), False),
    Broken("an escape", 'name: "\\q"\n', 1, 9, ("'\\' that begins no escape", "single quotes"), False),
    Broken("a closing bracket", "name: ]\n", 1, 7, ("a closing sign without an opening one",), False),
    Broken("two documents", "a: 1\n---\nb: 2\n", 2, 1, ("a second document", "one for each file"), False),
    Broken("a directive", "%YAML 1.1\n---\na: 1\n", 1, 1, ("a directive", "'%'"), False),
    Broken("not UTF-8", b"jobs:\n  a: \xff\n", 2, 6, ("0xff", "not UTF-8", "save the file as UTF-8"), False),
    Broken("a null character", "name: a\x00b\n", 1, 8, ("U+0000",), False),
    Broken("a strange line end", "name: a\u2028b\n", 1, 8, ("U+2028", '"\\u2028"'), False),
    Broken("too large", "#" * 600_000, 1, 1, ("more than 512 KiB", "split"), False),
    Broken("too deep", DEEP, 1, 30, ("more than 24 nested levels",), False),
    Broken("a billion laughs", LAUGHS, 5, 20, ("more than 50,000 values, aliases included",), False),
    Broken("an alias of nothing", "name: *nam\nx: &name 1\n", 1, 7, ("no '&nam' before it",), False),
    Broken("a misspelt alias", "x: &name 1\nname: *nmae\n", 2, 7, ("'*nmae'", "did you mean 'name'?"), False),
    Broken("an alias of itself", "jobs: &a [*a]\n", 1, 11, ("inside the value that it refers to",), False),
    Broken(
        "a python tag", top("name: !!python/object:os.system x\n"), 3, 7, ("!!python/object:os.system", "tags"), False
    ),
    Broken(
        "a condition as a tag", job("if: !cancelled()"), 4, 9, ("'!cancelled()'", "quote the text if the '!'"), False
    ),
    Broken("a merge of a text", job("<<: make"), 4, 9, ("the text 'make' to be merged", "alias of an object"), False),
    Broken(
        "a key twice", top("name: a\nname: b\n"), 4, 1, ("the key 'name' a second time", "already in line 3"), False
    ),
    Broken("a job twice", "jobs:\n  a: {steps: [x]}\n  a: {steps: [y]}\n", 3, 3, ("'a' a second time",), False),
    Broken("a list as a key", top("[a]: 1\n"), 3, 1, ("a list as a key",), False),
)

KEYS = (
    Broken("no jobs", "name: x\n", 1, 1, ("a pipeline without 'jobs'", "the jobs, by id")),
    Broken("empty jobs", "jobs: {}\n", 1, 7, ("without jobs", "at least one")),
    Broken("nothing as jobs", "jobs:\n", 1, 1, ("nothing after 'jobs'",)),
    Broken(
        "jobs as a list", "jobs: [a]\n", 1, 7, ("a list as 'jobs'", "names, each with an object with steps or approval")
    ),
    Broken(
        "a misspelt key", top("nmae: x\n"), 3, 1, ("'nmae', which a pipeline does not have", "did you mean 'name'?")
    ),
    Broken("a key of another place", top("runs-on: x\n"), 3, 1, ("'runs-on'", "it belongs to a job")),
    Broken("a key of GitLab", job("script: make"), 4, 5, ("'script'", "'steps'")),
    Broken("a key of GitHub", job("container: x"), 4, 5, ("'container'", "'image'")),
    Broken("a key that nobody knows", top("zzzzzz: 1\n"), 3, 1, ("'zzzzzz'", "expected one of: concurrency, defaults")),
    Broken("only a key of GitLab", "jobs:\n  a: {script: [make]}\n", 2, 7, ("'script'", "'steps'")),
    Broken("misspelt steps", "jobs:\n  a: {stpes: [make]}\n", 2, 7, ("did you mean 'steps'?",)),
    Broken("underscores", job("runs_on: linux"), 4, 5, ("did you mean 'runs-on'?",)),
    Broken("hyphens", job("allow-failure: true"), 4, 5, ("did you mean 'allow_failure'?",)),
    Broken("a bad name", "jobs:\n  a b:\n    steps: [x]\n", 2, 3, ("the name 'a b'", "letters, digits")),
    Broken("a number as a name", "jobs:\n  1: {steps: [x]}\n", 2, 3, ("the name '1'", "begins with a letter"), False),
    Broken("a job without steps", "jobs:\n  a: {name: x}\n", 2, 3, ("the job 'a' without 'steps'", "approval"), False),
    Broken("no steps", "jobs:\n  a:\n    steps: []\n", 3, 12, ("an empty list", "at least one")),
    Broken("steps as a text", "jobs:\n  a:\n    steps: make\n", 3, 12, ("the text 'make'", "a list of: a command")),
    Broken("nothing as a job", "jobs:\n  a:\n", 2, 3, ("nothing after 'a'", "an object with steps or approval")),
    Broken("a step without run", "jobs: {a: {steps: [{name: x}]}}\n", 1, 20, ("a step without 'run'", "the command")),
    Broken("an action", "jobs: {a: {steps: [{uses: x}]}}\n", 1, 27, ("'x'", "checkout")),
    Broken("nothing to run", "jobs:\n  a:\n    steps:\n      - run:\n", 4, 9, ("nothing after 'run'",)),
    Broken("a blank command", "jobs: {a: {steps: [' ']}}\n", 1, 20, ("the text ' '", "a command for the shell")),
    Broken(
        "an approval with steps", job("approval: {}"), 3, 5, ("'steps' in the job 'test'", "a job of its own"), False
    ),
)

VALUES = (
    Broken("yes", top("fail-fast: yes\n"), 3, 12, ("the text 'yes'", "true or false", "did you mean 'true'?")),
    Broken("off", job("allow_failure: off"), 4, 20, ("the text 'off'", "did you mean 'false'?")),
    Broken("quoted number", job("timeout-minutes: '5'"), 4, 22, ("the text '5'", "remove the quotes")),
    Broken(
        "no minutes",
        job("timeout-minutes: 0"),
        4,
        22,
        ("the number 0", "a number above 0 and up to 525,600, or an expression"),
    ),
    Broken("too many minutes", top("timeout-minutes: 999999999\n"), 3, 18, ("999999999", "from 1 to 525,600")),
    Broken("octal", job("priority: 010"), 4, 15, ("010, which some YAML readers take as octal", "write 10"), False),
    Broken("a fraction", job("priority: 1.5"), 4, 15, ("the number 1.5", "a whole number")),
    Broken(
        "a version", job("strategy: {matrix: {v: [3.9, 3.10]}}"), 4, 34, ("3.10, which is read as 3.1", "'3.10'"), False
    ),
    Broken(
        "a whole version", job("strategy: {matrix: {v: [1.0]}}"), 4, 29, ("1.0, which is read as 1", "'1.0'"), False
    ),
    Broken("octal in a variable", job("env: {MODE: 0755}"), 4, 17, ("0755", "octal", "'0755'"), False),
    Broken("a number as a label", job("runs-on: 22.04"), 4, 14, ("the number 22.04", "put it in quotes: '22.04'")),
    Broken("nothing as a variable", job("env: {A: }"), 4, 11, ("nothing after 'A'", "a text, a number")),
    Broken("a bad variable", job("env: {A B: 1}"), 4, 11, ("the name 'A B'",)),
    Broken("an object as a variable", job("env: {A: {b: 1}}"), 4, 14, ("an object", "a text, a number, true or false")),
    Broken(
        "a word that is not in the list", job("executor: docker"), 4, 15, ("'docker'", "process, sandbox, container")
    ),
    Broken(
        "the author's failures", job("retry: {max_attempts: 2, on: USER}"), 4, 34, ("'USER'", "INFRA, TOOLING, FLAKY")
    ),
    Broken("a failure class", job("retry: {max_attempts: 2, on: infra}"), 4, 34, ("did you mean 'INFRA'?",)),
    Broken("no attempts", job("retry: {max_attempts: 0}"), 4, 27, ("the number 0", "from 1 to 100")),
    Broken("attempts missing", job("retry: {on: INFRA}"), 4, 5, ("'retry' without 'max_attempts'",)),
    Broken(
        "delays", job("retry: {max_attempts: 2, delay-seconds: 9, max-delay-seconds: 3}"), 4, 45, ("9 s", "3"), False
    ),
    Broken("an event", "on: pusch\n" + top(""), 1, 5, ("'pusch'", "did you mean 'push'?")),
    Broken("an event of GitHub", "on: [workflow_dispatch]\n" + top(""), 1, 6, ("use 'manual'",)),
    Broken("a schedule by name", "on: schedule\n" + top(""), 1, 5, ("nothing after 'schedule'", "five fields")),
    Broken("an event twice", "on: [push, manual, push]\n" + top(""), 1, 20, ("'push' a second time",), False),
    Broken("a matrix as a text", job("strategy: {matrix: all}"), 4, 24, ("the text 'all'", "names and their values")),
    Broken("no event", "on: {}\n" + top(""), 1, 5, ("'on' without events", "push"), False),
    Broken("branches twice", "on: {push: {branches: a, branches-ignore: b}}\n" + top(""), 1, 26, ("together",), False),
    Broken("a cron of four", "on: {schedule: '1 2 3 4'}\n" + top(""), 1, 16, ("the text '1 2 3 4'", "five fields")),
    Broken(
        "a cron too late", "on: {schedule: '0 24 * * *'}\n" + top(""), 1, 16, ("'24' as the hour", "0 to 23"), False
    ),
    Broken(
        "a choice of nothing", "on: {manual: {inputs: {a: {type: choice}}}}\n" + top(""), 1, 24, ("'options'",), False
    ),
    Broken(
        "an expression where none is",
        top("name: ${{ github.ref }}\n"),
        3,
        7,
        ("an expression", "nothing is evaluated"),
        False,
    ),
    Broken(
        "a need of nothing", job("needs: biuld") + "  build: {steps: [x]}\n", 4, 12, ("did you mean 'build'?",), False
    ),
    Broken("a need of itself", job("needs: [test]"), 4, 13, ("needs itself",), False),
    Broken("a need twice", job("needs: [b, b]") + "  b: {steps: [x]}\n", 4, 16, ("'b' a second time",), False),
    Broken("a cycle", job("needs: b") + "  b: {steps: [x], needs: test}\n", 5, 26, ("test → b → test",), False),
    Broken("a bad need", job("needs: {jobs: b}"), 4, 13, ("'jobs', which a need does not have", "did you mean 'job'?")),
    Broken("a matrix of nothing", job("strategy: {matrix: {}}"), 4, 24, ("a matrix without axes",), False),
    Broken("an empty axis", job("strategy: {matrix: {a: []}}"), 4, 28, ("an empty list",)),
    Broken("no axis", job("strategy: {matrix: {os: [a], exclude: [{so: a}]}}"), 4, 45, ("did you mean 'os'?",), False),
    Broken("a rule of two kinds", job("validate: {run: a, junit: b}"), 4, 15, ("a rule with run and junit",)),
    Broken("a rule of nothing", job("validate: {name: a}"), 4, 15, ("requires nothing", "number, result")),
    Broken("a count of no tests", job("validate: {run: a, min-tests: 3}"), 4, 24, ("without 'junit'",), False),
    Broken("a text of no files", job("validate: {run: a, contains: b}"), 4, 24, ("without 'files'",), False),
    Broken(
        "a pattern that takes long",
        job("validate: [{files: a, contains: '(a+)+b'}]"),
        4,
        42,
        ("a group that is repeated by '+' in '(a+)+b'",),
        False,
    ),
    Broken(
        "a pattern that fits all",
        job("validate: {files: a, contains: 'x*'}"),
        4,
        37,
        ("that an empty line fits",),
        False,
    ),
    Broken(
        "an evaluated pattern",
        job("validate: {files: a, contains: '${{ x }}'}"),
        4,
        36,
        ("nothing is evaluated",),
        False,
    ),
    Broken("a number of nothing", job("validate: {number: {at: a, min: 1}}"), 4, 16, ("without 'report'",)),
    Broken(
        "a number of any size", job("validate: {number: {report: a, at: b}}"), 4, 24, ("'min', 'max' or both",), False
    ),
    Broken(
        "a number out of reach",
        job(f"validate: {{number: {{report: a, at: b, max: 1{'0' * 400}}}}}"),
        4,
        48,
        ("to 1,000,000,000,000,000",),
    ),
    Broken("a number in words", job("validate: {number: {report: a, at: b, min: x}}"), 4, 48, ("a number",)),
    Broken(
        "bounds in the wrong order",
        job("validate: {number: {report: a, at: b, min: 2, max: 1.5}}"),
        4,
        48,
        ("a 'min' of 2", "at most 'max', 1.5"),
        False,
    ),
    Broken(
        "a path to no number",
        job("validate: {number: {report: a, at: 'b..c', max: 1}}"),
        4,
        43,
        ("'.' in 'b..c'", "expected a key"),
        False,
    ),
    Broken(
        "a path behind an attribute",
        job('validate: {number: {report: a, at: "./@b/c", max: 1}}'),
        4,
        45,
        ("behind an attribute",),
        False,
    ),
    Broken("paths of a workstream", job("validate: {within: [a]}"), 4, 16, ("'within' in a pipeline",), False),
    Broken("merges of a workstream", job("validate: {mergeable: true}"), 4, 16, ("only a workstream",), False),
    Broken("a duration", "jobs: {a: {approval: {expires: 7 days}}}\n", 1, 32, ("'7 days'", "'7d'")),
    Broken("nobody approves", "jobs: {a: {approval: {approvers: 0}}}\n", 1, 34, ("the number 0", "from 1 to 100")),
    Broken("a port", job("services: {a: {image: b, ports: [70000]}}"), 4, 38, ("70000", "from 1 to 65,535")),
    Broken("a cache without paths", job("caches: [{key: a}]"), 4, 14, ("a cache without 'paths'", "the folders")),
    Broken("a secret", job("secrets: [a-b]"), 4, 15, ("'a-b'", "the name of a secret")),
    Broken("secrets as an object", job("secrets: {a: b}"), 4, 14, ("an object", "a list of")),
    Broken("an empty condition", job("if: ''"), 4, 9, ("an empty text", "an expression")),
    Broken(
        "one id twice", "jobs: {a: {steps: [{id: x, run: a}, {id: x, run: b}]}}\n", 1, 42, ("'x' a second time",), False
    ),
    Broken("a long name", job(f"name: {'x' * 3000}"), 4, 11, ("3,000 characters", "at most 2,000")),
)


def steps(lines: str, more: str = "") -> str:
    """Return a pipeline with one job. Its steps begin in line 4, column 7."""
    return "jobs:\n  test:\n    steps:\n" + "".join(f"      {line}\n" for line in lines.splitlines()) + more


BUILD = "  build: {steps: [x], outputs: {version: '1'}}\n"
EXPRESSIONS = (
    Broken("no expression", job("if: github.ref = 'x'"), 4, 20, ("'='",), False),
    Broken("an expression that never ends", steps("- echo ${{ github.ref"), 4, 14, ("}} at its end",), False),
    Broken("an empty expression", steps("- echo ${{ }}"), 4, 17, ("nothing", "an expression between"), False),
    Broken("an unknown context", steps("- echo ${{ gihub.ref }}"), 4, 18, ("'gihub'", "did you mean 'github'?"), False),
    Broken("an unknown function", job("if: contain(github.ref, 'x')"), 4, 9, ("did you mean 'contains'?",), False),
    Broken("a context of another place", job("if: secrets.A != ''"), 4, 9, ("the context 'secrets'", "github"), False),
    Broken("a function of another place", job("env: {A: '${{ hashFiles(1) }}'}"), 4, 19, ("'hashFiles'",), False),
    Broken("too few arguments", job("if: contains(github.ref)"), 4, 9, ("1 in contains()", "2 arguments"), False),
    Broken(
        "an expression in a long command",
        steps("- run: |\n    a\n    echo ${{ evn.A }}"),
        6,
        20,
        ("mean 'env'?",),
        False,
    ),
    Broken("a part of a condition", job("if: ${{ github.ref }} == 'x'"), 4, 9, ("around a part",), False),
    Broken(
        "a need that is not needed",
        job("if: needs.build.result") + BUILD,
        4,
        9,
        ("'build'", "add it to its 'needs'"),
        False,
    ),
    Broken(
        "a misspelt need", job("needs: build\nif: needs.biuld.result") + BUILD, 5, 9, ("did you mean 'build'?",), False
    ),
    Broken(
        "an output that nobody sets",
        job("needs: build\nif: needs.build.outputs.verson") + BUILD,
        5,
        9,
        ("the output 'verson'", "did you mean 'version'?"),
        False,
    ),
    Broken(
        "something else of a need",
        job("needs: build\nif: needs.build.status") + BUILD,
        5,
        9,
        ("'status'", "outputs, result"),
        False,
    ),
    Broken("a step of another job", steps("- echo ${{ steps.a.outputs.b }}"), 4, 18, ("'a'", "has an 'id'"), False),
    Broken(
        "a misspelt step",
        steps("- {id: version, run: x}\n- echo ${{ steps.vresion.outputs.b }}"),
        5,
        18,
        ("did you mean 'version'?",),
        False,
    ),
    Broken(
        "a misspelt axis",
        job("strategy: {matrix: {os: [a]}}\nruns-on: '${{ matrix.so }}'"),
        5,
        19,
        ("the axis 'so'", "did you mean 'os'?"),
        False,
    ),
    Broken("a matrix that there is not", job("runs-on: ${{ matrix.os }}"), 4, 18, ("this job has no matrix",), False),
    Broken(
        "a secret that it does not get",
        job("env: {T: '${{ secrets.TOKEN }}'}"),
        4,
        19,
        ("the secret 'TOKEN'", "'secrets'"),
        False,
    ),
    Broken(
        "a secret of all jobs",
        top("env: {T: '${{ secrets.TOKEN }}'}\n"),
        3,
        15,
        ("which the job 'test' does not get",),
        False,
    ),
    Broken(
        "a misspelt input",
        "on: {manual: {inputs: {target: {}}}}\n" + job("if: inputs.tagret == 'x'"),
        5,
        9,
        ("the input 'tagret'", "did you mean 'target'?"),
        False,
    ),
    Broken("an input that nobody asks for", job("if: inputs.x"), 4, 9, ("'on.manual.inputs'",), False),
)

MEANINGS = (
    Broken("braces in a pattern", job("paths: 'src/*.{js,ts}'"), 4, 19, ("'{' in the pattern",), False),
    Broken(
        "only taken away", job("paths: '!docs/**'"), 4, 13, ("only patterns with '!'", "'**' for everything"), False
    ),
    Broken("a bad branch", "on: {push: {branches: ['a[']}}\n" + top(""), 1, 26, ("in the pattern 'a['",), False),
    Broken("a value twice", job("strategy: {matrix: {a: [x, z, x]}}"), 4, 35, ("'x' (text) again",), False),
    Broken(
        "nothing is left", job("strategy: {matrix: {a: [x], exclude: [{a: x}]}}"), 4, 42, ("leaves out every",), False
    ),
    Broken(
        "an unknown project", job("project: wbe") + "projects: {web: web}\n", 4, 14, ("did you mean 'web'?",), False
    ),
    Broken("a project without projects", job("project: web"), 4, 14, ("'projects'",), False),
    Broken("a folder above", top("projects: {web: ../web}\n"), 3, 17, ("'../web'", "without wildcards"), False),
    Broken("a project without a folder", top("projects: {web: {depends-on: a}}\n"), 3, 12, ("without 'folder'",)),
    Broken(
        "an option of a checkout",
        steps("- {uses: checkout, with: {fetch_depth: 0}}"),
        4,
        33,
        ("which 'checkout' does not have", "did you mean 'fetch-depth'?"),
        False,
    ),
    Broken(
        "a cache without a key", steps("- {uses: cache, with: {path: a}}"), 4, 16, ("without 'key'", "'with'"), False
    ),
    Broken(
        "a version for nobody",
        steps("- {uses: setup-node, with: {python-version: '3'}}"),
        4,
        35,
        ("'python-version'", "node-version"),
        False,
    ),
    Broken("a time zone", "on: {schedule: {cron: '0 3 * * *', timezone: '+02:00'}}\n" + top(""), 1, 46, ("time zone",)),
)

ALL = (*SYNTAX, *KEYS, *VALUES, *EXPRESSIONS, *MEANINGS)
