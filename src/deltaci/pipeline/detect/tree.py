"""The input of detection: the paths of all files of a repository, and the texts of a few.

The number and size of files are limited. File contents are untrusted: a file that cannot be parsed is treated as empty
and listed in `Tree.unreadable`. The detection of each ecosystem works on a `Folder`, a view of one folder of the tree.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as IniError
from typing import Any, Final

import msgspec

MAX_PATHS: Final = 300_000
MAX_READ_FILES: Final = 300
MAX_READ_CHARS: Final = 300_000
MAX_TOTAL_CHARS: Final = 5_000_000
MAX_DOTS_PER_LINE: Final = 500  # A TOML key with many parts takes long to parse.
MAX_DEPTH: Final = 5  # The number of folders above a project.

# Folders with dependencies, copies of third-party code, and build output.
THIRD_PARTY_NAMES: Final = frozenset(
    {
        *(".git", ".hg", ".venv", "venv", "node_modules", "bower_components", "site-packages", "__pycache__", ".tox"),
        *("vendor", "vendored", "_vendor", "third_party", "third-party", "thirdparty", "3rdparty", "external"),
        *("extern", "externals", "deps", "dist", "target", "submodules", "subprojects", "Pods", ".yarn", ".cargo"),
    }
)
# Folders with examples, documentation, tests and tools, which are not projects of their own.
AUXILIARY_NAMES: Final = frozenset(
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
    """Return whether a path can be used in a command and in a glob pattern without quoting."""
    path_parts = path.split("/") if path else []
    return len(path) <= 200 and all(PLAIN_NAME.fullmatch(name) and name not in (".", "..") for name in path_parts)


def normalize_paths(paths: Iterable[str]) -> list[str]:
    """Return the distinct relative paths, sorted. If there are too many, the most nested ones are dropped."""
    ordered = sorted(
        {path for path in paths if path and not path.startswith("/")}, key=lambda path: (path.count("/"), path)
    )
    return sorted(ordered[:MAX_PATHS])


def folder_of(path: str) -> str:
    """Return the folder of a path; empty for the root."""
    return path.rpartition("/")[0]


def join_path(folder: str, file_name: str) -> str:
    """Return the path of a name in a folder, which is empty for the root."""
    return f"{folder}/{file_name}" if folder else file_name


def is_third_party(path: str) -> bool:
    """Return whether a path is inside a folder for third-party code or build output, by the names of its folders."""
    return any(folder_name in THIRD_PARTY_NAMES for folder_name in path.split("/")[:-1])


def is_auxiliary(folder: str) -> bool:
    """Return whether the path of a folder has a name that is hidden, or usual for examples, docs, tests or tools."""
    return any(
        folder_name.lower() in AUXILIARY_NAMES or folder_name.startswith(".")
        for folder_name in folder.split("/")
        if folder
    )


class Tree:
    """All paths of a repository, and the texts of the files that were read."""

    def __init__(self, paths: Iterable[str], text_by_path: Mapping[str, str | None]) -> None:
        self.paths = normalize_paths(paths)
        self.unreadable: set[str] = set()
        self._count_by_extension: Counter[str] | None = None
        self._path_set = frozenset(self.paths)
        self._text_by_path = _within_limits(
            {path: text for path, text in text_by_path.items() if text and path in self._path_set}
        )
        self._names_by_folder: dict[str, list[str]] = {}
        for path in self.paths:
            folder, _, file_name = path.rpartition("/")
            self._names_by_folder.setdefault(folder, []).append(file_name)
        self._parsed_files: dict[tuple[str, str], Any] = {}

    def has(self, path: str) -> bool:
        """Return whether a file with this path exists."""
        return path in self._path_set

    def file_names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder."""
        return self._names_by_folder.get(folder, [])

    def folders(self) -> Iterator[str]:
        """Yield each folder that directly contains a file, outer folders first."""
        yield from sorted(self._names_by_folder, key=lambda folder: (folder.count("/") + bool(folder), folder))

    def count(self, extensions: tuple[str, ...]) -> int:
        """Return the number of files with one of these extensions, without third-party code."""
        if self._count_by_extension is None:
            self._count_by_extension = Counter(
                path.rpartition(".")[2] for path in self.paths if not is_third_party(path)
            )
        return sum(self._count_by_extension[extension] for extension in extensions)

    def paths_below(self, folder: str) -> Iterator[str]:
        """Return an iterator over all paths below a folder, at any depth."""
        if not folder:
            return iter(self.paths)
        start_index, end_index = bisect_left(self.paths, f"{folder}/"), bisect_left(self.paths, f"{folder}0")
        return iter(self.paths[start_index:end_index])  # "0" is the character after "/".

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it does not exist or was not read."""
        return self._text_by_path.get(path, "")

    def toml(self, path: str) -> dict[str, Any]:
        """Return the table of a TOML file; empty if it cannot be parsed."""
        return self._parsed(path, "toml", _toml)

    def json(self, path: str) -> dict[str, Any]:
        """Return the object of a JSON file; empty if it cannot be parsed."""
        return self._parsed(path, "json", msgspec.json.decode)

    def ini(self, path: str) -> dict[str, Any]:
        """Return the sections of an INI file; empty if it cannot be parsed."""
        return self._parsed(path, "ini", _ini)

    def _parsed(self, path: str, format_name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
        parsed_file = self._parsed_files.get((path, format_name))
        if parsed_file is None:
            parsed_file = {}
            text = self.text(path)
            try:
                parsed = parse(text) if text else {}
                parsed_file = parsed if isinstance(parsed, dict) else {}
                if not isinstance(parsed, dict):
                    self.unreadable.add(path)
            except (ValueError, RecursionError, msgspec.DecodeError, IniError):
                self.unreadable.add(path)
            self._parsed_files[path, format_name] = parsed_file
        return dict(parsed_file)


def _within_limits(text_by_path: Mapping[str, str]) -> dict[str, str]:
    """Return the texts by path that are not too long, the least nested first, up to a total size."""
    remaining_chars, accepted = MAX_TOTAL_CHARS, {}
    for path, text in sorted(
        text_by_path.items(), key=lambda path_and_text: (path_and_text[0].count("/"), path_and_text[0])
    ):
        remaining_chars -= len(text)
        if remaining_chars < 0:
            break
        if len(text) <= MAX_READ_CHARS:
            accepted[path] = text.removeprefix("\ufeff")
    return accepted


def _toml(toml_text: str) -> dict[str, Any]:
    if any(line.count(".") > MAX_DOTS_PER_LINE for line in toml_text.splitlines()):
        raise ValueError("a line has too many dots")
    return tomllib.loads(toml_text)


def _ini(ini_text: str) -> dict[str, dict[str, str]]:
    parser = ConfigParser(interpolation=None, strict=False, allow_no_value=True, delimiters=("=", ":"))
    parser.read_string(ini_text)
    return {
        section_name: {option: option_value or "" for option, option_value in parser.items(section_name, raw=True)}
        for section_name in parser.sections()
    }


class Folder:
    """A folder of a `Tree`. Paths that its methods take and return are relative to the folder."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.tree = tree
        self.path = path

    def find_file(self, *paths: str) -> str | None:
        """Return the first of these paths that exists, or None."""
        return next((path for path in paths if self.tree.has(join_path(self.path, path))), None)

    def file_names(self, pattern: str = ".*", subfolder: str = "") -> list[str]:
        """Return the names of the files directly in the folder, or in a subfolder, that fully match a pattern."""
        compiled = re.compile(pattern)
        folder_path = join_path(self.path, subfolder) if subfolder else self.path
        return [file_name for file_name in self.tree.file_names(folder_path) if compiled.fullmatch(file_name)]

    def paths_matching(self, pattern: str = ".*") -> Iterator[str]:
        """Yield each path below the folder that fully matches a pattern and is not third-party code."""
        compiled, prefix_length = re.compile(pattern), len(self.path) + 1 if self.path else 0
        for path in self.tree.paths_below(self.path):
            relative_path = path[prefix_length:]
            if compiled.fullmatch(relative_path) and not is_third_party(relative_path):
                yield relative_path

    def has_folder(self, subfolder: str) -> bool:
        """Return whether a subfolder contains any file."""
        return next(self.tree.paths_below(join_path(self.path, subfolder)), None) is not None

    def first_match(self, pattern: str) -> str | None:
        """Return the first path of `paths_matching`, or None."""
        return next(self.paths_matching(pattern), None)

    def text(self, path: str) -> str:
        """Return the text of a file, as `Tree.text` does."""
        return self.tree.text(join_path(self.path, path))

    def toml(self, path: str) -> dict[str, Any]:
        """Return the table of a TOML file, as `Tree.toml` does."""
        return self.tree.toml(join_path(self.path, path))

    def json(self, path: str) -> dict[str, Any]:
        """Return the object of a JSON file, as `Tree.json` does."""
        return self.tree.json(join_path(self.path, path))

    def ini(self, path: str) -> dict[str, Any]:
        """Return the sections of an INI file, as `Tree.ini` does."""
        return self.tree.ini(join_path(self.path, path))

    def from_root(self, path: str) -> str:
        """Return a path in the folder as a path from the root of the repository."""
        return join_path(self.path, path)


def get_nested(value: Any, *keys: str) -> Any:
    """Return the value below nested keys, or None if a key is missing or its parent is not a table."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def get_table(value: Any, *keys: str) -> dict[str, Any]:
    """Return the table below nested keys; empty if there is none."""
    nested = get_nested(value, *keys)
    return {str(key): entry for key, entry in nested.items()} if isinstance(nested, dict) else {}


def string_list(value: Any) -> list[str]:
    """Return the strings of a list. A single string is returned as a list; any other value as an empty list."""
    if isinstance(value, str):
        return [value]
    return [element for element in value if isinstance(element, str)] if isinstance(value, list) else []


def string_or_empty(value: Any) -> str:
    """Return the value if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""
