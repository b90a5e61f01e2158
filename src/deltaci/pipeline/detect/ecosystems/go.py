"""Detect Go modules. Each module has its own jobs, because `./...` does not cross module boundaries."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline.detect.proposals import LIKELY, SURE, Confidence, JobDraft, Project
from deltaci.pipeline.detect.tasks import test_recipe
from deltaci.pipeline.detect.tree import Folder

ECOSYSTEM: Final = "go"
MANIFEST: Final = "go.mod"
LINTER: Final = (".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json")


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of Go projects reads this file."""
    return file_name == MANIFEST or file_name in LINTER


def find(folder: Folder) -> Project | None:
    """Return the Go module of the folder, or None if there is none."""
    if not folder.find_file(MANIFEST):
        return None
    if folder.first_match(r".*\.go") is None:
        return Project(ecosystem=ECOSYSTEM, folder=folder.path, unclear=("there is go.mod, but no Go file",))
    if re.search(r"(?m)^module (?:std|cmd)$", folder.text(MANIFEST)):
        problem = "the Go standard library is built and tested by its own scripts"
        return Project(ecosystem=ECOSYSTEM, folder=folder.path, unclear=(problem,))
    version_match = re.search(r"(?m)^go\s+([0-9][0-9.]*)", folder.text(MANIFEST))
    evidence = (f"there is go.mod{f', for Go {version_match[1][:10]}' if version_match else ''}",)
    drafts = [
        JobDraft(
            purpose="build",
            title="Go packages",
            confidence=SURE,
            evidence=evidence,
            steps=("go build ./...", "go vet ./..."),
        ),
        *_tests(folder, evidence),
        *_lint(folder),
    ]
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=tuple(drafts))


def _tests(folder: Folder, evidence: tuple[str, ...]) -> list[JobDraft]:
    test_file = folder.first_match(r".*_test\.go")
    if test_file is None:
        return []
    recipe = test_recipe(folder)
    confidence: Confidence = SURE
    uncertainty = ""
    if recipe and not re.search(
        r"(?:\bgo|\$\(GO\w*\)|\$\{GO\w*\}|gotestsum)\s+(?:\S+\s+){0,3}?(test|--)|gotestsum", recipe
    ):
        confidence, uncertainty = LIKELY, "the Makefile has a target 'test' that runs a different command"
    elif recipe and re.search(r"docker|-tags|compose", recipe):
        confidence, uncertainty = LIKELY, "the Makefile runs the tests with special options"
    return [
        JobDraft(
            purpose="test",
            title="Go tests",
            confidence=confidence,
            uncertainty=uncertainty,
            evidence=(*evidence, "there are *_test.go files"),
            steps=("go test ./...",),
        )
    ]


def _lint(folder: Folder) -> list[JobDraft]:
    config_name = folder.find_file(*LINTER)
    if config_name is None:
        return []
    is_version_2 = re.search(r"""(?m)^["']?version["']?\s*[:=]\s*["']?2""", folder.text(config_name)) is not None
    module = "golangci-lint/v2" if is_version_2 else "golangci-lint"
    return [
        JobDraft(
            purpose="lint",
            title="Go linters",
            confidence=LIKELY,
            evidence=(f"there is {config_name}",),
            uncertainty="no version of golangci-lint is pinned, and a newer version may report other problems",
            steps=(f"go run github.com/golangci/{module}/cmd/golangci-lint@latest run",),
        )
    ]
