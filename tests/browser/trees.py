"""Random trees of elements, as lists that a page can build: `[name, attributes, children]`, or a text."""

from __future__ import annotations

from random import Random
from typing import Any

Tree = Any  # str | list; mypy knows no recursive one that is also JSON.

NAMES = ("div", "p", "span", "section", "ul", "b")


def pairs(seed: int, count: int) -> list[tuple[Tree, Tree]]:
    """Trees and what becomes of them: something else altogether, or the same with a few changes."""
    random = Random(seed)
    found = []
    for _ in range(count):
        ids = [f"i{n}" for n in range(random.choice((0, 4, 12)))]
        before = tree(random, list(ids))
        after = changed(random, before) if random.random() < 0.6 else tree(random, list(ids))
        found.append((before, after))
    return found


def tree(random: Random, ids: list[str], depth: int = 0) -> Tree:
    """One of which no id is there twice."""
    attributes = {name: str(random.randrange(3)) for name in ("class", "title") if random.random() < 0.3}
    if ids and depth and random.random() < 0.5:
        attributes["id"] = ids.pop(random.randrange(len(ids)))
    count = random.choice((0, 1, 2, 3, 5)) if depth < 4 else 0
    children = [
        random.choice(("a", "b", "c")) if random.random() < 0.3 else tree(random, ids, depth + 1) for _ in range(count)
    ]
    return ["main" if not depth else random.choice(NAMES), attributes, joined(children)]


def changed(random: Random, of: Tree) -> Tree:
    """Moved, removed, added and written over, here and there."""
    if isinstance(of, str):
        return random.choice((of, of, "d"))
    name, attributes, children = of
    after = [changed(random, child) for child in children if random.random() < 0.9]
    if random.random() < 0.3:
        random.shuffle(after)
    if random.random() < 0.2:
        after.insert(random.randrange(len(after) + 1), [random.choice(NAMES), {}, ["new"]])
    return [name, {**attributes, **({"class": "9"} if random.random() < 0.1 else {})}, joined(after)]


def joined(children: list[Tree]) -> list[Tree]:
    """Two texts beside each other are one: that is how a page would be read."""
    found: list[Tree] = []
    for child in children:
        if isinstance(child, str) and found and isinstance(found[-1], str):
            found[-1] += child
        else:
            found.append(child)
    return found
