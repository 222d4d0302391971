"""What all workers of a job have in common: one fingerprint of the plans and of everything that shapes the bytes.

Rules: pure. The coordinator works it out on its own machine, and turns away workers that have another one. What is
told to such a worker names the parts that differ, and no digest of the coordinator's: all of them together would let it
in. Stoker's own code counts by the versions of its bytes and plans; the release of the package is named only to people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import fingerprint
from shared.wire.topics.builder_messages import MOST_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loader_server.stream import Stream

__all__ = ["builder_fingerprint", "builder_parts", "differing_parts"]

#: Parts whose values people understand, and may know.
_OPEN = ("package ", "processor", "setting ", "version of ", "release of ")

#: What our own code counts by, as streams name it: these are in the fingerprints of transforms and plans.
_BYTES, _PLANS = "version of Stoker's bytes", "version of Stoker's plans"
#: Not in any fingerprint: it says which package to install where one of the two differs.
_RELEASE = "release of Stoker"

_LONGEST = 200


def builder_fingerprint(streams: Mapping[str, Stream], sent: Mapping[str, str]) -> str:
    """The fingerprint of all streams of a job, by name; of those whose graphs trainers send, of what else shapes them,
    for a graph may come later. The plan's digest tells graphs apart.
    """
    own = [
        part for name, one in sorted(streams.items()) if name not in sent for part in (name, one.digest, one.builder)
    ]
    return fingerprint(*own, *(part for name in sorted(sent) for part in ("graph", name, sent[name])))


def builder_parts(streams: Mapping[str, Stream], sent: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what the fingerprint is made of, by name, for a worker that has another one."""
    parts = {"streams of the job": ", ".join(sorted(streams.keys() | sent.keys()))}
    for name, stream in sorted(streams.items()):
        if name not in sent:
            parts |= stream.builder_parts()
    parts |= {f"graph of stream {name} (versions of what runs it)": fingerprint(sent[name]) for name in sorted(sent)}
    bounded = (
        (name[:_LONGEST], value if len(value) <= _LONGEST else fingerprint(value)) for name, value in parts.items()
    )
    return tuple(bounded)[:MOST_PARTS]


def differing_parts(own: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> list[str]:
    """Return how another machine's parts differ from ours: names, and for packages and the like both values."""
    here, there = dict(own), dict(others)
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if _RELEASE in names and not {_BYTES, _PLANS} & set(names):
        names.remove(_RELEASE)
    return [_difference(name, here.get(name), there.get(name)) for name in names if not _follows(name, names)]


def _follows(name: str, names: list[str]) -> bool:
    """Whether it differs because another part does, which says more."""
    kind, _, stream = name.partition(" of stream ")
    stream = stream.partition(" (")[0]
    if kind == "plan":
        return f"index of stream {stream}" in names or _PLANS in names
    if kind == "all transforms":
        return any(one.startswith(("transform ", "package ", _BYTES)) for one in names)
    return False


def _difference(name: str, here: str | None, there: str | None) -> str:
    if name.startswith(_OPEN):
        return f"{name} ({here or 'none'} on the coordinator's machine, {there or 'none'} on the worker's)"
    return name
