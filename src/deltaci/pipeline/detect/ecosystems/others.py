"""Detect further ecosystems with a table: each rule maps a manifest to one job."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, Confidence, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder


class DetectionRule(NamedTuple):
    """A job for folders with a file whose name matches `manifest` and, if `evidence` is set, a path that matches it."""

    ecosystem: str
    manifest: str  # A regular expression for file names.
    purpose: str
    title: str
    steps: tuple[str, ...]
    confidence: Confidence = LIKELY
    uncertainty: str = "requirements other than packages are not declared"
    evidence: str = ""  # A regular expression; a path below the folder must match it too.


_HEX: Final = ("mix local.hex --force", "mix local.rebar --force", "mix deps.get")
DETECTION_RULES: Final = (
    DetectionRule("elixir", r"mix\.exs", "test", "Elixir tests", (*_HEX, "mix test"), LIKELY, "it may need a database",
        r"(?:apps/[^/]+/)?test/.*\.exs"),
    DetectionRule("elixir", r"mix\.exs", "build", "Elixir build", (*_HEX, "mix compile"), SURE, ""),
    DetectionRule("elixir", r"mix\.exs", "format", "Elixir format", (*_HEX, "mix format --check-formatted"), SURE, "",
        r"\.formatter\.exs"),
    DetectionRule("swift", r"Package\.swift", "test", "Swift tests", ("swift build", "swift test"), LIKELY,
        "it may support only Apple platforms", r"Tests/.*\.swift"),
    DetectionRule("scala", r"build\.sbt", "test", "sbt tests", ("sbt test",)),
    DetectionRule("clojure", r"project\.clj", "test", "Leiningen tests", ("lein test",)),
    DetectionRule("haskell", r"stack\.yaml", "test", "Haskell tests with Stack", ("stack test",)),
    DetectionRule("haskell", r"cabal\.project|.*\.cabal", "test", "Haskell tests with Cabal",
        ("cabal update", "cabal test all")),
    DetectionRule("dart", r"pubspec\.yaml", "test", "Dart tests", ("dart pub get", "dart test"), UNSURE,
        "it may be a Flutter project", r"test/.*_test\.dart"),
    DetectionRule("zig", r"build\.zig", "build", "Zig build", ("zig build",), LIKELY,
        "it may need a certain version of Zig, and none is pinned"),
    DetectionRule("deno", r"deno\.jsonc?", "test", "Deno tests", ("deno test --allow-all",), UNSURE,
        "the permissions that it needs are not declared", r".*[._]test\.[jt]sx?"),
    DetectionRule("julia", r"Project\.toml", "test", "Julia tests",
        ("julia --project=. -e 'using Pkg; Pkg.test()'",), LIKELY,
        "its requirements are unknown", r"test/runtests\.jl"),
    DetectionRule("perl", r"Makefile\.PL", "test", "Perl tests", ("perl Makefile.PL", "make", "make test"), LIKELY,
        "these steps do not install the modules that it needs", r"t/.*\.t"),
    DetectionRule("bazel", r"MODULE\.bazel|WORKSPACE(?:\.bazel)?", "test", "Bazel tests", ("bazel test //...",), UNSURE,
        "it is not declared which targets to test"),
    DetectionRule("r", r"DESCRIPTION", "test", "R package check",
        ("R CMD build .", "R CMD check --no-manual *.tar.gz"), UNSURE,
        "these steps do not install the packages that it needs", r"NAMESPACE"),
)  # fmt: skip


def find_all(folder: Folder) -> list[Project]:
    """Return a project for each ecosystem that has a matching rule. The first matching rule for a purpose wins."""
    drafts: dict[str, list[JobDraft]] = {}
    for rule in DETECTION_RULES:
        manifest_name = next(iter(folder.file_names(rule.manifest)), None)
        evidence_path = folder.first_match(rule.evidence) if manifest_name and rule.evidence else None
        ecosystem_drafts = drafts.get(rule.ecosystem, [])
        if (
            manifest_name is None
            or (rule.evidence and evidence_path is None)
            or any(draft.purpose == rule.purpose for draft in ecosystem_drafts)
        ):
            continue
        evidence = (
            f"there is {manifest_name}",
            *(("there are tests",) if evidence_path and rule.purpose == "test" else ()),
        )
        drafts.setdefault(rule.ecosystem, []).append(
            JobDraft(
                purpose=rule.purpose, title=rule.title, confidence=rule.confidence, uncertainty=rule.uncertainty,
                steps=rule.steps,
                evidence=evidence
                if re.fullmatch(r"[\w.]+", manifest_name)
                else (f"there is a file for {rule.ecosystem}",),
            )
        )  # fmt: skip
    return [
        Project(ecosystem=ecosystem, folder=folder.path, drafts=tuple(ecosystem_drafts))
        for ecosystem, ecosystem_drafts in drafts.items()
    ]
