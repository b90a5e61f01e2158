"""A change: the event in a repository that a plan is made for."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

EventName = Literal["push", "pull_request", "schedule", "manual"]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of one repository, in the same form for all forges. Unknown fields are empty.

    For a pull request, `branch` is its target and `head` its source; otherwise `branch` is the branch of the event.
    `is_fork` says that the author of `commit` cannot write to the repository, so that the change is untrusted.
    """

    event: EventName
    commit: str
    repository: str = ""  # the forge's name: `owner/name`
    ref: str = ""  # the git ref to fetch the commit from, e.g. `refs/heads/main`, `refs/tags/v1`, `refs/pull/7/head`
    branch: str = ""
    tag: str = ""
    before: str = ""  # the previous commit of the branch; empty: the branch is new, or unknown
    base: str = ""  # of a pull request: the commit of the target branch to compare with
    head: str = ""
    number: int = 0
    action: str = ""  # of a pull request: its event, one of `on.pull_request.types`
    title: str = ""  # of the pull request, or the first line of the commit message
    message: str = ""
    actor: str = ""
    is_fork: bool = False
    default_branch: str = ""
    cron: str = ""  # of a schedule
    inputs: dict[str, Any] = {}  # of a manual start
    payload: dict[str, Any] = {}  # the needed part of `github.event`
