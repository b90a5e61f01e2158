"""Records the grants of the OIDC file as resources: a change of the file is an event in each tenant that it affects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from deltaci.core.events import ORCHESTRATOR
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.server.web.auth.oidc_grants import GrantRule
from deltaci.storage.port import Store

KIND: Final = "sign-in-grants"


class TenantGrants(msgspec.Struct, frozen=True, kw_only=True):
    """The scopes and roles that groups of one issuer have in a tenant."""

    grants: tuple[GrantRule, ...]


async def record_grants(
    engine: Engine, store: Store, issuer: str, grants_by_tenant: Mapping[str, Sequence[GrantRule]]
) -> None:
    """Record the grants that a server has read from its file when it starts. Equal grants are no change."""
    resources = Resources(engine, store, KIND, TenantGrants)
    recorded_tenants = [stored.tenant async for stored in resources.iterate() if stored.name == issuer]
    for tenant in recorded_tenants:
        if tenant not in grants_by_tenant:
            await resources.delete(tenant, issuer, actor=ORCHESTRATOR)
    for tenant, grants in grants_by_tenant.items():
        await resources.put(tenant, issuer, TenantGrants(grants=tuple(grants)), actor=ORCHESTRATOR)
