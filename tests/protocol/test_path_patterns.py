"""Patterns of paths and branches: what they match, what is refused, and that no pattern is slow."""

from __future__ import annotations

import contextlib
import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.protocol.patterns import path_patterns, pattern_automaton
from deltaci.protocol.patterns.path_patterns import BadPattern, branch_filter, path_filter

# The examples of GitHub's page about filter patterns, and next to them what must not match.
BRANCHES = [
    (["feature/*"], ["feature/my-branch", "feature/your-branch"], ["feature/a/b", "feature", "my/feature/a"]),
    (["feature/**"], ["feature/beta-a/my-branch", "feature/your-branch", "feature/mona/the/octocat"], ["features/a"]),
    (["main"], ["main"], ["main2", "amain", "main/x", "Main"]),
    (["releases/mona-the-octocat"], ["releases/mona-the-octocat"], ["releases/mona"]),
    (["*"], ["main", "releases"], ["all/the/branches"]),
    (["**"], ["all/the/branches", "every/tag", "main"], []),
    (["*feature"], ["mona-feature", "feature", "ver-10-feature"], ["a/feature", "features"]),
    (["v2*"], ["v2", "v2.0", "v2.9"], ["v1", "v2/x", "av2"]),
    (["v[12].[0-9]+.[0-9]+"], ["v1.10.1", "v2.0.0"], ["v3.0.0", "v1.1", "v1..1", "v1x1.1"]),
    (["releases/**", "!releases/**-alpha"], ["releases/10", "releases/beta/mona"], ["releases/10-alpha", "x"]),
]
PATHS = [
    (["*"], ["README.md", "server.rb"], ["docs/README.md"]),
    (["*.jsx?"], ["page.js", "page.jsx"], ["page.jsxx", "a/page.js", "page.jx"]),
    (["**"], ["all/the/files.md", "a"], []),
    (["*.js"], ["app.js", "index.js"], ["js/app.js", "app.jsx", "app.JS"]),
    (["**.js"], ["index.js", "js/index.js", "src/js/app.js"], ["index.ts"]),
    (["docs/*"], ["docs/README.md", "docs/file.txt"], ["docs/a/b", "docs", "a/docs/b"]),
    (["docs/**"], ["docs/README.md", "docs/mona/octocat.txt"], ["docs2/a", "a/docs/b"]),
    (
        ["docs/**/*.md"],
        ["docs/README.md", "docs/mona/hello-world.md", "docs/a/markdown/file.md"],
        ["docs/a.txt", "x.md"],
    ),
    (["**/docs/**"], ["docs/hello.md", "dir/docs/my-file.txt", "space/docs/plan/space.doc"], ["mydocs/a", "docs"]),
    (["**/README.md"], ["README.md", "js/README.md"], ["js/MYREADME.md", "README.mdx"]),
    (["**/*src/**"], ["a/src/app.js", "my-src/code/js/app.js"], ["src2/a", "src"]),
    (["**/*-post.md"], ["my-post.md", "path/their-post.md"], ["post.md"]),
    (
        ["**/migrate-*.sql"],
        ["migrate-10909.sql", "db/migrate-v1.0.sql", "db/sept/migrate-v1.sql"],
        ["db/xmigrate-1.sql", "migrate-a/b.sql"],
    ),
    (["*.md", "!README.md"], ["hello.md"], ["README.md", "docs/hello.md"]),
    (["*.md", "!README.md", "README*"], ["hello.md", "README.md", "README.doc"], ["docs/README.md"]),
]
OURS = [
    (["src"], ["src", "src/a", "src/a/b"], ["srcs/a", "a/src/b"]),
    (["src/"], ["src", "src/a", "src/a/b"], ["srcs/a"]),
    (["./src/"], ["src/a"], ["a"]),
    (["/src"], ["src/a"], ["a/src/b"]),
    (["."], ["a", "a/b"], []),
    (["/"], ["a", "a/b"], []),
    (["packages/*/src"], ["packages/a/src/x", "packages/a/src"], ["packages/a/b/src/x", "packages/src/x"]),
    (["pkg*/"], ["pkg/a", "pkg1/a/b"], ["pkg", "pkg1", "a/pkg/b"]),
    (["**/"], ["a/b", "a/b/c"], ["a"]),
    (["src", "!src/gen"], ["src/a"], ["src/gen/a", "src/gen"]),
    (["src", "!src/gen", "src/gen/keep"], ["src/gen/keep", "src/gen/keep/a"], ["src/gen/a"]),
    (["**/docs"], ["docs/a", "x/docs", "x/y/docs/a/b"], ["mydocs/a", "docs2"]),
    (["a/**/b"], ["a/b/c", "a/x/b/c/d"], ["a/xb/c"]),
    (["a/**/**/b"], ["a/b", "a/x/b", "a/x/y/b"], ["ab"]),
    (["a**b"], ["ab", "a/x/b", "axb"], ["a/c"]),
    (["a***b"], ["ab", "a/x/b"], ["a/c"]),
    (["a**/b"], ["a/b", "ax/b", "a/x/b"], ["b"]),
    (["[!ab]x"], ["cx"], ["ax", "bx", "/x"]),
    (["[^ab]x"], ["cx"], ["ax"]),
    (["a[!b]c"], ["axc"], ["abc", "a/c"]),
    (["[.-0]"], [".", "0"], ["-", "/"]),
    (["[a-]"], ["a", "-"], ["b"]),
    ([r"[\]\[]"], ["]", "["], ["\\"]),
    ([r"c\+\+/*"], ["c++/a"], ["c/a", "ccc/a"]),
    ([r"\!a"], ["!a"], ["a"]),
    ([r"\{a\}"], ["{a}", "{a}/b"], ["a"]),
    (["a]b"], ["a]b"], ["ab"]),
    (["a!b"], ["a!b"], ["ab"]),
    (["naïve/*"], ["naïve/ü"], ["naive/u"]),
    (["a?b+"], ["b", "ab", "abbb"], ["a", "aab"]),
    (["[0-9]?x"], ["x", "5x"], ["55x"]),
]


@pytest.mark.parametrize(("patterns", "matching", "others"), BRANCHES, ids=str)
def test_branches_match_as_on_github(patterns: list[str], matching: list[str], others: list[str]) -> None:
    chosen = branch_filter(patterns)

    assert [name for name in matching if not chosen.matches(name)] == []
    assert [name for name in others if chosen.matches(name)] == []


@pytest.mark.parametrize(("patterns", "matching", "others"), PATHS + OURS, ids=str)
def test_paths_match_as_on_github_and_folders_mean_what_is_below(
    patterns: list[str], matching: list[str], others: list[str]
) -> None:
    chosen = path_filter(patterns)

    assert [path for path in matching if not chosen.matches(path)] == []
    assert [path for path in others if chosen.matches(path)] == []


@pytest.mark.parametrize(
    ("pattern", "column", "found"),
    [
        ("", 1, "nothing"),
        ("!", 2, "nothing"),
        ("!!a", 2, "a second '!'"),
        ("?a", 1, "'?' with nothing before it"),
        ("a/+b", 3, "'+' after '/'"),
        ("a*?", 3, "'?' after '*'"),
        ("**/?.js", 4, "'?' after '/'"),
        ("libs/c++", 8, "'+' after another quantifier"),
        ("a[bc", 2, "'[' without ']'"),
        ("a[]", 2, "empty brackets"),
        ("a[!]", 2, "empty brackets"),
        ("a[z-a]", 3, "the range 'z-a'"),
        ("a[b/c]", 4, "'/' in brackets"),
        ("a[[:alpha:]]", 3, "'[' in brackets"),
        ("src/*.{js,ts}", 7, "'{'"),
        ("a}", 2, "'}'"),
        ("a\\", 2, "'\\' at the end"),
        ("src\\app", 4, "'\\a'"),
        ("src\\/", 4, "'\\' at the end"),
        ("a//b", 3, "a folder without a name"),
        ("../a", 1, "'..' as a name"),
        ("a/./b", 3, "'.' as a name"),
        (" a", 1, "a space at the edge"),
        ("a ", 2, "a space at the edge"),
        ("a\nb", 2, "a control character"),
        ("a" * 1_025, 1_025, "1025 characters"),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_column(pattern: str, column: int, found: str) -> None:
    """A pattern that silently matched nothing would leave out a job."""
    with pytest.raises(BadPattern) as refused:
        path_patterns.parse_path(pattern)

    assert (refused.value.column, refused.value.found) == (column, found)
    assert refused.value.expected


@pytest.mark.parametrize(("pattern", "column"), [("refs/heads/main", 1), ("!refs/heads/x", 2), ("a/", 2), ("/a", 1)])
def test_what_no_branch_can_be_called_is_refused(pattern: str, column: int) -> None:
    with pytest.raises(BadPattern) as refused:
        path_patterns.parse_branch(pattern)

    assert refused.value.column == column


def test_a_list_says_which_of_its_patterns_is_wrong() -> None:
    with pytest.raises(BadPattern) as refused:
        path_filter(["src/**", "docs/[a"])

    assert (refused.value.item, refused.value.column) == (2, 6)


def test_a_list_that_only_takes_away_is_refused() -> None:
    with pytest.raises(BadPattern, match=r"'\*\*' for everything"):
        path_filter(["!docs/**"])
    with pytest.raises(BadPattern, match="at most 1000"):
        path_filter(["a"] * 1_001)


def test_an_empty_list_matches_nothing_and_the_last_match_is_named() -> None:
    assert not path_filter([]).matches("a")

    decisive = path_filter(["src", "!src/gen"]).decided_by("src/gen/a")

    assert decisive is not None
    assert (decisive.text, decisive.is_negative) == ("!src/gen", True)


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("web/src/**/*.ts", "web/src"),
        ("web", "web"),
        ("./web/", "web"),
        ("web*", ""),
        ("web/a+/b", "web"),
        ("**/*.py", ""),
        (r"a\+b/*", "a+b"),
        ("!web/**", "web"),
        (".", ""),
        ("web/package.json", "web/package.json"),
    ],
)
def test_the_folder_of_a_pattern_is_what_stands_before_its_first_wildcard(pattern: str, folder: str) -> None:
    assert path_patterns.parse_path(pattern).folder == folder


# --- A second matcher that is slow and obvious ------------------------------------------------------


def slowly(pattern: str, path: str) -> bool:
    """One pattern without `!`, by trying everything, straight from the words of the documentation."""
    bare = pattern.removesuffix("/")
    name = bare.rpartition("/")[2]
    if not set(name) & set("*?+["):
        return tries(bare, path) or any(tries(bare, path[:at]) for at, sign in enumerate(path) if sign == "/")
    if pattern.endswith("/"):
        return any(tries(bare, path[:at]) for at, sign in enumerate(path) if sign == "/")
    return tries(bare, path)


def tries(pattern: str, path: str, is_name_start: bool = True) -> bool:
    """Whether the whole path can be made of the whole pattern."""
    if not pattern:
        return not path
    tails = [path[at:] for at in range(len(path) + 1)]
    if pattern.startswith("**"):
        rest = pattern.lstrip("*")
        if is_name_start and rest.startswith("/"):
            folders = [path] + [path[at + 1 :] for at, sign in enumerate(path) if sign == "/"]
            return any(tries(rest[1:], tail) for tail in folders)
        return any(tries(rest, tail, False) for tail in tails)
    if pattern.startswith("*"):
        return any(tries(pattern[1:], tail, False) for at, tail in enumerate(tails) if "/" not in path[:at])
    if pattern[0] == "[":
        inside, _, rest = pattern[1:].partition("]")
    else:
        inside, rest = pattern[0], pattern[1:]
    count, rest = ("1", rest) if rest[:1] not in ("?", "+") else (rest[0], rest[1:])
    least, most = {"1": (1, 1), "?": (0, 1), "+": (1, len(path))}[count]
    return any(
        tries(rest, path[times:], inside == "/")
        for times in range(least, min(most, len(path)) + 1)
        if all(is_one_of(sign, inside) for sign in path[:times])
    )


def is_one_of(sign: str, inside: str) -> bool:
    """The characters in brackets, written out."""
    if inside.startswith("!"):
        return sign != "/" and not is_one_of(sign, inside[1:])
    return sign in inside.replace("a-c", "abc")


NAMES = st.text("abc.", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
SOME_PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PIECES = st.sampled_from(["a", "b", "c", ".", "*", "**", "a?", "b+", "[ab]", "[a-c]+", "[!a]", "[!b]?", "/", "/**/"])
SOME_PATTERNS = st.lists(PIECES, min_size=1, max_size=7).map("".join)


@settings(max_examples=200, deadline=None)
@given(SOME_PATTERNS, st.lists(SOME_PATHS, min_size=1, max_size=6))
def test_the_matcher_agrees_with_one_that_tries_everything(pattern: str, some: list[str]) -> None:
    try:
        chosen = path_filter([pattern])
    except BadPattern:
        return
    bare = pattern[2:] if pattern.startswith("./") else pattern.removeprefix("/")
    if bare in ("", "."):
        bare = "**"

    assert [path for path in some if chosen.matches(path)] == [path for path in some if slowly(bare, path)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), SOME_PATTERNS), min_size=1, max_size=5), SOME_PATHS)
def test_in_a_list_the_last_match_decides(listed: list[tuple[bool, str]], path: str) -> None:
    texts = ["!" * is_negative + text for is_negative, text in listed]
    try:
        chosen = path_filter(texts)
        alone = [path_filter([text.removeprefix("!")]) for text in texts]
    except BadPattern:
        return
    expected = False
    for (is_negative, _), one in zip(listed, alone, strict=True):
        expected = not is_negative if one.matches(path) else expected

    assert chosen.matches(path) is expected


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_pattern_or_is_refused_at_a_column_that_it_has(text: str) -> None:
    for read in (path_patterns.parse_path, path_patterns.parse_branch):
        with contextlib.suppress(BadPattern):
            read(text)
            continue
        with pytest.raises(BadPattern) as refused:
            read(text)
        assert 1 <= refused.value.column <= len(text) + 1


@pytest.mark.parametrize(
    "pattern",
    [
        "a?" * 500,
        "a+" * 500,
        "*a" * 500 + "b",
        "**a" * 300 + "b",
        "**/" * 300 + "b",
        "**/*a/" * 150 + "b",
        "[a-z]?" * 150 + "b",
        "[!b]+" * 200 + "b",
    ],
    ids=lambda pattern: pattern[:8],
)
def test_a_hostile_pattern_is_no_slower_than_a_long_one(pattern: str) -> None:
    """A matcher that goes back takes longer than the universe for these; ours is linear in the path."""
    chosen = path_filter([pattern])
    hostile = ["a" * 4_000, "a/" * 2_000 + "a", "aaaa/" * 800 + "c"]

    began = time.process_time()
    for path in hostile:
        chosen.matches(path)

    assert time.process_time() - began < 10.0


def test_clearing_the_bounded_cache_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["**/*a*b*c", "a+b?/**", "!**/x?y", "[a-c]+/[!a]*"]
    some = ["".join(names) for names in product(["a", "b/", "abc", "x/y", "ü", "c"], repeat=4)]
    expected = [path_filter(listed).matches(path) for path in some]
    monkeypatch.setattr(pattern_automaton, "MAX_CACHED_BYTES", 2_000)
    monkeypatch.setattr(pattern_automaton, "MAX_MASKS", 2)
    uncached = path_filter(listed)

    assert [uncached.matches(path) for path in some] == expected
    assert any(expected)
    assert not all(expected)
