"""Detection of Node projects: scripts, package managers and workspaces."""

from __future__ import annotations

import pytest

from tests.pipeline.detect.trees import jobs, package, proposed, steps

JEST = package({"test": "jest"})


@pytest.mark.parametrize(
    ("other_files", "fields", "install", "run"),
    [
        ({}, {}, ["npm install --no-audit --no-fund"], "npm test"),
        ({"package-lock.json": ""}, {}, ["npm ci"], "npm test"),
        ({"yarn.lock": ""}, {}, ["corepack enable", "yarn install --frozen-lockfile"], "yarn test"),
        ({"yarn.lock": "", ".yarnrc.yml": ""}, {}, ["corepack enable", "yarn install --immutable"], "yarn test"),
        (
            {"yarn.lock": ""},
            {"packageManager": "yarn@4.1.0"},
            ["corepack enable", "yarn install --immutable"],
            "yarn test",
        ),
        ({"pnpm-lock.yaml": ""}, {}, ["corepack enable", "pnpm install --frozen-lockfile"], "pnpm test"),
        ({"bun.lock": ""}, {}, ["bun install --frozen-lockfile"], "bun run test"),
        ({"package-lock.json": ""}, {"packageManager": "pnpm@9.0.0"}, ["corepack enable", "pnpm install"], "pnpm test"),
    ],
)
def test_the_package_manager_is_the_one_of_the_lock_file(
    other_files: dict[str, str], fields: dict[str, object], install: list[str], run: str
) -> None:
    """A package manager that package.json names takes precedence."""
    files = {"package.json": package({"test": "jest"}, **fields), **other_files}

    assert steps(files, "test") == [*install, run]


@pytest.mark.parametrize(
    ("script", "confidence"),
    [
        ("jest", "sure"),
        ("vitest run", "sure"),
        ("mocha test/", "sure"),
        ("node Makefile.js test", "likely"),
        ("playwright test", "likely"),
        ("karma start --single-run", "likely"),
        ("jest --watch", "unsure"),
        ("ng test", "likely"),
        ("npm run first && npm run second", "likely"),
    ],
)
def test_the_confidence_depends_on_the_script(script: str, confidence: str) -> None:
    """A script that needs a browser, may never end or runs an unknown command is uncertain."""
    assert (
        jobs({"package.json": package({"test": script, "first": "jest", "second": "cypress run"})})["test"][0]
        == confidence
    )


@pytest.mark.parametrize("script", ['echo "Error: no test specified" && exit 1', "exit 0", "true", "echo ok", " "])
def test_a_placeholder_test_script_is_ignored(script: str) -> None:
    """`npm init` writes one into each package."""
    assert "test" not in jobs({"package.json": package({"test": script, "build": "tsc"})})


def test_scripts_become_jobs() -> None:
    """The checks share one job."""
    scripts = {
        "test": "jest",
        "build": "vite build",
        "lint": "eslint .",
        "typecheck": "tsc",
        "format:check": "prettier",
    }
    files = {"package.json": package(scripts), "package-lock.json": ""}

    assert list(jobs(files)) == ["build", "test", "lint"]
    assert steps(files, "lint") == ["npm ci", "npm run lint", "npm run typecheck", "npm run format:check"]
    assert all(proposed_job.job.env["CI"] == "true" for proposed_job in proposed(files).proposed_jobs)
    assert proposed(files).proposed_jobs[0].job.caches[0].lock_files == ("package-lock.json",)


def test_missing_build_output_is_built_before_the_tests() -> None:
    """A package whose entry point is in `dist/` must be built if that folder is not in the repository."""
    manifest = package({"test": "jest", "build": "tsc"}, main="./dist/index.js")

    assert steps({"package.json": manifest}, "test")[1:] == ["npm run build", "npm test"]
    assert steps({"package.json": manifest, "dist/index.js": ""}, "test")[1:] == ["npm test"]


def test_a_script_that_only_calls_vitest_writes_a_report() -> None:
    """Options cannot be added safely to a more complicated script."""
    assert "--reporter=junit" in steps({"package.json": package({"test": "vitest run"})}, "test")[-1]
    assert steps({"package.json": package({"test": "vitest run && echo"})}, "test")[-1] == "npm test"


@pytest.mark.parametrize(
    ("other_files", "fields", "command"),
    [
        ({"package-lock.json": ""}, {"workspaces": ["packages/*"]}, "npm test --workspaces --if-present"),
        (
            {"pnpm-lock.yaml": "", "pnpm-workspace.yaml": "packages:\n  - 'packages/*'\n"},
            {},
            "pnpm -r --if-present test",
        ),
        ({"package-lock.json": "", "turbo.json": ""}, {"workspaces": ["packages/*"]}, "npx turbo run test"),
        ({"yarn.lock": "", "nx.json": ""}, {"workspaces": ["packages/*"]}, "yarn nx run-many -t test"),
        ({"yarn.lock": "", "lerna.json": '{"packages": ["packages/*"]}'}, {}, "yarn lerna run test"),
    ],
)
def test_a_workspace_is_tested_from_its_root(
    other_files: dict[str, str], fields: dict[str, object], command: str
) -> None:
    """The packages of a workspace are not projects of their own."""
    files = {"package.json": package({}, **fields), "packages/a/package.json": JEST, **other_files}

    assert {job: summary[1] for job, summary in jobs(files).items()} == {"test": command}


def test_packages_outside_the_workspace_are_projects() -> None:
    """A package that no workspace pattern matches is a project of its own."""
    files = {
        "package.json": package({"test": "jest"}, workspaces=["packages/*"]),
        "packages/a/package.json": JEST,
        "apps/web/package.json": JEST,
        "odd/package.json": JEST,
    }

    assert {job: summary[0] for job, summary in jobs(files).items()} == {
        "test": "likely",
        "apps-web-test": "likely",
        "odd-test": "unsure",
    }
