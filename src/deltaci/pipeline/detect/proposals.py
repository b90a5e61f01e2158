"""The results of detection: proposed jobs, with their evidence and how certain they are."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from deltaci.pipeline import model

Confidence = Literal["sure", "likely", "unsure"]
SURE: Final = "sure"  # The project declares it, and the command is the standard one of its ecosystem.
LIKELY: Final = "likely"  # Usually correct, but it may fail because of something that the files do not show.
UNSURE: Final = "unsure"  # A guess: shown to people, but not part of the proposed pipeline.
CONFIDENCES: Final[tuple[Confidence, ...]] = (SURE, LIKELY, UNSURE)


class JobDraft(Struct, frozen=True, kw_only=True):
    """A job as the detection of one ecosystem proposes it, before it gets an id that is unique in the repository."""

    purpose: str  # Test, build, lint or similar.
    title: str
    confidence: Confidence
    evidence: tuple[str, ...]
    steps: tuple[str, ...]  # Shell commands. From file contents, they contain only names that match a safe pattern.
    uncertainty: str = ""  # Why it is not certain; empty if the confidence is `SURE`.
    env: dict[str, str] = {}
    caches: tuple[model.Cache, ...] = ()
    artifacts: tuple[model.Artifact, ...] = ()
    checkout: bool | int = True
    hints: tuple[str, ...] = ()  # Suggestions for what people may want to add.


class Project(Struct, frozen=True, kw_only=True):
    """The jobs that one ecosystem proposes for one folder."""

    ecosystem: str
    folder: str  # Empty for the root of the repository.
    drafts: tuple[JobDraft, ...] = ()
    unclear: tuple[str, ...] = ()  # Messages about files for which no job could be proposed.


class ProposedJob(Struct, frozen=True, kw_only=True):
    """A proposed job, with the evidence for it."""

    id: str
    title: str = msgspec.field(name="what")
    folder: str = msgspec.field(name="where")  # Empty for the root of the repository.
    ecosystem: str
    confidence: Confidence
    evidence: tuple[str, ...]
    job: model.Job
    uncertainty: str = msgspec.field(name="reason", default="")
    hints: tuple[str, ...] = ()

    @property
    def is_included(self) -> bool:
        """Whether the job is part of the proposed pipeline."""
        return self.confidence != UNSURE


class Proposal(Struct, frozen=True, kw_only=True):
    """All proposed jobs of a repository. `pipeline` contains the included jobs; it is None if there are none."""

    proposed_jobs: tuple[ProposedJob, ...] = ()
    unclear: tuple[str, ...] = ()
    pipeline: model.Pipeline | None = None


def weaker(first: Confidence, second: Confidence) -> Confidence:
    """Return the less certain one of two confidences."""
    return max(first, second, key=CONFIDENCES.index)


def quoted(text: str, max_chars: int = 60) -> str:
    """Return text from a file for a message: in single quotes, on one line, in printable ASCII, and shortened."""
    printable_text = "".join(char if " " <= char <= "~" else "?" for char in " ".join(text[: max_chars * 4].split()))
    return f"'{printable_text}'" if len(printable_text) <= max_chars else f"'{printable_text[: max_chars - 3]}...'"
