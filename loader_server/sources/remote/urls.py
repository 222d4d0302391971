"""URLs: what counts as one, and what it must not contain.

Rules: pure; a URL with credentials is refused before it can reach an index, a log or a message. A URL that no store
could ever serve differs from one whose store does not answer: only the first is a mistake in the list that names it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from shared.errors import DataError

__all__ = ["is_url", "joined", "refuse_unusable", "without_credentials"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Query parameters by which stores sign URLs, and names that people give to secrets.
_SECRET = re.compile(
    r"sig|signature|token|key|secret|password|credential|auth|awsaccesskeyid|x-(amz|goog)-.*", re.IGNORECASE
)
#: Schemes of fsspec for files of this machine, or for no file at all.
_OF_THIS_MACHINE = frozenset(("file", "local", "data"))
_WITH_A_HOST = frozenset(("http", "https"))
#: What `without_credentials` masks: whole queries, because stores sign URLs there, and users with their passwords.
_QUERY = re.compile(r"\?[^\s'\"<>]*")
_USER = re.compile(r"://[^\s/@]*@")
#: The form of access key ids, in case a store's message repeats one.
_KEY_ID = re.compile(r"\b(AKIA|ASIA|GOOG)[A-Z0-9]{12,}\b")


def is_url(path: str) -> bool:
    """Return whether a path names a remote file, that is begins with a scheme and "://"."""
    return "://" in path and _URL.match(path) is not None


def joined(folder: str, name: str) -> str:
    """Return the path of a file that is named relative to a folder, both local or both remote.

    A name that is an absolute path or a URL is returned as it is.
    """
    if name.startswith("/") or is_url(name):
        return name
    # The same as posixpath.join, which takes four times as long; there may be a hundred thousand names.
    return f"{folder}/{name}" if folder and not folder.endswith("/") else folder + name


def refuse_unusable(url: str) -> None:
    """Raise a DataError if a URL can name no remote file.

    That is so if it has credentials or a signature, names a file of this machine, lacks the host that HTTP needs, or
    cannot be parsed.
    """
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port  # a port that is no number raises here, not before
        parameters = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError as error:
        raise _unusable("a URL", str(error), url, "Mend it.") from None
    names = [name for name, _ in parameters if _SECRET.fullmatch(name)]
    if "@" in parts.netloc or names:
        raise _unusable(
            "a URL without credentials",
            f"one with {', '.join(names) or 'a user'}",
            url,
            "Leave them to the environment of the loaders: see the page of sources, remote files.",
        )
    if parts.scheme in _OF_THIS_MACHINE:
        raise _unusable("a path, or the URL of a store", f"{parts.scheme}://", url, "Write the path alone.")
    if parts.scheme in _WITH_A_HOST and not host:
        raise _unusable(f"a host after {parts.scheme}://", "none", url, "Write the whole URL.")


def _unusable(expected: str, got: str, url: str, remedy: str) -> DataError:
    return DataError(expected=expected, got=got, where=without_credentials(url), remedy=remedy)


def without_credentials(text: str) -> str:
    """Return a text for people, with all that may be a credential masked: queries of URLs, users, access key ids."""
    return _KEY_ID.sub("…", _USER.sub("://…@", _QUERY.sub("?…", text)))
