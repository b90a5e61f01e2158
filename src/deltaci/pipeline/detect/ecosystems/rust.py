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


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of Rust projects reads this file."""
    return file_name in (MANIFEST, *FORMAT, *TOOLCHAIN)


def find(folder: Folder) -> Project | None:
    """Return the crate or workspace of the folder, or None if there is none."""
    if not folder.find_file(MANIFEST):
        return None
    cargo_toml = folder.toml(MANIFEST)
    if not ({"package", "workspace"} & set(cargo_toml)):
        return None
    workspace_option = _workspace_option(cargo_toml)
    is_workspace = "workspace" in cargo_toml
    evidence = ("Cargo.toml has [workspace]",) if is_workspace else ("Cargo.toml has [package]",)
    is_nightly = any("nightly" in folder.text(file_name) for file_name in TOOLCHAIN)
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
            purpose="build",
            title="Rust build",
            confidence=SURE if "package" in cargo_toml else LIKELY,
            uncertainty="" if "package" in cargo_toml else CRATES,
            evidence=evidence,
            steps=(f"cargo build{workspace_option}",),
            caches=caches,
            hints=hints,
        ),
        JobDraft(
            purpose="test",
            title="Rust tests",
            confidence=SURE if "package" in cargo_toml else LIKELY,
            uncertainty="" if "package" in cargo_toml else CRATES,
            evidence=evidence,
            steps=(f"cargo test{workspace_option}",),
            caches=caches,
            hints=hints,
        ),
        _format(folder),
        JobDraft(
            purpose="clippy",
            title="Rust linter",
            caches=caches,
            evidence=_clippy_evidence(folder, cargo_toml),
            confidence=SURE
            if folder.find_file("clippy.toml", ".clippy.toml") or get_table(cargo_toml, "workspace", "lints")
            else LIKELY,
            uncertainty=""
            if folder.find_file("clippy.toml", ".clippy.toml") or get_table(cargo_toml, "workspace", "lints")
            else "clippy is not configured; it fails only for lints that the code denies",
            steps=(f"cargo clippy{workspace_option}",),
        ),
    )
    return Project(ecosystem=ECOSYSTEM, folder=folder.path, drafts=drafts)


def _workspace_option(cargo_toml: dict[str, Any]) -> str:
    """Return the option that selects all crates of a workspace; empty if Cargo.toml declares default members."""
    return (
        " --workspace"
        if "workspace" in cargo_toml and not get_nested(cargo_toml, "workspace", "default-members")
        else ""
    )


def _clippy_evidence(folder: Folder, cargo_toml: dict[str, Any]) -> tuple[str, ...]:
    config_name = folder.find_file("clippy.toml", ".clippy.toml")
    return (
        (f"there is {config_name}",)
        if config_name
        else ("Cargo.toml has lints",)
        if get_table(cargo_toml, "workspace", "lints")
        else ("it is a Rust project",)
    )


def _format(folder: Folder) -> JobDraft:
    config_name = folder.find_file(*FORMAT)
    evidence = (f"there is {config_name}",) if config_name else ("it is a Rust project",)
    if config_name and NIGHTLY.search(folder.text(config_name)):
        return JobDraft(
            purpose="format",
            title="Rust format",
            confidence=UNSURE,
            evidence=evidence,
            steps=("cargo +nightly fmt --all --check",),
            uncertainty=f"{config_name} has options that only nightly rustfmt supports",
        )
    return JobDraft(
        purpose="format",
        title="Rust format",
        confidence=SURE if config_name else LIKELY,
        evidence=evidence,
        uncertainty="" if config_name else "rustfmt is not configured",
        steps=("cargo fmt --all --check",),
    )
