"""What counts as a URL, and what it must not contain.

Rules: pure; a URL with credentials is refused before it can reach an index, a log or a message.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from shared.errors import SettingsError

__all__ = ["is_url", "joined", "refuse_credentials", "without_credentials"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Parameters by which stores sign URLs, and names that people give to secrets.
_SECRET = re.compile(
    r"sig|signature|token|key|secret|password|credential|auth|awsaccesskeyid|x-(amz|goog)-.*", re.IGNORECASE
)
_QUERY = re.compile(r"\?[^\s'\"<>]*")
_USER = re.compile(r"://[^\s/@]*@")
#: What access keys look like, in case a store repeats one.
_KEY_ID = re.compile(r"\b(AKIA|ASIA|GOOG)[A-Z0-9]{12,}\b")


def is_url(path: str) -> bool:
    """Whether it names a remote file."""
    return "://" in path and _URL.match(path) is not None


def joined(folder: str, name: str) -> str:
    """The path of a file that is named relative to a folder, both local or both remote."""
    if name.startswith("/") or is_url(name):
        return name
    # The same as posixpath.join, which takes four times as long; there may be a hundred thousand names.
    return f"{folder}/{name}" if folder and not folder.endswith("/") else folder + name


def refuse_credentials(url: str) -> None:
    """Raise a SettingsError if a URL has credentials, or is signed."""
    parts = urlsplit(url)
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.fullmatch(name)]
    if "@" in parts.netloc or names:
        raise SettingsError(
            expected="a URL without credentials",
            got=f"one with {', '.join(names) or 'a user'}",
            where=without_credentials(url),
            remedy="Leave them to the environment of the loaders: see the page of sources, remote files.",
        )


def without_credentials(text: str) -> str:
    """A text for people, without anything in it that may be a credential."""
    return _KEY_ID.sub("…", _USER.sub("://…@", _QUERY.sub("?…", text)))
