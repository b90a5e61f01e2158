"""The files of a repository as discovery sees them: names of all, texts of a few. Everything is bounded.

`wanted` says, from names alone, which files should be read; a `Place` is one folder of the tree with questions about
it. Texts may be anything: what cannot be read is as if it said nothing, and is told.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as NotIni
from typing import Any, Final

import msgspec

MAX_PATHS: Final = 300_000
MAX_READ_FILES: Final = 300
MAX_READ_CHARS: Final = 300_000
MAX_TOTAL_CHARS: Final = 5_000_000
MAX_DOTS: Final = 500  # in a line of TOML
MAX_DEPTH: Final = 5  # folders above a project

# What lies here was made by others, or is not the project itself but shown, documented or tested with it.
FOREIGN: Final = frozenset(
    {
        *(".git", ".hg", ".venv", "venv", "node_modules", "bower_components", "site-packages", "__pycache__", ".tox"),
        *("vendor", "vendored", "_vendor", "third_party", "third-party", "thirdparty", "3rdparty", "external"),
        *("extern", "externals", "deps", "dist", "target", "submodules", "subprojects", "Pods", ".yarn", ".cargo"),
    }
)
ASIDE: Final = frozenset(
    {
        *("example", "examples", "sample", "samples", "demo", "demos", "tutorial", "tutorials", "playground"),
        *("playgrounds", "docs", "doc", "documentation", "website", "site", "www", "gh-pages", "book", "blog"),
        *("test", "tests", "testing", "testdata", "test-data", "test_data", "__tests__", "fixtures", "fixture"),
        *("__fixtures__", "spec", "specs", "e2e", "integration", "integration-tests", "integration_tests", "it"),
        *("template", "templates", "boilerplate", "starter", "starters", "skeleton", "cookiecutter", "scaffold"),
        *("bench", "benches", "benchmark", "benchmarks", "fuzz", "perf", "performance", "stress", "resources"),
        *("script", "scripts", "tools", "tool", "hack", "contrib", "ci", "build", "internal", "misc", "etc", "util"),
        *("assets", "static", "packaging", "release", "infra", "deploy", "docker", "dev", ".github", "experimental"),
        *("smoke-test", "smoke-tests", "mocks", "testutil", "test_suite", "codemod", "codemods", "archive", "legacy"),
    }
)
PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.@][A-Za-z0-9_.@-]*")


def is_plain(path: str) -> bool:
    """Whether a path can stand in a command and in a pattern as it is, and means only itself there."""
    names = path.split("/") if path else []
    return len(path) <= 200 and all(PLAIN_NAME.fullmatch(name) and name not in (".", "..") for name in names)


def normal(paths: Iterable[str]) -> list[str]:
    """The paths in an order of their own, without repeats and without what is too much; those near the root first."""
    ordered = sorted({path for path in paths if path and not path.startswith("/")}, key=lambda p: (p.count("/"), p))
    return sorted(ordered[:MAX_PATHS])


def folder_of(path: str) -> str:
    """The folder that something lies in; the root is empty."""
    return path.rpartition("/")[0]


def joined(folder: str, name: str) -> str:
    """A name in a folder, from the root on."""
    return f"{folder}/{name}" if folder else name


def is_foreign(path: str) -> bool:
    """Whether it was made by others and is only kept here."""
    return any(name in FOREIGN for name in path.split("/")[:-1])


def is_aside(folder: str) -> bool:
    """Whether a folder is shown, documented or tested with the project, rather than being part of it."""
    return any(name.lower() in ASIDE or name.startswith(".") for name in folder.split("/") if folder)


class Tree:
    """All names, and the texts that were asked for."""

    def __init__(self, paths: Iterable[str], texts: Mapping[str, str | None]) -> None:
        self.paths = normal(paths)
        self.unreadable: set[str] = set()
        self._endings: Counter[str] | None = None
        self._known = frozenset(self.paths)
        self._texts = _bounded({path: text for path, text in texts.items() if text and path in self._known})
        self._names: dict[str, list[str]] = {}
        for path in self.paths:
            folder, _, name = path.rpartition("/")
            self._names.setdefault(folder, []).append(name)
        self._read: dict[tuple[str, str], Any] = {}

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._known

    def names(self, folder: str) -> list[str]:
        """The files that lie directly in a folder."""
        return self._names.get(folder, [])

    def folders(self) -> Iterator[str]:
        """Every folder that has files, the outer ones first."""
        yield from sorted(self._names, key=lambda folder: (folder.count("/") + bool(folder), folder))

    def count(self, endings: tuple[str, ...]) -> int:
        """How many files have one of these endings, others' work aside."""
        if self._endings is None:
            self._endings = Counter(path.rpartition(".")[2] for path in self.paths if not is_foreign(path))
        return sum(self._endings[ending] for ending in endings)

    def below(self, folder: str) -> Iterator[str]:
        """Every path in a folder and in those inside it."""
        if not folder:
            return iter(self.paths)
        first, last = bisect_left(self.paths, f"{folder}/"), bisect_left(self.paths, f"{folder}0")
        return iter(self.paths[first:last])  # The character after the slash is the zero.

    def text(self, path: str) -> str:
        """What a file says; nothing, if there is none or it was not read."""
        return self._texts.get(path, "")

    def toml(self, path: str) -> dict[str, Any]:
        """A TOML file as a table."""
        return self._parsed(path, "toml", _toml)

    def json(self, path: str) -> dict[str, Any]:
        """A JSON file as an object."""
        return self._parsed(path, "json", msgspec.json.decode)

    def ini(self, path: str) -> dict[str, Any]:
        """An INI file as sections of texts."""
        return self._parsed(path, "ini", _ini)

    def _parsed(self, path: str, kind: str, parse: Callable[[str], Any]) -> dict[str, Any]:
        known = self._read.get((path, kind))
        if known is None:
            known = {}
            text = self.text(path)
            try:
                found = parse(text) if text else {}
                known = found if isinstance(found, dict) else {}
                if not isinstance(found, dict):
                    self.unreadable.add(path)
            except (ValueError, RecursionError, msgspec.DecodeError, NotIni):
                self.unreadable.add(path)
            self._read[path, kind] = known
        return dict(known)


def _bounded(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts that are not too long, until there are too many; those near the root first."""
    left, kept = MAX_TOTAL_CHARS, {}
    for path, text in sorted(texts.items(), key=lambda item: (item[0].count("/"), item[0])):
        left -= len(text)
        if left < 0:
            break
        if len(text) <= MAX_READ_CHARS:
            kept[path] = text.removeprefix("\ufeff")
    return kept


def _toml(text: str) -> dict[str, Any]:
    if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise ValueError("a key of so many parts would take long to read")
    return tomllib.loads(text)


def _ini(text: str) -> dict[str, dict[str, str]]:
    read = ConfigParser(interpolation=None, strict=False, allow_no_value=True, delimiters=("=", ":"))
    read.read_string(text)
    return {name: {key: value or "" for key, value in read.items(name, raw=True)} for name in read.sections()}


class Place:
    """One folder of the tree, with everything that ecosystems ask about it. Paths given and got are from there on."""

    def __init__(self, tree: Tree, folder: str) -> None:
        self.tree = tree
        self.folder = folder

    def has(self, *paths: str) -> str | None:
        """The first of these files that there is."""
        return next((path for path in paths if self.tree.has(joined(self.folder, path))), None)

    def names(self, pattern: str = ".*", folder: str = "") -> list[str]:
        """Files directly here, or in a folder of it, whose names are all of a regular expression."""
        wanted = re.compile(pattern)
        here = joined(self.folder, folder) if folder else self.folder
        return [name for name in self.tree.names(here) if wanted.fullmatch(name)]

    def below(self, pattern: str = ".*") -> Iterator[str]:
        """Files here and in folders of it, that are not others' work, whose paths are all of a regular expression."""
        wanted, start = re.compile(pattern), len(self.folder) + 1 if self.folder else 0
        for path in self.tree.below(self.folder):
            inner = path[start:]
            if wanted.fullmatch(inner) and not is_foreign(inner):
                yield inner

    def has_folder(self, folder: str) -> bool:
        """Whether anything is in a folder of it."""
        return next(self.tree.below(joined(self.folder, folder)), None) is not None

    def any(self, pattern: str) -> str | None:
        """The first of `below`."""
        return next(self.below(pattern), None)

    def text(self, path: str) -> str:
        """What a file says."""
        return self.tree.text(joined(self.folder, path))

    def toml(self, path: str) -> dict[str, Any]:
        """A TOML file as a table."""
        return self.tree.toml(joined(self.folder, path))

    def json(self, path: str) -> dict[str, Any]:
        """A JSON file as an object."""
        return self.tree.json(joined(self.folder, path))

    def ini(self, path: str) -> dict[str, Any]:
        """An INI file as sections of texts."""
        return self.tree.ini(joined(self.folder, path))

    def path(self, name: str) -> str:
        """A path of here, from the root of the repository on."""
        return joined(self.folder, name)


def dig(value: Any, *keys: str) -> Any:
    """What lies under some keys, or nothing, whatever the value is."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def table(value: Any, *keys: str) -> dict[str, Any]:
    """The table under some keys; empty if it is none."""
    found = dig(value, *keys)
    return {str(key): each for key, each in found.items()} if isinstance(found, dict) else {}


def texts(value: Any) -> list[str]:
    """The texts of a list; a single one is a list of one."""
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def word(value: Any) -> str:
    """A text, or nothing."""
    return value if isinstance(value, str) else ""
