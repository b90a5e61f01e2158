"""Following events and logs through everything that breaks: connections, servers, leases, attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltaci.api.schemas import records as api
from deltaci.client import ApiError, Client, ClientError, Patience, Unreachable, operations
from deltaci.client.effects import HttpResponse, OperationDriver, Sleep
from deltaci.client.logs import LogPart
from tests.client.hosted import Hosted, Player, gate, plan, task

# Gives a single question up long before the server is back; what is followed is not.
HASTY = Patience(first_seconds=0.01, most_seconds=0.1, give_up_seconds=0.1, lost_seconds=20)


class Listener:
    """Collects what a stream gives, in a thread of its own."""

    def __init__(self, stream: Iterator[Any]) -> None:
        self.found: list[Any] = []
        self._changed = threading.Condition()
        self._is_over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(stream,))
        self._thread.start()

    def _run(self, stream: Iterator[Any]) -> None:
        try:
            for item in stream:
                self._tell(item)
        except ClientError as error:
            self.error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _tell(self, item: Any) -> None:
        with self._changed:
            self.found.append(item)
            self._changed.notify_all()

    def until(self, is_it: Callable[[list[Any]], bool]) -> list[Any]:
        """Wait until what was found is so."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_it(self.found) or self._is_over, 30), self.found
            assert is_it(self.found), (self.found, self.error)
            return list(self.found)

    def ended(self) -> list[Any]:
        """Wait until the stream is at its end."""
        self._thread.join(30)
        assert not self._thread.is_alive(), self.found
        return self.found


def turns(events: list[api.Event]) -> list[str]:
    """What happened to the run itself."""
    return [event.to for event in events if event.entity == "run" and event.from_ != event.to]


def test_a_run_is_followed_to_its_end_and_nothing_is_missing(client: Client, player: Player) -> None:
    """What was, then what happens, each once and in order; the same as what is read later."""
    run = client.start(plan=plan(task("a"), gate("ok")))
    events = Listener(client.follow(run.id))
    player.finish(player.take())
    events.until(lambda found: "WAITING_APPROVAL" in turns(found))
    client.approve(run.id)

    found = events.ended()

    assert turns(found)[-1] in ("SUCCESS", "REPORTED")
    everything = client.follow()
    assert any(each.run_id == run.id and each.to == "REPORTED" for each in everything)
    everything.close()  # type: ignore[attr-defined]
    read = list(client.iter_events(run.id))
    assert found == read[: len(found)]
    assert list(client.follow(run.id)) == read
    assert [event.seq for event in client.follow(run.id, after=read[3].seq)] == [event.seq for event in read[4:]]
    page = client.events(run.id, limit=3)
    assert (page.events, page.last) == (read[:3], read[2].seq)
    client.close()
    with pytest.raises(ClientError, match="the client was closed"):
        next(client.follow())


def test_following_goes_on_when_the_server_was_restarted(tmp_path: Path) -> None:
    """No event is lost and none comes twice."""
    with Hosted(tmp_path) as hosted, hosted.client(patience=HASTY) as client, hosted.client() as patient:
        run = client.start(plan=plan(gate("ok")))
        one, whole = Listener(client.follow(run.id)), Listener(client.follow())
        waiting = Listener(_waited(patient, run.id))
        for each in (one, whole):
            each.until(lambda found: "WAITING_APPROVAL" in turns(found))

        hosted.stop()
        hosted.start()
        client.approve(run.id)

        assert turns(one.ended())[-1] in ("SUCCESS", "REPORTED")
        assert waiting.ended()[0].status == "SUCCEEDED"
        whole.until(lambda found: "SUCCESS" in turns(found))
        for each in (one, whole):
            numbers = [event.seq for event in each.found]
            assert numbers == sorted(set(numbers))
            assert numbers == list(range(1, len(numbers) + 1))
        hosted.stop()
        with hosted.client(patience=Patience(first_seconds=0.01, lost_seconds=0.05, give_up_seconds=0.05)) as hasty:
            lost = Listener(hasty.follow())
            lost.ended()
            assert isinstance(lost.error, Unreachable)
        client.close()
        whole.ended()


def _waited(client: Client, run_id: str) -> Iterator[api.RunWithJobs]:
    yield client.wait(run_id)


def test_what_is_not_there_is_not_followed(client: Client) -> None:
    """A refusal is no broken line."""
    with pytest.raises(ApiError, match="not_found"):
        next(client.follow("nothing"))
    with pytest.raises(ApiError, match="not_found"):
        next(client.follow_log("nothing", "a"))


def test_waiting_has_an_end(client: Client) -> None:
    """The run goes on."""
    run = client.start(plan=plan(gate("ok")))

    with pytest.raises(TimeoutError, match=run.id):
        client.wait(run.id, timeout_seconds=0.05)

    client.cancel(run.id)
    assert client.wait(run.id, timeout_seconds=30).status == "CANCELED"


def said(parts: list[LogPart]) -> dict[tuple[int, int], bytes]:
    """What was said under each lease of each attempt."""
    found: dict[tuple[int, int], bytes] = {}
    for part in parts:
        found[part.attempt, part.lease] = found.get((part.attempt, part.lease), b"") + part.data
    return found


def test_a_log_is_followed_through_a_lost_lease_and_a_retry(client: Client, player: Player) -> None:
    """From before the first line to after the last, whoever has the job."""
    again = {"max_attempts": 3, "base_delay_seconds": 0}
    run = client.start(plan=plan(task("a", retry=again)))
    log = Listener(client.follow_log(run.id, "a"))
    first = player.take()
    player.log(first, b"one\n")
    log.until(lambda found: said(found) == {(1, 1): b"one\n"})
    player.log(first, b"two\n", 4)
    player.hand_back(first)
    second = player.take()
    player.log(second, b"three\n")
    player.fail(second, error_code="CACHE_FETCH")  # Not the runner's fault: it may have it again.
    third = player.take()
    player.log(third, b"four\n")
    player.finish(third)

    assert said(log.ended()) == {(1, 1): b"one\ntwo\n", (1, 2): b"three\n", (2, 1): b"four\n"}
    assert said(list(client.follow_log(run.id, "a"))) == {(2, 1): b"four\n"}
    assert said(list(client.follow_log(run.id, "a", 1))) == {(1, 2): b"three\n"}
    assert client.log(run.id, "a") == b"four\n"
    assert client.log(run.id, "a", 1, lease=1, start=2, end=5) == b"e\nt"


def test_a_log_is_followed_over_a_restart_of_the_server(tmp_path: Path) -> None:
    """No byte is lost and none comes twice."""
    with Hosted(tmp_path) as hosted, hosted.client(patience=HASTY) as client, hosted.player() as player:
        run = client.start(plan=plan(task("a")))
        lease = player.take()
        player.log(lease, b"before\n")
        log = Listener(client.follow_log(run.id, "a"))
        log.until(lambda found: said(found) == {(1, 1): b"before\n"})

        hosted.stop()
        hosted.start()
        player.log(lease, b"after\n", 7)
        player.finish(lease)

        assert said(log.ended()) == {(1, 1): b"before\nafter\n"}


def test_a_log_of_what_never_ran_is_empty(client: Client) -> None:
    """And has an end."""
    run = client.start(plan=plan(task("a")))
    log = Listener(client.follow_log(run.id, "a"))

    client.cancel(run.id)

    assert log.ended() == []
    assert client.log(run.id, "a") == b""


def test_files_are_listed_and_kept_whole(client: Client, player: Player, tmp_path: Path) -> None:
    """Of a run or of an attempt; and nothing half is left when there is no such file."""
    data = bytes(range(256)) * 4096
    run = client.start(plan=plan(task("a")))
    lease = player.take()
    kept = player.keep(lease, "dist/app.bin", data)
    player.finish(lease, artifacts=[kept])
    client.wait(run.id)

    [listed] = client.artifacts(run.id).artifacts
    assert (listed.job, listed.attempt, listed.path, listed.bytes) == ("a", 1, "dist/app.bin", len(data))
    assert client.artifacts(run.id, "a", 1).artifacts == [listed]
    assert client.download(run.id, "a", 1, "dist/app.bin", tmp_path / "app").read_bytes() == data
    with pytest.raises(ApiError, match="not_found"):
        client.download(run.id, "a", 1, "dist/other", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["app"]


def test_an_end_that_could_not_be_asked_about_is_not_missed(client: Client) -> None:
    """The connection breaks between the last event and the question whether it was the last."""
    run = client.start(plan=plan(gate("ok")))
    waiting = client.run(run.id)
    client.approve(run.id)
    over, last = client.wait(run.id), list(client.iter_events(run.id))[-1]
    told = b"id: %d\ndata: %s\n\n" % (last.seq, msgspec.json.encode(last))
    drive = OperationDriver(operations.wait(run.id))
    answers: list[Any] = [waiting, HASTY, HttpResponse(200, {}, b""), told, Unreachable("gone"), None, over]

    while (step := drive.step()) is not None:
        answer = None if isinstance(step, Sleep) else answers.pop(0)
        if isinstance(step, Sleep):
            assert answers.pop(0) is None
        drive.fail(answer) if isinstance(answer, Exception) else drive.give(answer)

    assert (drive.result, answers) == (over, [])
