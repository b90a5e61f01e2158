"""Every rule of docs/spec has an id and a test that proves it through a public surface; every id that is cited exists.

A test acts and observes through a public surface (the library, the REST API, the runner protocol, webhooks, the command
line, a browser, or files that the product reads or writes) if its file is in `SURFACES` of `scripts/docgen/rules.py`.
The exceptions are listed there, too: `EXEMPT`, which are properties of tables of the code.
`docs/reference/rules.md` lists each rule with these tests.
"""

from __future__ import annotations

import re
from pathlib import Path

from deltaci.audit.projections import VIEWS
from scripts.docgen.machines import MACHINES
from scripts.docgen.rules import EXEMPT, PAGES, SURFACES, proofs, public_proofs, rules

ROOT = Path(__file__).parent.parent
MIN_RULES = 410  # So many statements the five documents and the model have; a page that cannot be parsed has none.
CITATION = re.compile(r"\b(?:ORC|PRO|STP|WST|QUE|MOD)-[A-Z]*\d+\b")


def test_every_page_of_the_specification_has_its_test_file() -> None:
    """A reader who wonders whether a page is true must find where it is proved."""
    for page in PAGES:
        name = f"test_{page.stem.replace('-', '_')}.py"
        assert (ROOT / "tests" / "spec" / name).exists(), f"{page.name} has no tests/spec/{name}"


def test_every_rule_is_proved_through_a_public_surface() -> None:
    """A test of the core does not show that a user can reach what it tests."""
    missing = [rule for rule in rules() if not public_proofs(rule) and rule not in EXEMPT]

    assert len(rules()) > MIN_RULES
    assert not missing, (
        f"no test proves {', '.join(missing)} through a public surface; cite the rule with @pytest.mark.proves in a "
        "test of a file that SURFACES of scripts/docgen/rules.py lists"
    )


def test_every_exception_is_a_rule_without_such_a_test() -> None:
    """The lists of exceptions must shrink; a rule that is exempt has at least a test of the code."""
    for rule in EXEMPT:
        assert rule in rules(), f"{rule} is no rule: remove it from EXEMPT of scripts/docgen/rules.py"
        assert not public_proofs(rule), f"{rule} has a test now: remove it from EXEMPT of scripts/docgen/rules.py"
        assert proofs()[rule], f"no test proves {rule}"


def test_every_surface_has_tests() -> None:
    """A folder that was renamed must not silently stop to count."""
    files = [path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")]

    assert not [prefix for prefix in SURFACES if not any(file.startswith(prefix) for file in files)]


def test_every_rule_that_is_cited_exists() -> None:
    """A citation of a rule that cannot be read is noise."""
    cited = {cite for machine in MACHINES for rule in machine.rules for cite in rule.cites}
    cited |= {edge.cite for view in VIEWS for edge in view.edges} | set(proofs())
    for path in (ROOT / "src").rglob("*.py"):
        cited.update(CITATION.findall(path.read_text(encoding="utf-8")))

    assert not sorted(cited - set(rules()))
