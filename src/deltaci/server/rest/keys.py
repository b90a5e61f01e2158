"""API keys, the caller of a request, and the quotas of a tenant."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import SCOPES
from deltaci.core.errors import Refused
from deltaci.server.rest import serializers
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler, not_found


async def make_key(call: Call) -> api.NewKey:
    """Create a key. Its secret is only in this response."""
    key_record, token = await call.app.keys.create(call.caller.tenant, call.body, call.caller.person)
    return api.NewKey(**serializers.key(key_record), token=token)


async def list_keys(call: Call) -> api.KeyPage:
    """Return a page of the keys of the tenant, including expired and revoked ones."""
    query = call.query
    after_id = decode_cursor(query.cursor) if query.cursor else ""
    page = await call.app.keys.list_page(call.caller.tenant, after_id, query.limit)
    return api.KeyPage(
        keys=[api.Key(**serializers.key(key_record)) for key_record in page],
        next=encode_cursor(page[-1].id) if len(page) == query.limit else None,
    )


async def read_key(call: Call) -> api.Key:
    key_id = str(call.params["key"])
    key_record = await call.app.keys.read(call.caller.tenant, key_id)
    if key_record is None:
        raise not_found("key", key_id)
    return api.Key(**serializers.key(key_record))


async def revoke_key(call: Call) -> api.Key:
    """Revoke a key. Has no effect if it is already revoked."""
    key_id = str(call.params["key"])
    key_record = await call.app.keys.revoke(call.caller.tenant, key_id, call.caller.person)
    if key_record is None:
        raise not_found("key", key_id)
    return api.Key(**serializers.key(key_record))


async def read_me(call: Call) -> api.Me:
    """Return the caller of this request."""
    caller = call.caller
    return api.Me(
        tenant=caller.tenant,
        person=caller.person,
        scopes=[scope for scope in SCOPES if scope in caller.scopes],
        roles=list(caller.roles),
        key_id=caller.key_id,
        expires_at=serializers.to_optional_datetime(caller.expires_at),
        is_operator=caller.is_operator,
    )


async def read_tenant(call: Call) -> api.Tenant:
    """Return the quotas and the usage of the caller's tenant."""
    return await _tenant(call, call.caller.tenant)


async def set_quotas(call: Call) -> api.Tenant:
    """Set the quotas of the tenant in the path, which need not be the caller's. Return them with its usage."""
    tenant_name = str(call.params["tenant"])
    if not tenant_name.strip():
        raise Refused("not_found", f"there is no tenant {tenant_name!r}")
    await call.app.tenants.set_quotas(tenant_name, call.body, actor=call.actor)
    return await _tenant(call, tenant_name)


async def _tenant(call: Call, name: str) -> api.Tenant:
    tenants = call.app.tenants
    return api.Tenant(name=name, quotas=await tenants.quotas(name), usage=await tenants.usage(name))


HANDLERS: Final[dict[str, Handler]] = {
    "listKeys": list_keys,
    "makeKey": make_key,
    "readKey": read_key,
    "revokeKey": revoke_key,
    "readMe": read_me,
    "readTenant": read_tenant,
    "setQuotas": set_quotas,
}
