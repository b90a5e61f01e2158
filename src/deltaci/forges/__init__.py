"""Forges (GitHub, GitLab, Gitea, a bare repository): webhook events in, commit statuses out.

Each forge is one file that parses webhook requests into a `WebhookEvent` and builds status requests. `http.py` is the
only way to a forge; `status_decisions.py` decides (pure) which status may be sent next. Start with
`webhook_event.py` and `github.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltaci.forges.generic import PlainGit
from deltaci.forges.gitea import Gitea
from deltaci.forges.github import GitHub
from deltaci.forges.gitlab import GitLab
from deltaci.forges.status_decisions import StatusApi
from deltaci.forges.webhook_event import WebhookParser

# By the forge name of a project.
WEBHOOK_PARSERS: Final[Mapping[str, WebhookParser]] = {
    "github": GitHub(),
    "gitlab": GitLab(),
    "gitea": Gitea(),
    "forgejo": Gitea(),
    "git": PlainGit(),
}
STATUS_APIS: Final[Mapping[str, StatusApi]] = {
    "github": GitHub(),
    "gitlab": GitLab(),
    "gitea": Gitea(),
    "forgejo": Gitea(),
}
