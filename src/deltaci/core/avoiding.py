"""Which worker rather not: one that lost a job does not get it again while another one could take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from deltaci.core.ids import first_life
from deltaci.core.worker import required_labels

if TYPE_CHECKING:
    from deltaci.core.attempt import Attempt

MAX_AVOIDED: Final = 8  # The last of them; what happened longer ago says little about a worker.


def avoiding(avoid: tuple[str, ...], worker_id: str) -> tuple[str, ...]:
    """The same, with this worker as the last of them: in all of its lives, for it is the same machine."""
    worker_id = first_life(worker_id)
    return (*(each for each in avoid if each != worker_id), worker_id)[-MAX_AVOIDED:]


def has_lost(attempt: Attempt, worker_id: str) -> bool:
    """Whether this worker, in whatever life, is one that the attempt is rather not given to."""
    return first_life(worker_id) in attempt.avoid


def is_avoided(
    attempt: Attempt, worker_id: str, rivals: Sequence[Sequence[str]], rival_ids: Sequence[str] = ()
) -> bool:
    """Whether this worker should leave the attempt to a rival: it lost it before, and some rival that did not fits.

    `rivals` are the labels of other workers that could take work now, `rival_ids` who they are, in the same order.
    Where that is not known, all the others that lost it are believed to be among them: nobody may wait for somebody
    who waits for him.
    """
    if not has_lost(attempt, worker_id):
        return False
    required = required_labels(attempt.queue_key)
    fitting = [number for number, labels in enumerate(rivals) if required <= set(labels)]
    if rival_ids:
        return any(not has_lost(attempt, rival_ids[number]) for number in fitting)
    return len(fitting) >= len(attempt.avoid)
