"""An approval gate on the page of its job: who must approve, and who did."""

from __future__ import annotations

from deltaci.api.schemas.records import Job, Run
from deltaci.server.web.components import card, path, rows, when
from deltaci.server.web.markup import EMPTY, Markup, a, dd, dl, dt, join, p


def gate_part(job: Job, run: Run) -> Markup:
    """The gate of an approval."""
    gate = job.approval
    if gate is None:
        return EMPTY
    given = [[each.person, when(each.at), each.comment or "–"] for each in gate.approvals]
    people = "one person" if gate.approvers == 1 else f"{gate.approvers} different people"
    whom = f" with the role {gate.role}" if gate.role else ""
    return card(
        "Approval",
        dl(
            _fact("Needs", f"{people}{whom}"),
            _fact("Not allowed", f"the person who started the run ({run.started_by.removeprefix('user:')})")
            if gate.not_by_starter
            else EMPTY,
            _fact("Given", f"{len(gate.approvals)} of {gate.approvers}"),
            _fact("Decision deadline", when(gate.approve_by)) if gate.approve_by else EMPTY,
            class_="facts",
        ),
        p("An approval covers the whole plan; decide on ", a("the run page", href=path("runs", run.id)), "."),
        rows(("Person", "When", "Comment"), given, caption="Approvals")
        if given
        else p("Nobody has approved it yet.", class_="quiet"),
        id="gate",
    )


def _fact(name: str, value: Markup | str) -> Markup:
    return join([dt(name), dd(value)])
