"""Positions of mel-band frames in a recording, in samples.

Rules: pure; settings that leave no frame or no band are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import SettingsError

if TYPE_CHECKING:
    from shared.audio.conventions import Convention
    from shared.audio.features import MelSettings

__all__ = ["MelFrames", "mel_frames"]


@dataclass(frozen=True, slots=True)
class MelFrames:
    """Frame layout: a frame every `hop` samples, each of `window` samples zero-padded to `fft`.

    The first frame begins `margin` samples before the audio, and the last may end that many after it. Bands lie between
    `edges_hz`.
    """

    window: int
    hop: int
    fft: int
    margin: int
    edges_hz: tuple[float, float]


def mel_frames(settings: MelSettings, convention: Convention) -> MelFrames:
    """Return the frame layout that settings ask for; raise SettingsError if they allow no frame or no band."""
    window, hop = round(settings.window * settings.rate), round(settings.hop * settings.rate)
    edges_hz = (settings.low_hz, settings.high_hz or settings.rate / 2)
    _refuse_no_frames(window, hop, settings.rate)
    _refuse_no_bands(edges_hz, settings.rate)
    fft = 1 << (window - 1).bit_length() if convention.power_of_two else window  # the next power of two, or itself
    return MelFrames(window, hop, fft, window // 2 if convention.padding else 0, edges_hz)


def _refuse_no_frames(window: int, hop: int, rate: int) -> None:
    """Raise SettingsError if a window has fewer than 2 samples, or a hop none."""
    if window < 2 or hop < 1:
        raise SettingsError(
            expected=f"a window of at least 2 samples and a hop of at least 1 at {rate} Hz",
            got=f"{window} and {hop}",
            where="window and hop",
            remedy='Write for instance window = "25 ms" and hop = "10 ms".',
        )


def _refuse_no_bands(edges_hz: tuple[float, float], rate: int) -> None:
    """Raise SettingsError unless the edges lie in order, below half the rate."""
    low_hz, high_hz = edges_hz
    if not low_hz < high_hz <= rate / 2:
        raise SettingsError(
            expected=f"low_hz < high_hz <= {rate / 2:g}, half the rate",
            got=f"low_hz = {low_hz:g} and high_hz = {high_hz:g}",
            where="low_hz and high_hz",
            remedy="Lower them, or raise the rate.",
        )
