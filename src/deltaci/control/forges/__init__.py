"""Forges: what they tell us by webhooks, and how they are told what became of it. One file each.

github.py gitlab.py gitea.py    a forge: its signatures, its events, its statuses
plain.py                        a bare repository: what its post-receive hook says
projects.py                     what is known of a project, and who is told what happened in it
heard.py                        what a delivery means, in everybody's words
outlet.py                       the only way out: HTTP, to addresses that are allowed
told.py                         what a forge was told last, and what it may be told next
notes.py                        places in files that a job complained about
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltaci.control.forges.gitea import Gitea
from deltaci.control.forges.github import GitHub
from deltaci.control.forges.gitlab import GitLab
from deltaci.control.forges.heard import Listener
from deltaci.control.forges.plain import PlainGit
from deltaci.control.forges.told import Speaker

# By the name that a project gives its forge.
LISTENERS: Final[Mapping[str, Listener]] = {
    "github": GitHub(),
    "gitlab": GitLab(),
    "gitea": Gitea(),
    "forgejo": Gitea(),
    "git": PlainGit(),
}
SPEAKERS: Final[Mapping[str, Speaker]] = {
    "github": GitHub(),
    "gitlab": GitLab(),
    "gitea": Gitea(),
    "forgejo": Gitea(),
}
