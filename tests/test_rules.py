"""Every rule of docs/spec has an id, every id has a test, and every id that is cited exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from deltaci.audit.projections import VIEWS
from scripts.docgen.machines import MACHINES

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "spec").glob("*.md"))
CAPABILITIES = {"engine", "protocol", "api", "ci", "workstreams"}

BULLET = re.compile(r"^- \*\*((?:ORC|PRO|STP|WST|QUE|MOD)-[A-Z]*\d+)\*\* .*?(?:\*\(waits for: (\w+)\)\*)?$")
CITATION = re.compile(r"\b(?:ORC|PRO|STP|WST|QUE|MOD)-[A-Z]*\d+\b")


@cache
def rules() -> dict[str, str]:
    """Every rule, with the capability that it waits for."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            bullet = BULLET.match(line)
            if bullet:
                assert bullet[1] not in found, f"{bullet[1]} is defined twice"
                found[bullet[1]] = bullet[2] or ""
    return found


@cache
def proved() -> Counter[str]:
    """How many tests prove each rule, by the marks on the tests and on their cases."""
    found = Counter[str]()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.proves":
                found.update(str(ast.literal_eval(argument)) for argument in node.args)
    return found


def test_every_page_of_the_specification_has_its_test_file() -> None:
    """A reader who wonders whether a page is true must find where it is proved."""
    for page in PAGES:
        name = f"test_{page.stem.replace('-', '_')}.py"
        assert (ROOT / "tests" / "spec" / name).exists(), f"{page.name} has no tests/spec/{name}"


def test_every_rule_has_a_test_or_says_what_it_waits_for() -> None:
    """A rule that nothing proves is a wish."""
    known, tests = rules(), proved()

    missing = [rule for rule, waits in known.items() if not waits and not tests[rule]]

    assert len(known) > 300
    assert not missing, f"no test proves {', '.join(missing)}"


def test_a_rule_that_is_proved_waits_for_nothing() -> None:
    """The list of what is missing must shrink, so a mark that is no longer true is removed."""
    known, tests = rules(), proved()

    assert not [rule for rule, waits in known.items() if waits and tests[rule]]
    assert {waits for waits in known.values() if waits} <= CAPABILITIES


def test_every_rule_that_is_cited_exists() -> None:
    """A citation of a rule that nobody can read is noise."""
    known = rules()
    cited = {cite for machine in MACHINES for rule in machine.rules for cite in rule.cites}
    cited |= {edge.cite for view in VIEWS for edge in view.edges} | set(proved())
    for path in (ROOT / "src").rglob("*.py"):
        cited.update(CITATION.findall(path.read_text(encoding="utf-8")))

    assert not sorted(cited - set(known))
