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
    after_sort_key = decode_cursor(query.cursor) if query.cursor else ""
    all_secrets = await call.app.disk.run(lambda: call.app.secrets.list_all(call.caller.tenant))
    remaining_secrets = sorted((secret for secret in all_secrets if _sort_key(secret) > after_sort_key), key=_sort_key)
    page = remaining_secrets[: query.limit]
    return api.SecretPage(
        secrets=[serialize_secret(secret) for secret in page],
        next=encode_cursor(_sort_key(page[-1])) if len(remaining_secrets) > len(page) else None,
    )


async def set_secret(call: Call) -> api.Secret:
    """Encrypt and store a secret, with its author and the time."""
    secret_input: SecretInput = call.body
    secret_name, scope = str(call.params["secret"]), SecretScope(secret_input.project, secret_input.branch)
    at, caller = call.app.keys.now(), call.caller
    secret = await call.app.secret_changes.set(
        caller.tenant, secret_name, secret_input.value, scope, person=caller.person, actor=call.actor, at=at
    )
    return serialize_secret(secret)


async def remove_secret(call: Call) -> api.Secret:
    """Remove the secret with exactly this scope. Secrets with wider and narrower scopes remain."""
    secret_query: SecretQuery = call.query
    secret_name, scope = str(call.params["secret"]), SecretScope(secret_query.project, secret_query.branch)
    secret = await call.app.secret_changes.remove(call.caller.tenant, secret_name, scope, actor=call.actor)
    if secret is None:
        raise not_found("secret of this scope:", secret_name)
    return serialize_secret(secret)


def _sort_key(secret: SecretMetadata) -> str:
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
