"""Which keys are made of recordings, told without the library that decodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.wire.batch_layout import Field

__all__ = ["has_recordings"]


def has_recordings(fields: Iterable[Field]) -> bool:
    """Return whether one of these keys is made of recordings: it has a time, or a name that only these have."""
    # Recordings of several rates have no time in common, and those in records of other programs may have none at all.
    return any(field.per_second is not None or field.key in ("audio", "waveform") for field in fields)
