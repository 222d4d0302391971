"""Stoker's exceptions: one small tree that says whose fault it is.

StokerError
├── SettingsError      the user's: a job file, a flag, a call
├── DataError          the user's data: a manifest, an index, a file
│   ├── SampleError    one sample whose bytes are complete but unusable: masked, counted, named
│   └── ReadError      reading failed: retried, also on other workers, then the job stops
├── WorldChangedError  nobody's: trainers of an elastic world came or went
├── MachineError       the machine's: a process cannot be started, or was killed; this says nothing about the data
├── PeerError          the other side's: it refused, vanished or broke the protocol
│   ├── ProtocolError  bytes that are not a message of ours
│   ├── RefusedError   it understood and said no
│   └── LostError      it does not answer
├── EndedError         nobody's: the job was ended on purpose
└── ClosedError        ours: used after close

Rules: pure; every message says what was expected, what came instead, where, and what to do. No message holds key
material. A message may quote any part of a user's file, so each of its four parts is shortened.
"""

from __future__ import annotations

from functools import partial

__all__ = [
    "ClosedError",
    "DataError",
    "EndedError",
    "LostError",
    "MachineError",
    "PeerError",
    "ProtocolError",
    "ReadError",
    "RefusedError",
    "SampleError",
    "SettingsError",
    "StokerError",
    "WorldChangedError",
    "require",
    "shortened",
]

#: Longest parts of a message, in characters; `got` may be longer where it is the traceback of a user's code.
_MOST = {"expected": 400, "got": 375, "where": 500, "remedy": 1000}
_MOST_OF_LINES = 4000


def shortened(text: str, most: int) -> str:
    """Return at most `most` characters of a text; a longer text loses its middle, because both ends are informative."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[3 - (most - most // 2) :]}"


def require(is_met: bool, *, expected: str, got: str, where: str, remedy: str) -> None:  # noqa: FBT001 - as of `assert`
    """Raise a SettingsError of these parts unless a condition is met."""
    if not is_met:
        raise SettingsError(expected=expected, got=got, where=where, remedy=remedy)


class StokerError(Exception):
    """Root of the errors: catch this to catch everything that Stoker raises on purpose.

    Attributes:
        expected: What was expected.
        got: What came instead.
        where: Where: a setting, a file, an address, a call.
        remedy: What to do about it.
        exit_code: The exit code of a command that it ends.

    Example:
        >>> try:
        ...     trainer_client.connect(endpoint, stream="trian", connect_timeout_s=30)
        ... except trainer_client.StokerError as error:
        ...     print(error.expected)
        one of the streams "train", "dev", ...
    """

    #: Exit code of a command that this error ends; `shared.commands` lists all codes.
    exit_code = 1
    #: Further arguments that a class takes, beside the parts of the message.
    _more: tuple[str, ...] = ()

    def __init__(self, *, expected: str, got: str, where: str, remedy: str) -> None:
        self.expected = shortened(expected, _MOST["expected"])
        self.got = shortened(got, _MOST_OF_LINES if "\n" in got else _MOST["got"])
        self.where = shortened(where, _MOST["where"])
        self.remedy = shortened(remedy, _MOST["remedy"])
        super().__init__(f"{self.where}: expected {self.expected}, got {self.got.rstrip('.')}. {self.remedy}")

    def words(self) -> dict[str, str]:
        """Return the parts of the message by name; another process can rebuild the same error from them."""
        return {"expected": self.expected, "got": self.got, "where": self.where, "remedy": self.remedy}

    # Exceptions are pickled with their positional arguments; these take keywords only.
    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), **self.words(), **{name: getattr(self, name) for name in self._more}), ()


class SettingsError(StokerError):
    """A job file, a flag or a call asks for something impossible."""


class DataError(StokerError):
    """The data set, its index or one of its files is not as it has to be."""


class SampleError(DataError):
    """One sample cannot be decoded or transformed; its row is masked and `reason` counts it."""

    _more = ("reason",)

    def __init__(self, *, reason: str, expected: str, got: str, where: str, remedy: str) -> None:
        self.reason = reason
        super().__init__(expected=expected, got=got, where=where, remedy=remedy)


class ReadError(DataError):
    """Reading failed after retries; never masks a sample."""


class MachineError(StokerError):
    """A process cannot be started, or was killed by somebody else: no sample is to blame."""


class WorldChangedError(StokerError):
    """The elastic world that this trainer had a place in is over: join the next one, at the last checkpoint.

    A process that ends with its exit code is to be started again.
    """

    exit_code = 75


class PeerError(StokerError):
    """The other side of a socket is at fault."""


class ProtocolError(PeerError):
    """The bytes are not a message of this protocol."""


class RefusedError(PeerError):
    """The other side understood and refused; `code` says why in one word."""

    exit_code = 4
    _more = ("code",)

    def __init__(self, *, code: str, expected: str, got: str, where: str, remedy: str) -> None:
        self.code = code
        super().__init__(expected=expected, got=got, where=where, remedy=remedy)


class LostError(PeerError):
    """The other side has not answered for longer than was allowed."""

    exit_code = 3


class EndedError(StokerError):
    """The job was ended on purpose, so no more batches come; servers that are merely silent are a `LostError`."""


class ClosedError(StokerError):
    """Something was used after it was closed."""
