"""Blobs in S3, or in any store that speaks its language and knows `If-None-Match` (AWS, MinIO, R2, Ceph).

A blob is one object, `PREFIX/blobs/KEY`, with its SHA-256 as metadata; large ones are sent in parts, so that memory
stays small. `put_if_absent` is atomic at any size: a small blob is one conditional request; the bytes of a large one
are sent under a name of their own, `PREFIX/contents/…`, and then a conditional, empty object under the key refers to
them. Whoever loses that race, or dies before it, leaves nothing that anybody could see.

The source is read to its end first, into a file if it is none. So a source that breaks off, or is too large, never
reaches the store at all.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, BinaryIO, Final, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from deltaci.core.errors import Refused
from deltaci.storage.blobs.store import (
    MAX_BLOB_BYTES,
    MAX_LISTED,
    MAX_READ_BYTES,
    BlobEntry,
    BlobStat,
    BlobStoreUnavailable,
    clamp_range,
    parse_key,
    read_chunks,
)

try:
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import S3Store
except ModuleNotFoundError as missing:
    raise ValueError("s3:// needs a part that is not installed; run: pip install 'deltaci[s3]'") from missing

PART_BYTES: Final = 8 * 1024**2
PARTS_AT_ONCE: Final = 4
SINGLE_BYTES: Final = PART_BYTES  # What is not larger is sent in one request.
TRIES: Final = 4
RETRY_SECONDS: Final = 30
_SHA256: Final = "sha256"
_CONTENT: Final = "content"

# What a URL may say beside the bucket and the prefix. Everything else is taken from the usual AWS_* environment.
_OPTIONS: Final = frozenset({"endpoint", "region", "allow_http", "virtual_hosted_style"})

T = TypeVar("T")


class _Head:
    """What is known of a blob without its bytes."""

    def __init__(self, attributes: dict[str, Any], size: int) -> None:
        self.content: str = attributes.get(_CONTENT, "")
        self.sha256: str = attributes.get(_SHA256, "")
        self.size = size


class S3BlobStore:
    """Blobs in one bucket, below one prefix. Any number of servers may share it."""

    def __init__(self, open_store: Callable[[str], S3Store], max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._blobs = open_store("blobs")
        self._contents = open_store("contents")
        self._max_bytes = max_bytes

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Keep all bytes of the source, in place of what was there."""
        parse_key(key)
        with self._held(source) as (file, stored):
            before = self._look(key)
            self._send(self._blobs, key, file, stored)
            if before is not None and before.content:
                self._ask(lambda: obstore.delete(self._contents, before.content))
        return stored

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Keep the bytes if nothing is there; None if something is."""
        parse_key(key)
        if self._look(key) is not None:
            return None
        with self._held(source) as (file, stored):
            if stored.bytes <= SINGLE_BYTES:
                return stored if self._create(key, file.read(), {_SHA256: stored.sha256}) else None
            content = secrets.token_hex(16)
            self._send(self._contents, content, file, stored)
            if self._create(key, b"", {_SHA256: stored.sha256, _CONTENT: content}):
                return stored
            self._ask(lambda: obstore.delete(self._contents, content))
            return None

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Some bytes from an offset on."""
        parse_key(key)
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        # The first byte more than was asked for tells of the object even when nothing was asked for.
        found = self._range(self._blobs, key, 0 if not limit else offset, max(1, limit))
        head = self._look(key) if found is None or found[0].content else found[0]
        if head is None:
            raise Refused("not_found", f"there is no blob {key[:80]!r}")
        if head.content:
            found = self._range(self._contents, head.content, offset, max(1, limit))
        if found is None and offset < head.size:
            raise BlobStoreUnavailable(f"the blob {key[:80]!r} changed while it was read; read it again")
        return found[1][:limit] if found is not None else b""

    def stat(self, key: str) -> BlobStat | None:
        """Size and checksum, or None."""
        parse_key(key)
        head = self._look(key)
        if head is None:
            return None
        return BlobStat(head.size, head.sha256 or self._sha256(key))

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Blobs whose key begins with the prefix and comes after `after`, in the order of their keys."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        found: list[BlobEntry] = []
        # The store lists whole folders: begin right before the prefix, and stop behind it.
        folder, begin = prefix.rpartition("/")[0], _place(max(after, prefix[:-1]))
        if folder != _place(folder):
            return []  # No key has such names.
        pages = self._ask(lambda: obstore.list(self._blobs, folder or None, offset=begin or None))
        while len(found) < limit and (page := self._ask(lambda: next(iter(pages), None))) is not None:
            for meta in page:
                key = meta["path"]
                if key > prefix and not key.startswith(prefix):
                    return found
                if key.startswith(prefix) and key > after and len(found) < limit:
                    head = self._look(key) if not meta["size"] else None
                    found.append(BlobEntry(key, head.size if head is not None else meta["size"]))
        return found

    def delete(self, key: str) -> bool:
        """Forget it. Of two at once both may be told that there was something."""
        parse_key(key)
        head = self._look(key)
        if head is None:
            return False
        self._ask(lambda: obstore.delete(self._blobs, key))
        if head.content:
            self._ask(lambda: obstore.delete(self._contents, head.content))
        return True

    # -- requests

    def _create(self, key: str, data: bytes, attributes: dict[str, str]) -> bool:
        try:
            self._ask(lambda: obstore.put(self._blobs, key, data, attributes=attributes, mode="create"))
        except AlreadyExistsError:
            return False
        return True

    def _send(self, store: S3Store, name: str, file: BinaryIO, stored: BlobStat) -> None:
        attributes = {_SHA256: stored.sha256}
        if stored.bytes <= SINGLE_BYTES:
            data = file.read()
            self._ask(lambda: obstore.put(store, name, data, attributes=attributes, use_multipart=False))
            return
        self._ask(
            lambda: obstore.put(
                store,
                name,
                file,
                attributes=attributes,
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        )

    def _look(self, key: str) -> _Head | None:
        """What is there, without reading it."""
        head = self._head(self._blobs, key)
        if head is not None and head.content:
            inner = self._head(self._contents, head.content)
            if inner is None:  # Deleted in this moment.
                return None
            inner.content = head.content
            return inner
        return head

    def _head(self, store: S3Store, name: str) -> _Head | None:
        found = self._range(store, name, 0, 1)
        if found is not None:
            return found[0]
        try:
            whole = self._ask(lambda: obstore.get(store, name))
        except FileNotFoundError:
            return None
        return _Head(dict(whole.attributes), whole.meta["size"])

    def _range(self, store: S3Store, name: str, offset: int, size: int) -> tuple[_Head, bytes] | None:
        """A part and what it is a part of; None when there is nothing at this place, or no such object."""
        try:
            found = obstore.get(store, name, options={"range": (offset, offset + size)})
            return _Head(dict(found.attributes), found.meta["size"]), bytes(found.bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            # The library has no kind of its own for a range that begins behind the end.
            if "status code: 416 " in str(error):
                return None
            raise _unavailable(error) from error

    def _sha256(self, key: str) -> str:
        """Of an object that somebody else put there, without saying it."""
        digest, at = hashlib.sha256(), 0
        while part := self.get(key, at, PART_BYTES):
            digest.update(part)
            at += len(part)
        return digest.hexdigest()

    @staticmethod
    def _ask(request: Callable[[], T]) -> T:
        try:
            return request()
        except AlreadyExistsError:
            raise
        except BaseError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _held(self, source: BinaryIO | bytes) -> Iterator[tuple[BinaryIO, BlobStat]]:
        """All of the source in a file, with what it is."""
        with ExitStack() as stack:
            if not isinstance(source, bytes) and source.seekable() and source.tell() == 0:
                file = source
            else:
                file = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(PART_BYTES)))
            digest, size = hashlib.sha256(), 0
            for part in read_chunks(source, self._max_bytes):
                digest.update(part)
                size += len(part)
                if file is not source:
                    file.write(part)
            file.seek(0)
            yield file, BlobStat(size, digest.hexdigest())


def _place(text: str) -> str:
    """The beginning of a text that can be a place in the store; it comes before the text, or is the text."""
    names = text.split("/")
    good = next((at for at, name in enumerate(names) if name in ("", ".", "..")), len(names))
    return "/".join(names[:good])


def _unavailable(error: BaseError) -> BlobStoreUnavailable:
    return BlobStoreUnavailable(
        f"the store of blobs does not answer as it should: {str(error).partition(chr(10))[0][:500]}"
    )


def open_s3(url: str, max_bytes: int = MAX_BLOB_BYTES) -> S3BlobStore:
    """The bucket and prefix that a URL names, e.g. `s3://ci/delta?endpoint=http://10.0.0.7:9000&allow_http=true`."""
    at = urlsplit(url)
    said = parse_qsl(at.query, keep_blank_values=True)
    options = dict(said)
    unknown = options.keys() - _OPTIONS
    if not at.hostname or unknown or len(said) != len(options):
        raise ValueError(
            f"{at.scheme}://{at.netloc.rpartition('@')[2]}{at.path} names no store of blobs; "
            f"expected s3://BUCKET/PREFIX, then ? and some of {', '.join(sorted(_OPTIONS))}"
        )
    if at.username or at.password:
        raise ValueError("a URL is no place for keys; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    more: dict[str, Any] = {"endpoint": options["endpoint"]} if options.get("endpoint") else {}
    is_plain = options.get("allow_http", "false").lower() in ("1", "true", "yes")

    def open_store(folder: str) -> S3Store:
        return S3Store(
            at.netloc,
            prefix="/".join(part for part in (at.path.strip("/"), folder) if part),
            region=region or "us-east-1",
            virtual_hosted_style_request=options.get("virtual_hosted_style", "false").lower() in ("1", "true", "yes"),
            client_options={"allow_http": is_plain, "timeout": timedelta(minutes=10)},
            retry_config={"max_retries": TRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            **more,
        )

    return S3BlobStore(open_store, max_bytes)
