"""Secrets of the tenant: list, set and remove them. No response contains the value of a secret."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import SecretInput, SecretQuery
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler, not_found
from deltaci.server.rest.serializers import to_optional_datetime
from deltaci.server.secrets import SecretMetadata, SecretScope

PREFIX_CHARS: Final = 20  # The length of project and branch pattern in a cursor, which keeps the list in their order.


async def list_secrets(call: Call) -> api.SecretPage:
    """Return a page of secrets: their names and scopes."""
    query = call.query
    after = decode_cursor(query.cursor) if query.cursor else ""
    all_secrets = await call.app.disk.run(lambda: call.app.secrets.list_all(call.caller.tenant))
    remaining = sorted((secret for secret in all_secrets if _position(secret) > after), key=_position)
    page = remaining[: query.limit]
    return api.SecretPage(
        secrets=[serialize_secret(secret) for secret in page],
        next=encode_cursor(_position(page[-1])) if len(remaining) > len(page) else None,
    )


async def set_secret(call: Call) -> api.Secret:
    """Encrypt and store a secret, with its author and the time."""
    params: SecretInput = call.body
    name, scope = str(call.params["secret"]), SecretScope(params.project, params.branch)
    at, caller = call.app.keys.now(), call.caller
    return serialize_secret(
        await call.app.disk.run(
            lambda: call.app.secrets.set(caller.tenant, name, params.value, scope, by=caller.person, at=at)
        )
    )


async def remove_secret(call: Call) -> api.Secret:
    """Remove the secret with exactly this scope. Secrets with wider and narrower scopes remain."""
    params: SecretQuery = call.query
    name, scope = str(call.params["secret"]), SecretScope(params.project, params.branch)
    scope.check()
    secrets, tenant = call.app.secrets, call.caller.tenant
    secret = await call.app.disk.run(lambda: secrets.find(tenant, name, scope))
    if secret is None or not await call.app.disk.run(lambda: secrets.remove(tenant, name, scope)):
        raise not_found("secret of this scope:", name)
    return serialize_secret(secret)


def _position(secret: SecretMetadata) -> str:
    """Return the sort key of a secret: short enough for a cursor, and unique because of the digest of the scope."""
    scope = secret.scope
    scope_digest = blake2b(f"{scope.project}\0{scope.branch}".encode(), digest_size=8).hexdigest()
    return f"{secret.name} {scope.project[:PREFIX_CHARS]}\0{scope.branch[:PREFIX_CHARS]}\0{scope_digest}"


def serialize_secret(secret: SecretMetadata) -> api.Secret:
    """Return a secret as the API shows it, without its value."""
    return api.Secret(
        name=secret.name,
        project=secret.scope.project,
        branch=secret.scope.branch,
        version=secret.version,
        set_at=to_optional_datetime(secret.at),
        set_by=secret.by,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listSecrets": list_secrets,
    "setSecret": set_secret,
    "removeSecret": remove_secret,
}
