"""What discovery says: what it found, where, from what it concludes that, and how sure it is."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from deltaci.pipeline import model

Confidence = Literal["sure", "likely", "unsure"]
SURE: Final = "sure"  # The project declares it, and this is how its ecosystem does it.
LIKELY: Final = "likely"  # It usually is so; something that cannot be seen from here may be in its way.
UNSURE: Final = "unsure"  # A guess: it is shown to people, and never run by itself.
ORDER: Final[tuple[Confidence, ...]] = (SURE, LIKELY, UNSURE)


class Draft(Struct, frozen=True, kw_only=True):
    """A job as an ecosystem proposes it: for its own folder, and without a name among all others."""

    task: str  # what it does: test, build, lint …
    what: str
    confidence: Confidence
    evidence: tuple[str, ...]
    steps: tuple[str, ...]  # commands; nothing of the repository's texts is in them, except names that are plain words
    reason: str = ""  # why it is not sure
    env: dict[str, str] = {}
    caches: tuple[model.Cache, ...] = ()
    artifacts: tuple[model.Artifact, ...] = ()
    checkout: bool | int = True
    hints: tuple[str, ...] = ()  # what people may want to add


class Project(Struct, frozen=True, kw_only=True):
    """One ecosystem in one folder."""

    ecosystem: str
    folder: str
    drafts: tuple[Draft, ...] = ()
    unclear: tuple[str, ...] = ()  # what was seen and not understood


class Finding(Struct, frozen=True, kw_only=True):
    """A job that is proposed, and why."""

    id: str
    what: str
    where: str  # the folder; empty: the root
    ecosystem: str
    confidence: Confidence
    evidence: tuple[str, ...]
    job: model.Job
    reason: str = ""
    hints: tuple[str, ...] = ()

    @property
    def is_run(self) -> bool:
        """Whether it runs without anybody having looked at it."""
        return self.confidence != UNSURE


class Proposal(Struct, frozen=True, kw_only=True):
    """All that was found; `pipeline` is what is sure enough to run, if anything is."""

    findings: tuple[Finding, ...] = ()
    unclear: tuple[str, ...] = ()
    pipeline: model.Pipeline | None = None


def weaker(one: Confidence, other: Confidence) -> Confidence:
    """The less sure of two."""
    return max(one, other, key=ORDER.index)


def quoted(text: str, longest: int = 60) -> str:
    """Some text of a file, to be shown to people: one line of plain characters, and not much of it."""
    line = "".join(char if " " <= char <= "~" else "?" for char in " ".join(text[: longest * 4].split()))
    return f"'{line}'" if len(line) <= longest else f"'{line[: longest - 3]}...'"
