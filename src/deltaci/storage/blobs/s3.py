"""Blobs in S3, or in any compatible store that supports `If-None-Match` (AWS, MinIO, R2, Ceph).

A blob is one object, `PREFIX/blobs/KEY`, with its SHA-256 as metadata. Large ones are sent in parts, so that little
memory is used. `put_if_absent` is atomic at any size: a small blob is one conditional request; the bytes of a large one
are sent as `PREFIX/contents/…`, and then a conditional, empty object under the key refers to them. A writer that loses
that race, or crashes before it, leaves no visible blob.

The source is read to its end first, into a temporary file if needed. So a source that breaks off or is too large is
never sent to the store.
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
SINGLE_BYTES: Final = PART_BYTES  # Blobs up to this size are sent in one request.
TRIES: Final = 4
RETRY_SECONDS: Final = 30
_SHA256: Final = "sha256"
_CONTENT: Final = "content"

# Options of a URL besides bucket and prefix. Everything else comes from the usual AWS_* environment variables.
_OPTIONS: Final = frozenset({"endpoint", "region", "allow_http", "virtual_hosted_style"})

T = TypeVar("T")


class _Head:
    """The metadata of an object. `content` names the object with the bytes, if they are stored separately."""

    def __init__(self, attributes: dict[str, Any], size: int) -> None:
        self.content: str = attributes.get(_CONTENT, "")
        self.sha256: str = attributes.get(_SHA256, "")
        self.size = size


class S3BlobStore:
    """Blobs in one bucket below one prefix. Any number of servers may use it."""

    def __init__(self, open_store: Callable[[str], S3Store], max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._blobs = open_store("blobs")
        self._contents = open_store("contents")
        self._max_bytes = max_bytes

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Store all bytes of the source under the key, replacing what was there."""
        parse_key(key)
        with self._buffered(source) as (file, stored):
            before = self._find_head(key)
            self._send(self._blobs, key, file, stored)
            if before is not None and before.content:
                self._request(lambda: obstore.delete(self._contents, before.content))
        return stored

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Store the bytes unless the key exists. Return None if it does."""
        parse_key(key)
        if self._find_head(key) is not None:
            return None
        with self._buffered(source) as (file, stored):
            if stored.bytes <= SINGLE_BYTES:
                return stored if self._create(key, file.read(), {_SHA256: stored.sha256}) else None
            content = secrets.token_hex(16)
            self._send(self._contents, content, file, stored)
            if self._create(key, b"", {_SHA256: stored.sha256, _CONTENT: content}):
                return stored
            self._request(lambda: obstore.delete(self._contents, content))
            return None

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Return up to `limit` bytes from an offset on. Refused `not_found` if there is no such blob."""
        parse_key(key)
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        # Request at least one byte: its response carries the metadata even if the limit is 0.
        part = self._range(self._blobs, key, 0 if not limit else offset, max(1, limit))
        head = self._find_head(key) if part is None or part[0].content else part[0]
        if head is None:
            raise Refused("not_found", f"there is no blob {key[:80]!r}")
        if head.content:
            part = self._range(self._contents, head.content, offset, max(1, limit))
        if part is None and offset < head.size:
            raise BlobStoreUnavailable(f"the blob {key[:80]!r} changed while it was read; read it again")
        return part[1][:limit] if part is not None else b""

    def stat(self, key: str) -> BlobStat | None:
        """Return size and checksum, or None if there is no such blob."""
        parse_key(key)
        head = self._find_head(key)
        if head is None:
            return None
        return BlobStat(head.size, head.sha256 or self._sha256(key))

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Return up to `limit` blobs with this key prefix and a key greater than `after`, in key order."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        entries: list[BlobEntry] = []
        # The store lists whole folders: begin right before the prefix, and stop after it.
        folder, begin = prefix.rpartition("/")[0], _valid_offset(max(after, prefix[:-1]))
        if folder != _valid_offset(folder):
            return []  # No key has such names.
        pages = self._request(lambda: obstore.list(self._blobs, folder or None, offset=begin or None))
        while len(entries) < limit and (page := self._request(lambda: next(iter(pages), None))) is not None:
            for meta in page:
                key = meta["path"]
                if key > prefix and not key.startswith(prefix):
                    return entries
                if key.startswith(prefix) and key > after and len(entries) < limit:
                    head = self._find_head(key) if not meta["size"] else None
                    entries.append(BlobEntry(key, head.size if head is not None else meta["size"]))
        return entries

    def delete(self, key: str) -> bool:
        """Delete the blob. Return whether there was one; two concurrent calls may both return True."""
        parse_key(key)
        head = self._find_head(key)
        if head is None:
            return False
        self._request(lambda: obstore.delete(self._blobs, key))
        if head.content:
            self._request(lambda: obstore.delete(self._contents, head.content))
        return True

    # -- requests

    def _create(self, key: str, data: bytes, attributes: dict[str, str]) -> bool:
        try:
            self._request(lambda: obstore.put(self._blobs, key, data, attributes=attributes, mode="create"))
        except AlreadyExistsError:
            return False
        return True

    def _send(self, store: S3Store, name: str, file: BinaryIO, stored: BlobStat) -> None:
        attributes = {_SHA256: stored.sha256}
        if stored.bytes <= SINGLE_BYTES:
            data = file.read()
            self._request(lambda: obstore.put(store, name, data, attributes=attributes, use_multipart=False))
            return
        self._request(
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

    def _find_head(self, key: str) -> _Head | None:
        """Return the metadata of a blob, or None."""
        head = self._head(self._blobs, key)
        if head is not None and head.content:
            inner = self._head(self._contents, head.content)
            if inner is None:  # Deleted at this moment.
                return None
            inner.content = head.content
            return inner
        return head

    def _head(self, store: S3Store, name: str) -> _Head | None:
        part = self._range(store, name, 0, 1)
        if part is not None:
            return part[0]
        try:
            whole = self._request(lambda: obstore.get(store, name))
        except FileNotFoundError:
            return None
        return _Head(dict(whole.attributes), whole.meta["size"])

    def _range(self, store: S3Store, name: str, offset: int, size: int) -> tuple[_Head, bytes] | None:
        """Return the metadata and a part of an object, or None if there is no such object or no byte at the offset."""
        try:
            response = obstore.get(store, name, options={"range": (offset, offset + size)})
            return _Head(dict(response.attributes), response.meta["size"]), bytes(response.bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            # obstore has no exception type of its own for a range that begins after the end.
            if "status code: 416 " in str(error):
                return None
            raise _unavailable(error) from error

    def _sha256(self, key: str) -> str:
        """Compute the checksum of an object without metadata, written by another program."""
        digest, at = hashlib.sha256(), 0
        while part := self.get(key, at, PART_BYTES):
            digest.update(part)
            at += len(part)
        return digest.hexdigest()

    @staticmethod
    def _request(request: Callable[[], T]) -> T:
        try:
            return request()
        except AlreadyExistsError:
            raise
        except BaseError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _buffered(self, source: BinaryIO | bytes) -> Iterator[tuple[BinaryIO, BlobStat]]:
        """Yield a file with the whole source, and its size and checksum."""
        with ExitStack() as stack:
            if not isinstance(source, bytes) and source.seekable() and source.tell() == 0:
                file = source
            else:
                file = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(PART_BYTES)))
            digest, size = hashlib.sha256(), 0
            for chunk in read_chunks(source, self._max_bytes):
                digest.update(chunk)
                size += len(chunk)
                if file is not source:
                    file.write(chunk)
            file.seek(0)
            yield file, BlobStat(size, digest.hexdigest())


def _valid_offset(text: str) -> str:
    """Return the longest beginning of a key that the store accepts as a path. It sorts before the key or equals it."""
    names = text.split("/")
    valid_count = next((index for index, name in enumerate(names) if name in ("", ".", "..")), len(names))
    return "/".join(names[:valid_count])


def _unavailable(error: BaseError) -> BlobStoreUnavailable:
    return BlobStoreUnavailable(
        f"the blob store does not answer as it should: {str(error).partition(chr(10))[0][:500]}"
    )


def open_s3(url: str, max_bytes: int = MAX_BLOB_BYTES) -> S3BlobStore:
    """Return the store for the bucket and prefix of a URL, e.g. `s3://ci/delta?endpoint=http://10.0.0.7:9000&allow_http=true`."""
    address = urlsplit(url)
    parameters = parse_qsl(address.query, keep_blank_values=True)
    options = dict(parameters)
    unknown = options.keys() - _OPTIONS
    if not address.hostname or unknown or len(parameters) != len(options):
        raise ValueError(
            f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path} names no blob store; "
            f"expected s3://BUCKET/PREFIX, then ? and some of {', '.join(sorted(_OPTIONS))}"
        )
    if address.username or address.password:
        raise ValueError("a URL is no place for keys; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    more: dict[str, Any] = {"endpoint": options["endpoint"]} if options.get("endpoint") else {}
    is_plain = options.get("allow_http", "false").lower() in ("1", "true", "yes")

    def open_store(folder: str) -> S3Store:
        return S3Store(
            address.netloc,
            prefix="/".join(part for part in (address.path.strip("/"), folder) if part),
            region=region or "us-east-1",
            virtual_hosted_style_request=options.get("virtual_hosted_style", "false").lower() in ("1", "true", "yes"),
            client_options={"allow_http": is_plain, "timeout": timedelta(minutes=10)},
            retry_config={"max_retries": TRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            **more,
        )

    return S3BlobStore(open_store, max_bytes)
