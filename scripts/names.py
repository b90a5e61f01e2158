"""Names and docstrings that use private or vague words: the counts behind `scripts/rename-progress`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src" / "deltaci"
LIMITS: Final = ROOT / "tests" / "names_limits.txt"
KINDS: Final = ("private", "loose", "vague")

# Words that have a meaning only in this project.
_PRIVATE: Final = """
told tell tells telling heard hear hears hearing desk desks hands nursery wish wishes spot spots outlet outlets
workshop birth births bear everybody nobody somebody whoever doubt doubts greet greets rivals rival brought bring
insist harvest disguise disguises lastwords entrance spoken doors door endings staying trouble troubles lane lanes
homes whom whose mend mended mends elder elders
"""
# Ordinary words that say too little in most places.
_LOOSE: Final = """
each found known kept seen held place places placed line said asked asks ask wanted wants shown gone look looks
say says some own given give gives taken takes begun
"""
PRIVATE: Final = frozenset(_PRIVATE.split())
LOOSE: Final = frozenset(_LOOSE.split())
VAGUE: Final = re.compile(
    r"\b(whoever|whatever|what is|what was|what they|those that|those who|one who|one that|nobody|somebody|everybody"
    r"|all of it|all of them|none of them|as it is|that is so|is there|are there|what it|of what|who is|who has)\b",
    re.IGNORECASE,
)
# Code that a later issue replaces as a whole.
EXEMPT: Final = (
    "controllers", "controllers/merge_queue", "controllers/workstreams", "server/ui", "server/web", "client", "cli",
)  # fmt: skip
DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Place(NamedTuple):
    """One bound name or docstring that uses such a word."""

    package: str
    path: str
    line: int
    kind: str
    text: str


def is_exempt(package: str) -> bool:
    """Return whether a later issue replaces the code of this package."""
    return any(package == exempt or package.startswith(f"{exempt}/") for exempt in EXEMPT)


def packages() -> list[str]:
    """Return all packages below src/deltaci, as `core` or `server/rest`; modules at the top are in `deltaci`."""
    return sorted({package_of(path) for path in SOURCE.rglob("*.py")})


def package_of(path: Path) -> str:
    """Return the package of a module, relative to src/deltaci."""
    folder = path.parent.relative_to(SOURCE).as_posix()
    return "deltaci" if folder == "." else folder


def places() -> Iterator[Place]:
    """Yield every bound name and every docstring that uses a private, loose or vague word."""
    for path in sorted(SOURCE.rglob("*.py")):
        where = package_of(path), path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        for line, name in [(1, path.stem), *bound_names(tree)]:
            if kind := classify(name):
                yield Place(*where, line, kind, name)
        for line, docstring in docstrings(tree):
            if VAGUE.search(docstring):
                yield Place(*where, line, "vague", docstring.splitlines()[0])


@cache
def counts() -> Counter[tuple[str, str]]:
    """Return the number of places for each package and kind."""
    return Counter((place.package, place.kind) for place in places())


def limits() -> dict[tuple[str, str], int]:
    """Return how many places each package may have, by package and kind."""
    table: dict[tuple[str, str], int] = {}
    for line in LIMITS.read_text("utf-8").splitlines():
        package, *numbers = line.split()
        table.update({(package, kind): int(number) for kind, number in zip(KINDS, numbers, strict=True)})
    return table


def write_limits() -> None:
    """Set the limits to the present counts."""
    table = counts()
    lines = [f"{package} {' '.join(str(table[package, kind]) for kind in KINDS)}\n" for package in packages()]
    LIMITS.write_text("".join(lines), "utf-8")


def classify(name: str) -> str:
    """Return "private" or "loose" if the identifier contains such a word, else an empty string."""
    words = {word.lower() for word in WORDS.findall(name)}
    return "private" if words & PRIVATE else "loose" if words & LOOSE or name == "of" else ""


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that the module binds."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
