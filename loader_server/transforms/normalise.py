"""`normalise`: mean and variance normalisation (CMVN) of features, band by band.

Mean and deviation are each sample's own, or those of the data: a file that `loader-server index --statistics` makes
from the output of the transforms before it.

Rules: pure once it is made; statistics name the transforms they were made from, and are refused after any others. A
band that never changes becomes 0. Moments are gathered piece by piece: accurate for any number of pieces, in float64,
and merged in one order the same to the last bit, in whichever processes the pieces were gathered.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader_server.transforms import SettingsError, file, flag, setting, text, transform
from loader_server.transforms.declare import built_in
from loader_server.transforms.on_columns import OfColumns, listed
from shared.settings.parsers import FileName

if TYPE_CHECKING:
    from loader_server.sources.batch_columns import Columns

__all__ = ["Moments", "Normalise", "NormaliseSettings", "StatisticsFile", "statistics_text"]

#: Smaller deviations are raised to this one, so that a constant band is not divided by 0.
_LEAST_DEVIATION = 1e-5

_Numbers = NDArray[np.float64]


class StatisticsFile(FileName):
    """Name of a file that is made from the data."""

    __slots__ = ()

    remedy = "Run loader-server index --statistics, which makes it."


def _statistics(value: object) -> StatisticsFile:
    return StatisticsFile(file(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class NormaliseSettings:
    """The table [streams.<name>.normalise]."""

    key: str = setting(text, "the features", default="audio")
    statistics: StatisticsFile | None = setting(
        _statistics,
        "file, relative to the job file, that loader-server index --statistics makes; left out: each sample by its own",
        default=None,
    )
    variance: bool = setting(flag, "divide by the deviation; false: only subtract the mean", default=True)


@built_in("normalise")
@transform(settings=NormaliseSettings, draws=False)
class Normalise(OfColumns):
    """Transform that normalises features, which keep their shape.

    Raise SettingsError if the file of statistics is not one, or an OSError if it cannot be read.
    """

    def __init__(self, settings: NormaliseSettings) -> None:
        self._key = settings.key
        self._scales = settings.variance
        #: Recipe of the transforms that the statistics were made from, without those that draw; None without a file.
        self.made_of: str | None = None
        self._known: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        if settings.statistics is not None:
            self.made_of, mean, deviation = _read(settings.statistics)
            self._known = mean.astype(np.float32), self._factor(deviation)

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Replace the features by normalised ones; empty features stay as they are.

        Raise ValueError if their bands do not fit those of the statistics; a single band fits any number.
        """
        sample[self._key] = self._normalised(sample[self._key])

    def on_columns(self, columns: Columns) -> None:
        """Replace the features of all samples by normalised ones; raise TypeError unless they are a list.

        Raise KeyError if there are none, or ValueError if their bands do not fit those of the statistics.
        """
        columns[self._key] = list(map(self._normalised, listed(columns, self._key)))

    def _normalised(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return normalised features, by the statistics or else by the sample's own moments; empty ones as they are.

        Raise ValueError if their bands do not fit those of the statistics; a single band fits any number.
        """
        if not len(features):
            return features
        if self._known is not None:
            made, factor = features - self._known[0], self._known[1]
        else:
            made = features - features.mean(axis=0, dtype=np.float64).astype(np.float32)
            factor = self._factor(np.sqrt(np.square(made).mean(axis=0, dtype=np.float64)))
        made *= factor
        return made

    def _factor(self, deviation: _Numbers) -> NDArray[np.float32]:
        factor = 1 / np.maximum(deviation, _LEAST_DEVIATION) if self._scales else np.ones_like(deviation)
        return np.asarray(factor, np.float32)


def statistics_text(recipe: str, moments: Moments) -> str:
    """Return the content of a statistics file; numbers are written so that reading restores them exactly."""
    return (
        json.dumps(
            {
                "made_of": recipe,
                "steps": moments.steps,
                "mean": moments.mean.tolist(),
                "deviation": moments.deviation.tolist(),
            },
            indent=1,
        )
        + "\n"
    )


def _read(path: str) -> tuple[str, _Numbers, _Numbers]:
    """Return recipe, mean and deviation from a statistics file; raise SettingsError if it is not one.

    Raise an OSError if it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as opened:  # noqa: PTH123 - it is a name, as settings have it
            statistics = json.load(opened)
        mean, deviation = (np.array(statistics[name], np.float64) for name in ("mean", "deviation"))
        if mean.shape != deviation.shape or not np.isfinite([mean, deviation]).all():
            raise ValueError(f"mean {mean.shape} and deviation {deviation.shape} that do not fit, or are no numbers")
        return str(statistics["made_of"]), mean, deviation
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            expected="statistics as loader-server index --statistics writes them",
            got=f"{type(error).__name__}: {error}",
            where=f"statistics, {path}",
            remedy=StatisticsFile.remedy,
        ) from None


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a number of steps: for each band the mean, and the sum of squared deviations from it."""

    steps: int
    mean: _Numbers
    squares: _Numbers

    @staticmethod
    def of(values: NDArray[np.generic]) -> Moments:
        """Return the moments of values `[steps, ...]`, with at least one step."""
        wide = values.astype(np.float64)
        mean: _Numbers = np.asarray(wide.mean(axis=0))
        squares: Any = np.square(wide - mean).sum(axis=0)
        return Moments(len(wide), mean, np.asarray(squares))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both, by the formula of Chan, Golub and LeVeque, accurate even if means are large."""
        steps = self.steps + other.steps
        # Sums of squares minus the squared mean would cancel if the mean is large; differences of means do not.
        apart = other.mean - self.mean
        return Moments(
            steps,
            self.mean + apart * (other.steps / steps),
            self.squares + other.squares + apart**2 * (self.steps * other.steps / steps),
        )

    @property
    def deviation(self) -> _Numbers:
        """Return the standard deviation of all steps, for each band."""
        return np.sqrt(self.squares / self.steps)
