"""The seam between forges and projects: what is known of a project, and who takes what happened in it."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from deltaci.controllers.change_records import Accepted
from deltaci.controllers.merge_queue.state import RUN_PREFIX
from deltaci.core.run import Run
from deltaci.pipeline.change import Change

ForgeName = Literal["github", "gitlab", "gitea", "forgejo", "git"]
Reports = Literal["statuses", "checks", "nothing"]


class ForgeProject(msgspec.Struct, frozen=True, kw_only=True):
    """A project as its forge knows it, with opened secrets: it is never stored, logged or shown.

    Without an `api_token`, its forge is told nothing.
    """

    tenant: str
    name: str
    forge: ForgeName
    repository: str = ""  # as the forge calls it: `owner/name`
    webhook_secret: str = ""
    api_url: str = ""  # e.g. `https://api.github.com`, `https://gitlab.com/api/v4`, `https://codeberg.org/api/v1`
    api_token: str = ""
    reports: Reports = "statuses"
    app_id: str = ""  # of a GitHub App: then the token is the App's private key
    installation_id: str = ""
    problem: str = ""  # why there is no token though one is named

    def api(self, usual: str = "") -> str:
        """Where its API is."""
        return (self.api_url or usual).rstrip("/")

    def __repr__(self) -> str:
        return f"ForgeProject({self.tenant}/{self.name} at {self.forge})"


class Projects(Protocol):
    """Looks projects up."""

    async def forge_of(self, tenant: str, project: str) -> ForgeProject | None:
        """The project with its secrets opened; None: there is no such project."""
        ...


class Intake(Protocol):
    """Takes what happened."""

    async def accept(self, tenant: str, project: str, change: Change, delivery: str) -> Accepted:
        """Keep the change. Safe to repeat: of all with the same `delivery`, also at once, one makes something new."""
        ...


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is about, as far as a forge is concerned."""

    project: str
    commit: str
    pipeline: str = ""  # what people call the pipeline; empty: the run as a whole
    ref: str = ""  # the branch that has the commit, where the forge cannot find it by itself


class Subjects(Protocol):
    """Says what runs are about."""

    async def subject_of(self, run: Run) -> Subject | None:
        """None: no forge is told of this run."""
        ...


class Origins:
    """Believes what runs say of where they come from."""

    async def subject_of(self, run: Run) -> Subject | None:
        """Their project and commit; the pipeline is the template or the file that it was made from, if it was."""
        origin = run.origin
        # What the merge queue tests is nowhere but here, until it is merged.
        if not origin.project or not origin.commit or run.id.startswith(RUN_PREFIX):
            return None
        pipeline = origin.template or pipeline_of(origin.file)
        return Subject(project=origin.project, commit=origin.commit, pipeline=pipeline)


def pipeline_of(file: str) -> str:
    """What people call the pipeline in a file; the only one of a repository has no name of its own."""
    name = file.rpartition("/")[2]
    for end in (".yml", ".yaml"):
        name = name.removesuffix(end)
    return "" if name == ".deltaci" else name
