"""What happened in a repository: whatever a plan depends on, beside the files themselves."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

EventName = Literal["push", "pull_request", "schedule", "manual"]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of one repository, whichever forge told it. What is not known is empty.

    Of a pull request, `branch` is where it wants to go and `head` where it comes from; of anything else, `branch` is
    where it happened. `is_fork` says that somebody wrote `commit` who may not write to the repository: nothing of it is
    trusted.
    """

    event: EventName
    commit: str
    repository: str = ""  # as the forge calls it: `owner/name`
    ref: str = ""  # e.g. `refs/heads/main`, `refs/tags/v1`, `refs/pull/7/head`: where the commit is fetched from
    branch: str = ""
    tag: str = ""
    before: str = ""  # the commit that the branch had before; empty: it is new, or nobody knows
    base: str = ""  # of a pull request: the commit that it is compared with
    head: str = ""
    number: int = 0
    action: str = ""  # of a pull request: what happened to it, in the words of `on.pull_request.types`
    title: str = ""  # the first line for people: of the commit, or of the pull request
    message: str = ""
    actor: str = ""
    is_fork: bool = False
    default_branch: str = ""
    cron: str = ""  # of a schedule: which
    inputs: dict[str, Any] = {}  # of a start by hand
    payload: dict[str, Any] = {}  # `github.event`, as small as it can be
