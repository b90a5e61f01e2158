"""API keys, who asks, and what a tenant may use."""

from __future__ import annotations

from typing import Final

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import SCOPES
from deltaci.core.errors import Refused
from deltaci.server.rest import serializers
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler, missing


async def make_key(call: Call) -> api.NewKey:
    """Its secret is in this answer and nowhere else."""
    record, token = await call.parts.keys.make(call.who.tenant, call.body, call.who.person)
    return api.NewKey(**serializers.key(record), token=token)


async def list_keys(call: Call) -> api.KeyPage:
    """All of the tenant's, also those that are no longer good."""
    query = call.query
    after = read(query.cursor) if query.cursor else ""
    found = await call.parts.keys.page(call.who.tenant, after, query.limit)
    return api.KeyPage(
        keys=[api.Key(**serializers.key(each)) for each in found],
        next=written(found[-1].id) if len(found) == query.limit else None,
    )


async def read_key(call: Call) -> api.Key:
    """One of them."""
    id = str(call.params["key"])
    record = await call.parts.keys.read(call.who.tenant, id)
    if record is None:
        raise missing("key", id)
    return api.Key(**serializers.key(record))


async def revoke_key(call: Call) -> api.Key:
    """Safe to repeat."""
    id = str(call.params["key"])
    record = await call.parts.keys.revoke(call.who.tenant, id, call.who.person)
    if record is None:
        raise missing("key", id)
    return api.Key(**serializers.key(record))


async def read_me(call: Call) -> api.Me:
    """Who asks."""
    who = call.who
    return api.Me(
        tenant=who.tenant,
        person=who.person,
        scopes=[scope for scope in SCOPES if scope in who.scopes],
        roles=list(who.roles),
        key_id=who.key_id,
        expires_at=serializers.maybe(who.expires_at),
        is_operator=who.is_operator,
    )


async def read_tenant(call: Call) -> api.Tenant:
    """The caller's own."""
    return await _tenant(call, call.who.tenant)


async def set_quotas(call: Call) -> api.Tenant:
    """Of any tenant."""
    name = str(call.params["tenant"])
    if not name.strip():
        raise Refused("not_found", f"there is no tenant {name!r}")
    await call.parts.tenants.set_quotas(name, call.body)
    return await _tenant(call, name)


async def _tenant(call: Call, name: str) -> api.Tenant:
    tenants = call.parts.tenants
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
