"""Go: one module is one job set, as `./...` never leaves its module."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline.detect.findings import LIKELY, SURE, Confidence, Draft, Project
from deltaci.pipeline.detect.tasks import test_recipe
from deltaci.pipeline.detect.tree import Place

ECOSYSTEM: Final = "go"
MANIFEST: Final = "go.mod"
LINTER: Final = (".golangci.yml", ".golangci.yaml", ".golangci.toml", ".golangci.json")


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a Go module."""
    return name == MANIFEST or name in LINTER


def find(place: Place) -> Project | None:
    """The Go module of this folder, if there is one."""
    if not place.has(MANIFEST):
        return None
    if place.any(r".*\.go") is None:
        return Project(ecosystem=ECOSYSTEM, folder=place.folder, unclear=("go.mod without any Go file",))
    if re.search(r"(?m)^module (?:std|cmd)$", place.text(MANIFEST)):
        told = "Go's own library is built and tested by scripts of its own"
        return Project(ecosystem=ECOSYSTEM, folder=place.folder, unclear=(told,))
    version = re.search(r"(?m)^go\s+([0-9][0-9.]*)", place.text(MANIFEST))
    evidence = (f"there is go.mod{f', for Go {version[1][:10]}' if version else ''}",)
    drafts = [
        Draft(
            task="build",
            what="Go packages",
            confidence=SURE,
            evidence=evidence,
            steps=("go build ./...", "go vet ./..."),
        ),
        *_tests(place, evidence),
        *_lint(place),
    ]
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=tuple(drafts))


def _tests(place: Place, evidence: tuple[str, ...]) -> list[Draft]:
    found = place.any(r".*_test\.go")
    if found is None:
        return []
    recipe = test_recipe(place)
    confidence: Confidence = SURE
    reason = ""
    if recipe and not re.search(
        r"(?:\bgo|\$\(GO\w*\)|\$\{GO\w*\}|gotestsum)\s+(?:\S+\s+){0,3}?(test|--)|gotestsum", recipe
    ):
        confidence, reason = LIKELY, "the Makefile has a target 'test' of its own, which does something else"
    elif recipe and re.search(r"docker|-tags|compose", recipe):
        confidence, reason = LIKELY, "the Makefile runs the tests with options of its own"
    return [
        Draft(
            task="test",
            what="Go tests",
            confidence=confidence,
            reason=reason,
            evidence=(*evidence, "there are *_test.go files"),
            steps=("go test ./...",),
        )
    ]


def _lint(place: Place) -> list[Draft]:
    config = place.has(*LINTER)
    if config is None:
        return []
    is_second = re.search(r"""(?m)^["']?version["']?\s*[:=]\s*["']?2""", place.text(config)) is not None
    module = "golangci-lint/v2" if is_second else "golangci-lint"
    return [
        Draft(
            task="lint",
            what="Go linters",
            confidence=LIKELY,
            evidence=(f"there is {config}",),
            reason="no version of golangci-lint is declared, and a newer one may want other things",
            steps=(f"go run github.com/golangci/{module}/cmd/golangci-lint@latest run",),
        )
    ]
