"""Rust: cargo knows how to build, test, format and check what Cargo.toml declares."""

from __future__ import annotations

import re
from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import LIKELY, SURE, UNSURE, Draft, Project
from deltaci.pipeline.detect.tree import Place, dig, table

ECOSYSTEM: Final = "rust"
MANIFEST: Final = "Cargo.toml"
FORMAT: Final = ("rustfmt.toml", ".rustfmt.toml")
TOOLCHAIN: Final = ("rust-toolchain.toml", "rust-toolchain")
CRATES: Final = "its crates may need features or systems of their own"
# Only a nightly rustfmt knows these: a stable one would format otherwise.
NIGHTLY: Final = re.compile(
    r"(?m)^[ \t]*(unstable_features|imports_granularity|group_imports|wrap_comments|format_code_in_doc_comments|"
    r"normalize_comments|format_strings|imports_layout|overflow_delimited_expr|format_macro_matchers|comment_width|"
    r"reorder_impl_items|blank_lines_upper_bound|brace_style|control_brace_style|condense_wildcard_suffixes|"
    r"error_on_line_overflow|fn_single_line|struct_lit_single_line|where_single_line|spaces_around_ranges|"
    r"version|style_edition_unstable|trailing_semicolon|trailing_comma|indent_style|binop_separator)\s*=\s*(?!\"Default\")"
)


def wants(name: str, folder: str) -> bool:
    """Whether a file says something about a crate."""
    return name in (MANIFEST, *FORMAT, *TOOLCHAIN)


def find(place: Place) -> Project | None:
    """The crate or workspace of this folder, if there is one."""
    if not place.has(MANIFEST):
        return None
    cargo = place.toml(MANIFEST)
    if not ({"package", "workspace"} & set(cargo)):
        return None
    every = _every(cargo)
    is_workspace = "workspace" in cargo
    evidence = ("Cargo.toml has [workspace]",) if is_workspace else ("Cargo.toml has [package]",)
    is_nightly = any("nightly" in place.text(name) for name in TOOLCHAIN)
    hints = ("rust-toolchain asks for nightly; rustup gets it",) if is_nightly else ()
    lock = place.has("Cargo.lock") or MANIFEST
    shared = (
        model.Cache(
            key="cargo-{lock_hash}", paths=(place.path("target"),), type="build", lock_files=(place.path(lock),)
        ),
    )
    drafts = (
        Draft(
            task="build",
            what="Rust build",
            confidence=SURE if "package" in cargo else LIKELY,
            reason="" if "package" in cargo else CRATES,
            evidence=evidence,
            steps=(f"cargo build{every}",),
            caches=shared,
            hints=hints,
        ),
        Draft(
            task="test",
            what="Rust tests",
            confidence=SURE if "package" in cargo else LIKELY,
            reason="" if "package" in cargo else CRATES,
            evidence=evidence,
            steps=(f"cargo test{every}",),
            caches=shared,
            hints=hints,
        ),
        _format(place),
        Draft(
            task="clippy",
            what="Rust linter",
            caches=shared,
            evidence=_clippy(place, cargo),
            confidence=SURE
            if place.has("clippy.toml", ".clippy.toml") or table(cargo, "workspace", "lints")
            else LIKELY,
            reason=""
            if place.has("clippy.toml", ".clippy.toml") or table(cargo, "workspace", "lints")
            else "nothing says that clippy is used; it fails only for what the code denies",
            steps=(f"cargo clippy{every}",),
        ),
    )
    return Project(ecosystem=ECOSYSTEM, folder=place.folder, drafts=drafts)


def _every(cargo: dict[str, Any]) -> str:
    """All crates of a workspace, unless it says itself which are meant."""
    return " --workspace" if "workspace" in cargo and not dig(cargo, "workspace", "default-members") else ""


def _clippy(place: Place, cargo: dict[str, Any]) -> tuple[str, ...]:
    config = place.has("clippy.toml", ".clippy.toml")
    return (
        (f"there is {config}",)
        if config
        else ("Cargo.toml has lints",)
        if table(cargo, "workspace", "lints")
        else ("it is Rust",)
    )


def _format(place: Place) -> Draft:
    config = place.has(*FORMAT)
    evidence = (f"there is {config}",) if config else ("it is Rust",)
    if config and NIGHTLY.search(place.text(config)):
        return Draft(
            task="format",
            what="Rust format",
            confidence=UNSURE,
            evidence=evidence,
            steps=("cargo +nightly fmt --all --check",),
            reason=f"{config} has options that only a nightly rustfmt knows",
        )
    return Draft(
        task="format",
        what="Rust format",
        confidence=SURE if config else LIKELY,
        evidence=evidence,
        reason="" if config else "nothing says that rustfmt is used",
        steps=("cargo fmt --all --check",),
    )
