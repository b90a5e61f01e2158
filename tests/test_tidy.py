"""The rules of the house that a machine can check, by reading the source and never running it.

Each check is a function from a module (or a text) to its problems, and each problem is one line that says
where, what and what to do. Each has two tests: it finds planted problems, and the project has none.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CODE = ("src", "tests", "bench", "chaos", "scripts")
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60

# Which packages of src/deltaci a package may import, besides itself and `process`.
BELOW_CONTROLLERS = {"core", "audit", "protocol", "pipeline", "api", "storage", "engine", "git", "forges", "fleet"}
BELOW_SERVER = BELOW_CONTROLLERS | {"controllers"}
SEES: dict[str, set[str]] = {
    "core": set(),
    "process": set(),
    "audit": {"core"},
    "protocol": {"core"},
    "pipeline": {"core", "protocol"},
    "api": {"core", "audit", "protocol"},
    "storage": {"core"},
    "git": {"core"},
    "engine": {"core", "audit", "storage"},
    "forges": {"core", "git", "pipeline", "storage"},
    "fleet": {"core", "engine", "storage"},
    "controllers": BELOW_CONTROLLERS,
    "server": BELOW_SERVER,
    "app": BELOW_SERVER | {"server"},
    "runner": {"core", "protocol", "git", "pipeline"},
    "conformance": {"core", "protocol", "api"},
    "client": {"api", "core"},
    "simulation": BELOW_SERVER | {"server", "runner"},
    "local": {"core", "protocol", "engine", "storage", "pipeline", "git", "app", "server", "runner"},
    "library": {"engine", "storage"},
    "cli": BELOW_SERVER | {"app", "server", "runner", "local", "client", "simulation", "conformance"},
    "__main__": {"cli"},
}

PURE_MODULES = {
    "__future__",
    "base64",
    "bisect",
    "collections",
    "configparser",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "re",
    "string",
    "textwrap",
    "tomllib",
    "types",
    "typing",
}
# The modules of pure rooms that need a pure library.
PURE_EXCEPT = {
    "deltaci.pipeline.parse.yaml": {"ruamel"},
    "deltaci.pipeline.parse.yaml_errors": {"ruamel"},
}
PURE_ROOMS = {"core", "audit", "pipeline"}
IMPURE_CALLS = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}
CLOCK_READS = {"now", "utcnow", "today"}

# Folders of tests that do not have the name of a package; see the docstring of tests/__init__.py.
OTHER_TESTS = {"bench", "browser", "chaos", "contract", "crash", "e2e", "fuzz", "scripts", "spec", "support", "surface"}

NAMELESS = {"util", "utils", "helper", "helpers", "manager", "managers", "base", "common"}

SQL = re.compile(
    r"\b(SELECT\b.+\bFROM|INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|CREATE\s+(TEMP\s+)?TABLE)\b"
    r"|^\s*(select\b.+\bfrom|insert\s+into|update\s+\S+\s+set|delete\s+from|create\s+(temp\s+)?table)\b",
    re.DOTALL,
)

# Traces of one machine. The brackets keep this file from matching itself.
TRACES = re.compile(
    r"/wor[k]/|/far[m]/|\.\./share[d]|steerin[g]|COMPAS[S]\.md|DEVELOPER[S]\.md|files\.pythonhoste[d]|index-ur[l]"
)
NOT_OURS = {".git", ".venv", ".state", ".hypothesis", "__pycache__", "node_modules", "out", "build", "dist"}
NOT_OURS |= {"soak", "unstable-tests.jsonl"}  # What the tests record.


class Module(NamedTuple):
    """One Python file, read and parsed."""

    path: str
    name: str  # deltaci.core.run for src/deltaci/core/run.py
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The part of deltaci this belongs to; empty for the package's own `__init__` and for other code."""
        package, _, rest = self.name.partition(".")
        return rest.partition(".")[0] if package == "deltaci" else ""

    def at(self, node: ast.stmt | ast.expr, problem: str) -> str:
        return f"{self.path}:{node.lineno}: {problem}"


class Import(NamedTuple):
    node: ast.stmt
    target: str  # with the name that `from` takes, as that may be a module: deltaci.storage.sqlite


@cache
def module(path: str, text: str) -> Module:
    parts = Path(path).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(path, name, is_package, text, ast.parse(text, path))


def project(*folders: str) -> Iterator[Module]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield module(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the project, except locks and what git does not keep."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in NOT_OURS and not f.endswith(("_cache", ".egg-info"))]
        for path in sorted(Path(folder, file) for file in files if not file.endswith(".lock") and file not in NOT_OURS):
            try:
                content = path.read_bytes() if path.is_file() else b"\0"
            except FileNotFoundError:  # A temporary file of another process.
                continue
            if b"\0" not in content:
                yield path.relative_to(ROOT).as_posix(), content.decode("utf-8", "replace")


def imports(module: Module) -> Iterator[Import]:
    """Every import with its whole name, also inside functions and `if TYPE_CHECKING`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = [node.module] if node.module else []
            if node.level:
                here = module.name.split(".")
                start = here[: len(here) - node.level + module.is_package] + start
            yield from (Import(node, ".".join([*start, alias.name])) for alias in node.names)


def strings(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Every string that code can use: no docstrings; an f-string as one text, with its holes as `x`."""
    seen: set[ast.AST] = set()
    for node in ast.walk(module.tree):  # outer nodes come first, so a part is marked before it is met
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                seen.add(docstring)
            case ast.JoinedStr(values=parts):
                seen.update(parts)
                yield node, "".join(str(p.value) if isinstance(p, ast.Constant) else "x" for p in parts)
            case ast.Constant(value=str(text)) if node not in seen:
                yield node, text


# --- The checks ----------------------------------------------------------------------------------


def wrong_way_imports(module: Module) -> Iterator[str]:
    for node, target in imports(module):
        if not module.room or not target.startswith("deltaci."):
            continue
        room = target.split(".")[1]
        if module.room not in SEES:
            yield module.at(node, f"'{module.room}' is a new room: say in SEES what it may import")
        elif room in SEES and room not in SEES[module.room] | {module.room, "process"}:
            yield module.at(node, f"{module.room} imports {target}, but imports point down: move the code")


def named_stores(module: Module) -> Iterator[str]:
    if module.room in ("", "storage", "library", "cli", "simulation"):
        return
    names: list[tuple[ast.stmt | ast.expr, str]] = [*imports(module), *strings(module)]
    for node, target in names:
        if re.fullmatch(r"deltaci\.storage(?!\.(?:port|blobs|documents)\b)([.:][\w.:]+)?", target):
            yield module.at(node, f"names {target}: take deltaci.storage.port and let main pass the store")


def impurities(module: Module) -> Iterator[str]:
    if module.room not in PURE_ROOMS:
        return
    excepted = PURE_EXCEPT.get(module.name, set())
    for node, target in imports(module):
        top = target.split(".")[0]
        if top != "deltaci" and top not in PURE_MODULES | excepted:
            yield module.at(node, f"{module.room} imports {top}: pass the value in; if it is pure, allow it here")
        if target == "deltaci.__version__":
            yield module.at(node, "core reads the version: pass the value in")
    for inner in ast.walk(module.tree):
        match inner:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS and not excepted:
                yield module.at(inner, f"core calls {name}(): do it in the shell around core")
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield module.at(inner, "core is never async: decide here, wait in the shell around core")
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))) if not excepted:
                yield module.at(inner, "core has no commands of its own: move this to cli")


def clock_reads(module: Module) -> Iterator[str]:
    """Only the classes of datetime read a clock; a field that is called `now` is a value like any other."""
    if module.room not in PURE_ROOMS:
        return
    clocks = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name == "datetime" or getattr(node, "module", None) == "datetime"
    }
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(attr=read, value=ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name))):
                if read in CLOCK_READS and name in clocks:
                    yield module.at(node, f"core reads the clock ({read}): take the time as an argument")


def sql_texts(module: Module) -> Iterator[str]:
    if module.room in ("", "storage"):
        return
    for node, text in strings(module):
        if SQL.search(text):
            yield module.at(node, "SQL outside storage: add a method to the port, the statement in storage/")


def long_files(module: Module) -> Iterator[str]:
    lines = module.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{module.path}:1: {lines} lines, at most {MAX_FILE_LINES}: split it where two ideas meet"


def long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                problem = f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}: name its steps"
                yield module.at(node, problem)


def nameless_modules(module: Module) -> Iterator[str]:
    for part in set(module.name.split(".")) & NAMELESS:
        yield f"{module.path}:1: '{part}' says nothing about what is in it: name the idea"


def sleeps(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="sleep") | ast.Attribute(attr="sleep")):
                yield module.at(node, "a test sleeps: move the clock, or wait on the event itself")


def traces(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := TRACES.search(line):
            yield f"{path}:{number}: '{found[0]}' belongs to one machine, not to the project: take it out"


def package_list(architecture: str, packages: set[str]) -> Iterator[str]:
    """Yield the differences between the table of packages in ARCHITECTURE.md and the folders of src/deltaci."""
    listed = re.findall(r"^\| `([a-z_/]+)` \|", architecture, re.MULTILINE)
    yield from (
        f"ARCHITECTURE.md:1: `{package}` is not listed: add a line for it" for package in sorted(packages - {*listed})
    )
    yield from (
        f"ARCHITECTURE.md:1: `{package}` does not exist: remove its line" for package in sorted({*listed} - packages)
    )


def unmatched_test_folders(folders: set[str], packages: set[str]) -> Iterator[str]:
    """Yield the folders of tests that neither have the name of a package nor are in OTHER_TESTS."""
    for folder in sorted(folders - packages):
        if folder.split("/")[0] not in OTHER_TESTS:
            yield f"tests/{folder}:1: no package has this name: move the tests to the folder of the package they test"


# --- The tests: each check finds what it is for, and the project has none of it --------------------


def found(check: Callable[[Module], Iterator[str]], path: str, *lines: str) -> list[int]:
    """The numbers of the lines that have a problem, in a planted example."""
    planted = module(path, "".join(f"{line}\n" for line in lines))
    return sorted(int(problem.split(":")[1]) for problem in check(planted))


def assert_none(check: Callable[[Module], Iterator[str]], *folders: str) -> None:
    report([problem for each in project(*folders) for problem in check(each)])


def report(problems: list[str]) -> None:
    assert not problems, f"{len(problems)} untidy:\n" + "\n".join(problems)


def test_a_wrong_way_import_is_found() -> None:
    up = ("from deltaci.engine import engine", "import deltaci.core.run", "from ..server.api import x")

    assert found(wrong_way_imports, "src/deltaci/storage/port.py", *up) == [1, 3]
    assert found(wrong_way_imports, "src/deltaci/protocol/__init__.py", "from ..pipeline import plan") == [1]
    assert found(wrong_way_imports, "src/deltaci/attic/box.py", "import deltaci.core.run") == [1]


def test_imports_point_down() -> None:
    """A lower part that knows a higher one can be neither tested nor replaced alone."""
    assert_none(wrong_way_imports, "src")


def test_a_named_store_is_found() -> None:
    naming = ("from deltaci.storage import sqlite", "import deltaci.storage.port", "f('deltaci.storage.memory')")

    assert found(named_stores, "src/deltaci/engine/engine.py", *naming) == [1, 3]
    assert found(named_stores, "src/deltaci/cli/commands/server.py", *naming) == []


def test_only_who_starts_the_program_names_a_concrete_store() -> None:
    """Whoever names a store binds the rest of the program to it."""
    assert_none(named_stores, "src")


def test_an_impurity_in_core_is_found() -> None:
    impure = ("import uuid", "from os.path import join", "import msgspec", "print(1)", "async def f(): ...")

    assert found(impurities, "src/deltaci/core/run.py", *impure) == [1, 2, 4, 5]
    assert found(impurities, "src/deltaci/pipeline/parse/reader.py", *impure, "import ruamel.yaml") == [1, 2, 4, 5, 6]


def test_core_is_pure() -> None:
    """The same commands must always give the same events, or nothing can be replayed or simulated."""
    assert_none(impurities, "src")


def test_a_clock_read_in_core_is_found() -> None:
    ways_in = ("import datetime as dt", "from datetime import date")
    reading = ("dt.datetime.now()", "date.today()", "command.now")

    assert found(clock_reads, "src/deltaci/core/lease.py", *ways_in, *reading) == [3, 4]


def test_core_reads_no_clock() -> None:
    """Time is a value that comes in with the command; tests move it."""
    assert_none(clock_reads, "src")


def test_sql_outside_store_is_found() -> None:
    prose = ('"""SELECT a FROM b"""', 'x = "Select one from these"')
    sql = ('y = f"SELECT {a} FROM b"', 'z = {1: "delete from t"}')

    assert found(sql_texts, "src/deltaci/engine/queue.py", *prose, *sql) == [3, 4]
    assert found(sql_texts, "src/deltaci/storage/sqlite.py", *prose, *sql) == []


def test_sql_stays_in_store() -> None:
    """A statement elsewhere is a second write path, and one that no contract suite covers."""
    assert_none(sql_texts, "src")


def test_a_long_file_is_found() -> None:
    assert found(long_files, "src/deltaci/config.py", *["x = 1"] * (MAX_FILE_LINES + 1)) == [1]


def test_no_file_is_too_long() -> None:
    """A file that is too long to read at once holds more than one idea."""
    assert_none(long_files, *CODE)


def test_a_long_function_is_found() -> None:
    lines = ("", "def f():", *["    x = 1"] * MAX_FUNCTION_LINES)

    assert found(long_functions, "bench/bench_x.py", *lines) == [2]


def test_no_function_is_too_long() -> None:
    """A function that does not fit on a screen hides its steps."""
    assert_none(long_functions, *CODE)


def test_a_nameless_module_is_found() -> None:
    assert found(nameless_modules, "src/deltaci/common/clock.py") == [1]
    assert found(nameless_modules, "tests/core/utils.py") == [1]


def test_every_module_is_named_after_its_idea() -> None:
    """A name that fits everything collects everything."""
    assert_none(nameless_modules, *CODE)


def test_a_sleep_is_found() -> None:
    assert found(sleeps, "tests/test_x.py", "sleep(1)", "clock.sleep(1)", "sleep = 2") == [1, 2]


def test_no_test_sleeps() -> None:
    """A sleep is either too short on a busy machine or too long on every other."""
    assert_none(sleeps, "tests")


def test_a_trace_of_a_machine_is_found() -> None:
    planted = "fine\nsee /wor" + "k/notes\n--index-ur" + "l=here\n"

    assert [problem.split(":")[1] for problem in traces("README.md", planted)] == ["2", "3"]


def test_no_text_has_traces_of_one_machine() -> None:
    """A path or address of one machine is wrong on every other."""
    report([problem for path, text in texts() for problem in traces(path, text)])


def test_a_difference_between_packages_and_their_list_is_found() -> None:
    table = "| `core` | decides |\n| `core/gone` | no more |\n"

    assert [problem.split("`")[1] for problem in package_list(table, {"core", "engine"})] == ["engine", "core/gone"]


def test_the_architecture_lists_every_package() -> None:
    """A map that is not compared with the land soon shows another one."""
    source = ROOT / "src" / "deltaci"
    packages = {path.parent.relative_to(source).as_posix() for path in source.rglob("__init__.py")} - {"."}

    report(list(package_list((ROOT / "ARCHITECTURE.md").read_text("utf-8"), packages)))


def test_a_test_folder_without_a_package_is_found() -> None:
    problems = unmatched_test_folders({"core", "core/old", "e2e/pages"}, {"core"})

    assert [problem.split(":")[0] for problem in problems] == ["tests/core/old"]


def test_every_test_folder_has_the_name_of_a_package() -> None:
    """The tests of a module must be where a reader of the module looks for them."""
    source, tests = ROOT / "src" / "deltaci", ROOT / "tests"
    packages = {path.parent.relative_to(source).as_posix() for path in source.rglob("__init__.py")}
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}

    report(list(unmatched_test_folders(folders, packages)))


def test_the_maps_name_only_modules_that_exist() -> None:
    """A reader who follows a dead path trusts the rest of the page no more."""
    pages = {name: (ROOT / name).read_text("utf-8") for name in ("ARCHITECTURE.md", "docs/glossary.md")}
    folders = (ROOT / "src" / "deltaci", ROOT)
    report(
        [
            f"{name}:1: `{path}` does not exist: name the module's new place"
            for name, text in pages.items()
            for path in sorted(set(re.findall(r"`([\w/]+\.py)`", text)))
            if not any((folder / path).exists() for folder in folders)
        ]
    )
