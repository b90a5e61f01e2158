"""What fuzzing found in the runner: answers, archives, logs and folders that once made an error of ours."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import socket
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import JobSpec, LeaseRequest
from deltaci.runner.client import PART_BYTES, RunnerClient
from deltaci.runner.log.sections import SectionWriter, sections
from deltaci.runner.registration import CREDENTIAL_FILE, CredentialProvider, NoCredential
from deltaci.runner.sandbox import Executors
from deltaci.runner.sandbox.cell_pool import CellPool
from deltaci.runner.workspace import archive
from deltaci.runner.workspace.layout import resolve_workdir

NONCE = "0" * 32


def answered(answer: bytes, call: Callable[[RunnerClient], object]) -> Exception:
    """What the client makes of an answer like this."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                while b"\r\n\r\n" not in peer.recv(65536):
                    pass
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        client = RunnerClient(f"http://127.0.0.1:{server.getsockname()[1]}")
        try:
            with pytest.raises((Unreachable, Refused)) as caught:
                call(client)
        finally:
            client.close()
            thread.join(10)
    return caught.value


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n<html>Hi</html>",
        b'HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"\xff\xff"',
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\n\xff\xfe\xfd",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4611686018427387904\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 50_000,
    ],
    ids=["other object", "page", "no UTF-8", "refused in no UTF-8", "huge", "larger than any size", "deep"],
)
def test_an_answer_that_makes_no_sense_is_none(answer: bytes) -> None:
    """A proxy in between says such things; the runner says the same again later."""
    assert isinstance(answered(answer, lambda client: client.request_leases(LeaseRequest(runner_id="w1"))), Unreachable)


def test_an_answer_that_is_given_up_leaves_no_connection() -> None:
    """Also one that ends with its connection, and as long as somebody looks at the error."""
    given_up = RuntimeError("the disk is full")

    def refuse(_: bytes) -> None:
        raise given_up

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = RunnerClient(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread = threading.Thread(target=lambda: heard.append(_until_hung_up(server)))
        heard: list[bytes] = []
        thread.start()
        with pytest.raises(RuntimeError) as caught:
            client.download("l1", "/log", refuse)
        thread.join(20)

    assert heard == [b""]
    assert caught.value is given_up


def _until_hung_up(server: socket.socket) -> bytes:
    peer, _ = server.accept()
    with peer:
        peer.settimeout(10)
        while b"\r\n\r\n" not in peer.recv(65536):
            pass
        peer.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (2 * PART_BYTES))
        peer.sendall(bytes(PART_BYTES))
        return peer.recv(1)


def test_a_lease_id_cannot_bring_another_header_along() -> None:
    """It comes from the server, is a secret, and stands in a header: no error may show it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = RunnerClient(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Refused) as caught:
            client.log_size("secret\r\nHost: elsewhere")
        client.close()

    assert "secret" not in str(caught.value)


def test_a_problem_is_shown_as_plain_text() -> None:
    """It goes into a log that a terminal shows."""
    body = b'{"code": "bad_request", "message": "\\u001b[31mred\\n' + b"x" * 9000 + b'"}'
    answer = b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    told = answered(answer, lambda client: client.renew())

    assert str(told).isprintable()
    assert len(str(told)) < 3000


def _with_time(text: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"mtime": text}
        tar.addfile(info)
    return out.getvalue()


def _chained() -> bytes:
    link = tarfile.TarInfo("././@LongLink")
    link.type, link.size = b"L", 2
    return (link.tobuf(tarfile.GNU_FORMAT) + b"a\0" + bytes(510)) * 3000


@pytest.mark.parametrize("raw", [_with_time("inf"), _with_time("-inf"), _chained()], ids=["inf", "-inf", "chained"])
def test_an_archive_that_no_parser_likes_is_refused(tmp_path: Path, raw: bytes) -> None:
    """A time without end, and names of names of names: the job goes on without its cache."""
    with pytest.raises(Refused, match="unreadable"):
        archive.unpack(tmp_path, io.BytesIO(gzip.compress(raw)))


@pytest.mark.parametrize("workdir", ["\0", "loop", "loop/x", "x" * 5000, "file", "missing"])
def test_a_workdir_that_cannot_be_is_the_jobs_mistake(tmp_path: Path, workdir: str) -> None:
    """An earlier step may have made a link in a circle; no other runner could do better."""
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "file").touch()

    with pytest.raises(Refused, match="bad_spec"):
        resolve_workdir(tmp_path, workdir)


def test_a_marker_that_no_writer_writes_is_passed_over() -> None:
    """The rest of the log is still found."""
    writer = SectionWriter(NONCE)
    torn = b'::step %s begin index=0 name="\\q"\n' % NONCE.encode()
    log = writer.header() + torn + writer.begin(1, "real") + b"x\n" + writer.end(1, 0, 1e300)

    [found] = sections(log)

    assert (found.name, log[found.start : found.stop], found.is_over) == ("real", b"x\n", True)


def test_a_section_never_ends_before_it_begins() -> None:
    """A cut that is claimed where nothing was written."""
    begin = b'::step %s begin index=0 name="x"\n' % NONCE.encode()
    end = b"::step %s end index=0 exit=0 seconds=1.000 cut=1\n" % NONCE.encode()

    [found] = sections(SectionWriter(NONCE).header() + begin + end)

    assert found.start == found.stop


def test_a_place_that_is_half_made_is_cleared_up(tmp_path: Path) -> None:
    """A runner that leaves just when it makes the next place ready leaves no folder and no supervisor behind."""

    async def leave_at_once() -> None:
        places = CellPool(tmp_path, Executors())
        taken = places.acquire(JobSpec(executor="process"))
        async with asyncio.timeout(10):
            while len(list(tmp_path.iterdir())) < 2:  # The spare one is begun, and not ready.
                await asyncio.get_running_loop().run_in_executor(None, os.sched_yield)
        await places.close()
        await taken.release()

    asyncio.run(leave_at_once())

    assert not list(tmp_path.iterdir())


def test_a_kept_credential_that_is_no_text_is_told_like_one_that_is_broken(tmp_path: Path) -> None:
    """A disk that forgot a few bytes: the runner says what to do."""
    (tmp_path / CREDENTIAL_FILE).write_bytes(b'{"runner_id": "\xff"}')

    with pytest.raises(NoCredential, match="cannot be read; make a token"):
        CredentialProvider("http://127.0.0.1:9", tmp_path).obtain()
