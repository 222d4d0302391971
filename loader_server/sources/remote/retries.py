"""What can be wrong with a remote file, in our words, and whether a retry may help.

Rules: one layer of retries for all stores, here; a store's own message is repeated without anything that may be a
credential. A file that is absent, refused or changed is not asked for again.
"""

from __future__ import annotations

import errno
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from loader_server.sources.files.file_facts import RemoteCounts, changed
from loader_server.sources.remote.urls import without_credentials
from shared.errors import DataError, ReadError, StokerError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PAUSES_S", "Retries"]

T = TypeVar("T")

#: Back-off between attempts. Each pause gets a random jitter of up to a half, so that many workers do not retry at
#: once.
PAUSES_S = (0.1, 0.4, 1.6, 6.4)

#: HTTP statuses that ask to try again later.
_LATER = (408, 425, 429)
#: Statuses of refusals, of absent files, and of another version than the request names (If-Match).
_REFUSED = (401, 403, 407)
_GONE = (404, 410)
_OTHER_VERSION = 412
#: Errors of botocore about missing credentials, by name: it is installed only if a job reads S3.
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


@dataclass(frozen=True, slots=True)
class Retries:
    """The retry policy for requests to stores; `pause` sleeps, `draw` gives a number from 0 to 1."""

    pause: Callable[[float], object] = time.sleep
    draw: Callable[[], float] = random.random
    counts: RemoteCounts = field(default_factory=RemoteCounts)

    def attempt(
        self, url: str, ask: Callable[[], T], *, patient: bool = True, absent: type[DataError] = ReadError
    ) -> T:
        """Return what `ask` returns, after at most four retries with back-off if `patient`.

        Raise a ReadError if it fails for good, or `absent` if the file does not exist; absent, refused and changed
        files are not asked for again. Our own errors pass through at once.
        """
        # Without patience there is one attempt: what is fetched ahead is asked for again by the reader who needs it.
        pauses_s = PAUSES_S if patient else ()
        for pause_s in (*pauses_s, None):
            try:
                return ask()
            except StokerError:
                raise
            except Exception as caught:  # each store's library raises errors of its own
                error = _underneath(url, caught)
                if pause_s is None or not _may_pass(error):
                    raise _worded(url, error, len(pauses_s) + 1, absent) from error
                self.counts.add(retries=1)
                self.pause(pause_s * (0.5 + self.draw()))
        raise AssertionError(url)


def _worded(url: str, error: Exception, attempts: int, absent: type[DataError]) -> DataError:
    """Return the error that people read: `absent` for a missing file, otherwise a ReadError.

    It says whether the file has changed, was refused, or could not be read.
    """
    where = without_credentials(url)
    if _is_absent(error):
        return absent(
            expected="a file that can be read",
            got="none of this name, or no such bucket",
            where=where,
            remedy="Mend `paths` of the stream, or put the file there; a folder ends in /.",
        )
    if _is_other(error):
        return changed("the file that was indexed", "another one", where)
    if _is_refused(error):
        return ReadError(
            expected="a file that may be read",
            got=f"a refusal ({_shown(error)})",
            where=where,
            remedy="Give the loaders credentials for it, by their environment, and look at the store's policies.",
        )
    return ReadError(
        expected="to read the file",
        got=_shown(error) + (f", at each of {attempts} attempts" if _may_pass(error) and attempts > 1 else ""),
        where=where,
        remedy="Check the store, and the network on all loader machines; a running job goes on from its checkpoint.",
    )


def _underneath(url: str, error: Exception) -> Exception:
    """Return the cause of an error over HTTP that says "absent", if it has one, or else the error itself.

    fsspec calls everything absent there, whatever the server answered.
    """
    cause = error.__cause__
    if url.startswith("http") and isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        return cause
    return error


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may help: not for absent, refused or changed files, nor for requests that are wrong."""
    if _is_absent(error) or _is_refused(error) or _is_other(error) or isinstance(error, ValueError | TypeError):
        return False
    if isinstance(error, OSError) and error.errno == errno.EINVAL:  # s3fs raises this for a bad request
        return False
    # Without a status it is a cut connection or a time-out.
    status = _status(error)
    return status is None or status >= 500 or status in _LATER


def _is_absent(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or _status(error) in _GONE


def _is_other(error: Exception) -> bool:
    """Return whether the object is another version than was asked for."""
    # s3fs raises FileExpired; by name, because it is installed only if a job reads S3.
    return type(error).__name__ == "FileExpired" or _status(error) == _OTHER_VERSION


def _is_refused(error: Exception) -> bool:
    return isinstance(error, PermissionError) or type(error).__name__ in _NO_CREDENTIALS or _status(error) in _REFUSED


def _status(error: Exception) -> int | None:
    """Return the HTTP status that an error of a store's library has, or None."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _shown(error: Exception) -> str:
    """Return an error's status and message in one line, cut to 300 characters, without credentials."""
    status, message = _status(error), getattr(error, "message", None)
    text = f"{status} {message}" if status is not None else str(error) or type(error).__name__
    # A store's message may repeat the request, with a signature or an access key in it.
    return without_credentials(" ".join(text.split()))[:300]
