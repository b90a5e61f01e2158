"""Ruby: Bundler, then RSpec, Rake or Rails."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, SURE, Confidence, Draft, Project
from deltaci.pipeline.detect.tree import Place

ECOSYSTEM: Final = "ruby"


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a Ruby project."""
    return name in ("Gemfile", "Rakefile", ".rspec", ".rubocop.yml") or name.endswith(".gemspec")


def find(place: Place) -> Project | None:
    """The gem or application of this folder, if there is one."""
    if not place.has("Gemfile"):
        return None
    said = place.text("Gemfile") + "".join(place.text(name) for name in place.names(r".*\.gemspec"))
    lock = place.has("Gemfile.lock")
    caches = (
        model.Cache(
            key="bundle-{lock_hash}", paths=(place.path("vendor/bundle"),), lock_files=(place.path(lock or "Gemfile"),)
        ),
    )
    drafts = [
        Draft(
            task=task,
            what=what,
            confidence=confidence,
            reason=reason,
            evidence=evidence,
            caches=caches,
            env={"BUNDLE_PATH": "vendor/bundle"},
            steps=("bundle install", command),
        )
        for task, what, confidence, reason, evidence, command in (*_test(place, said), *_lint(place, said))
    ]
    unclear = () if drafts else ("there is a Gemfile, but nothing that looks like tests",)
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=tuple(drafts), unclear=unclear)


Row = tuple[str, str, Confidence, str, tuple[str, ...], str]


def _test(place: Place, said: str) -> list[Row]:
    rake = place.text("Rakefile")
    is_rails = place.has("config/application.rb") is not None
    services = "it may want a database" if is_rails else ""
    confidence: Confidence = LIKELY if is_rails else SURE
    has_specs = place.any(r"spec/.*_spec\.rb") is not None
    if has_specs and (place.has(".rspec") or "rspec" in said):
        return [
            ("test", "Ruby tests with RSpec", confidence, services, ("there are *_spec.rb files",), "bundle exec rspec")
        ]
    if is_rails and place.has("bin/rails"):
        return [("test", "Rails tests", LIKELY, services, ("there is bin/rails",), "bundle exec ruby bin/rails test")]
    if re.search(r"TestTask|(?m:^[ \t]*task[ \t]*\(?:?[\"']?test\b)", rake):
        return [
            ("test", "Ruby tests with Rake", SURE, "", ("the Rakefile has the task 'test'",), "bundle exec rake test")
        ]
    if re.search(r"(?m)^[ \t]*task[ \t]*\(?:?[\"']?default\b", rake):
        told = ("the Rakefile has a default task",)
        return [("test", "Ruby's default task", LIKELY, "what it does is not to be seen", told, "bundle exec rake")]
    if has_specs:
        return [
            (
                "test",
                "Ruby tests with RSpec",
                LIKELY,
                "rspec is not declared",
                ("there are *_spec.rb files",),
                "bundle exec rspec",
            )
        ]
    return []


def _lint(place: Place, said: str) -> list[Row]:
    if not place.has(".rubocop.yml"):
        return []
    is_declared = "rubocop" in said or "standard" in said
    reason = "" if is_declared else "rubocop is not declared in the Gemfile"
    confidence: Confidence = SURE if is_declared else LIKELY
    return [("lint", "Ruby linter", confidence, reason, ("there is .rubocop.yml",), "bundle exec rubocop")]
