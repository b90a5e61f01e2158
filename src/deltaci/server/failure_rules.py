"""The failure rules of each tenant.

A tenant's own rules come first, then those of the server's file, then the built-in ones of the core. The rules are part
of the command that reports a failure, so the decision depends on that command alone. A tenant's rules are cached for
two seconds; for that long another server may still use the old ones.
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
CACHE_SECONDS: Final = 2.0
MAX_TENANTS: Final = 10_000
MAX_LISTED: Final = 5


class RulesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's rules file as stored, and the rules in it. `version` and `at` are 0 if there is no file."""

    text: str = ""
    by: str = ""
    at: int = 0
    version: int = 0
    rules: tuple[FailureRule, ...] = ()


class _StoredRules(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    by: str
    at: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_StoredRules).decode


class FailureRules:
    """Stores and caches the failure rules of tenants. `server` are the rules of the server's file."""

    def __init__(self, store: Store, clock: Callable[[], float], server_rules: Sequence[FailureRule] = ()) -> None:
        self._store = store
        self.server = tuple(server_rules)
        self._cache: TtlCache[str, tuple[FailureRule, ...]] = TtlCache(CACHE_SECONDS, MAX_TENANTS, clock)

    async def for_tenant(self, tenant: str) -> tuple[FailureRule, ...]:
        """Return the tenant's own rules followed by the server's, which apply before the built-in ones."""
        if (cached := self._cache.get(tenant)) is not None:
            return cached
        return self._cache.put(tenant, (*(await self.read(tenant)).rules, *self.server))

    async def read(self, tenant: str) -> RulesRecord:
        """Return the tenant's own rules file and its parsed rules.

        `rules` is empty for a file that cannot be parsed.
        """
        stored_document = await self._store.find_document(KIND, KIND, tenant)
        if stored_document is None:
            return RulesRecord()
        stored_rules = _decode(stored_document.body)
        # A file that this version cannot parse is shown, but not applied.
        rules = failure_rules.parse_failure_rules(stored_rules.text).rules or ()
        return RulesRecord(
            text=stored_rules.text, by=stored_rules.by, at=stored_rules.at, version=stored_document.version, rules=rules
        )

    async def save(self, tenant: str, rules_text: str, *, by: str, at: int, expected_version: int | None) -> None:
        """Replace the tenant's own rules file; `by` and `at` are stored for display.

        Raises `Refused` and stores nothing if the text has errors or the stored version is not `expected_version`.
        """
        parse_result = failure_rules.parse_failure_rules(rules_text)
        if parse_result.rules is None:
            errors = [str(problem) for problem in parse_result.problems if not problem.is_warning]
            more_text = f"; and {len(errors) - MAX_LISTED} more" if len(errors) > MAX_LISTED else ""
            raise Refused("bad_request", "; ".join(errors[:MAX_LISTED]) + more_text)
        stored_document = await self._store.find_document(KIND, KIND, tenant)
        stored_version = stored_document.version if stored_document is not None else 0
        if expected_version is not None and expected_version != stored_version:
            raise Refused("stale_version", f"the rules are at version {stored_version}, not {expected_version}")
        rules_json = _encode(_StoredRules(text=rules_text, by=by, at=at))
        try:
            await self._store.put_documents(
                [Document(kind=KIND, tenant=tenant, name=KIND, version=stored_version, at=0, body=rules_json)]
            )
        except Conflict:
            raise Refused("stale_version", "another request set these rules at the same moment") from None
        self._cache.discard(tenant)
