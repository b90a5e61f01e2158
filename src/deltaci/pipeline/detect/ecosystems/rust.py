"""Detect Rust crates and workspaces, which cargo builds, tests, formats and checks."""

from __future__ import annotations

import re
from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import LIKELY, SURE, UNSURE, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder, get_nested, get_table

ECOSYSTEM: Final = "rust"
MANIFEST: Final = "Cargo.toml"
FORMAT: Final = ("rustfmt.toml", ".rustfmt.toml")
TOOLCHAIN: Final = ("rust-toolchain.toml", "rust-toolchain")
CRATES: Final = "its crates may need certain features or platforms"
# Options that only nightly rustfmt supports: stable rustfmt ignores them and formats differently.
NIGHTLY: Final = re.compile(
    r"(?m)^[ \t]*(unstable_features|imports_granularity|group_imports|wrap_comments|format_code_in_doc_comments|"
    r"normalize_comments|format_strings|imports_layout|overflow_delimited_expr|format_macro_matchers|comment_width|"
    r"reorder_impl_items|blank_lines_upper_bound|brace_style|control_brace_style|condense_wildcard_suffixes|"
    r"error_on_line_overflow|fn_single_line|struct_lit_single_line|where_single_line|spaces_around_ranges|"
    r"version|style_edition_unstable|trailing_semicolon|trailing_comma|indent_style|binop_separator)\s*=\s*(?!\"Default\")"
)


def reads_file(name: str, folder: str) -> bool:
    """Return whether the detection of Rust projects reads this file."""
    return name in (MANIFEST, *FORMAT, *TOOLCHAIN)


def find(folder: Folder) -> Project | None:
    """Return the crate or workspace of the folder, or None if there is none."""
    if not folder.find_file(MANIFEST):
        return None
    cargo = folder.toml(MANIFEST)
    if not ({"package", "workspace"} & set(cargo)):
        return None
    workspace_option = _workspace_option(cargo)
    is_workspace = "workspace" in cargo
    evidence = ("Cargo.toml has [workspace]",) if is_workspace else ("Cargo.toml has [package]",)
    is_nightly = any("nightly" in folder.text(name) for name in TOOLCHAIN)
    hints = ("rust-toolchain requires nightly, which rustup installs",) if is_nightly else ()
    lock_file = folder.find_file("Cargo.lock") or MANIFEST
    caches = (
        model.Cache(
            key="cargo-{lock_hash}",
            paths=(folder.from_root("target"),),
            type="build",
            lock_files=(folder.from_root(lock_file),),
        ),
    )
    drafts = (
        JobDraft(
            task="build",
            title="Rust build",
            confidence=SURE if "package" in cargo else LIKELY,
            uncertainty="" if "package" in cargo else CRATES,
            evidence=evidence,
            steps=(f"cargo build{workspace_option}",),
            caches=caches,
            hints=hints,
        ),
        JobDraft(
            task="test",
            title="Rust tests",
            confidence=SURE if "package" in cargo else LIKELY,
            uncertainty="" if "package" in cargo else CRATES,
            evidence=evidence,
            steps=(f"cargo test{workspace_option}",),
            caches=caches,
            hints=hints,
        ),
        _format(folder),
        JobDraft(
            task="clippy",
            title="Rust linter",
            caches=caches,
            evidence=_clippy_evidence(folder, cargo),
            confidence=SURE
            if folder.find_file("clippy.toml", ".clippy.toml") or get_table(cargo, "workspace", "lints")
            else LIKELY,
            uncertainty=""
            if folder.find_file("clippy.toml", ".clippy.toml") or get_table(cargo, "workspace", "lints")
            else "clippy is not configured; it fails only for lints that the code denies",
            steps=(f"cargo clippy{workspace_option}",),
        ),
    )
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=drafts)


def _workspace_option(cargo: dict[str, Any]) -> str:
    """Return the option that selects all crates of a workspace; empty if Cargo.toml declares default members."""
    return " --workspace" if "workspace" in cargo and not get_nested(cargo, "workspace", "default-members") else ""


def _clippy_evidence(folder: Folder, cargo: dict[str, Any]) -> tuple[str, ...]:
    config = folder.find_file("clippy.toml", ".clippy.toml")
    return (
        (f"there is {config}",)
        if config
        else ("Cargo.toml has lints",)
        if get_table(cargo, "workspace", "lints")
        else ("it is a Rust project",)
    )


def _format(folder: Folder) -> JobDraft:
    config = folder.find_file(*FORMAT)
    evidence = (f"there is {config}",) if config else ("it is a Rust project",)
    if config and NIGHTLY.search(folder.text(config)):
        return JobDraft(
            task="format",
            title="Rust format",
            confidence=UNSURE,
            evidence=evidence,
            steps=("cargo +nightly fmt --all --check",),
            uncertainty=f"{config} has options that only nightly rustfmt supports",
        )
    return JobDraft(
        task="format",
        title="Rust format",
        confidence=SURE if config else LIKELY,
        evidence=evidence,
        uncertainty="" if config else "rustfmt is not configured",
        steps=("cargo fmt --all --check",),
    )
