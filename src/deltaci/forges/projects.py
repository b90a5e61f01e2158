"""Projects as forges see them, and the protocols by which forges look up projects and deliver changes."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from deltaci.core.ids import MERGE_RUN_PREFIX
from deltaci.core.run import Run
from deltaci.pipeline.change import Change

ForgeName = Literal["github", "gitlab", "gitea", "forgejo", "git"]
ReportKind = Literal["statuses", "checks", "nothing"]


ChangeSource = Literal["webhook", "push", "poll", "schedule"]


class AcceptedChange(msgspec.Struct, frozen=True):
    """A stored change. Unless it `is_new`, also its runs, the reason of its outcome, and whether handling it failed."""

    id: str
    is_new: bool
    runs: tuple[str, ...] = ()
    reason: str = ""
    is_failed: bool = False


class ForgeProject(msgspec.Struct, frozen=True, kw_only=True):
    """A project with the values of its secrets. It is never stored, logged or shown.

    Without an `api_token`, no status is sent to its forge.
    """

    tenant: str
    name: str
    forge: ForgeName
    repository: str = ""  # The forge's name for it: `owner/name`.
    webhook_secret: str = ""
    api_url: str = ""  # E.g. `https://api.github.com`, `https://gitlab.com/api/v4`, `https://codeberg.org/api/v1`.
    api_token: str = ""
    reports: ReportKind = "statuses"
    app_id: str = ""  # The id of a GitHub App; the token is then the App's private key.
    installation_id: str = ""
    problem: str = ""  # Why the token that the project names cannot be used.

    def api_root(self, default_url: str = "") -> str:
        """Return the URL of the forge's API without a trailing slash."""
        return (self.api_url or default_url).rstrip("/")

    def __repr__(self) -> str:
        return f"ForgeProject({self.tenant}/{self.name} at {self.forge})"


class ForgeProjects(Protocol):
    """Looks up projects with the values of their secrets."""

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """Return the project, or None if it does not exist."""
        ...


class ChangeIntake(Protocol):
    """Accepts the changes that webhooks report."""

    async def accept(
        self,
        tenant: str,
        project: str,
        change: Change,
        delivery: str,
        *,
        source: ChangeSource,
        occurred_at: int = 0,
    ) -> AcceptedChange:
        """Store the change. Calls with the same `delivery`, even concurrent ones, create one change.

        `occurred_at` is the time of the event by the clock of its source in microseconds, or 0.
        """
        ...

    async def repeat(self, tenant: str, change_id: str) -> AcceptedChange | None:
        """Return a stored change whose delivery was repeated, or None. It is handled again if handling it failed."""
        ...


class StatusTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The commit for which a run's status is sent, and the pipeline that distinguishes it from other runs' statuses."""

    project: str
    commit: str
    pipeline: str = ""  # The pipeline's name; empty for the run as a whole.
    ref: str = ""  # The branch that contains the commit, if the forge needs it to find the commit.


class StatusTargets(Protocol):
    """Determines for which commit a run's status is sent."""

    async def target_of(self, run: Run) -> StatusTarget | None:
        """Return the target, or None if no status is sent for this run."""
        ...


class OriginTargets:
    """Determines the target from the run's origin."""

    async def target_of(self, run: Run) -> StatusTarget | None:
        """Return the commit of the run's origin, and its template or file as the pipeline.

        Return None for a run without a project or commit and for a run of the merge queue.
        """
        origin = run.origin
        # The forge does not have the commits that the merge queue tests until they are merged.
        if not origin.project or not origin.commit or run.id.startswith(MERGE_RUN_PREFIX):
            return None
        pipeline = origin.template or pipeline_name(origin.file)
        return StatusTarget(project=origin.project, commit=origin.commit, pipeline=pipeline)


def pipeline_name(file_path: str) -> str:
    """Return a pipeline file's name without folder and suffix; empty for `.deltaci.yml`, which needs no name."""
    file_name = file_path.rpartition("/")[2]
    for suffix in (".yml", ".yaml"):
        file_name = file_name.removesuffix(suffix)
    return "" if file_name == ".deltaci" else file_name
