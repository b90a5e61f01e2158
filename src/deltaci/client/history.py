"""Calls that read the history of a run: its transitions in the vocabulary of each document, and its tests."""

from __future__ import annotations

from deltaci.api.schemas import history as api_history
from deltaci.api.schemas import inputs as api_input
from deltaci.api.schemas import tests as api_tests
from deltaci.client.calls import Call, _call


def transitions(
    run_id: str,
    view: str = "canonical",
    *,
    order: str = "oldest",
    after: int = 0,
    before: int = 0,
    kind: str | None = None,
    job: str | None = None,
    limit: int = api_history.PAGE,
) -> Call[api_history.TransitionPage]:
    """Return a page of a run's transitions in one of the vocabularies."""
    query = {"view": view, "order": order, "after": after, "before": before, "kind": kind, "job": job, "limit": limit}
    return _call("readTransitions", api_history.TransitionPage, query=query, run=run_id)


def run_tests(
    run_id: str,
    text: str = "",
    *,
    outcome: str | None = None,
    job: str | None = None,
    order: str = "worst",
    limit: int = api_input.DEFAULT_PAGE,
    cursor: str = "",
) -> Call[api_tests.RunTests]:
    """Return a page of a run's tests, failures first, each with its earlier outcomes."""
    query = {"q": text, "outcome": outcome, "job": job, "order": order, "limit": limit, "cursor": cursor}
    return _call("readTests", api_tests.RunTests, query=query, run=run_id)
