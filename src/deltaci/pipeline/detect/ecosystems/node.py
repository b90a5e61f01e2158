"""Detect Node projects: the scripts of package.json, run by the package manager of the lock file.

Commands contain only script names that are listed here, never the text of a script.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, Confidence, JobDraft, Project, quoted
from deltaci.pipeline.detect.tree import Folder, get_nested, get_table, string_list, string_or_empty

ECOSYSTEM: Final = "node"
MANIFEST: Final = "package.json"
TEST_SCRIPTS: Final = ("test", "test:ci", "ci:test", "test-ci", "test:unit", "unit", "test:all", "tests")
LINT_SCRIPTS: Final = ("lint", "lint:check", "lint:ci", "eslint", "lint:js", "lint:all")
TYPE_SCRIPTS: Final = (
    *("typecheck", "type-check", "check-types", "check:types", "types:check", "ts:check", "test:types", "test-types"),
    *("tsc", "lint:types", "lint:ts", "test:ts", "test:typescript", "types"),
)
FORMAT_SCRIPTS: Final = (
    "format:check",
    "format-check",
    "check-format",
    "check:format",
    "prettier:check",
    "prettier-check",
)
BUILD_SCRIPTS: Final = ("build", "compile", "dist", "build:all")
BROWSER_TOOLS: Final = re.compile(
    r"playwright|cypress|puppeteer|karma|\bng test|webdriver|wdio|testcafe|selenium|storybook"
)
WATCH_MODE: Final = re.compile(
    r"--watch(?!\s*=\s*false|All=false|-?all=false)\b|\bng test(?!.*watch=false)|\bnodemon\b"
)
NO_TESTS: Final = re.compile(
    r"no tests?\b[^&|;]*(specified|yet|available)|^\s*(echo\b[^&|;]*(&&\s*)?)?(exit [01]|true|:)?\s*$", re.I
)
CALLS_BUILD: Final = re.compile(
    r"\b(?:run|yarn|pnpm|bun|npm|run-s|turbo)\s+(?:build|compile)(?![\w:-])|\btsc\b(?!.*--noEmit)"
)
MAX_MEMBERS: Final = 30
MAX_SCRIPT_CHARS: Final = 2000
MAX_PATTERNS: Final = 200
# Commands that only run tests. Any other command may do more, so it is less certain.
TEST_RUNNERS: Final = re.compile(
    r"\b(jest|vitest|mocha|ava|tap|tape|node --test|jasmine|c8|nyc|uvu|lab|qunit|bun test|react-scripts)\b"
)
WORKSPACE_FILES: Final = ("pnpm-workspace.yaml", "lerna.json", "rush.json")
BUILD_OUTPUT: Final = re.compile(r"(?:\./)?(dist|lib|build|out|cjs|esm|es|bin|umd|output|target|packages)/")


class PackageManager(Struct, frozen=True, kw_only=True):
    """A package manager, with its commands and cache."""

    name: str
    install: str
    evidence: str
    prepare: tuple[str, ...] = ()
    lock_file: str | None = None
    cache: str | None = None
    env: dict[str, str] = {}

    def run(self, script_name: str) -> str:
        """Return the command that runs a script."""
        return f"{self.name} {'test' if script_name == 'test' and self.name != 'bun' else f'run {script_name}'}"


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of Node projects reads this file."""
    return file_name in (
        MANIFEST,
        "pnpm-workspace.yaml",
        "lerna.json",
        ".nvmrc",
        ".node-version",
        "rush.json",
        "deno.json",
    )


def find(folder: Folder) -> Project | None:
    """Return the Node project of the folder, or None if there is none."""
    if not folder.find_file(MANIFEST):
        return None
    package_json = folder.json(MANIFEST)
    text_by_script = {
        script_name: string_or_empty(script)[:MAX_SCRIPT_CHARS]
        for script_name, script in get_table(package_json, "scripts").items()
    }
    if not package_json:
        return None
    manager = _package_manager(folder, package_json)
    if folder.find_file("rush.json"):
        problem = "there is rush.json: the projects of a Rush repository must be built with Rush"
        return Project(ecosystem=ECOSYSTEM, folder=folder.path, unclear=(problem,))
    drafts = [
        *_build_drafts(folder, package_json, text_by_script, manager),
        *_test(folder, package_json, text_by_script, manager),
    ]
    drafts += _lint(folder, package_json, text_by_script, manager)
    unclear = () if drafts else ("package.json has no script with a usual name for a test, build or check",)
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=tuple(drafts), unclear=unclear)


def workspace_patterns(folder: Folder) -> tuple[str, ...]:
    """Return the patterns of the folders that are packages of this workspace."""
    declared_patterns = get_nested(folder.json(MANIFEST), "workspaces")
    declared_patterns = string_list(declared_patterns) or string_list(get_nested(declared_patterns, "packages"))
    declared_patterns += string_list(get_nested(folder.json("lerna.json"), "packages"))
    is_in_packages = False
    for line in folder.text("pnpm-workspace.yaml").splitlines()[:1000]:
        if re.match(r"[^\s#-]", line):
            is_in_packages = line.startswith("packages:")
        elif is_in_packages and (list_entry := re.match(r"""[ \t]*-[ \t]*["']?([^"'#\s]+)""", line[:MAX_SCRIPT_CHARS])):
            declared_patterns.append(list_entry[1])
    return tuple(declared_patterns[:MAX_PATTERNS])


def is_workspace(folder: Folder) -> bool:
    """Return whether this folder is the root of a workspace with several packages."""
    return bool(workspace_patterns(folder)) or folder.find_file(*WORKSPACE_FILES) is not None


# -- package managers


def _package_manager(folder: Folder, package_json: dict[str, Any]) -> PackageManager:
    declared_manager = re.match(r"(npm|yarn|pnpm|bun)@(\d+)", string_or_empty(package_json.get("packageManager")))
    lock_file = folder.find_file(
        "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb", "package-lock.json", "npm-shrinkwrap.json"
    )
    manager_by_lock = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"}
    manager_name = declared_manager[1] if declared_manager else manager_by_lock.get(lock_file or "", "npm")
    evidence = (
        "package.json names it as packageManager"
        if declared_manager
        else f"there is {lock_file}"
        if lock_file
        else "there is no lock file"
    )
    is_frozen = lock_file is not None and manager_by_lock.get(lock_file, "npm") == manager_name
    if manager_name == "npm":
        install = "npm ci" if is_frozen else "npm install --no-audit --no-fund"
        return PackageManager(
            name=manager_name,
            install=install,
            evidence=evidence,
            lock_file=lock_file if is_frozen else MANIFEST,
            cache=".npm",
            env={"npm_config_cache": ".npm"},
        )
    if manager_name == "bun":
        install = "bun install --frozen-lockfile" if is_frozen else "bun install"
        return PackageManager(
            name=manager_name, install=install, evidence=evidence, lock_file=lock_file, cache="node_modules"
        )
    if manager_name == "yarn" and (
        folder.find_file(".yarnrc.yml") or (declared_manager and int(declared_manager[2]) > 1)
    ):
        frozen_option = " --immutable" if is_frozen else ""
        return PackageManager(
            name=manager_name, install=f"yarn install{frozen_option}", evidence=evidence, prepare=("corepack enable",)
        )
    frozen_option = " --frozen-lockfile" if is_frozen else ""
    return PackageManager(
        name=manager_name,
        install=f"{manager_name} install{frozen_option}",
        evidence=evidence,
        prepare=("corepack enable",),
        lock_file=lock_file if is_frozen else None,
        cache="node_modules",
    )


def _draft(
    folder: Folder,
    manager: PackageManager,
    *,
    purpose: str,
    title: str,
    steps: tuple[str, ...],
    evidence: tuple[str, ...],
    confidence: Confidence = SURE,
    uncertainty: str = "",
    artifacts: tuple[model.Artifact, ...] = (),
    hints: tuple[str, ...] = (),
) -> JobDraft:
    caches: tuple[model.Cache, ...] = ()
    if manager.cache and manager.lock_file:
        cache_key = f"{manager.name}-{{lock_hash}}"
        caches = (
            model.Cache(
                key=cache_key,
                paths=(folder.from_root(manager.cache),),
                lock_files=(folder.from_root(manager.lock_file),),
            ),
        )
    return JobDraft(
        purpose=purpose,
        title=title,
        confidence=confidence,
        uncertainty=uncertainty,
        artifacts=artifacts,
        caches=caches,
        hints=hints,
        evidence=(*evidence, f"{manager.name}: {manager.evidence}"),
        env={"CI": "true", **manager.env},
        steps=(*manager.prepare, manager.install, *steps),
    )


# -- jobs


def _first_script(text_by_script: dict[str, str], script_names: tuple[str, ...]) -> str | None:
    return next((name for name in script_names if text_by_script.get(name, "").strip()), None)


def _script_evidence(script_name: str, text_by_script: dict[str, str]) -> str:
    return f"package.json has the script {script_name!r}: {quoted(text_by_script[script_name])}"


def _test(
    folder: Folder, package_json: dict[str, Any], text_by_script: dict[str, str], manager: PackageManager
) -> list[JobDraft]:
    real_scripts = {
        script_name: script_text
        for script_name, script_text in text_by_script.items()
        if not NO_TESTS.search(script_text)
    }
    finite_scripts = {
        script_name: script_text
        for script_name, script_text in real_scripts.items()
        if not WATCH_MODE.search(script_text)
    }
    script_name = _first_script(finite_scripts, TEST_SCRIPTS)
    if script_name is None and (watch_script := _first_script(real_scripts, TEST_SCRIPTS)):
        return [_watch_draft(folder, watch_script, text_by_script, manager)]
    if script_name is None:
        return _test_workspace_members(folder, package_json, text_by_script, manager)
    script_text = _with_called_scripts(script_name, text_by_script)
    uncertainty = _uncertainty(folder, package_json, script_name, script_text)
    build_script = _build_script_before_tests(folder, package_json, text_by_script, script_text)
    command, artifacts = _test_command(folder, manager, script_name, text_by_script[script_name])
    commands = (*((manager.run(build_script),) if build_script else ()), command)
    return [
        _draft(
            folder,
            manager,
            purpose="test",
            title="Node tests",
            steps=commands,
            evidence=(_script_evidence(script_name, text_by_script),),
            confidence=LIKELY if uncertainty else SURE,
            uncertainty=uncertainty,
            artifacts=artifacts,
            hints=_version_hints(folder, package_json),
        )
    ]


def _uncertainty(folder: Folder, package_json: dict[str, Any], script_name: str, script_text: str) -> str:
    """Return why it is uncertain that the script runs all tests and succeeds for correct code.

    Empty if there is no reason.
    """
    has_browser_package = any(
        BROWSER_TOOLS.search(dependency) for dependency in get_table(package_json, "devDependencies")
    )
    if BROWSER_TOOLS.search(script_text):
        return "the script uses a browser, which the runner must have"
    if has_browser_package and (not TEST_RUNNERS.search(script_text) or "e2e" in script_text):
        return "it has packages that control a browser, which the runner must have"
    if not TEST_RUNNERS.search(script_text):
        return "the effect of the script cannot be determined from its text"
    if script_name != "test":
        return "there is no script 'test', and this one may run only some of the tests"
    return "packages of a workspace may have to be built first" if is_workspace(folder) else ""


def _watch_draft(folder: Folder, script_name: str, text_by_script: dict[str, str], manager: PackageManager) -> JobDraft:
    """Return a job for a test script that watches files.

    Only for Angular are the options known that make it run once; any other script is a guess.
    """
    is_angular = text_by_script[script_name].strip() == "ng test"
    separator = " --" if manager.name == "npm" else ""
    karma_options = f"{separator} --watch=false --browsers=ChromeHeadless" if is_angular else ""
    watch_uncertainty = "the script watches files and may never end"
    return _draft(
        folder,
        manager,
        purpose="test",
        title="Angular tests" if is_angular else "Node tests",
        steps=(f"{manager.run(script_name)}{karma_options}",),
        evidence=(_script_evidence(script_name, text_by_script),),
        confidence=LIKELY if is_angular else UNSURE,
        uncertainty="they run in Chrome, which the runner must have" if is_angular else watch_uncertainty,
    )


def _with_called_scripts(script_name: str, text_by_script: dict[str, str]) -> str:
    """Return the text of a script, followed by the scripts that it calls, up to three levels deep."""
    script_text = text_by_script[script_name]
    for _ in range(3):
        called_names = {
            called_name
            for called_name in re.findall(r"(?:run|yarn|pnpm|bun|run-[sp]|npm-run-all)\s+([\w:.-]+)", script_text)
            if called_name in text_by_script
        }
        script_text += "".join(
            f"\n{text_by_script[called_name]}"
            for called_name in sorted(called_names)
            if text_by_script[called_name] not in script_text
        )
        script_text = script_text[:10_000]
    return script_text


def _build_script_before_tests(
    folder: Folder, package_json: dict[str, Any], text_by_script: dict[str, str], test_text: str
) -> str | None:
    """Return the build script to run before the tests, or None.

    It is needed if an entry point of the package, or of a package in the workspace, is build output that is not in the
    repository, unless the test script builds it.
    """
    build_script = _first_script(text_by_script, BUILD_SCRIPTS)
    if build_script is None or CALLS_BUILD.search(test_text) or "build" in text_by_script.get("pretest", ""):
        return None
    if _offers_missing_build_output("", package_json, folder):
        return build_script
    manifests = [manifest_path for manifest_path in folder.paths_matching(r".*/package\.json") if is_workspace(folder)][
        :MAX_MEMBERS
    ]
    return (
        build_script
        if any(
            _offers_missing_build_output(manifest_path.removesuffix(MANIFEST), folder.json(manifest_path), folder)
            for manifest_path in manifests
        )
        else None
    )


def _offers_missing_build_output(folder_path: str, package_json: dict[str, Any], folder: Folder) -> bool:
    """Return whether an entry point of a package is in a build output folder that the repository does not contain."""
    entry_points = [
        string_or_empty(package_json.get(entry_point_key)) for entry_point_key in ("main", "module", "types")
    ]
    entry_points += string_list(package_json.get("bin")) or string_list(list(get_table(package_json, "bin").values()))
    output_folders = {
        folder_path + output_match[1]
        for entry_point in entry_points
        if (output_match := BUILD_OUTPUT.match(entry_point))
    }
    return any(not folder.has_folder(output_folder) for output_folder in sorted(output_folders))


def _test_command(
    folder: Folder, manager: PackageManager, script_name: str, script_text: str
) -> tuple[str, tuple[model.Artifact, ...]]:
    """Return the command that runs a test script, and its artifacts.

    A script that only calls vitest gets options that write a JUnit report.
    """
    if not re.fullmatch(r"vitest( run)?( --(coverage|silent|run))*", script_text.strip()):
        return manager.run(script_name), ()
    separator = " --" if manager.name == "npm" else ""
    report_options = "--reporter=default --reporter=junit --outputFile.junit=test-results.xml"
    artifact = model.Artifact(path=folder.from_root("test-results.xml"), type="junit")
    return f"{manager.run(script_name)}{separator} {report_options}", (artifact,)


def _test_workspace_members(
    folder: Folder, package_json: dict[str, Any], text_by_script: dict[str, str], manager: PackageManager
) -> list[JobDraft]:
    """Return a job that runs the tests of all packages of a workspace whose root has no test script."""
    if not is_workspace(folder):
        return []
    command_by_manager = {"npm": "npm test --workspaces --if-present", "pnpm": "pnpm -r --if-present test"}
    if folder.find_file("turbo.json"):
        command, evidence = f"{_run_binary(manager)} turbo run test", "there is turbo.json"
    elif folder.find_file("nx.json"):
        command, evidence = f"{_run_binary(manager)} nx run-many -t test", "there is nx.json"
    elif manager.name in command_by_manager:
        command, evidence = command_by_manager[manager.name], "package.json declares a workspace"
    elif folder.find_file("lerna.json"):
        command, evidence = f"{_run_binary(manager)} lerna run test", "there is lerna.json"
    else:
        return []
    return [
        _draft(
            folder,
            manager,
            purpose="test",
            title="Node tests of all packages",
            steps=(command,),
            evidence=(evidence,),
            confidence=LIKELY,
            uncertainty="packages of a workspace may have to be built first",
        )
    ]


def _run_binary(manager: PackageManager) -> str:
    return {"npm": "npx", "yarn": "yarn", "pnpm": "pnpm exec", "bun": "bunx"}[manager.name]


def _build_drafts(
    folder: Folder, package_json: dict[str, Any], text_by_script: dict[str, str], manager: PackageManager
) -> list[JobDraft]:
    script_name = _first_script(text_by_script, BUILD_SCRIPTS)
    if script_name is None or NO_TESTS.search(text_by_script[script_name]):
        return []
    is_usual = script_name == "build" and not re.search(r"docker|deploy|publish", text_by_script[script_name])
    return [
        _draft(
            folder,
            manager,
            purpose="build",
            title="Node build",
            steps=(manager.run(script_name),),
            evidence=(_script_evidence(script_name, text_by_script),),
            confidence=SURE if is_usual else LIKELY,
            uncertainty="" if is_usual else "it may do more than build, or need more than its packages",
        )
    ]


def _lint(
    folder: Folder, package_json: dict[str, Any], text_by_script: dict[str, str], manager: PackageManager
) -> list[JobDraft]:
    candidate_names = [
        script_name
        for script_names in (LINT_SCRIPTS, TYPE_SCRIPTS, FORMAT_SCRIPTS)
        if (script_name := _first_script(text_by_script, script_names))
    ]
    if _first_script(text_by_script, TYPE_SCRIPTS) is None and re.match(
        r"(vue-)?tsc\b", text_by_script.get("check", "")
    ):
        candidate_names.append("check")
    candidate_names = [
        script_name
        for script_name in dict.fromkeys(candidate_names)
        if not WATCH_MODE.search(text_by_script[script_name]) and not NO_TESTS.search(text_by_script[script_name])
    ]
    if not candidate_names:
        return []
    is_fixing = any(
        "--fix" in text_by_script[script_name] or "--write" in text_by_script[script_name]
        for script_name in candidate_names
    )
    runs_pattern = any(
        "*" in text_by_script[script_name] and "run" in text_by_script[script_name] for script_name in candidate_names
    )
    is_workspace_root = is_workspace(folder)
    uncertainty = (
        "it fixes problems instead of reporting them, and may not fail"
        if is_fixing
        else "packages of a workspace may have to be built first"
    )
    uncertainty = (
        "some of the scripts that it runs may need build output" if runs_pattern and not is_fixing else uncertainty
    )
    is_sure = not is_fixing and not is_workspace_root and not runs_pattern
    return [
        _draft(
            folder,
            manager,
            purpose="lint",
            title="Node linters",
            steps=tuple(manager.run(script_name) for script_name in candidate_names),
            evidence=tuple(_script_evidence(script_name, text_by_script) for script_name in candidate_names),
            confidence=SURE if is_sure else LIKELY,
            uncertainty="" if is_sure else uncertainty,
        )
    ]


def _version_hints(folder: Folder, package_json: dict[str, Any]) -> tuple[str, ...]:
    required_version = string_or_empty(get_nested(package_json, "engines", "node"))
    version_file = folder.find_file(".nvmrc", ".node-version")
    hints = (f"it requires Node {quoted(required_version)}",) if required_version else ()
    return (
        (
            *hints,
            f"{version_file} pins the Node version: {{uses: setup-node, with: {{node-version-file: {version_file}}}}}",
        )
        if version_file
        else hints
    )
