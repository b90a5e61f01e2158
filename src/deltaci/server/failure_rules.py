"""How failures are classed: a tenant's own rules, then those of the server's file; the core knows the built-in ones.

Rules are sent with the result that they are about, so the decision is made from what the command says and nothing else.
What is known of a tenant's rules is remembered for two seconds: for so long may another server still use the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.failures import FailureRule
from deltaci.pipeline.parse import failure_rules
from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.port import Conflict, Document, Store

KIND: Final = "failure-rules"  # The kind of document, and its name.
REMEMBERED_SECONDS: Final = 2.0
MAX_TENANTS: Final = 10_000
MAX_TOLD: Final = 5


class RulesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's file as it is kept. `version` is 0 and `at` too while there is none."""

    text: str = ""
    by: str = ""
    at: int = 0
    version: int = 0
    rules: tuple[FailureRule, ...] = ()


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    by: str
    at: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Kept).decode


class FailureRules:
    """The rules of all tenants."""

    def __init__(self, store: Store, clock: Callable[[], float], server: Sequence[FailureRule] = ()) -> None:
        self._store = store
        self.server = tuple(server)
        self._known: TtlCache[str, tuple[FailureRule, ...]] = TtlCache(REMEMBERED_SECONDS, MAX_TENANTS, clock)

    async def of(self, tenant: str) -> tuple[FailureRule, ...]:
        """What is asked before the built-in rules, in this order."""
        if (known := self._known.get(tenant)) is not None:
            return known
        return self._known.put(tenant, (*(await self.read(tenant)).rules, *self.server))

    async def read(self, tenant: str) -> RulesRecord:
        """The tenant's own."""
        document = await self._store.find_document(KIND, KIND, tenant)
        if document is None:
            return RulesRecord()
        kept = _decode(document.body)
        # One that this version cannot read any more is shown, and not used.
        rules = failure_rules.parse_failure_rules(kept.text).rules or ()
        return RulesRecord(text=kept.text, by=kept.by, at=kept.at, version=document.version, rules=rules)

    async def save(self, tenant: str, text: str, *, by: str, at: int, expected_version: int | None) -> None:
        """Keep another file in place of what was there; refused, before anything is kept, when it has problems."""
        found = failure_rules.parse_failure_rules(text)
        if found.rules is None:
            bad = [str(each) for each in found.problems if not each.is_warning]
            more = f"; and {len(bad) - MAX_TOLD} more" if len(bad) > MAX_TOLD else ""
            raise Refused("bad_request", "; ".join(bad[:MAX_TOLD]) + more)
        document = await self._store.find_document(KIND, KIND, tenant)
        version = document.version if document is not None else 0
        if expected_version is not None and expected_version != version:
            raise Refused("stale_version", f"the rules are at version {version}, not {expected_version}")
        body = _encode(_Kept(text=text, by=by, at=at))
        try:
            await self._store.put_documents(
                [Document(kind=KIND, tenant=tenant, name=KIND, version=version, at=0, body=body)]
            )
        except Conflict:
            raise Refused("stale_version", "somebody else set these rules at the same moment") from None
        self._known.discard(tenant)
