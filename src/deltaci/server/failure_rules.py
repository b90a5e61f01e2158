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
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.pipeline.parse import failure_rules
from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.port import Store

KIND: Final = "failure-rules"  # The kind of resource, and its name.
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


class StoredRules(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's rules file as stored. `version` counts how many times it was saved."""

    text: str
    by: str
    at: int
    version: int


class FailureRules:
    """Stores and caches the failure rules of tenants. `server` are the rules of the server's file."""

    def __init__(
        self, engine: Engine, store: Store, clock: Callable[[], float], server_rules: Sequence[FailureRule] = ()
    ) -> None:
        self._files = Resources(engine, store, KIND, StoredRules)
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
        stored_rules = await self._files.find(tenant, KIND)
        if stored_rules is None:
            return RulesRecord()
        # A file that this version cannot parse is shown, but not applied.
        rules = failure_rules.parse_failure_rules(stored_rules.text).rules or ()
        return RulesRecord(
            text=stored_rules.text, by=stored_rules.by, at=stored_rules.at, version=stored_rules.version, rules=rules
        )

    async def save(
        self, tenant: str, rules_text: str, *, actor: str, by: str, at: int, expected_version: int | None
    ) -> None:
        """Replace the tenant's own rules file; `by` and `at` are stored for display.

        Raises `Refused` and stores nothing if the text has errors or the stored version is not `expected_version`.
        """
        parse_result = failure_rules.parse_failure_rules(rules_text)
        if parse_result.rules is None:
            errors = [str(problem) for problem in parse_result.problems if not problem.is_warning]
            more_text = f"; and {len(errors) - MAX_LISTED} more" if len(errors) > MAX_LISTED else ""
            raise Refused("bad_request", "; ".join(errors[:MAX_LISTED]) + more_text)
        stored_rules, rev = await self._files.read(tenant, KIND)
        stored_version = stored_rules.version if stored_rules is not None else 0
        if expected_version is not None and expected_version != stored_version:
            raise Refused("stale_version", f"the rules are at version {stored_version}, not {expected_version}")
        new_rules = StoredRules(text=rules_text, by=by, at=at, version=stored_version + 1)
        await self._files.put(tenant, KIND, new_rules, actor=actor, rev=rev)
        self._cache.discard(tenant)
