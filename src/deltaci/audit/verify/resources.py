"""The rules for resources: what an administrative event shows follows from the event before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from deltaci.audit.verify.log_lines import EventLine, ResourceMetadata
from deltaci.audit.verify.tracked import TrackedResource
from deltaci.core.ids import resource_id
from deltaci.core.resource import DELETED, PRESENT

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

Check = Callable[["CanonicalVerifier", TrackedResource, EventLine, ResourceMetadata], None]

RULE: Final = "MOD-14"


def check_name(
    verifier: CanonicalVerifier, resource: TrackedResource, event: EventLine, metadata: ResourceMetadata
) -> None:
    """Report an event whose id is not that of its tenant, kind and name."""
    expected_id = resource_id(event.tenant, metadata.kind, metadata.name)
    if resource.id != expected_id:
        verifier.flag(RULE, f"{resource.id} is the {metadata.kind} {metadata.name!r}", f"the id {expected_id}")


def check_number(
    verifier: CanonicalVerifier, resource: TrackedResource, event: EventLine, metadata: ResourceMetadata
) -> None:
    """Report a gap in the numbers of the tenant's administrative events: an event is missing."""
    expected_number = verifier.administrative_numbers.get(event.tenant, 0) + 1
    verifier.administrative_numbers[event.tenant] = metadata.number
    if metadata.number != expected_number:
        problem = f"the event of {resource.id} is number {metadata.number} of tenant {event.tenant!r}"
        verifier.flag(RULE, problem, f"number {expected_number}")


def check_body(
    verifier: CanonicalVerifier, resource: TrackedResource, event: EventLine, metadata: ResourceMetadata
) -> None:
    """Report a body before the change that is not the one after the last change, and one after that cannot be."""
    if metadata.before != resource.body:
        verifier.flag(RULE, f"{resource.id} had another body before this change", "the body after the last change")
    if (metadata.after is None) != (event.to == DELETED):
        verifier.flag(RULE, f"{resource.id} is {event.to}", "a body unless it is deleted")
    if event.from_ == event.to and metadata.before == metadata.after and not metadata.is_sealed_changed:
        verifier.flag(RULE, f"{resource.id} is {event.trigger} without a change", "no event")
    resource.body = metadata.after


CHECKS: Final[dict[str, tuple[Check, ...]]] = dict.fromkeys((PRESENT, DELETED), (check_name, check_number, check_body))
