"""The question whose fault it is when decoding or transforming a sample fails: the sample's, or the machine's.

Rules: pure. An exception is about the sample, whatever its class, unless memory or descriptors ran out, or input or
output failed. Whether they ran out through one sample's own fault is found out by trials. Decoders also raise OSError
for content that they reject, but then without an error number of the system's.
"""

from __future__ import annotations

import errno

from shared.errors import ReadError, SampleError

__all__ = ["error_text", "find_exhaustion", "is_the_samples", "undecoded"]

#: No descriptors left in this process, none left in the system, no memory.
_OF_EXHAUSTION = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))

#: Error numbers that a decoder's bad seek causes, and a failing disk never does.
_OF_CONTENT = frozenset((errno.EINVAL,))

_MOST_CHARACTERS = 1000


def is_the_samples(error: BaseException) -> bool:
    """Return whether an exception means that the sample cannot be used, not that the machine failed.

    That is False for a MemoryError, and for an OSError with an error number of the system's other than EINVAL; True for
    any other exception.
    """
    if isinstance(error, OSError):
        return error.errno not in errno.errorcode or error.errno in _OF_CONTENT
    # Memory may have run out through this sample or through others: trials in a child process find out.
    return not isinstance(error, MemoryError)


def find_exhaustion(error: BaseException | None) -> BaseException | None:
    """Return the error or the cause of it that says that memory or descriptors ran out; None if none does."""
    # Along the causes, because a source may have made an error of its own of what the system reported.
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OF_EXHAUSTION):
            return error
        error = error.__cause__
    return None


def error_text(error: BaseException) -> str:
    """Return an exception's class and text, cut to 1000 characters, or only the class if the text is empty.

    If its own `__str__` raises, the text names what that raised.
    """
    try:
        words = str(error)
    except BaseException as another:  # a user's exception class may raise anything
        words = f"(its text raised {type(another).__name__})"
    return f"{type(error).__name__}: {words}"[:_MOST_CHARACTERS] if words else type(error).__name__


def undecoded(error: BaseException, name: str) -> SampleError | ReadError:
    """Return the error to raise if decoding a sample raised something other than our own errors.

    That is a SampleError if the sample is at fault, otherwise a ReadError.
    """
    if is_the_samples(error):
        return SampleError(
            reason="undecodable",
            expected="to decode the sample",
            got=error_text(error),
            where=name,
            remedy="Mend or remove the file, then run loader-server index.",
        )
    return ReadError(
        expected="the decoder to read what it needs",
        got=error_text(error),
        where=name,
        remedy="Make that file readable on every loader machine.",
    )
