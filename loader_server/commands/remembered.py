"""What a job's coordinator remembers, for `loader-server show`, and `loader-server forgive`, which changes it.

`forgive` lists the samples that were convicted of killing decoders, or lets them be used again.

Rules: the journal is read if nobody holds it; otherwise the running coordinator is asked. Only the holder of the
journal's lock changes it: the running coordinator, on our request, or else this command. A job that never ran remembers
nothing.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

from loader_server.commands import status
from loader_server.commands.ask import ask_coordinator
from loader_server.coordinator.convictions import Convictions
from loader_server.coordinator.events import CulpritFound, Forgot, GroupFixed
from loader_server.coordinator.journal import HeldError, Journal
from loader_server.job_file import JobFile, read_job
from shared.errors import SettingsError
from shared.wire.messages import Forgive, Forgiven

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

__all__ = ["forgive", "recall"]

_TIMEOUT_S = 5.0


def recall(job: JobFile) -> tuple[dict[str, int], frozenset[tuple[str, str]]]:
    """Return the group of each stream that has one, and the samples that kill decoders, as stream and identity.

    Both are empty if the job never ran, or nothing of the kind is known; a running coordinator may cut long lists.
    Raises HeldError if another process holds the journal whose endpoint is unknown, LostError if that does not answer,
    RefusedError if it refuses, or SettingsError if a key is unusable. Other errors of asking it, or of opening and
    reading the journal, pass through, such as DataError for a damaged one.
    """
    with closing(_open_memory(job)) as memory:
        report = memory.report()
    groups = {name: stream["group"] for name, stream in report["streams"].items() if stream["group"]}
    return groups, frozenset((culprit["stream"], culprit["identity"]) for culprit in report["culprits"])


def forgive(options: argparse.Namespace) -> int:
    """List convictions or forget some, print the result, and return the exit code.

    Without identities and without `options.all` it only lists. Raises SettingsError for a mistake in the job file, a
    stream that it lacks or a sample that is not convicted, and whatever `recall` raises. What writing the journal
    raises passes through.
    """
    job = read_job(options.job)
    if options.stream:
        job.refuse_unknown(options.stream)
    with closing(_open_memory(job)) as memory:
        if options.identity or options.all:
            _forget(memory, options)
        else:
            _list(memory.report(), options)
    return 0


def _open_memory(job: JobFile) -> _OpenJournal | _RunningCoordinator:
    """Return the holder of the journal: this process, or the coordinator that runs.

    Without a journal, because the job never ran, it is a memory of nothing. Raises HeldError if the journal is held by
    a process that has not written its endpoint yet. Other errors of opening and reading the journal pass through, such
    as DataError for a damaged one.
    """
    path = job.state / "journal.sqlite"
    if not path.exists():  # opening it would create one
        return _OpenJournal(None)
    try:
        return _OpenJournal(Journal(path))
    except HeldError as held:
        if not held.endpoint:
            raise
        return _RunningCoordinator(held.endpoint, job.keys)


def _list(report: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the convictions of a status report, those of one stream if the options name it, as lines or as JSON.

    Print how many were cut from the report, and, in lines, that there are none.
    """
    convictions = [culprit for culprit in report["culprits"] if options.stream in ("", culprit["stream"])]
    cut = report["cut"].get("culprits", 0)
    if options.json:
        print(json.dumps({"convictions": convictions, "cut": cut}))
        return
    for culprit in convictions:
        print("{identity}  (stream {stream}; {ends})".format(**culprit))
    if cut:
        print(f"and {cut} more: too many for one answer")
    if not convictions:
        print("No sample is known to kill decoders.")


def _forget(memory: _OpenJournal | _RunningCoordinator, options: argparse.Namespace) -> None:
    """Forget the samples that the options name, or all, and print how many, in words or as JSON.

    Raise SettingsError for the first that is not convicted; those before it are forgotten. Raise LostError or
    RefusedError if the coordinator does not answer or refuses. Other errors of asking it or of writing the journal pass
    through.
    """
    count = 0
    for identity in options.identity or ("",):
        forgotten = memory.forgive(Forgive(stream=options.stream, identity=identity))
        if identity and not forgotten:
            raise SettingsError(
                expected="a sample that is known to kill decoders",
                got=repr(identity),
                where=f"--stream {options.stream}" if options.stream else "forgive",
                remedy="Without an argument the command lists them: give one as it stands there, in quotes.",
            )
        count += forgotten
    print(json.dumps({"forgiven": count}) if options.json else f"Forgotten: {count}. They are used again.")


class _RunningCoordinator:
    """The memory of a job whose coordinator runs: it is asked, since it holds the journal's lock."""

    def __init__(self, endpoint: str, keys: Path | None) -> None:
        self._endpoint = endpoint
        self._keys = keys

    def report(self) -> dict[str, Any]:
        """Return its status report; raise what `ask_coordinator` raises, such as LostError if it does not answer."""
        return status.ask(self._endpoint, keys=self._keys, timeout_s=_TIMEOUT_S)

    def forgive(self, request: Forgive) -> int:
        """Have it forget the matching convictions; return how many, maybe 0.

        Raise what `ask_coordinator` raises, such as LostError if it does not answer, or RefusedError if it refuses.
        """
        return ask_coordinator(self._endpoint, request, Forgiven, keys=self._keys, timeout_s=_TIMEOUT_S).count

    def close(self) -> None:
        """Do nothing: each question has a connection of its own."""


class _OpenJournal:
    """The memory of a job that does not run: its journal, locked by this process."""

    def __init__(self, journal: Journal | None) -> None:
        """Read the facts; `journal` is None if the job has never run.

        Raise DataError if the journal is damaged.
        """
        self._journal = journal
        self._convictions = Convictions()
        self._groups: dict[str, int] = {}
        # A conviction that was forgotten is not among the facts any more.
        for fact in journal.read_facts() if journal is not None else ():
            if isinstance(fact, CulpritFound):
                self._convictions.add(fact.stream, fact.identity, fact.ends)
            elif isinstance(fact, GroupFixed):
                self._groups[fact.stream] = fact.group

    def report(self) -> dict[str, Any]:
        """Return what a coordinator's status report would say of groups and convictions; nothing is ever cut."""
        return {
            "streams": {name: {"group": group} for name, group in self._groups.items()},
            "culprits": self._convictions.report(),
            "cut": {},
        }

    def forgive(self, request: Forgive) -> int:
        """Forget the matching convictions, in the journal first; return how many, maybe 0.

        What writing the journal raises passes through; nothing is forgotten then.
        """
        forgotten = self._convictions.matching(request)
        if self._journal is not None:
            self._journal.write([Forgot(stream, identity) for stream, identity in forgotten])
        for stream, identity in forgotten:
            self._convictions.forget(stream, identity)
        return len(forgotten)

    def close(self) -> None:
        """Release the journal, if there is one."""
        if self._journal is not None:
            self._journal.close()
