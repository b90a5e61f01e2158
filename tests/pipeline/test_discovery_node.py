"""Node projects: scripts, package managers and workspaces."""

from __future__ import annotations

import pytest

from tests.pipeline.trees import jobs, package, proposed, steps

JEST = package({"test": "jest"})


@pytest.mark.parametrize(
    ("more", "fields", "install", "run"),
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
    more: dict[str, str], fields: dict[str, object], install: list[str], run: str
) -> None:
    """Or the one that package.json names."""
    files = {"package.json": package({"test": "jest"}, **fields), **more}

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
def test_how_sure_depends_on_what_the_script_is(script: str, confidence: str) -> None:
    """What opens a browser, never ends or cannot be looked into is not sure."""
    assert (
        jobs({"package.json": package({"test": script, "first": "jest", "second": "cypress run"})})["test"][0]
        == confidence
    )


@pytest.mark.parametrize("script", ['echo "Error: no test specified" && exit 1', "exit 0", "true", "echo ok", " "])
def test_a_script_that_tests_nothing_is_none(script: str) -> None:
    """`npm init` writes one into every package."""
    assert "test" not in jobs({"package.json": package({"test": script, "build": "tsc"})})


def test_scripts_become_jobs() -> None:
    """Test, build, and one job for everything that only looks."""
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
    assert all(each.job.env["CI"] == "true" for each in proposed(files).findings)
    assert proposed(files).findings[0].job.caches[0].lock_files == ("package-lock.json",)


def test_what_is_made_is_built_before_it_is_tested() -> None:
    """A package that offers `dist/` without having it must be built; one that has it must not."""
    made = package({"test": "jest", "build": "tsc"}, main="./dist/index.js")

    assert steps({"package.json": made}, "test")[1:] == ["npm run build", "npm test"]
    assert steps({"package.json": made, "dist/index.js": ""}, "test")[1:] == ["npm test"]


def test_vitest_alone_writes_a_report() -> None:
    """It is told so by options; anything more complicated is left as it is."""
    assert "--reporter=junit" in steps({"package.json": package({"test": "vitest run"})}, "test")[-1]
    assert steps({"package.json": package({"test": "vitest run && echo"})}, "test")[-1] == "npm test"


@pytest.mark.parametrize(
    ("more", "fields", "command"),
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
def test_a_workspace_is_tested_from_its_root(more: dict[str, str], fields: dict[str, object], command: str) -> None:
    """Its packages are no projects of their own."""
    files = {"package.json": package({}, **fields), "packages/a/package.json": JEST, **more}

    assert {job: found[1] for job, found in jobs(files).items()} == {"test": command}


def test_packages_outside_the_workspace_are_projects() -> None:
    """What no pattern names belongs to nobody else."""
    files = {
        "package.json": package({"test": "jest"}, workspaces=["packages/*"]),
        "packages/a/package.json": JEST,
        "apps/web/package.json": JEST,
        "odd/package.json": JEST,
    }

    assert {job: found[0] for job, found in jobs(files).items()} == {
        "test": "likely",
        "apps-web-test": "likely",
        "odd-test": "unsure",
    }
