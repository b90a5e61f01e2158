"""Detect Ruby projects: Bundler, with RSpec, Rake or Rails."""

from __future__ import annotations

import re
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import LIKELY, SURE, Confidence, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder

ECOSYSTEM: Final = "ruby"


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of Ruby projects reads this file."""
    return file_name in ("Gemfile", "Rakefile", ".rspec", ".rubocop.yml") or file_name.endswith(".gemspec")


def find(folder: Folder) -> Project | None:
    """Return the Ruby project of the folder, or None if there is none."""
    if not folder.find_file("Gemfile"):
        return None
    gem_text = folder.text("Gemfile") + "".join(folder.text(name) for name in folder.file_names(r".*\.gemspec"))
    lock_file = folder.find_file("Gemfile.lock")
    caches = (
        model.Cache(
            key="bundle-{lock_hash}",
            paths=(folder.from_root("vendor/bundle"),),
            lock_files=(folder.from_root(lock_file or "Gemfile"),),
        ),
    )
    drafts = [
        JobDraft(
            purpose=purpose,
            title=title,
            confidence=confidence,
            uncertainty=uncertainty,
            evidence=evidence,
            caches=caches,
            env={"BUNDLE_PATH": "vendor/bundle"},
            steps=("bundle install", command),
        )
        for purpose, title, confidence, uncertainty, evidence, command in (
            *_test(folder, gem_text),
            *_lint(folder, gem_text),
        )
    ]
    unclear = () if drafts else ("there is a Gemfile, but no tests were detected",)
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=tuple(drafts), unclear=unclear)


# Purpose, title, confidence, uncertainty, evidence, command.
DraftRow = tuple[str, str, Confidence, str, tuple[str, ...], str]


def _test(folder: Folder, gem_text: str) -> list[DraftRow]:
    rakefile = folder.text("Rakefile")
    is_rails = folder.find_file("config/application.rb") is not None
    database_reason = "it may need a database" if is_rails else ""
    confidence: Confidence = LIKELY if is_rails else SURE
    has_specs = folder.first_match(r"spec/.*_spec\.rb") is not None
    if has_specs and (folder.find_file(".rspec") or "rspec" in gem_text):
        return [
            (
                "test",
                "Ruby tests with RSpec",
                confidence,
                database_reason,
                ("there are *_spec.rb files",),
                "bundle exec rspec",
            )
        ]
    if is_rails and folder.find_file("bin/rails"):
        return [
            ("test", "Rails tests", LIKELY, database_reason, ("there is bin/rails",), "bundle exec ruby bin/rails test")
        ]
    if re.search(r"TestTask|(?m:^[ \t]*task[ \t]*\(?:?[\"']?test\b)", rakefile):
        return [
            ("test", "Ruby tests with Rake", SURE, "", ("the Rakefile has the task 'test'",), "bundle exec rake test")
        ]
    if re.search(r"(?m)^[ \t]*task[ \t]*\(?:?[\"']?default\b", rakefile):
        evidence = ("the Rakefile has a default task",)
        return [
            (
                "test",
                "Ruby's default task",
                LIKELY,
                "the effect of the default task is unknown",
                evidence,
                "bundle exec rake",
            )
        ]
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


def _lint(folder: Folder, gem_text: str) -> list[DraftRow]:
    if not folder.find_file(".rubocop.yml"):
        return []
    is_declared = "rubocop" in gem_text or "standard" in gem_text
    uncertainty = "" if is_declared else "rubocop is not declared in the Gemfile"
    confidence: Confidence = SURE if is_declared else LIKELY
    return [("lint", "Ruby linter", confidence, uncertainty, ("there is .rubocop.yml",), "bundle exec rubocop")]
