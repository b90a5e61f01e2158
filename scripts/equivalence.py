"""Compare the behavior of this working tree with an older commit, after files and names were changed.

    python -m scripts.equivalence                   compare everything with the commit before the renames
    python -m scripts.equivalence --only texts --only data --commit 1234abc

    histories   200 simulated histories have the same digest of events
    data        a database and blob folder written by the old commit are read back through the API and the --json output
                of the command line with equal results (ages, durations and the time of an answer are not compared)
    postgresql  the same with PostgreSQL instead of SQLite
    mixed       old runner and new server, new runner and old server, old client and new server finish a pipeline,
                and a runner of the other commit takes over the folder of the runner
    texts       generated OpenAPI, JSON schemas, protocol, machines and --help are equal

Differences are printed as a unified diff, and make the exit status 1. The old commit runs from a git worktree in the
environment of this one.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import httpx

from scripts.docgen.api_contract import contract
from tests.support.postgres_server import PostgresServer

ROOT: Final = Path(__file__).parent.parent
FIRST_CHANGE: Final = "wire: make stored and sent names independent of Python names"
SEEDS: Final = 200
HOURS: Final = 6
SCHEMAS: Final = ("pipeline.schema.json", "workstream.schema.json")
TEXTS: Final = ("protocol.md", "machines.md", "cli.md")
GENERATED_BY: Final = re.compile("make fix|is written by: python -m")  # How a page is made may change.
TIMEOUT_SECONDS: Final = 300
LIST_COMMANDS: Final = (
    *("runs", "changes", "ws list", "template list", "project list", "workers list", "key list", "secret list"),
    *("whoami", "flaky"),
)
RUN_COMMANDS: Final = ("show", "explain", "outputs", "costs", "artifacts list")

# Run by the old commit: write everything that the pages of the web interface show, and print an API key.
WRITE_DATA: Final = """
import sys
from pathlib import Path
from tests.browser.scene import Scene
scene = Scene(Path(sys.argv[1]))
scene.house._words += tuple(sys.argv[2:])
scene.open()
try:
    print(scene.house.key("ada"))
finally:
    scene.close()
"""
# Run by the old commit: print an operator's token and a runner's registration token for a server's data folder.
PRINT_TOKENS: Final = """
import sys, time
from pathlib import Path
from deltaci.server.credentials import Signer, server_key
from deltaci.server.service import KEY_FILE, registration_token
folder = Path(sys.argv[1])
print(Signer(server_key(folder / KEY_FILE), time.time).sign("operate", "root", "default", 3600))
print(registration_token(folder, "runner-1", "default"))
"""
PLAN: Final = {
    "jobs": [
        {"name": "build", "work": {"steps": ["echo built > out.txt"], "artifacts": [{"path_glob": "out.txt"}]}},
        {"name": "test", "needs": ["build"], "work": {"steps": ["echo tested", {"run": "true", "name": "again"}]}},
        {"name": "broken", "needs": ["test"], "allow_failure": True, "work": {"steps": ["exit 3"]}},
    ]
}


class Source(NamedTuple):
    """A checkout of the program."""

    name: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """Return an environment in which Python finds this checkout first."""
        path = os.pathsep.join((str(self.folder / "src"), str(self.folder)))
        return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "COLUMNS": "100"}

    def command(self, *words: str) -> list[str]:
        """Return the command line of `deltaci` in this checkout."""
        module = "deltaci.main" if (self.folder / "src" / "deltaci" / "main.py").exists() else "deltaci"
        return [sys.executable, "-m", module, *words]

    def openapi(self) -> str:
        """Return the OpenAPI document that this checkout serves; older commits keep it in a file."""
        if (path := self.folder / "docs" / "openapi.json").exists():
            return path.read_text("utf-8")
        code = "from deltaci.api import openapi; print(openapi.openapi_text())"
        return self.run([sys.executable, "-c", code])

    def run(self, command: list[str], cwd: Path | None = None, **environment: str) -> str:
        """Run a command with this checkout, which must succeed, and return its output."""
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env={**self.environment(), **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT_SECONDS * 4,
        )
        return done.stdout

    @contextmanager
    def started(self, *words: str, cwd: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Run `deltaci` in the background, and stop it in the end."""
        with open(cwd / f"{self.name}-{words[0]}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.command(*words),
                cwd=cwd,
                env={**self.environment(), **environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_SECONDS)

    @contextmanager
    def server(self, data: Path, *options: str) -> Iterator[str]:
        """Run a server on a data folder; the URL at which it listens."""
        words = ("server", "--data", str(data), "--host", "127.0.0.1", "--port", "0", "--allow-repositories", "file")
        with self.started(*words, *options, cwd=data) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "listening on" in line, f"the {self.name} server did not start; see {data}/{self.name}-server.log"
            yield line.split()[-1]


# -- histories


def compare_histories(old: Source, new: Source) -> Iterator[str]:
    """Play the same seeds with both commits, and return the differences."""
    words = ("sim", "--json", "--no-shrink", "--seed", "0", "--seeds", str(SEEDS), "--hours", str(HOURS))
    processes = [
        subprocess.Popen(each.command(*words), env=each.environment(), stdout=subprocess.PIPE, text=True)
        for each in (old, new)
    ]
    histories = [
        [{key: line.get(key) for key in ("seed", "digest", "invariant")} for line in map(json.loads, output[:-1])]
        for output in (process.communicate()[0].splitlines() for process in processes)
    ]
    assert len(histories[0]) == SEEDS
    yield from diff("histories", *(list(map(json.dumps, each)) for each in histories))


# -- data


def compare_data(old: Source, new: Source) -> Iterator[str]:
    """Compare what both commits read from an SQLite database, which is in the data folder."""
    yield from compare_stored(old, new, (), lambda: ())


def compare_postgresql(old: Source, new: Source) -> Iterator[str]:
    """Compare what both commits read from a PostgreSQL database."""
    with PostgresServer() as postgres:
        dsn = postgres.create_database()
        database = urlsplit(dsn).path.strip("/")
        yield from compare_stored(
            old, new, ("--store", dsn), lambda: ("--store", postgres.create_database(template=database))
        )


def compare_stored(
    old: Source, new: Source, options: tuple[str, ...], copy_options: Callable[[], tuple[str, ...]]
) -> Iterator[str]:
    """Let the old commit write data, read it with servers and commands of both commits, and return the differences.

    `options` are those of the server that writes. `copy_options` copies its store and returns those of a server that
    reads the copy.
    """
    with tempfile.TemporaryDirectory() as folder:
        key = old.run([sys.executable, "-c", WRITE_DATA, folder, *options]).strip()
        results: list[dict[str, list[str]]] = []
        for source in (old, new):
            copy = Path(folder, f"read-by-{source.name}")
            shutil.copytree(Path(folder, "house"), copy)
            with (
                source.server(copy, *copy_options()) as url,
                httpx.Client(base_url=url, trust_env=False, timeout=60) as client,
            ):
                client.headers["Authorization"] = f"Bearer {key}"
                results.append(dict(crawl(client)))
                results[-1] |= command_outputs(source, client, DELTACI_SERVER=url, DELTACI_KEY=key)
        print(f"data: {len(results[0])} responses and outputs, {sum(map(len, results[0].values())):,} lines")
        assert len(results[0]) > 150
        for name in sorted(results[0].keys() | results[1].keys()):
            yield from diff(name, *(result.get(name, ["missing"]) for result in results))


def command_outputs(source: Source, client: httpx.Client, **environment: str) -> dict[str, list[str]]:
    """Return the output of the commands that show data as JSON, by command line."""
    run_ids = [example["run"] for example in find_examples(client) if example.keys() == {"run"}]
    lines = [*LIST_COMMANDS, *(f"{command} {run_id}" for run_id in run_ids for command in RUN_COMMANDS)]
    outputs = {}
    for line in lines:
        output = source.run(source.command(*line.split(), "--json"), None, **environment)
        documents = [json.loads(text) for text in ([output] if output.startswith("{\n") else output.splitlines())]
        texts = [text for document in documents for text in json.dumps(document, indent=1, sort_keys=True).splitlines()]
        outputs[f"deltaci {line} --json"] = list(map(without_variable_values, texts))
    return outputs


def crawl(client: httpx.Client) -> Iterator[tuple[str, list[str]]]:
    """Read every address of the API that has an example; return its path and the lines of its answer."""
    seen = set[str]()
    description = client.get("/openapi.json").json()
    examples = find_examples(client)
    for template, operations in sorted(description["paths"].items()):
        if "get" not in operations or "/api/v1" not in template:
            continue
        for path in filled(template, examples):
            if path not in seen:
                seen.add(path)
                answer = client.get(path)
                is_json = "json" in answer.headers.get("content-type", "")
                lines = json.dumps(answer.json(), indent=1, sort_keys=True).splitlines() if is_json else []
                body = lines or answer.text.splitlines()
                yield path, [str(answer.status_code), *map(without_variable_values, body)]


def find_examples(client: httpx.Client) -> list[dict[str, str]]:
    """Return example values for the parameters of addresses, each together with the ids of its parents."""

    def read(path: str, name: str) -> list[Any]:
        found: list[Any] = client.get(f"/api/v1{path}").raise_for_status().json()[name]
        return found

    found: list[dict[str, str]] = [{}]
    found += [{"project": each["name"]} for each in read("/projects", "projects")]
    found += [{"change": each["id"]} for each in read("/changes", "changes")]
    found += [{"worker": each["name"]} for each in read("/workers", "workers")]
    found += [{"key": each["id"]} for each in read("/keys", "keys")]
    found += [{"workstream": each["id"]} for each in read("/workstreams", "workstreams")]
    for template in read("/templates", "templates"):
        found += [{"template": template["name"], "version": str(number)} for number in (1, 2, 3)]
    for run in read("/runs?limit=200", "runs"):
        found.append({"run": run["id"]})
        for job in client.get(f"/api/v1/runs/{run['id']}").json()["jobs"]:
            for attempt in job.get("tries") or [{}]:
                values = {"run": run["id"], "job": job["name"], "index": str(attempt.get("index", 1))}
                found.append(values)
                listed = client.get(f"/api/v1/runs/{run['id']}/jobs/{job['name']}/attempts/{values['index']}/artifacts")
                for artifact in listed.json().get("artifacts", []) if listed.is_success else []:
                    found.append(values | {"path": artifact["path"]})
    return found


def filled(template: str, examples: list[dict[str, str]]) -> Iterator[str]:
    """Return the addresses that a template makes with each example that has all its parameters."""
    template = template.replace("*}", "}")
    names = re.findall(r"\{([^}]+)\}", template)
    for example in examples:
        if set(names) <= example.keys() and (names or not example):
            path = template
            for name in names:
                path = path.replace(f"{{{name}}}", quote(example[name]))
            yield path


def without_variable_values(line: str) -> str:
    """Replace the values that may differ: sentences, the id of a refused request, ages, and the time of the answer."""
    line = re.sub(r'^( *"(?:text|summary|message|condition|why)": )".*"(,?)$', r'\1"…"\2', line)
    line = re.sub(r'^ "request_id": "[0-9a-f]{16}"', ' "request_id": "…"', line)
    line = re.sub(r'("(?:now|at|as_of|seen_at|heard_at|last_heartbeat_at)": )"[^"]*"', r'\1"…"', line)
    line = re.sub(r'^( *"seconds": )\d+\.\d+', r"\1…", line)  # A run without its runner goes on getting older.
    return re.sub(r"\b\d+(?:\.\d+)? ?(?:s|min|h|seconds|minutes)\b", "… s", line)


# -- mixed


def compare_mixed(old: Source, new: Source) -> Iterator[str]:
    """Run a pipeline with each mix of versions; return a line for each run with an unexpected result."""
    for server, runner, client in ((new, old, new), (old, new, old), (new, new, old), (old, old, old)):
        name = f"{server.name} server, {runner.name} runner, {client.name} client"
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            data = Path(folder)
            (data / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
            url = stack.enter_context(server.server(data))
            operator, token = old.run([sys.executable, "-c", PRINT_TOKENS, folder]).split()
            words = ("runner", "--server", url, "--work", str(data / "work"))
            first = stack.enter_context(runner.started(*words, cwd=data, DELTACI_TOKEN=token))
            answer = httpx.post(
                f"{url}/api/v1/keys",
                json={"person": "ada", "scopes": ["admin"]},
                headers={"Authorization": f"Bearer {operator}"},
                trust_env=False,
            )
            known = {"DELTACI_SERVER": url, "DELTACI_KEY": answer.raise_for_status().json()["token"]}
            ended = json.loads(client.run(client.command("submit", "plan.json", "--wait", "--json"), data, **known))
            states = {job["name"]: job["state"] for job in ended["jobs"]}
            print(f"mixed: {name}: {ended['status']} {states}")
            if (ended["status"], states["broken"]) != ("SUCCEEDED", "FAILED"):
                yield f"{name}: {ended}"
            first.terminate()
            first.wait(TIMEOUT_SECONDS)
            # Its folder is taken over by a runner of the other commit, which has no registration token.
            stack.enter_context((old if runner is new else new).started(*words, cwd=data))
            again = json.loads(client.run(client.command("submit", "plan.json", "--wait", "--json"), data, **known))
            if again["status"] != "SUCCEEDED":
                yield f"{name}, with the other runner in its folder: {again}"


# -- texts


def undescribed(schema: Any) -> Any:
    """Return a JSON schema without descriptions, which may be reworded."""
    if isinstance(schema, dict):
        return {
            key: undescribed(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [undescribed(element) for element in schema] if isinstance(schema, list) else schema


def compare_texts(old: Source, new: Source) -> Iterator[str]:
    """Return the differences of the generated documents, which `make check` compares with the code."""
    yield from diff("API contract", *(contract(json.loads(each.openapi())) for each in (old, new)))
    for name in SCHEMAS:
        schemas = [json.loads((each.folder / "docs" / name).read_text("utf-8")) for each in (old, new)]
        yield from diff(name, *(json.dumps(undescribed(schema), indent=1).splitlines() for schema in schemas))
    for name in TEXTS:
        pages = [
            next(path for path in sorted((each.folder / "docs").rglob(name)) if "adr" not in path.parts)
            for each in (old, new)
        ]
        texts = [page.read_text("utf-8").splitlines() for page in pages]
        old_lines, new_lines = ([line for line in text if not GENERATED_BY.search(line)] for text in texts)
        yield from diff(name, old_lines, new_lines)


# -- all of them

COMPARISONS: Final = {
    "texts": compare_texts,
    "mixed": compare_mixed,
    "data": compare_data,
    "postgresql": compare_postgresql,
    "histories": compare_histories,
}


def base_commit() -> str:
    """Return the commit before the one that froze the formats, which is found by its title: a rebase changes hashes."""
    command = ["git", "log", "--format=%H", "--fixed-strings", f"--grep={FIRST_CHANGE}"]
    commits = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if not commits:
        sys.exit(f"found no commit '{FIRST_CHANGE}'; expected a full clone, or --commit")
    return f"{commits[-1]}^"


def diff(name: str, old: list[str], new: list[str]) -> Iterator[str]:
    """Return a unified diff, line by line; nothing if both are equal."""
    yield from difflib.unified_diff(old, new, f"old {name}", f"new {name}", n=1, lineterm="")


def main() -> int:
    """Compare what was asked for; return 1 if something differs."""
    parser = argparse.ArgumentParser(
        prog="scripts.equivalence", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--commit", help="the older commit (default: the one before the renames)")
    parser.add_argument("--only", action="append", choices=COMPARISONS, help="one comparison; may be repeated")
    options = parser.parse_args()
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder, "old")
        add = ["git", "worktree", "add", "--quiet", "--detach", str(worktree), options.commit or base_commit()]
        subprocess.run(add, cwd=ROOT, check=True)
        try:
            old, new = Source("old", worktree), Source("new", ROOT)
            for name in options.only or COMPARISONS:
                lines = list(COMPARISONS[name](old, new))
                print("\n".join([*lines, f"{name}: {'equal' if not lines else f'{len(lines)} lines of differences'}"]))
                differences += len(lines)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(worktree)], cwd=ROOT, check=True)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
