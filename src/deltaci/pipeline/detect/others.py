"""Ecosystems with one manifest and one way to do things, as a table."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Confidence, Draft, Project
from deltaci.pipeline.detect.tree import Place


class Way(NamedTuple):
    """How things are done where there is such a file."""

    ecosystem: str
    manifest: str  # a regular expression for names
    task: str
    what: str
    steps: tuple[str, ...]
    confidence: Confidence = LIKELY
    reason: str = "what it needs beside its packages is not declared"
    evidence: str = ""  # a regular expression for a path that must be there too


_HEX: Final = ("mix local.hex --force", "mix local.rebar --force", "mix deps.get")
WAYS: Final = (
    Way("elixir", r"mix\.exs", "test", "Elixir tests", (*_HEX, "mix test"), LIKELY, "it may want a database",
        r"(?:apps/[^/]+/)?test/.*\.exs"),
    Way("elixir", r"mix\.exs", "build", "Elixir build", (*_HEX, "mix compile"), SURE, ""),
    Way("elixir", r"mix\.exs", "format", "Elixir format", (*_HEX, "mix format --check-formatted"), SURE, "",
        r"\.formatter\.exs"),
    Way("swift", r"Package\.swift", "test", "Swift tests", ("swift build", "swift test"), LIKELY,
        "it may be for Apple's systems alone", r"Tests/.*\.swift"),
    Way("scala", r"build\.sbt", "test", "sbt tests", ("sbt test",)),
    Way("clojure", r"project\.clj", "test", "Leiningen tests", ("lein test",)),
    Way("haskell", r"stack\.yaml", "test", "Haskell tests with Stack", ("stack test",)),
    Way("haskell", r"cabal\.project|.*\.cabal", "test", "Haskell tests with Cabal", ("cabal update", "cabal test all")),
    Way("dart", r"pubspec\.yaml", "test", "Dart tests", ("dart pub get", "dart test"), UNSURE,
        "it may be a Flutter project", r"test/.*_test\.dart"),
    Way("zig", r"build\.zig", "build", "Zig build", ("zig build",), LIKELY,
        "the version of Zig matters, and is not pinned"),
    Way("deno", r"deno\.jsonc?", "test", "Deno tests", ("deno test --allow-all",), UNSURE,
        "what it may do is not declared", r".*[._]test\.[jt]sx?"),
    Way("julia", r"Project\.toml", "test", "Julia tests", ("julia --project=. -e 'using Pkg; Pkg.test()'",), LIKELY,
        "what it needs is not to be seen", r"test/runtests\.jl"),
    Way("perl", r"Makefile\.PL", "test", "Perl tests", ("perl Makefile.PL", "make", "make test"), LIKELY,
        "modules that it needs are not installed by this", r"t/.*\.t"),
    Way("bazel", r"MODULE\.bazel|WORKSPACE(?:\.bazel)?", "test", "Bazel tests", ("bazel test //...",), UNSURE,
        "which targets are meant is not declared"),
    Way("r", r"DESCRIPTION", "test", "R package check", ("R CMD build .", "R CMD check --no-manual *.tar.gz"), UNSURE,
        "packages that it needs are not installed by this", r"NAMESPACE"),
)  # fmt: skip


def find_all(place: Place) -> list[Project]:
    """What the table says about this folder."""
    drafts: dict[str, list[Draft]] = {}
    for way in WAYS:
        file = next(iter(place.names(way.manifest)), None)
        more = place.any(way.evidence) if file and way.evidence else None
        known = drafts.get(way.ecosystem, [])
        if file is None or (way.evidence and more is None) or any(draft.task == way.task for draft in known):
            continue
        told = (f"there is {file}", *(("there are tests",) if more and way.task == "test" else ()))
        drafts.setdefault(way.ecosystem, []).append(
            Draft(
                task=way.task, what=way.what, confidence=way.confidence, reason=way.reason, steps=way.steps,
                evidence=told if re.fullmatch(r"[\w.]+", file) else (f"there is a file for {way.ecosystem}",),
            )
        )  # fmt: skip
    return [Project(ecosystem=name, folder=place.folder, drafts=tuple(each)) for name, each in drafts.items()]
