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


class _ObjectMetadata:
    """The metadata of an S3 object: its size and the SHA-256 of its bytes.

    If the bytes of a blob are stored separately, `content` names the object that has them.
    """

    def __init__(self, attributes: dict[str, Any], size: int) -> None:
        self.content: str = attributes.get(_CONTENT, "")
        self.sha256: str = attributes.get(_SHA256, "")
        self.size = size


class S3BlobStore:
    """Stores blobs as objects of one bucket, below one prefix. Any number of servers may use it."""

    def __init__(self, open_store: Callable[[str], S3Store], max_bytes: int = MAX_BLOB_BYTES) -> None:
        self._blobs = open_store("blobs")
        self._contents = open_store("contents")
        self._max_bytes = max_bytes

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        """Store all bytes of the source under the key, replacing an existing blob."""
        parse_key(key)
        with self._buffered(source) as (file, blob_stat):
            previous_metadata = self._blob_metadata(key)
            self._upload(self._blobs, key, file, blob_stat)
            if previous_metadata is not None and previous_metadata.content:
                self._checked(lambda: obstore.delete(self._contents, previous_metadata.content))
        return blob_stat

    def put_if_absent(self, key: str, source: BinaryIO | bytes) -> BlobStat | None:
        """Store all bytes of the source unless the key exists. Return None if it does."""
        parse_key(key)
        if self._blob_metadata(key) is not None:
            return None
        with self._buffered(source) as (file, blob_stat):
            if blob_stat.bytes <= SINGLE_BYTES:
                return blob_stat if self._put_conditionally(key, file.read(), {_SHA256: blob_stat.sha256}) else None
            content_name = secrets.token_hex(16)
            self._upload(self._contents, content_name, file, blob_stat)
            if self._put_conditionally(key, b"", {_SHA256: blob_stat.sha256, _CONTENT: content_name}):
                return blob_stat
            self._checked(lambda: obstore.delete(self._contents, content_name))
            return None

    def get(self, key: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> bytes:
        """Return up to `limit` bytes of a blob from an offset on. Refuse with `not_found` if there is no such blob."""
        parse_key(key)
        offset, limit = clamp_range(offset, limit, MAX_READ_BYTES)
        # Request at least one byte: its response carries the metadata even if the limit is 0.
        metadata_and_bytes = self._get_range(self._blobs, key, 0 if not limit else offset, max(1, limit))
        metadata = (
            self._blob_metadata(key)
            if metadata_and_bytes is None or metadata_and_bytes[0].content
            else metadata_and_bytes[0]
        )
        if metadata is None:
            raise Refused("not_found", f"there is no blob {key[:80]!r}")
        if metadata.content:
            metadata_and_bytes = self._get_range(self._contents, metadata.content, offset, max(1, limit))
        if metadata_and_bytes is None and offset < metadata.size:
            raise BlobStoreUnavailable(f"the blob {key[:80]!r} changed while it was read; read it again")
        return metadata_and_bytes[1][:limit] if metadata_and_bytes is not None else b""

    def stat(self, key: str) -> BlobStat | None:
        """Return the size and the checksum of a blob, or None if there is no such blob."""
        parse_key(key)
        metadata = self._blob_metadata(key)
        if metadata is None:
            return None
        return BlobStat(metadata.size, metadata.sha256 or self._sha256(key))

    def list(self, prefix: str = "", after: str = "", limit: int = MAX_LISTED) -> list[BlobEntry]:
        """Return up to `limit` blobs with this key prefix and a key greater than `after`, in key order."""
        _, limit = clamp_range(0, limit, MAX_LISTED)
        entries: list[BlobEntry] = []
        # The store lists whole folders: begin right before the prefix, and stop after it.
        folder, offset_key = prefix.rpartition("/")[0], _valid_offset(max(after, prefix[:-1]))
        if folder != _valid_offset(folder):
            return []  # No valid key has an empty name, `.` or `..`.
        pages = self._checked(lambda: obstore.list(self._blobs, folder or None, offset=offset_key or None))
        while len(entries) < limit and (page := self._checked(lambda: next(iter(pages), None))) is not None:
            for listed_object in page:
                key = listed_object["path"]
                if key > prefix and not key.startswith(prefix):
                    return entries
                if key.startswith(prefix) and key > after and len(entries) < limit:
                    metadata = self._blob_metadata(key) if not listed_object["size"] else None
                    entries.append(BlobEntry(key, metadata.size if metadata is not None else listed_object["size"]))
        return entries

    def delete(self, key: str) -> bool:
        """Delete the blob. Return whether there was a blob; two concurrent calls may both return True."""
        parse_key(key)
        metadata = self._blob_metadata(key)
        if metadata is None:
            return False
        self._checked(lambda: obstore.delete(self._blobs, key))
        if metadata.content:
            self._checked(lambda: obstore.delete(self._contents, metadata.content))
        return True

    # -- requests

    def _put_conditionally(self, key: str, content: bytes, attributes: dict[str, str]) -> bool:
        """Write an object unless the key exists. Return whether it was written."""
        try:
            self._checked(lambda: obstore.put(self._blobs, key, content, attributes=attributes, mode="create"))
        except AlreadyExistsError:
            return False
        return True

    def _upload(self, store: S3Store, object_name: str, file: BinaryIO, blob_stat: BlobStat) -> None:
        """Write the file as an object; a large one in parts."""
        attributes = {_SHA256: blob_stat.sha256}
        if blob_stat.bytes <= SINGLE_BYTES:
            content = file.read()
            self._checked(lambda: obstore.put(store, object_name, content, attributes=attributes, use_multipart=False))
            return
        self._checked(
            lambda: obstore.put(
                store,
                object_name,
                file,
                attributes=attributes,
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        )

    def _blob_metadata(self, key: str) -> _ObjectMetadata | None:
        """Return the metadata of a blob, with the size of its bytes if they are stored separately, or None."""
        metadata = self._object_metadata(self._blobs, key)
        if metadata is not None and metadata.content:
            content_metadata = self._object_metadata(self._contents, metadata.content)
            if content_metadata is None:  # The blob was deleted between the two requests.
                return None
            content_metadata.content = metadata.content
            return content_metadata
        return metadata

    def _object_metadata(self, store: S3Store, object_name: str) -> _ObjectMetadata | None:
        """Return the metadata of an object, or None if there is no such object."""
        metadata_and_bytes = self._get_range(store, object_name, 0, 1)
        if metadata_and_bytes is not None:
            return metadata_and_bytes[0]
        try:
            response = self._checked(lambda: obstore.get(store, object_name))
        except FileNotFoundError:
            return None
        return _ObjectMetadata(dict(response.attributes), response.meta["size"])

    def _get_range(
        self, store: S3Store, object_name: str, offset: int, byte_count: int
    ) -> tuple[_ObjectMetadata, bytes] | None:
        """Return the metadata and a part of an object.

        Return None if there is no such object, or no byte at the offset.
        """
        try:
            response = obstore.get(store, object_name, options={"range": (offset, offset + byte_count)})
            return _ObjectMetadata(dict(response.attributes), response.meta["size"]), bytes(response.bytes())
        except FileNotFoundError:
            return None
        except BaseError as error:
            # obstore has no exception type of its own for a range that begins after the end.
            if "status code: 416 " in str(error):
                return None
            raise _unavailable(error) from error

    def _sha256(self, key: str) -> str:
        """Return the SHA-256 of a blob that has none in its metadata, because another program wrote it."""
        blob_hash, offset = hashlib.sha256(), 0
        while chunk := self.get(key, offset, PART_BYTES):
            blob_hash.update(chunk)
            offset += len(chunk)
        return blob_hash.hexdigest()

    @staticmethod
    def _checked(make_request: Callable[[], T]) -> T:
        """Make a request and return its result; raise `BlobStoreUnavailable` if it fails."""
        try:
            return make_request()
        except AlreadyExistsError:
            raise
        except BaseError as error:
            raise _unavailable(error) from error

    @contextmanager
    def _buffered(self, source: BinaryIO | bytes) -> Iterator[tuple[BinaryIO, BlobStat]]:
        """Read the source to its end; yield a file with its content, and the size and checksum."""
        with ExitStack() as stack:
            if not isinstance(source, bytes) and source.seekable() and source.tell() == 0:
                file = source
            else:
                file = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(PART_BYTES)))
            blob_hash, content_bytes = hashlib.sha256(), 0
            for chunk in read_chunks(source, self._max_bytes):
                blob_hash.update(chunk)
                content_bytes += len(chunk)
                if file is not source:
                    file.write(chunk)
            file.seek(0)
            yield file, BlobStat(content_bytes, blob_hash.hexdigest())


def _valid_offset(text: str) -> str:
    """Return the longest prefix of a key that S3 accepts as a path. It sorts before the key, or equals it."""
    key_parts = text.split("/")
    valid_count = next(
        (part_index for part_index, key_part in enumerate(key_parts) if key_part in ("", ".", "..")), len(key_parts)
    )
    return "/".join(key_parts[:valid_count])


def _unavailable(error: BaseError) -> BlobStoreUnavailable:
    return BlobStoreUnavailable(
        f"the blob store does not answer as it should: {str(error).partition(chr(10))[0][:500]}"
    )


def open_s3(url: str, max_bytes: int = MAX_BLOB_BYTES) -> S3BlobStore:
    """Return the store for the bucket and prefix of a URL. Raises ValueError for an invalid URL.

    An example: `s3://ci/delta?endpoint=http://10.0.0.7:9000&allow_http=true`.
    """
    address = urlsplit(url)
    parameters = parse_qsl(address.query, keep_blank_values=True)
    options = dict(parameters)
    unknown_options = options.keys() - _OPTIONS
    if not address.hostname or unknown_options or len(parameters) != len(options):
        raise ValueError(
            f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path} names no blob store; "
            f"expected s3://BUCKET/PREFIX, then ? and some of {', '.join(sorted(_OPTIONS))}"
        )
    if address.username or address.password:
        raise ValueError("a URL is no place for keys; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead")
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint_options: dict[str, Any] = {"endpoint": options["endpoint"]} if options.get("endpoint") else {}
    allows_http = options.get("allow_http", "false").lower() in ("1", "true", "yes")

    def open_store(subfolder: str) -> S3Store:
        return S3Store(
            address.netloc,
            prefix="/".join(prefix_part for prefix_part in (address.path.strip("/"), subfolder) if prefix_part),
            region=region or "us-east-1",
            virtual_hosted_style_request=options.get("virtual_hosted_style", "false").lower() in ("1", "true", "yes"),
            client_options={"allow_http": allows_http, "timeout": timedelta(minutes=10)},
            retry_config={"max_retries": TRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            **endpoint_options,
        )

    return S3BlobStore(open_store, max_bytes)
