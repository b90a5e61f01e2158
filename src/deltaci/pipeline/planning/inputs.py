"""Hash the inputs of a planned job, so that a later run can leave it out if it has succeeded with equal inputs.

The inputs are all that the result of a job may depend on: its definition after interpolation, its matrix values, the
contexts that its texts read, the event, the files of which a change affects it, and the inputs of the jobs that it
needs. Values that every job gets but this one does not read, such as the commit, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from deltaci.core.job import JobSpec
from deltaci.pipeline import model

FORMAT: Final = 1  # Increase it when the meaning of the hashed fields changes.
REUSABLE_EVENTS: Final = ("push", "pull_request")
DIGEST_MARK: Final = "@sha256:"
# Fields of the specification for the runner that differ between runs with equal inputs. `contexts` is hashed as far as
# the job reads it; the cache scope is the trust, by which results are stored.
_RUN_SPECIFIC_FIELDS: Final = ("contexts", "cache_scope", "source")
_RUN_SPECIFIC_SOURCE_FIELDS: Final = ("commit", "ref")


class JobInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the hash of a job's inputs is computed from, besides its spec. `needs` has the hashes of its needs."""

    file: str
    event: str
    matrix: dict[str, object]
    contexts: dict[str, Any]
    file_digest: str
    needs: dict[str, str]


def inputs_hash(spec: JobSpec, inputs: JobInputs) -> str:
    """Return the hash of the inputs of a job, which is equal for equal inputs in other runs."""
    work = {key: value for key, value in spec.work.items() if key not in _RUN_SPECIFIC_FIELDS}
    source = spec.work.get("source") or {}
    hashed_fields = {
        "format": FORMAT,
        "name": spec.name,
        "queue_key": spec.queue_key,
        "timeout_seconds": spec.timeout_seconds,
        "is_required": spec.is_required,
        "work": work,
        "source": {key: value for key, value in source.items() if key not in _RUN_SPECIFIC_SOURCE_FIELDS},
        "inputs": inputs,
    }
    return sha256(msgspec.json.encode(hashed_fields, order="sorted")).hexdigest()


def reason_not_reusable(job: model.Job, spec: JobSpec, *, has_gate: bool) -> str:
    """Return the reason for which a job is never reused, or an empty string if it can be.

    `has_gate` says that an approval is among its direct or indirect needs.
    """
    work: Mapping[str, Any] = spec.work if isinstance(spec.work, dict) else {}
    if job.reuse is False or (job.reuse is None and not (job.paths or job.project)):
        return "it does not declare that it can be reused"
    if has_gate:
        return "it comes after an approval"
    if spec.group:
        return "it has a concurrency group"
    if work.get("secrets") or work.get("optional_secrets"):
        return "it uses secrets, whose versions are not known when planning"
    if work.get("condition"):
        return "its condition depends on the results of other jobs"
    images = [work.get("image", ""), *(service["image"] for service in work.get("services", ()))]
    if any(image and DIGEST_MARK not in image for image in images):
        return "its image is named without a digest"
    checkouts = [step.get("inputs", {}) for step in work.get("steps", ()) if step.get("uses") == "checkout"]
    if any("repository" in inputs or "ref" in inputs for inputs in checkouts):
        return "it checks out another commit or repository"
    return ""
