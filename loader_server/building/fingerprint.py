"""One fingerprint of the plans and of everything that shapes a job's bytes, which all its workers must share.

Rules: pure. The coordinator computes it on its own machine, and refuses workers that have another one. The refusal
names the parts that differ, but never a digest of the coordinator's: with all digests a worker could forge the
fingerprint. Stoker's own code counts by the versions of its bytes and plans; the release of the package is named only
to people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.hashing import fingerprint
from shared.wire.topics.worker_messages import MOST_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loader_server.stream import Stream

__all__ = ["builder_fingerprint", "builder_parts", "differing_parts"]

#: Parts whose values are shown in a refusal: people understand them, and they are no secret.
_OPEN = ("package ", "processor", "setting ", "version of ", "release of ")

#: Names under which streams report the versions of our own code, which are in the fingerprints of transforms and plans.
_BYTES, _PLANS = "version of Stoker's bytes", "version of Stoker's plans"
#: Not in any fingerprint: it tells people which package to install if one of the two versions differs.
_RELEASE = "release of Stoker"

_LONGEST = 200


def builder_fingerprint(streams: Mapping[str, Stream], sent: Mapping[str, str]) -> str:
    """Return one fingerprint, as a text, of all streams of a job, which are given by name.

    A stream whose graph trainers send (`sent`) counts by what else shapes its batches, because the graph may come
    later; the plan's digest tells graphs apart. Errors of `Stream.builder` pass through, such as an OSError.
    """
    present = [(name, stream) for name, stream in sorted(streams.items()) if name not in sent]
    own = [part for name, stream in present for part in (name, stream.digest, stream.builder)]
    return fingerprint(*own, *(part for name in sorted(sent) for part in ("graph", name, sent[name])))


def builder_parts(streams: Mapping[str, Stream], sent: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the named parts of the fingerprint, to compare with those of a worker that has another one.

    Long names are cut, long values are replaced by their hash, and only the first `MOST_PARTS` parts are returned.
    Errors of the streams' `builder_parts` pass through, such as an OSError.
    """
    parts = {"streams of the job": ", ".join(sorted(streams.keys() | sent.keys()))}
    for name, stream in sorted(streams.items()):
        if name not in sent:
            parts |= stream.builder_parts()
    parts |= {f"graph of stream {name} (versions of what runs it)": fingerprint(sent[name]) for name in sorted(sent)}
    # Bounded, as messages are; a long value is still told apart by its hash.
    bounded = (
        (name[:_LONGEST], value if len(value) <= _LONGEST else fingerprint(value)) for name, value in parts.items()
    )
    return tuple(bounded)[:MOST_PARTS]


def differing_parts(own: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of parts that differ from another machine's, with both values where these may be shown.

    Left out are parts that differ only because of another, and the release if bytes and plans have the same version.
    """
    here, there = dict(own), dict(others)
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    # Releases with the same bytes and plans build the same batches: the cause is another part.
    if _RELEASE in names and not {_BYTES, _PLANS} & set(names):
        names.remove(_RELEASE)
    return [_difference(name, here.get(name), there.get(name)) for name in names if not _follows(name, names)]


def _follows(name: str, names: list[str]) -> bool:
    """Return whether this part differs only because another one in `names` does, which tells more.

    That is so for a plan (of its index or the plans' version) and for all transforms of a stream; never for others.
    """
    # A plan's digest has the index in it, and the transforms' fingerprint the packages: naming the consequence beside
    # its cause would send people looking in two places.
    kind, _, stream = name.partition(" of stream ")
    stream = stream.partition(" (")[0]
    if kind == "plan":
        return f"index of stream {stream}" in names or _PLANS in names
    if kind == "all transforms":
        return any(name.startswith(("transform ", "package ", _BYTES)) for name in names)
    return False


def _difference(name: str, here: str | None, there: str | None) -> str:
    if name.startswith(_OPEN):
        return f"{name} ({here or 'none'} on the coordinator's machine, {there or 'none'} on the worker's)"
    return name
