"""Projects with the values of their secrets, default API URLs, names of repositories and pipelines."""

from __future__ import annotations

import pytest
from msgspec import Struct

from deltaci.core.errors import Refused
from deltaci.core.run import Origin, Run
from deltaci.forges.credentials import CACHE_SECONDS, CachedForgeProjects, default_api_url, repository_path
from deltaci.forges.projects import OriginTargets, pipeline_name
from deltaci.storage.blobs.store import BlobStoreUnavailable
from tests.contract.backends import on_loop


class ExampleProject(Struct, frozen=True, kw_only=True):
    """A stored project with the names of its secrets."""

    name: str = "p"
    url: str = "https://github.com/octo/hello.git"
    forge: str = "github"
    webhook_secret: str = "HOOK"
    api_url: str = ""
    api_token: str = "TOKEN"
    reports: str = "statuses"


class ProjectsAndSecrets:
    """Projects and secrets in memory; `secrets_read` records each read of a secret."""

    def __init__(self, *projects: ExampleProject, **secrets: str) -> None:
        self.projects = {project.name: project for project in projects}
        self.secrets = secrets
        self.secrets_read: list[str] = []
        self.now = 0.0

    async def find(self, _tenant: str, name: str) -> ExampleProject | None:
        return self.projects.get(name)

    def read_secret(self, _tenant: str, _project: str, name: str) -> str:
        self.secrets_read.append(name)
        if name not in self.secrets:
            raise Refused("no_secret", f"there is no secret {name!r}")
        return self.secrets[name]

    def cached_projects(self) -> CachedForgeProjects:
        return CachedForgeProjects(self.find, self.read_secret, lambda: self.now)


@on_loop
async def test_secrets_are_read_by_name() -> None:
    """Without the newline at the end of files."""
    project = (
        await ProjectsAndSecrets(ExampleProject(), HOOK="hook\n", TOKEN="token\n").cached_projects().find("t", "p")
    )

    assert project is not None
    assert (project.tenant, project.name, project.forge) == ("t", "p", "github")
    assert (project.webhook_secret, project.api_token, project.problem) == ("hook", "token", "")
    assert (project.repository, project.api_url) == ("octo/hello", "https://api.github.com")
    assert await ProjectsAndSecrets().cached_projects().find("t", "p") is None


@pytest.mark.parametrize(
    ("token", "app", "installation", "key"),
    [
        ("app:1234:77\n-----BEGIN KEY-----\nAA\n", "1234", "77", "-----BEGIN KEY-----\nAA"),
        ("app:Iv23.x:77 -----BEGIN KEY-----", "Iv23.x", "77", "-----BEGIN KEY-----"),
        ("app:1234", "", "", "app:1234"),
        ("ghp_x", "", "", "ghp_x"),
    ],
)
@on_loop
async def test_a_token_may_be_an_app(token: str, app: str, installation: str, key: str) -> None:
    """One secret contains its id, its installation and its private key."""
    project = await ProjectsAndSecrets(ExampleProject(), HOOK="hook", TOKEN=token).cached_projects().find("t", "p")

    assert project is not None
    assert (project.app_id, project.installation_id, project.api_token) == (app, installation, key)


@on_loop
async def test_an_unreadable_secret_does_not_affect_the_other_one() -> None:
    no_token = await ProjectsAndSecrets(ExampleProject(), HOOK="hook").cached_projects().find("t", "p")
    no_hook = await ProjectsAndSecrets(ExampleProject(), TOKEN="token").cached_projects().find("t", "p")

    assert no_token is not None
    assert no_hook is not None
    assert (no_token.webhook_secret, no_token.api_token, no_token.problem) == ("hook", "", "there is no secret 'TOKEN'")
    assert (no_hook.webhook_secret, no_hook.api_token, no_hook.problem) == ("", "token", "")


@on_loop
async def test_secret_values_are_cached_for_some_seconds() -> None:
    source = ProjectsAndSecrets(ExampleProject(), HOOK="hook", TOKEN="token")
    projects = source.cached_projects()

    for _ in range(3):
        await projects.find("t", "p")
    assert len(source.secrets_read) == 2

    source.projects["p"] = ExampleProject(url="https://github.com/octo/other")
    changed = await projects.find("t", "p")
    assert changed is not None
    assert changed.repository == "octo/other"

    source.now += CACHE_SECONDS
    await projects.find("t", "p")
    assert len(source.secrets_read) == 6
    assert await projects.find("others", "p") is not None
    assert len(source.secrets_read) == 8  # The cache is separate for each tenant.


@on_loop
async def test_a_disk_failure_is_not_a_missing_secret() -> None:
    """It is a temporary error."""

    def broken(*_: str) -> str:
        raise OSError(5, "Input/output error")

    with pytest.raises(BlobStoreUnavailable, match="Input/output error"):
        await CachedForgeProjects(ProjectsAndSecrets(ExampleProject()).find, broken).find("t", "p")


@pytest.mark.parametrize(
    ("url", "repository"),
    [
        ("https://github.com/octo/hello.git", "octo/hello"),
        ("https://github.com/octo/hello/", "octo/hello"),
        ("https://user@gitlab.example.org:8443/group/part/name.git", "group/part/name"),
        ("git@github.com:octo/hello.git", "octo/hello"),
        ("ssh://git@codeberg.example.org:2222/octo/hello.git", "octo/hello"),
        ("/srv/git/hello.git", "srv/git/hello"),
        ("https://[broken", ""),
    ],
)
def test_a_repository_is_named_by_its_whole_path(url: str, repository: str) -> None:
    assert repository_path(url) == repository


@pytest.mark.parametrize(
    ("forge", "url", "api"),
    [
        ("github", "https://github.com/o/h.git", "https://api.github.com"),
        ("github", "git@github.com:o/h.git", "https://api.github.com"),
        ("github", "https://git.example.org/o/h", "https://git.example.org/api/v3"),
        ("gitlab", "https://gitlab.example.org:8443/o/h", "https://gitlab.example.org:8443/api/v4"),
        ("gitlab", "ssh://git@gitlab.example.org:2222/o/h", "https://gitlab.example.org/api/v4"),
        ("gitea", "http://10.0.0.5:3000/o/h", "http://10.0.0.5:3000/api/v1"),
        ("forgejo", "https://codeberg.org/o/h", "https://codeberg.org/api/v1"),
        ("git", "https://example.org/o/h", ""),
        ("github", "/srv/git/h.git", ""),
    ],
)
def test_the_default_api_url_follows_from_the_clone_url(forge: str, url: str, api: str) -> None:
    assert default_api_url(forge, url) == api


@pytest.mark.parametrize(
    ("file", "name"),
    [("", ""), (".deltaci.yml", ""), (".deltaci/lint.yml", "lint"), (".github/workflows/ci.yaml", "ci")],
)
def test_a_pipeline_has_the_name_of_its_file(file: str, name: str) -> None:
    assert pipeline_name(file) == name


@on_loop
async def test_the_status_target_follows_from_the_origin_of_the_run() -> None:
    about = Run(id="r", origin=Origin(project="p", commit="c", template="build"))

    subject = await OriginTargets().target_of(about)

    assert subject is not None
    assert (subject.project, subject.commit, subject.pipeline) == ("p", "c", "build")
    assert await OriginTargets().target_of(Run(id="r")) is None
    assert await OriginTargets().target_of(Run(id="merge-1", origin=about.origin)) is None, (
        "the forge does not have that commit"
    )
