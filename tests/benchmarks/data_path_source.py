"""A source for the data path benchmark: batches copied from templates and stamped, as fast as memory allows.

    python -m tests.benchmarks.data_path_source worker job.toml …

is `loader-server` with that source beside the real ones. Rules: all that the data path does not need is left out; a
`pause` stands for the work of real transforms.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server import cli
from loader_server.sources.registry import SOURCES
from loader_server.sources.source import Found, Indexed
from loader_server.sources.synthetic import SyntheticSettings, SyntheticSource
from shared.settings.parsers import choice, duration_s, setting
from shared.wire.batch_layout import Field
from tests.benchmarks.data_path_payloads import BANDS, template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["register"]

_FIELDS = {
    "features": Field(key="features", dtype="float32", shape=(None, BANDS)),
    "tokens": Field(key="tokens", dtype="int32", shape=(None,)),
}

#: Steps of the longest template; a longer batch repeats it row by row.
_FRAMES_A_TOKEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedSettings(SyntheticSettings):
    """Lengths as the synthetic source spreads them."""

    kind: str = setting(choice("features", "tokens", "both"), "what a sample holds", default="features")
    pause: float = setting(duration_s, "time slept for each batch", default=0.0)


class Stamped(SyntheticSource):
    """Samples of known lengths, whole batches at a time."""

    Settings = StampedSettings
    settings: StampedSettings

    @property
    def fields(self) -> tuple[Field, ...]:
        kind = self.settings.kind
        return tuple(_FIELDS.values()) if kind == "both" else (_FIELDS[kind],)

    def probe(self, piece: range) -> Found:
        (steps,) = super().probe(piece).numbers.values()
        lengths = {"tokens": np.maximum(steps // _FRAMES_A_TOKEN, 1)} if self.settings.kind == "both" else {}
        lengths = {self.fields[0].key: steps} | lengths
        return Found(rows=piece, numbers={f"length_{key}": column for key, column in lengths.items()})

    def open(self, indexed: Indexed) -> None:
        self.indexed = indexed
        self._pause_s = self.settings.pause
        self._of_keys = self.lengths
        self._templates = {field.key: template(field.key, 2**22) for field in self.fields}

    def name(self, sample: int) -> str:
        return str(sample)

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        if self._pause_s:
            time.sleep(self._pause_s)
        for key, stencil in self._templates.items():
            values, lengths = out[key], self._of_keys[key][samples]
            np.copyto(values, stencil[: values.size].reshape(values.shape))
            values[:, 0] = samples[:, None] if values.ndim > 2 else samples
            for row in np.flatnonzero(lengths < values.shape[1]):
                values[row, lengths[row] :] = 0
            out[f"{key}_length"][:] = lengths


def register() -> None:
    """Let job files of this process name it."""
    SOURCES["stamped"] = "tests.benchmarks.data_path_source:Stamped"


if __name__ == "__main__":
    register()
    sys.exit(cli.main())
