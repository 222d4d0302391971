"""Objects in stores, by URL: lists of them, their size and version, and ranges of their bytes, through fsspec.

Rules: a range is of the version that was asked for, or an error: each request to S3 names the version, other stores are
asked again after each. Attempts are counted in one place, so those of fsspec and botocore are off. A store gets
what it needs to know (end points, credentials) from the environment alone: AWS_…, FSSPEC_…
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from loader_server.sources.files.file_facts import FileFacts, changed
from loader_server.sources.remote.urls import refuse_unusable, without_credentials
from shared.errors import DataError, SettingsError
from shared.extras import how_to_get, library

if TYPE_CHECKING:
    from loader_server.sources.remote.retries import Retries

__all__ = ["Objects"]

#: The names under which stores report a version, the most reliable first.
_VERSION_KEYS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "Content-MD5",
    "Digest",
    "LastModified",
    "Last-Modified",
    "mtime",
)
#: Stores whose URLs begin with a bucket or container.
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
#: Open objects that are remembered.
_MOST_KNOWN = 4096
#: Timeouts: seconds to connect, and seconds without any byte.
_CONNECT_S, _SILENCE_S = 10, 30


class Objects:
    """Requests to stores, with retries; any thread may call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        #: fsspec's file and its version by URL: opening asks the store, reading ranges of an open file does not.
        self._known: dict[str, tuple[Any, FileFacts]] = {}

    def found(self, url: str) -> list[str]:
        """Return the sorted URLs of the objects that match a pattern or lie below a folder; an empty list without any.

        Raise a DataError if there are none because the bucket does not exist, or if the URL is unusable; a ReadError if
        the store cannot be asked; and a SettingsError if its library is missing.
        """
        store = _store(url)
        names = self._retries.attempt(url, lambda: _find(store, url))
        if not names:
            self._refuse_missing_bucket(store, url)
        return sorted(store.unstrip_protocol(name) for name in names if not name.endswith("/"))

    def _refuse_missing_bucket(self, store: Any, url: str) -> None:
        """Raise a DataError if there is no such bucket: fsspec finds nothing in it, as it does for an empty folder.

        Nothing is refused in stores without buckets, or if the bucket's name is a pattern. Raise a ReadError if the
        store cannot be asked.
        """
        scheme, _, path = url.partition("://")
        bucket = path.partition("/")[0]
        if scheme.lower() not in _WITH_BUCKETS or any(letter in bucket for letter in "*?["):
            return
        if not self._retries.attempt(url, lambda: _has_bucket(store, bucket)):
            raise DataError(
                expected=f"the bucket {bucket} to be there",
                got="no such bucket",
                where=without_credentials(url),
                remedy="Mend `paths` of the stream, or the end point that the environment names (AWS_ENDPOINT_URL).",
            )

    def facts(self, url: str) -> FileFacts:
        """Return the current size and version; raise a DataError if there is no such file.

        Raise it too for a folder, a store that tells no size or an unusable URL, a ReadError if the store cannot be
        asked, and a SettingsError if its library is missing.
        """
        store = _store(url)
        return _facts(url, self._retries.attempt(url, lambda: _ask(store, url), absent=DataError))

    def fetch(self, url: str, facts: FileFacts, start: int, stop: int, *, patient: bool = True) -> bytes:
        """Return a range of this version's bytes; make only one attempt if not `patient`.

        Raise a ReadError if the object is gone, has another version now, or cannot be read. Raise a DataError if a
        folder is in its place or the store tells no size, and a SettingsError if the store's library is missing.
        """

        def ask() -> bytes:
            # The hook that fsspec's own caches use: unlike seek and read it keeps no position, so threads may share it.
            raw: bytes = self._open(url, facts)._fetch_range(start, stop)  # noqa: SLF001
            # A connection that is cut may end in fewer bytes without an error. This one is retried.
            if len(raw) != stop - start:
                raise EOFError(f"{len(raw)} bytes of {stop - start}")
            self._refuse_other(url, facts)
            return raw

        return self._retries.attempt(url, ask, patient=patient)

    def comes_in_ranges(self, url: str, facts: FileFacts) -> bool:
        """Return whether the store serves ranges; raise a ReadError if it cannot be asked.

        Only HTTP servers are asked, for the last byte: all other stores do. Raise a ReadError as well if the object is
        gone or has another version now, a DataError if the store tells no size or the URL is unusable, and a
        SettingsError if the store's library is missing.
        """
        # A plain HTTP server may send the whole file, whatever range is asked for.
        if not url.startswith("http"):
            return True

        def ask() -> bool:
            try:
                # The last byte: a server without ranges sends the file from its beginning, which fsspec then refuses.
                return bool(self._open(url, facts)._fetch_range(facts.bytes - 1, facts.bytes))  # noqa: SLF001
            except ValueError:
                return False

        return self._retries.attempt(url, ask)

    def bring(self, url: str, facts: FileFacts, into: BinaryIO) -> None:
        """Write all of this version into a file, for stores that serve no ranges.

        Raise a ReadError if the object is gone, has another version now, or cannot be read, or if the file cannot be
        written. Raise a DataError if the store tells no size, and a SettingsError if its library is missing.
        """
        store = _store(url)

        def ask() -> None:
            into.seek(0)
            store.get_file(url, into)
            if into.tell() != facts.bytes:
                raise EOFError(f"{into.tell()} bytes of {facts.bytes}")
            self._refuse_other(url, facts)

        self._retries.attempt(url, ask)

    def _open(self, url: str, facts: FileFacts) -> Any:
        """Return fsspec's open file; raise a ReadError if it has another version than `facts`.

        Raise an error of the store's library if there is no such object or the store fails; errors of `_open_object`
        pass.
        """
        file, opened = self._known.get(url, (None, None))
        # One of another version may have been opened before the object was replaced, so it is opened again.
        if opened != facts:
            # Forget all: an object that is needed again is asked for again.
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            file, opened = self._known[url] = _open_object(url)
            _refuse(url, facts, opened)
        return file

    def _refuse_other(self, url: str, facts: FileFacts) -> None:
        """Raise a ReadError if the object is no longer this version, unless each request already names the version.

        Raise a DataError if a folder is in its place or the store tells no size, a SettingsError if the store's library
        is missing, and an error of that library if the object is gone or the store fails.
        """
        # After the bytes were read: a check before would miss an object that is replaced in between.
        if not getattr(self._open(url, facts), "read_kw", {}).get("IfMatch"):
            _refuse(url, facts, _facts(url, _ask(_store(url), url)))


def _find(store: Any, url: str) -> list[str]:
    """Return the names below a folder, or that match a pattern; none if a store with buckets reports "not found".

    Raise a FileNotFoundError if another store reports that, or an error of the store's library if it fails.
    """
    try:
        return list(store.find(url) if url.endswith("/") else store.glob(url))
    except FileNotFoundError:
        # There, an empty folder is no object and so not found; the caller looks whether the bucket is there.
        if url.partition("://")[0].lower() not in _WITH_BUCKETS:
            raise
        return []


def _has_bucket(store: Any, bucket: str) -> bool:
    """Return whether there is a bucket of this name; one that we may not list counts as there.

    Raise an error of the store's library if it does not answer.
    """
    # s3fs's `exists` returns False if the store does not answer, and a store that is down would be a missing bucket.
    ask_s3 = getattr(store, "call_s3", None)
    try:
        ask_s3("head_bucket", Bucket=bucket) if ask_s3 is not None else store.info(bucket)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    return True


def _refuse(url: str, facts: FileFacts, now: FileFacts) -> None:
    if now != facts:
        raise changed(f"the file that was indexed ({facts.bytes} bytes)", f"one of {now.bytes} bytes", url)


def _facts(url: str, info: dict[str, Any]) -> FileFacts:
    """Return size and version from what a store reports; raise a DataError for a folder, or if there is no size."""
    size = info.get("size")
    is_folder = info.get("type") == "directory"
    if is_folder or size is None:
        raise DataError(
            expected="a file, and a store that tells its size",
            got="a folder" if is_folder else "no size",
            where=without_credentials(url),
            remedy="Name the files, or end a folder's name in /."
            if size is not None
            else "Serve it by another server.",
        )
    tag = next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")
    # Without the last bit, so that it fits into a column of signed 64-bit numbers.
    return FileFacts(bytes=int(size), version=xxhash.xxh3_64_intdigest(f"{tag} {size}".encode()) >> 1)


def _open_object(url: str) -> tuple[Any, FileFacts]:
    """Return fsspec's file and its version; raise an error of the store's library if there is none.

    Raise a DataError for a folder or an unusable URL, or if the store tells no size, and a SettingsError if the store's
    library is missing.
    """
    store = _store(url)
    if not url.startswith("http"):
        file = store.open(url, "rb", cache_type="none")
        return file, _facts(url, file.details)
    facts = _facts(url, _ask(store, url))  # the HTTP file would ask for its size itself, and not keep it
    return store.open(url, "rb", cache_type="none", size=facts.bytes), facts


def _ask(store: Any, url: str) -> dict[str, Any]:
    """Return what the store reports about an object now, not what fsspec has cached.

    Raise an error of the store's library if there is none or the store fails.
    """
    store.invalidate_cache()
    info: dict[str, Any] = store.info(url)
    return info


def _store(url: str) -> Any:
    """Return the fsspec file system for this kind of URL; fsspec keeps one for each process.

    Raise a SettingsError if its library is not installed, and a DataError if the URL is unusable or fsspec does not
    know the scheme.
    """
    refuse_unusable(url)
    protocol, where = url.partition("://")[0].lower(), without_credentials(url)
    fsspec = library("fsspec", extra="remote", use="which reads remote files", where=where)
    try:
        store = fsspec.filesystem(protocol, use_listings_cache=False, **_options(protocol))
    except (ImportError, ValueError) as error:
        # A store that fsspec does not know is wrong where it is named; one that is not installed is the machine's.
        kind = SettingsError if isinstance(error, ImportError) else DataError
        raise kind(
            expected=f"what reads {protocol}:// to be installed",
            got=str(error),
            where=where,
            remedy=how_to_get("remote", "which has S3 and HTTP, or install what fsspec needs for this store"),
        ) from None
    # s3fs would retry by itself: attempts would multiply with ours.
    if hasattr(store, "retries"):
        store.retries = 1
    return store


def _options(protocol: str) -> dict[str, Any]:
    if protocol in ("s3", "s3a"):
        retries = {"total_max_attempts": 1}  # botocore's own: attempts would multiply with ours
        return {"config_kwargs": {"retries": retries, "connect_timeout": _CONNECT_S, "read_timeout": _SILENCE_S}}
    if protocol in ("http", "https"):
        import aiohttp  # an optional dependency, needed only for remote files

        return {"timeout": aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=_SILENCE_S)}
    return {}
