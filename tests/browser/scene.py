"""A house in which everything happens that pages show: made once, by real jobs, and looked at by many."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.browser.house import House, gate, task
from tests.support.upstream import Upstream

REPORT: Final = (
    "cat > report.xml <<'END'\n<testsuite name='shop'>"
    "<testcase classname='shop.cart' name='test_a_cart_adds_up' time='0.31'/>"
    "<testcase classname='shop.cart' name='test_a_cart_can_be_emptied' time='0.12'/>"
    "<testcase classname='shop.search' name='test_umlauts_are_found' time='1.4'>{}</testcase>"
    "<testcase classname='shop.search' name='test_nothing_is_found' time='0.02'><skipped message='later'/></testcase>"
    "</testsuite>\nEND"
)
FAILURE: Final = "<failure message='Käse is not found'>AssertionError: expected 1 result, found 0</failure>"
TESTED: Final = "".join(
    f"printf 'tests/test_{name}.py {dots} \\033[32m[{part:3} %%]\\033[0m\\n'; "
    for name, dots, part in (("cart", "...........", 31), ("orders", ".......", 52), ("prices", "....s....", 77))
)
FAILED: Final = (
    r"printf 'tests/test_search.py ..\033[31mF\033[0m..... \033[31m[100 %%]\033[0m\n\n'; "
    r"printf '\033[1m____ test_umlauts_are_found ____\033[0m\n\n'; "
    r"printf '>   assert [each.name for each in search(\"Käse\")] == [\"Käse\"]\n'; "
    r"printf '\033[31mE   AssertionError: assert [] == [\"Käse\"]\033[0m\n\n'; "
    r"printf '\033[31mFAILED\033[0m test_umlauts_are_found\n\033[31m1 failed, 35 passed in 1.86 s\033[0m\n'; exit 1"
)
BUILD: Final = (
    "printf '\\033[1mcompiling\\033[0m 214 modules\\n'; mkdir -p dist; for n in 1 2 3 4 5 6 7 8; do "
    "printf '  \\033[32m✓\\033[0m shop/module_%s.py\\n' $n; done; head -c 4096 /dev/zero > dist/shop.tar.gz; "
    "printf '\\033[33mwarning:\\033[0m catalogue.py: unused import\\n'; printf 'built dist/shop.tar.gz\\n'"
)
WORKSTREAM: Final = """\
workstream: {name}
title: {title}
executor: process
tasks:
  - name: write
    run: {run}
  - name: check
    needs: write
    run: test -e {name}.txt
"""


def steps(name: str, *all: dict[str, str], needs: list[str]) -> dict[str, Any]:
    """A job whose steps have names."""
    job = task(name, needs=needs)
    job["work"]["steps"] = list(all)
    return job


def kept(job: dict[str, Any], *patterns: str, junit: bool = False) -> dict[str, Any]:
    """The job, with files that it leaves behind."""
    found = [{"path_glob": pattern} for pattern in patterns]
    job["work"]["artifacts"] = [*found, *([{"path_glob": "report.xml", "type": "junit"}] if junit else [])]
    return job


def pipeline(failure: str = "") -> list[dict[str, Any]]:
    """A project's jobs; with this in a test report, that fails."""
    tested = {"name": "make test", "run": f"{TESTED} {FAILED if failure else 'true'}"}
    first = {"name": "make deps", "run": "printf 'all there\\n'"}
    writes = [{"name": "write the report", "run": REPORT.format(each)} for each in ("", failure)]
    return [
        task("lint", "printf 'all checks passed\\n'", needs=[]),
        kept(steps("build", first, {"name": "make build", "run": BUILD}, needs=[]), "dist/*"),
        kept(steps("test (3.11)", first, writes[0], needs=["build"]), junit=True),
        kept(steps("test (3.13)", first, writes[1], tested, needs=["build"]), junit=True),
        task("docs", "printf 'docs\\n'", needs=["lint"]),
        task("package", "printf 'packed\\n'", needs=["test (3.11)", "test (3.13)", "docs"]),
    ]


class Scene:
    """`ids` is what the addresses of pages leave open, by its name there."""

    def __init__(self, folder: Path) -> None:
        self.house = House(folder / "house", "--allow-repositories", "file")
        self.house.folder.mkdir()
        self.door = folder / "go-on"
        # No browser breaks such a name by itself.
        self.upstream = Upstream(folder / "upstream_with_a_name_that_is_rather_long")
        self.ids: dict[str, str] = {}

    def open(self) -> Scene:
        """Make all of it, and wait until it is so."""
        house = self.house.open(slots=0)
        house.start_runner("build-1", "--slots", "6", "--labels", "linux,x86", DELTACI_GIT_PROTOCOLS="file")
        self._write()
        shop = {"project": "shop", "branch": "main", "commit": "5f0c1a2b9d" * 4}
        green = house.start(*pipeline(), title="Let people search for what they want", **shop)
        failed = house.start(*pipeline(FAILURE), title="Find Käse by its name", **{**shop, "branch": "umlauts"})
        gated = house.start(
            task("build", needs=[]), gate("release", ["build"]), task("deploy", needs=["release"]),
            title="Release 2.4", person="bob", **shop,
        )  # fmt: skip
        stays = f"printf 'waiting for the database\\n'; while [ ! -e {self.door} ]; do sleep 0.2; done"
        running = house.start(
            task("prepare", needs=[]), task("migrate", stays, needs=["prepare"]), task("verify", needs=["migrate"]),
            title="Move the catalogue to the new schema", **shop,
        )  # fmt: skip
        queued = house.start(task("train", needs=[], runs_on=["gpu"]), title="Train the ranking", project="shop")
        held = f"while [ ! -e {self.door} ]; do sleep 0.2; done; "
        ending: list[str] = []  # They would change pages while these are looked at.
        for name, first in (("search", held), ("prices", ""), ("pictures", "exit 3; "), ("letters", held)):
            text = WORKSTREAM.format(name=name, title=f"Better {name}", run=f"{first}echo {name} > {name}.txt")
            found = house.ask("POST", "/workstreams", {"file": text, "project": "shop"}, token=house.key("ada"))
            self.ids.setdefault("workstream", found["id"])
            if not first.startswith("while"):
                ending.append(found["id"])
        self.ids |= {"run": failed, "job": "test (3.13)", "green": green, "gated": gated, "running": running}
        self.ids |= {"queued": queued}
        for run, statuses in ((green, ("SUCCEEDED",)), (failed, ("FAILED",)), (gated, ("WAITING_APPROVAL",))):
            house.until(run, *statuses)
        for run in ending:
            house.until(run)
        house.until(running, "RUNNING")
        self.ids["worker"] = house.ask("GET", "/workers")["workers"][0]["name"]
        return self

    def _write(self) -> None:
        """What people wrote: a project, a template, a secret, keys."""
        ask = self.house.ask
        ask("PUT", "/projects/shop", {"url": self.upstream.url, "default_branch": "main"})
        inputs = {"env": {"description": "where to", "choices": ["staging", "production"], "default": "staging"}}
        plan = {"jobs": [task("deploy", "printf 'to %s\\n' \"$INPUT_ENV\"")]}
        for text in ("Deploy it", "Deploy it, with care"):
            ask("PUT", "/templates/deploy", {"plan": plan, "description": text, "inputs": inputs})
        ask("PUT", "/secrets/SHOP_TOKEN", {"value": "not for anybody"})
        self.house.key("bob", "run", "approve", roles=("release",))
        keys = ask("GET", "/keys")["keys"]
        self.ids |= {"project": "shop", "template": "deploy", "version": "1", "key": keys[0]["id"]}

    def close(self) -> None:
        """Let what waits end, and end all of it."""
        self.door.touch()
        self.house.close()
