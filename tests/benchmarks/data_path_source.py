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
from loader_server.sources.source import SOURCES, SourceKind
from loader_server.sources.synthetic import SyntheticSettings, lengths_of
from shared.config import choice, duration_s, setting
from shared.wire.layout import Field
from tests.benchmarks.data_path_payloads import BANDS, template

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.sources.index.folder import Index

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


def _fields(settings: StampedSettings) -> tuple[Field, ...]:
    return tuple(_FIELDS.values()) if settings.kind == "both" else (_FIELDS[settings.kind],)


def _lengths(settings: StampedSettings) -> Iterator[dict[str, NDArray[np.int64]]]:
    for piece in lengths_of(settings):
        (steps,) = piece.values()
        if settings.kind == "both":
            yield {"features": steps, "tokens": np.maximum(steps // _FRAMES_A_TOKEN, 1)}
        else:
            yield {settings.kind: steps}


def _open(index: Index, _base: Path) -> Stamped:
    settings = StampedSettings(**index.meta.settings)
    return Stamped(settings, {field.key: index.raw_lengths[field.key] for field in _fields(settings)})


class Stamped:
    """Samples of known lengths, whole batches at a time."""

    def __init__(self, settings: StampedSettings, lengths: Mapping[str, NDArray[np.int64]]) -> None:
        self.fields = _fields(settings)
        self._lengths = lengths
        self._pause_s = settings.pause
        self._templates = {field.key: template(field.key, 2**22) for field in self.fields}

    @property
    def samples(self) -> int:
        return len(next(iter(self._lengths.values())))

    def name(self, sample: int) -> str:
        return str(sample)

    def read(self, sample: int) -> bytes:
        raise NotImplementedError

    def decode(self, sample: int, raw: bytes) -> dict[str, Any]:
        raise NotImplementedError

    def gather(self, samples: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> None:
        if self._pause_s:
            time.sleep(self._pause_s)
        for key, stencil in self._templates.items():
            values, lengths = out[key], self._lengths[key][samples]
            np.copyto(values, stencil[: values.size].reshape(values.shape))
            values[:, 0] = samples[:, None] if values.ndim > 2 else samples
            for row in np.flatnonzero(lengths < values.shape[1]):
                values[row, lengths[row] :] = 0
            out[f"{key}_length"][:] = lengths

    def close(self) -> None:
        pass


def register() -> None:
    """Let job files of this process name it."""
    SOURCES["stamped"] = SourceKind(settings=StampedSettings, fields=_fields, lengths=_lengths, open=_open)  # type: ignore[index]


if __name__ == "__main__":
    register()
    sys.exit(cli.main())
