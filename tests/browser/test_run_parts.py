"""A run's events, plan, tests and results: complete, live, and nothing that a job wrote is anything but text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Locator, Page, expect

from deltaci.audit.verify import verify
from tests.browser.browsing import Person
from tests.browser.house import House, gate, task
from tests.support.upstream import ZEROS, Upstream

HOSTILE: Final = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
LONG: Final = "a_name_without_any_place_where_a_line_could_be_broken_" * 3


def report(*cases: str) -> str:
    """A step that writes a JUnit file."""
    return "cat > report.xml <<'END'\n<testsuite name='s'>" + "".join(cases) + "</testsuite>\nEND"


def case(name: str, inside: str = "", seconds: float = 0.1) -> str:
    """A test of it."""
    return f"<testcase classname='shop' name='{name}' time='{seconds}'>{inside}</testcase>"


def failed(message: str, output: str = "") -> str:
    """How it says that it failed."""
    return f"<failure message='{_escaped(message)}'><![CDATA[{output}]]></failure>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&apos;")


def reporting(*cases: str, ends: int = 0, name: str = "test", **fields: Any) -> dict[str, Any]:
    """A job with a test report."""
    job = task(name, report(*cases), f"exit {ends}", needs=[], **fields)
    job["work"]["artifacts"] = [{"path_glob": "*.xml", "type": "junit"}]
    return job


def line(page: Page | Locator, text: str) -> Locator:
    """The line of a table with this text in it."""
    return page.locator("tbody tr").filter(has_text=text)


# -- events

WORDS: Final = {
    "": ("attempt", "WAITING_APPROVAL", "approval_gate_reached"),
    "orchestration": ("lease", "GRANTED", "ORC-A2"),
    "steps": ("step", "WAITING_APPROVAL", "STP-R2"),
    "workstreams": ("workstream", "executing", "first_task_started"),
    "queue": ("job", "claimed", "QUE-T2"),
}


def test_events_are_told_in_every_vocabulary(ada: Person, house: House) -> None:
    """Each by its own address; each step with the rule that allows it."""
    run = house.start(task("build"), gate("release", ["build"]), title="In all words")
    house.until(run, "WAITING_APPROVAL")

    page = ada.go(f"/runs/{run}/events")
    for view, (kind, state, told) in WORDS.items():
        page.get_by_role("navigation", name="Vocabularies").get_by_role("link").nth(list(WORDS).index(view)).click()
        page.wait_for_url(f"**/events?view={view}" if view else re.compile(r"/events\??$"))
        expect(page.locator("tbody .label").get_by_text(kind, exact=True).first).to_be_visible()
        expect(page.locator("tbody .state").get_by_text(state, exact=True).first).to_be_visible()
        expect(page.locator("tbody").get_by_text(told).first).to_be_visible()
        ada.check(is_accessible=not view)  # The others are built in the same way; the last one is looked at below.
    ada.check_fits()
    page.get_by_text("QUE-T2").first.click()
    expect(page.get_by_role("region").filter(has_text='"rule": "QUE-T2"').first).to_be_visible()
    ada.check()


def test_events_arrive_while_one_looks(ada: Person, house: House) -> None:
    """And what somebody has opened stays open."""
    door = house.folder / "events-go-on"
    run = house.start(task("waits", f"while [ ! -e {door} ]; do sleep 0.1; done"), title="Live events")
    page = ada.go(f"/runs/{run}/events?kind=job")
    running = line(page, "worker_started")
    expect(running).to_be_visible()
    page.evaluate("window.seen = 'the same page'")
    running.locator("summary").click()

    door.touch()

    expect(line(page, "validation_passed")).to_be_visible()
    expect(running.locator("pre")).to_be_visible()
    assert page.evaluate("window.seen") == "the same page"
    ada.check(is_accessible=False)


def test_events_are_filtered_paged_and_taken_away(ada: Person, house: House, tmp_path: Path) -> None:
    """What is downloaded is legal, for whoever checks it."""
    jobs = [task(f"job {n}", needs=[]) for n in range(5)]
    run = house.start(*jobs, title="Many events")
    house.until(run)
    endless = task("other", f"while [ ! -e {tmp_path / 'never'} ]; do sleep 0.1; done")  # So that it can be canceled.
    house.ask("POST", f"/runs/{house.start(endless)}/cancel", {"reason": HOSTILE})

    page = ada.go(f"/runs/{run}/events")
    newest = page.locator("tbody th").first.inner_text()
    page.get_by_role("link", name="older").click()
    page.wait_for_url("**at=*")
    assert int(page.locator("tbody th").first.inner_text()) < int(newest)
    page.get_by_role("link", name="newest").click()
    page.get_by_role("link", name="Oldest first").click()
    expect(line(page, "CREATED").first).to_be_visible()

    page.get_by_label("Job").fill("job 3")
    page.get_by_label("Kind").select_option("lease")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**kind=lease**")
    expect(page.locator("tbody tr").filter(has_not_text="job 3")).to_have_count(0)
    expect(line(page, "lease_completed")).to_have_count(1)
    assert "order=oldest" in page.url

    page.get_by_label("Job").fill("nobody")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No event matches.")).to_be_visible()
    ada.check()
    for view in ("", "workstreams", "queue"):
        ada.go(f"/runs/{run}/events?view={view}")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download as JSON lines").click()
        kept = tmp_path / download.value.suggested_filename
        download.value.save_as(kept)
        expect(page.get_by_text(f"deltaci verify {kept.name}")).to_be_visible()
        found = verify(kept.read_bytes().splitlines(), "")
        assert found.is_legal, found.violations
        assert found.event_count > 5


def test_what_people_said_is_text_among_the_events(ada: Person, house: House) -> None:
    """A reason with markup in it, and a view that has nothing to say."""
    run = house.start(task("never", runs_on=["nobody-has-this"]), title="Said")
    house.ask("POST", f"/runs/{run}/cancel", {"reason": HOSTILE})
    house.until(run)

    page = ada.go(f"/runs/{run}/events?kind=run")
    line(page, "CANCEL_REQUESTED").last.locator("summary").click()
    expect(page.get_by_role("region").filter(has_text=HOSTILE).first).to_be_visible()
    assert "Said" in page.title()
    ada.check()
    ada.go(f"/runs/{run}/events?view=queue&job=%3Cb%3E%2F&kind=nonsense&at=nonsense&order=nonsense")
    expect(page.get_by_text("No event matches.")).to_be_visible()


# -- plan


def test_a_plan_that_was_given_is_shown_whole(ada: Person, house: House) -> None:
    """Needs, labels, steps, limits and gates of every job, and its hash."""
    odd = {**task("odd", "line one\nline <b>two</b>\n", HOSTILE), "timeout_seconds": 90, "allow_failure": True}
    odd |= {"retry": {"max_attempts": 3, "on": ["INFRA", "FLAKY"]}, "runs_on": ["linux", "gpu"]}
    wait = gate("release", ["odd"], role="lead", approvers=2, not_by_starter=True)
    run = house.start(odd, wait, task(LONG[:90], needs=["release"]), title="Planned", plan={"fail_fast": True})

    page = ada.go(f"/runs/{run}/plan")
    hashed = house.ask("GET", f"/runs/{run}/plan")["plan_hash"]

    expect(page.get_by_text("3 run, 0 left out")).to_be_visible()
    expect(page.get_by_text(hashed)).to_be_visible()
    first = page.locator("#planned-0")
    for told in ("linux", "gpu", "at most 1 min 30 s", "3 attempts on INFRA, FLAKY", "may fail"):
        expect(first.get_by_text(told)).to_be_visible()
    first.get_by_text("2 steps").click()
    expect(first.get_by_text(HOSTILE)).to_be_visible()
    first.get_by_text("Command").click()
    expect(first.get_by_role("region")).to_contain_text("line <b>two</b>")
    told = "waits for 2 people with the role lead, not by the person who started it"
    expect(page.locator("#planned-1").get_by_text(told)).to_be_visible()
    expect(page.locator("#planned-2")).to_contain_text("release")
    ada.check()
    ada.check_fits()


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server that may read repositories of this machine, with a runner."""
    house = House(tmp_path_factory.mktemp("reading"), "--allow-repositories", "file").open(slots=2)
    yield house
    house.close()


PIPELINE: Final = """\
on: push
jobs:
  api: {paths: ['api/**'], checkout: false, steps: ['true']}
  docs: {paths: ['docs/**'], checkout: false, steps: ['true']}
  every:
    strategy: {matrix: {python: ['3.12', '3.13']}}
    checkout: false
    steps: ['true']
"""


def _pushed(house: House, project: str, before: str, after: str) -> None:
    pushed = {"ref": "refs/heads/main", "before": before, "after": after}
    house.ask("POST", f"/projects/{project}/pushes", {"delivery": f"{project}-{after}", "refs": [pushed]})


def test_what_a_change_left_out_is_shown_with_the_reason(
    visitor: Callable[..., Person], reading: House, tmp_path: Path
) -> None:
    """Kept and left out apart, each with what decided; a file that cannot be planned says where it is wrong."""
    upstream = Upstream(tmp_path / "up", {".deltaci.yml": PIPELINE, "docs/a": "a", "api/a": "a"})
    reading.ask("PUT", "/projects/shop", {"url": upstream.url, "default_branch": "main"})
    _pushed(reading, "shop", ZEROS, upstream.first)
    ada = visitor(reading).sign_in(reading.key("ada"))
    page = ada.page
    page.locator(".name").first.click()
    page.wait_for_url("**/runs/*")
    reading.until(page.url.rpartition("/")[2], "SUCCEEDED")
    changed = upstream.push({"api/b": "b"})
    _pushed(reading, "shop", upstream.first, changed)

    ada.go("/runs")
    expect(page.locator(".name")).to_have_count(2)
    page.locator(".name").first.click()
    page.wait_for_url("**/runs/*")
    ada.go(f"{page.url}/plan")

    expect(page.get_by_text("3 run, 1 left out")).to_be_visible()
    kept, left = page.locator("#kept"), page.locator("#left-out")
    expect(line(kept, "api")).to_contain_text("api/b")
    expect(kept.locator("tbody th").filter(has_text="of every")).to_have_count(2)
    expect(left.locator("tbody tr")).to_have_count(1)
    expect(left.locator("tbody tr")).to_contain_text("docs")
    expect(left.locator("tbody tr")).to_contain_text(f"unchanged since {upstream.first[:7]}")
    expect(page.locator("#plan").get_by_text(upstream.first[:12])).to_be_visible()
    expect(page.locator("#plan").get_by_text(".deltaci.yml")).to_be_visible()
    ada.check()
    ada.check_fits()

    broken = upstream.push({".deltaci.yml": "on: push\njobs:\n  api:\n    stepz: [make]\n"})
    ada.go("/runs?status=FAILED")
    _pushed(reading, "shop", changed, broken)
    page.locator(".name").first.click()
    page.wait_for_url("**/runs/*")
    ada.go(f"{page.url}/plan")
    expect(page.locator("#problems")).to_contain_text(".deltaci.yml")
    expect(page.locator("#problems")).to_contain_text("stepz")
    expect(page.get_by_text("0 run, 0 left out")).to_be_visible()
    ada.check()
    ada.check_fits()


# -- tests


def test_failures_come_first_with_what_they_said_and_what_was_before(ada: Person, house: House) -> None:
    """Markup, other alphabets and long outputs are text; each test has its past, with links to it."""
    long = "\n".join(f"line {n}: assert {HOSTILE}" for n in range(200))
    common = (
        case("passes", seconds=4.5),
        case("was_left_out", "<skipped/>"),
        case("shakes", "<flakyFailure message='once'/>"),
    )
    before = [
        house.start(reporting(case("breaks", failed("earlier")), *common, ends=1), **_nightly(n)) for n in range(2)
    ]
    before.append(house.start(reporting(case("breaks"), *common), **_nightly(2)))
    for each in before:
        house.until(each)
    odd = failed(f"größer ≠ kleiner {HOSTILE}", long)
    run = house.start(reporting(case("breaks", odd), case(LONG, failed("short")), *common, ends=1), **_nightly(3))
    house.until(run)

    page = ada.go(f"/runs/{run}/tests")
    expect(page.locator("#totals")).to_contain_text(re.compile(r"5\s*tests.*2\s*failed.*1\s*flaky.*1\s*skipped", re.S))
    names = [text.strip() for text in page.locator("tbody .name").all_inner_texts()]
    assert names == [f"shop.{LONG}", "shop.breaks", "shop.shakes", "shop.was_left_out", "shop.passes"]
    broken = line(page, "shop.breaks")
    expect(broken.get_by_text(f"größer ≠ kleiner {HOSTILE}")).to_be_visible()
    broken.get_by_text("Output").click()
    expect(broken.get_by_role("region")).to_contain_text(f"line 3: assert {HOSTILE}")
    past = broken.get_by_role("list", name="Earlier runs").get_by_role("link")
    for at, told in enumerate(("failed: Nightly 0", "failed: Nightly 1", "did not fail: Nightly 2")):
        expect(past.nth(at)).to_have_accessible_name(told)
    expect(line(page, "shop.shakes").locator(".badge").get_by_text("flaky")).to_be_visible()
    assert page.title().startswith("Nightly 3")
    ada.check()
    ada.check_fits()

    page.get_by_role("navigation", name="Results").get_by_role("link", name="Skipped").click()
    page.wait_for_url("**outcome=skipped")
    expect(page.locator("tbody tr")).to_have_count(1)
    ada.go(f"/runs/{run}/tests")
    past.nth(1).click()
    page.wait_for_url(f"**/runs/{before[1]}/tests")


def _nightly(number: int) -> dict[str, Any]:
    return {"project": "history", "branch": "main", "commit": f"{number:040x}", "title": f"Nightly {number}"}


def test_five_thousand_tests_are_a_small_page(ada: Person, house: House) -> None:
    """Searched where they are, shown page by page."""
    write = "print('<testsuite>' + ''.join(f'<testcase name=\"t{n}\" time=\"{n / 1000}\"/>' for n in range(5000))"
    job = task("many", f"python3 -c \"{write.replace(chr(34), chr(92) + chr(34))} + '</testsuite>')\" > report.xml")
    job["work"]["artifacts"] = [{"path_glob": "*.xml", "type": "junit"}]
    run = house.start(job, title="So many")
    house.until(run)

    answer = ada.page.goto(f"/runs/{run}/tests?order=slowest")
    assert answer is not None
    assert len(answer.body()) < 60_000
    page = ada.page
    expect(page.locator("#totals")).to_contain_text("5,000")
    expect(page.locator("tbody .name").first).to_have_text("t4999")
    page.get_by_role("link", name="next").click()
    expect(page.locator("tbody .name").first).to_have_text("t4974")
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("T1234")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=T1234**")
    expect(page.locator("tbody .name")).to_have_text(["t1234"])
    page.get_by_label("Search").fill("no such test")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No test matches.")).to_be_visible()
    ada.check()


def test_tests_appear_when_a_job_has_told_of_them(ada: Person, house: House) -> None:
    """Until then it is said how; of a report that cannot be listed, the numbers are shown, and why not more."""
    door = house.folder / "tests-go-on"
    job = reporting(case("one"), case("two", failed("no")))
    job["work"]["steps"].insert(0, f"while [ ! -e {door} ]; do sleep 0.1; done")
    bad = reporting(case("three"), name="bad")
    bad["work"]["steps"].insert(1, "echo '<html/>' > other.xml")
    run = house.start(job, bad, title="Tests to come")
    page = ada.go(f"/runs/{run}/tests")
    house.ask("GET", f"/runs/{run}")
    expect(line(page, "shop.three")).to_be_visible()
    expect(page.locator("#partly")).to_contain_text("other.xml")

    door.touch()

    expect(line(page, "shop.two")).to_be_visible()
    expect(page.locator("#by-job tbody tr")).to_have_count(2)
    page.locator("#by-job").get_by_role("link", name="bad").click()
    page.wait_for_url("**job=bad")
    expect(page.locator("tbody .name").first).to_have_text("shop.three")
    ada.check()
    ada.check_fits()

    none = house.start(task("quiet"), title="Without tests")
    house.until(none)
    ada.go(f"/runs/{none}/tests")
    expect(page.get_by_text("No test report.")).to_be_visible()
    ada.check()


# -- results


def test_results_are_saved_and_read_never_run(ada: Person, house: House, tmp_path: Path) -> None:
    """A page among the artifacts is a file; outputs are texts; the cost is in units that people know."""
    output = '{"plain": "1.2.3", "odd": "' + HOSTILE.replace("'", "") + '", "list": [1, {"a": 2}]}'
    made = task(
        "make",
        f"mkdir -p 'out/große dateien'; echo \"{HOSTILE}\" > out/page.html",
        "head -c 1500 /dev/zero > 'out/große dateien/ä#?.bin'",
        f"printf '%s' '{output}' > o.json",
    )
    made["work"] |= {"artifacts": [{"path_glob": "out/**"}], "output_path": "o.json"}
    run = house.start(made, title="Leaves things")
    house.until(run)

    page = ada.go(f"/runs/{run}/results")
    expect(line(page, "ä#?.bin")).to_contain_text("1.5 KiB")
    for name in ("page.html", "ä#?.bin"):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        assert download.value.suggested_filename.startswith(name[:1])
        kept = tmp_path / "kept"
        download.value.save_as(kept)
        assert HOSTILE in kept.read_text("utf-8") or kept.stat().st_size == 1500
    assert page.url.endswith("/results")
    address = page.get_by_role("link", name="page.html").get_attribute("href")
    answer = page.request.get(str(address))
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"

    outputs = page.locator("#outputs")
    expect(outputs.get_by_text("1.2.3")).to_be_visible()
    expect(outputs.get_by_text(HOSTILE.replace("'", ""))).to_be_visible()
    outputs.get_by_text("list").last.click()
    expect(outputs.get_by_role("region")).to_contain_text('"a": 2')
    expect(page.locator("#cost tbody tr").first).to_contain_text("Total")
    expect(line(page.locator("#cost"), "make")).to_contain_text(re.compile(r"\d s.*\d MiB.*KiB", re.S))
    ada.check()
    ada.check_fits()


def test_results_of_a_run_that_left_nothing(ada: Person, house: House) -> None:
    """It says so, and how there would be something."""
    run = house.start(task("waits", runs_on=["nobody-has-this"]), title="Nothing yet")

    page = ada.go(f"/runs/{run}/results")

    for told in ("No job kept a file.", "No job has outputs.", "No usage reported yet"):
        expect(page.get_by_text(told)).to_be_visible()
    ada.check()
    ada.check_fits()
