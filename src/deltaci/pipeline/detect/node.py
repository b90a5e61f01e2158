"""Node: the scripts of package.json, with the package manager that its lock file belongs to.

Only names of scripts that are listed here come into a command, never the text of one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project, quoted
from deltaci.pipeline.detect.tree import Place, dig, table, texts, word

ECOSYSTEM: Final = "node"
MANIFEST: Final = "package.json"
TESTS: Final = ("test", "test:ci", "ci:test", "test-ci", "test:unit", "unit", "test:all", "tests")
LINTS: Final = ("lint", "lint:check", "lint:ci", "eslint", "lint:js", "lint:all")
TYPES: Final = (
    *("typecheck", "type-check", "check-types", "check:types", "types:check", "ts:check", "test:types", "test-types"),
    *("tsc", "lint:types", "lint:ts", "test:ts", "test:typescript", "types"),
)
FORMATS: Final = ("format:check", "format-check", "check-format", "check:format", "prettier:check", "prettier-check")
BUILDS: Final = ("build", "compile", "dist", "build:all")
BROWSER: Final = re.compile(r"playwright|cypress|puppeteer|karma|\bng test|webdriver|wdio|testcafe|selenium|storybook")
WATCHES: Final = re.compile(r"--watch(?!\s*=\s*false|All=false|-?all=false)\b|\bng test(?!.*watch=false)|\bnodemon\b")
NO_TESTS: Final = re.compile(
    r"no tests?\b[^&|;]*(specified|yet|available)|^\s*(echo\b[^&|;]*(&&\s*)?)?(exit [01]|true|:)?\s*$", re.I
)
CALLS_BUILD: Final = re.compile(
    r"\b(?:run|yarn|pnpm|bun|npm|run-s|turbo)\s+(?:build|compile)(?![\w:-])|\btsc\b(?!.*--noEmit)"
)
MAX_MEMBERS: Final = 30
MAX_SCRIPT: Final = 2000
MAX_PATTERNS: Final = 200
# What runs tests and nothing else; whether other commands do more is not to be seen.
RUNNERS: Final = re.compile(
    r"\b(jest|vitest|mocha|ava|tap|tape|node --test|jasmine|c8|nyc|uvu|lab|qunit|bun test|react-scripts)\b"
)
WORKSPACE_FILES: Final = ("pnpm-workspace.yaml", "lerna.json", "rush.json")
MADE: Final = re.compile(r"(?:\./)?(dist|lib|build|out|cjs|esm|es|bin|umd|output|target|packages)/")


class Manager(Struct, frozen=True, kw_only=True):
    """A package manager: how it installs and how it runs a script."""

    name: str
    install: str
    evidence: str
    prepare: tuple[str, ...] = ()
    lock: str | None = None
    cache: str | None = None
    env: dict[str, str] = {}

    def run(self, script: str) -> str:
        """The command that runs a script."""
        return f"{self.name} {'test' if script == 'test' and self.name != 'bun' else f'run {script}'}"


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a Node project."""
    return name in (MANIFEST, "pnpm-workspace.yaml", "lerna.json", ".nvmrc", ".node-version", "rush.json", "deno.json")


def find(place: Place) -> Project | None:
    """The Node project of this folder, if there is one."""
    if not place.has(MANIFEST):
        return None
    package = place.json(MANIFEST)
    scripts = {name: word(each)[:MAX_SCRIPT] for name, each in table(package, "scripts").items()}
    if not package:
        return None
    manager = _manager(place, package)
    if place.has("rush.json"):
        told = "there is rush.json: the projects of a Rush repository are built by Rush itself"
        return Project(ecosystem=ECOSYSTEM, folder=place.folder, unclear=(told,))
    drafts = [*_build(place, package, scripts, manager), *_test(place, package, scripts, manager)]
    drafts += _lint(place, package, scripts, manager)
    unclear = () if drafts else ("package.json has no script that tests, builds or checks anything",)
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=tuple(drafts), unclear=unclear)


def members(place: Place) -> tuple[str, ...]:
    """The patterns of folders that belong to this one as workspaces."""
    found = dig(place.json(MANIFEST), "workspaces")
    found = texts(found) or texts(dig(found, "packages"))
    found += texts(dig(place.json("lerna.json"), "packages"))
    is_inside = False
    for line in place.text("pnpm-workspace.yaml").splitlines()[:1000]:
        if re.match(r"[^\s#-]", line):
            is_inside = line.startswith("packages:")
        elif is_inside and (item := re.match(r"""[ \t]*-[ \t]*["']?([^"'#\s]+)""", line[:MAX_SCRIPT])):
            found.append(item[1])
    return tuple(found[:MAX_PATTERNS])


def is_workspace(place: Place) -> bool:
    """Whether packages below belong to this one."""
    return bool(members(place)) or place.has(*WORKSPACE_FILES) is not None


# -- the package manager


def _manager(place: Place, package: dict[str, Any]) -> Manager:
    named = re.match(r"(npm|yarn|pnpm|bun)@(\d+)", word(package.get("packageManager")))
    lock = place.has("pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb", "package-lock.json", "npm-shrinkwrap.json")
    by_lock = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"}
    name = named[1] if named else by_lock.get(lock or "", "npm")
    evidence = (
        "package.json names it as packageManager" if named else f"there is {lock}" if lock else "there is no lock file"
    )
    is_frozen = lock is not None and by_lock.get(lock, "npm") == name
    if name == "npm":
        install = "npm ci" if is_frozen else "npm install --no-audit --no-fund"
        return Manager(
            name=name,
            install=install,
            evidence=evidence,
            lock=lock if is_frozen else MANIFEST,
            cache=".npm",
            env={"npm_config_cache": ".npm"},
        )
    if name == "bun":
        install = "bun install --frozen-lockfile" if is_frozen else "bun install"
        return Manager(name=name, install=install, evidence=evidence, lock=lock, cache="node_modules")
    if name == "yarn" and (place.has(".yarnrc.yml") or (named and int(named[2]) > 1)):
        frozen = " --immutable" if is_frozen else ""
        return Manager(name=name, install=f"yarn install{frozen}", evidence=evidence, prepare=("corepack enable",))
    frozen = " --frozen-lockfile" if is_frozen else ""
    return Manager(
        name=name,
        install=f"{name} install{frozen}",
        evidence=evidence,
        prepare=("corepack enable",),
        lock=lock if is_frozen else None,
        cache="node_modules",
    )


def _draft(
    place: Place,
    manager: Manager,
    *,
    task: str,
    what: str,
    steps: tuple[str, ...],
    evidence: tuple[str, ...],
    confidence: Confidence = SURE,
    reason: str = "",
    artifacts: tuple[model.Artifact, ...] = (),
    hints: tuple[str, ...] = (),
) -> Draft:
    caches: tuple[model.Cache, ...] = ()
    if manager.cache and manager.lock:
        key = f"{manager.name}-{{lock_hash}}"
        caches = (model.Cache(key=key, paths=(place.path(manager.cache),), lock_files=(place.path(manager.lock),)),)
    return Draft(
        task=task,
        what=what,
        confidence=confidence,
        reason=reason,
        artifacts=artifacts,
        caches=caches,
        hints=hints,
        evidence=(*evidence, f"{manager.name}: {manager.evidence}"),
        env={"CI": "true", **manager.env},
        steps=(*manager.prepare, manager.install, *steps),
    )


# -- the jobs


def _script(scripts: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if scripts.get(name, "").strip()), None)


def _says(name: str, scripts: dict[str, str]) -> str:
    return f"package.json has the script {name!r}: {quoted(scripts[name])}"


def _test(place: Place, package: dict[str, Any], scripts: dict[str, str], manager: Manager) -> list[Draft]:
    real = {name: each for name, each in scripts.items() if not NO_TESTS.search(each)}
    name = _script({each: text for each, text in real.items() if not WATCHES.search(text)}, TESTS)
    if name is None and (watching := _script(real, TESTS)):
        return [_watching(place, watching, scripts, manager)]
    if name is None:
        return _tests_of_members(place, package, scripts, manager)
    text = _unfolded(name, scripts)
    doubt = _doubt(place, package, name, text)
    before = _built_first(place, package, scripts, text)
    command, artifacts = _with_report(place, manager, name, scripts[name])
    steps = (*((manager.run(before),) if before else ()), command)
    return [
        _draft(
            place,
            manager,
            task="test",
            what="Node tests",
            steps=steps,
            evidence=(_says(name, scripts),),
            confidence=LIKELY if doubt else SURE,
            reason=doubt,
            artifacts=artifacts,
            hints=_engines(place, package),
        )
    ]


def _doubt(place: Place, package: dict[str, Any], name: str, text: str) -> str:
    """Why a script may fail here although nothing is wrong; nothing, if that is not to be expected."""
    has_browser = any(BROWSER.search(each) for each in table(package, "devDependencies"))
    if BROWSER.search(text):
        return "the script mentions a browser, which the machine must have"
    if has_browser and (not RUNNERS.search(text) or "e2e" in text):
        return "it has packages that drive a browser, which the machine must have"
    if not RUNNERS.search(text):
        return "what the script does is not to be seen from its text"
    if name != "test":
        return "there is no script 'test', and this may be only a part of the tests"
    return "packages of a workspace may have to be built first" if is_workspace(place) else ""


def _watching(place: Place, name: str, scripts: dict[str, str], manager: Manager) -> Draft:
    """A script that looks for changes; only Angular's is known well enough to be told not to."""
    is_angular = scripts[name].strip() == "ng test"
    dashes = " --" if manager.name == "npm" else ""
    options = f"{dashes} --watch=false --browsers=ChromeHeadless" if is_angular else ""
    never = "the script watches files and may never end"
    return _draft(
        place,
        manager,
        task="test",
        what="Angular tests" if is_angular else "Node tests",
        steps=(f"{manager.run(name)}{options}",),
        evidence=(_says(name, scripts),),
        confidence=LIKELY if is_angular else UNSURE,
        reason="they run in Chrome, which the machine must have" if is_angular else never,
    )


def _unfolded(name: str, scripts: dict[str, str]) -> str:
    """A script with those that it calls, a few levels deep."""
    text = scripts[name]
    for _ in range(3):
        called = {
            each
            for each in re.findall(r"(?:run|yarn|pnpm|bun|run-[sp]|npm-run-all)\s+([\w:.-]+)", text)
            if each in scripts
        }
        text += "".join(f"\n{scripts[each]}" for each in sorted(called) if scripts[each] not in text)
        text = text[:10_000]
    return text


def _built_first(place: Place, package: dict[str, Any], scripts: dict[str, str], test: str) -> str | None:
    """The script that must run before the tests: what the package offers is made by it, and is not in the tree."""
    build = _script(scripts, BUILDS)
    if build is None or CALLS_BUILD.search(test) or "build" in scripts.get("pretest", ""):
        return None
    if _is_made("", package, place):
        return build
    parts = [path for path in place.below(r".*/package\.json") if is_workspace(place)][:MAX_MEMBERS]
    return build if any(_is_made(path.removesuffix(MANIFEST), place.json(path), place) for path in parts) else None


def _is_made(folder: str, package: dict[str, Any], place: Place) -> bool:
    """Whether something that the package offers lies in a folder that is made, as it is not in the tree."""
    entries = [word(package.get(key)) for key in ("main", "module", "types")]
    entries += texts(package.get("bin")) or texts(list(table(package, "bin").values()))
    made = {folder + found[1] for entry in entries if (found := MADE.match(entry))}
    return any(not place.has_folder(each) for each in sorted(made))


def _with_report(place: Place, manager: Manager, name: str, script: str) -> tuple[str, tuple[model.Artifact, ...]]:
    """A script that is vitest and nothing else can be told to write a report as well."""
    if not re.fullmatch(r"vitest( run)?( --(coverage|silent|run))*", script.strip()):
        return manager.run(name), ()
    dashes = " --" if manager.name == "npm" else ""
    report = "--reporter=default --reporter=junit --outputFile.junit=test-results.xml"
    made = model.Artifact(path=place.path("test-results.xml"), type="junit")
    return f"{manager.run(name)}{dashes} {report}", (made,)


def _tests_of_members(place: Place, package: dict[str, Any], scripts: dict[str, str], manager: Manager) -> list[Draft]:
    """A workspace whose root has no tests: its tool knows how to run those of all packages."""
    if not is_workspace(place):
        return []
    every = {"npm": "npm test --workspaces --if-present", "pnpm": "pnpm -r --if-present test"}
    if place.has("turbo.json"):
        command, told = f"{_execute(manager)} turbo run test", "there is turbo.json"
    elif place.has("nx.json"):
        command, told = f"{_execute(manager)} nx run-many -t test", "there is nx.json"
    elif manager.name in every:
        command, told = every[manager.name], "package.json is that of a workspace"
    elif place.has("lerna.json"):
        command, told = f"{_execute(manager)} lerna run test", "there is lerna.json"
    else:
        return []
    return [
        _draft(
            place,
            manager,
            task="test",
            what="Node tests of all packages",
            steps=(command,),
            evidence=(told,),
            confidence=LIKELY,
            reason="packages of a workspace may have to be built first",
        )
    ]


def _execute(manager: Manager) -> str:
    return {"npm": "npx", "yarn": "yarn", "pnpm": "pnpm exec", "bun": "bunx"}[manager.name]


def _build(place: Place, package: dict[str, Any], scripts: dict[str, str], manager: Manager) -> list[Draft]:
    name = _script(scripts, BUILDS)
    if name is None or NO_TESTS.search(scripts[name]):
        return []
    is_usual = name == "build" and not re.search(r"docker|deploy|publish", scripts[name])
    return [
        _draft(
            place,
            manager,
            task="build",
            what="Node build",
            steps=(manager.run(name),),
            evidence=(_says(name, scripts),),
            confidence=SURE if is_usual else LIKELY,
            reason="" if is_usual else "it may do more than build, or need more than the packages",
        )
    ]


def _lint(place: Place, package: dict[str, Any], scripts: dict[str, str], manager: Manager) -> list[Draft]:
    names = [name for kind in (LINTS, TYPES, FORMATS) if (name := _script(scripts, kind))]
    if _script(scripts, TYPES) is None and re.match(r"(vue-)?tsc\b", scripts.get("check", "")):
        names.append("check")
    names = [
        name
        for name in dict.fromkeys(names)
        if not WATCHES.search(scripts[name]) and not NO_TESTS.search(scripts[name])
    ]
    if not names:
        return []
    fixes = any("--fix" in scripts[name] or "--write" in scripts[name] for name in names)
    is_group = any("*" in scripts[name] and "run" in scripts[name] for name in names)
    is_workspace_of_parts = is_workspace(place)
    doubt = (
        "it repairs what it finds, and may not fail" if fixes else "packages of a workspace may have to be built first"
    )
    doubt = "some of the scripts that it runs may look at what is built" if is_group and not fixes else doubt
    is_sure = not fixes and not is_workspace_of_parts and not is_group
    return [
        _draft(
            place,
            manager,
            task="lint",
            what="Node linters",
            steps=tuple(manager.run(name) for name in names),
            evidence=tuple(_says(name, scripts) for name in names),
            confidence=SURE if is_sure else LIKELY,
            reason="" if is_sure else doubt,
        )
    ]


def _engines(place: Place, package: dict[str, Any]) -> tuple[str, ...]:
    wanted = word(dig(package, "engines", "node"))
    pinned = place.has(".nvmrc", ".node-version")
    told = (f"it wants Node {quoted(wanted)}",) if wanted else ()
    return (
        (*told, f"{pinned} pins the version of Node: {{uses: setup-node, with: {{node-version-file: {pinned}}}}}")
        if pinned
        else told
    )
