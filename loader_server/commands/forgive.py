"""`loader-server forgive`: list the samples that were convicted of killing decoders, or let them be used again.

Rules: only the holder of the journal's lock changes it: the running coordinator, on our request, or else this command.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from loader_server.commands import status
from loader_server.commands.ask import ask_coordinator
from loader_server.coordinator.convictions import Convictions
from loader_server.coordinator.events import CulpritFound, Forgot
from loader_server.coordinator.journal import HeldError, Journal
from shared.errors import SettingsError
from shared.wire.messages import Forgive, Forgiven

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from loader_server.job_file import JobFile

__all__ = ["ForgiveOptions", "run"]

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgiveOptions:
    """Options of the command; without identities and without `every` it only lists."""

    identities: Sequence[str]
    every: bool
    #: Only samples of this stream; empty for any.
    stream: str
    as_json: bool


class _Holder(Protocol):
    """The holder of the journal, who may change the convictions."""

    def report(self) -> dict[str, Any]:
        """Return the convictions (`culprits`), and how many more there are (`cut`)."""

    def forgive(self, forgive: Forgive) -> int:
        """Forget the matching convictions; return how many."""

    def close(self) -> None:
        """Let go of the journal, if it is open here."""


def run(job: JobFile, options: ForgiveOptions) -> None:
    """List convictions or forget some, and print the result."""
    if options.stream and options.stream not in job.recipes:
        raise SettingsError(
            expected="one of the streams " + ", ".join(f'"{name}"' for name in job.recipes),
            got=f'"{options.stream}"',
            where="--stream",
            remedy="Name a stream of the job file.",
        )
    holder = _open_holder(job)
    try:
        if options.identities or options.every:
            _forget(holder, options)
        else:
            _list(holder.report(), options)
    finally:
        holder.close()


def _open_holder(job: JobFile) -> _Holder:
    path = job.state / "journal.sqlite"
    if not path.exists():
        return _OpenJournal(None)
    try:
        return _OpenJournal(Journal(path))
    except HeldError as held:
        if not held.endpoint:
            raise
        return _RunningCoordinator(held.endpoint, job.keys)


def _list(report: dict[str, Any], options: ForgiveOptions) -> None:
    known = [one for one in report["culprits"] if options.stream in ("", one["stream"])]
    cut = report["cut"].get("culprits", 0)
    if options.as_json:
        print(json.dumps({"convictions": known, "cut": cut}))
        return
    for one in known:
        print(f"{one['identity']}  (stream {one['stream']}; {one['ends']})")
    if cut:
        print(f"and {cut} more: too many for one answer")
    if not known:
        print("No sample is known to kill decoders.")


def _forget(holder: _Holder, options: ForgiveOptions) -> None:
    count = 0
    for identity in options.identities or ("",):
        forgotten = holder.forgive(Forgive(stream=options.stream, identity=identity))
        if identity and not forgotten:
            raise SettingsError(
                expected="a sample that is known to kill decoders",
                got=repr(identity),
                where=f"--stream {options.stream}" if options.stream else "forgive",
                remedy="Without an argument the command lists them: give one as it stands there, in quotes.",
            )
        count += forgotten
    print(json.dumps({"forgiven": count}) if options.as_json else f"Forgotten: {count}. They are used again.")


class _RunningCoordinator:
    def __init__(self, endpoint: str, keys: Path | None) -> None:
        self._endpoint = endpoint
        self._keys = keys

    def report(self) -> dict[str, Any]:
        return status.ask(self._endpoint, keys=self._keys, timeout_s=_TIMEOUT_S)

    def forgive(self, forgive: Forgive) -> int:
        return ask_coordinator(self._endpoint, forgive, Forgiven, keys=self._keys, timeout_s=_TIMEOUT_S).count

    def close(self) -> None:
        pass


class _OpenJournal:
    def __init__(self, journal: Journal | None) -> None:
        """Read the convictions; `journal` is None if the job has never run."""
        self._journal = journal
        self._convictions = Convictions()
        for fact in journal.read_facts() if journal is not None else ():
            if isinstance(fact, CulpritFound):
                self._convictions.add(fact.stream, fact.identity, fact.ends)

    def report(self) -> dict[str, Any]:
        return {"culprits": self._convictions.report(), "cut": {}}

    def forgive(self, forgive: Forgive) -> int:
        forgotten = self._convictions.matching(forgive)
        if self._journal is not None:
            self._journal.write([Forgot(stream, identity) for stream, identity in forgotten])
        for stream, identity in forgotten:
            self._convictions.forget(stream, identity)
        return len(forgotten)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
