"""Secrets of the tenant: which there are and for whom, set and forget. A value comes in and never goes out."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import SecretInput, SecretQuery
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler, missing
from deltaci.server.rest.serializers import maybe
from deltaci.server.secrets import Known, SecretScope

SHOWN: Final = 20  # So many letters of a project and of a pattern put them into order.


async def list_secrets(call: Call) -> api.SecretPage:
    """Names and scopes."""
    query = call.query
    after = read(query.cursor) if query.cursor else ""
    found = await call.parts.disk.do(lambda: call.parts.secrets.listed(call.who.tenant))
    left = sorted((each for each in found if _place(each) > after), key=_place)
    page = left[: query.limit]
    return api.SecretPage(
        secrets=[shown(each) for each in page],
        next=written(_place(page[-1])) if len(left) > len(page) else None,
    )


async def set_secret(call: Call) -> api.Secret:
    """Sealed before it is kept; who set it and when is written beside the seal."""
    asked: SecretInput = call.body
    name, scope = str(call.params["secret"]), SecretScope(asked.project, asked.branch)
    at, who = call.parts.keys.now(), call.who
    return shown(
        await call.parts.disk.do(
            lambda: call.parts.secrets.set(who.tenant, name, asked.value, scope, by=who.person, at=at)
        )
    )


async def remove_secret(call: Call) -> api.Secret:
    """The one with exactly this scope; wider and narrower ones stay."""
    asked: SecretQuery = call.query
    name, scope = str(call.params["secret"]), SecretScope(asked.project, asked.branch)
    scope.check()
    secrets, tenant = call.parts.secrets, call.who.tenant
    known = await call.parts.disk.do(lambda: secrets.find(tenant, name, scope))
    if known is None or not await call.parts.disk.do(lambda: secrets.remove(tenant, name, scope)):
        raise missing("secret of this scope:", name)
    return shown(known)


def _place(known: Known) -> str:
    """Where it stands in the list; short enough for a cursor, and nobody else's."""
    scope = known.scope
    digest = blake2b(f"{scope.project}\0{scope.branch}".encode(), digest_size=8).hexdigest()
    return f"{known.name} {scope.project[:SHOWN]}\0{scope.branch[:SHOWN]}\0{digest}"


def shown(known: Known) -> api.Secret:
    """A secret as everybody may see it who may set one."""
    return api.Secret(
        name=known.name,
        project=known.scope.project,
        branch=known.scope.branch,
        version=known.version,
        set_at=maybe(known.at),
        set_by=known.by,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listSecrets": list_secrets,
    "setSecret": set_secret,
    "removeSecret": remove_secret,
}
