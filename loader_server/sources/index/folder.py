"""The index: made once from a source, and what planner and source work from.

A folder with `meta.json` and a folder of columns that it names. Rules: columns are written and synced under a name
that nothing refers to, then `meta.json` is replaced: a crash leaves the old index or the new one. One indexer at a
time. The same bytes whatever the number of processes. Opening maps files and reads nothing a sample.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.index.columns import Strings, mapped, open_strings
from shared.errors import DataError
from shared.hashing import fingerprint
from shared.wire.layout import Field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from loader_server.transforms.chain import Chain

__all__ = ["FORMAT", "SEGMENT_SAMPLES", "Index", "Meta", "columns_fingerprint", "meta_json", "open_index", "read_meta"]

#: Raise it whenever the folder's content changes its meaning.
FORMAT = 1
SEGMENT_SAMPLES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What `meta.json` says; `recipe` is the chain's whose outputs were measured, or empty."""

    format: int
    source: str
    settings: dict[str, Any]
    origin: list[dict[str, Any]]
    folder: str
    samples: int
    numbers: list[str]
    strings: list[str]
    others: list[str]
    measured: list[str]
    fields: list[dict[str, Any]]
    recipe: str
    rate: int
    bad: dict[str, int]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An open index.

    `raw_lengths` are those of raw samples (audio in frames, with its rate in hertz, text in characters), `measured`
    those after undeclared transforms, with the `fields` that came out; `rate` is 0 where files differ in it; `bad`
    counts rows left out.
    """

    folder: Path
    meta: Meta
    columns: Mapping[str, NDArray[np.int64]]
    strings: Mapping[str, Strings]
    measured: Mapping[str, NDArray[np.int64]]
    fields: tuple[Field, ...]

    @property
    def fingerprint(self) -> str:
        """Of all columns and the source's settings."""
        return self.meta.fingerprint

    @property
    def samples(self) -> int:
        """How many there are."""
        return self.meta.samples

    @property
    def segments(self) -> NDArray[np.int64]:
        """Where each segment starts, and the number of samples."""
        return np.append(np.arange(0, self.samples, SEGMENT_SAMPLES, dtype=np.int64), self.samples)

    @property
    def raw_lengths(self) -> dict[str, NDArray[np.int64]]:
        """Lengths of raw samples by key."""
        keys = {"frames": "audio", "rate": "audio_rate", "characters": "text"}
        named = {keys[name]: column for name, column in self.columns.items() if name in keys}
        return named | {key: self.columns[f"length_{key}"] for key in self._keys_with_lengths()}

    def _keys_with_lengths(self) -> list[str]:
        """Keys whose lengths the source gave under their own name."""
        return [name.removeprefix("length_") for name in self.columns if name.startswith("length_")]

    @property
    def origin(self) -> list[dict[str, Any]]:
        """What it was made from."""
        return self.meta.origin

    @property
    def others(self) -> list[str]:
        """Further columns of the source."""
        return self.meta.others

    @property
    def rate(self) -> int:
        """The one rate of all files, or 0."""
        return self.meta.rate

    def lengths(self, chain: Chain) -> dict[str, NDArray[np.int64]]:
        """The length of every padded field that a chain makes, which must be the one that was measured, if any."""
        if not chain.measured:
            return chain.lengths(self.raw_lengths)
        self._refuse_other_chain(chain)
        return dict(self.measured)

    def bound(self, chain: Chain) -> Chain:
        """The chain with its fields: as declared, or as found while indexing."""
        if not chain.measured:
            return chain
        self._refuse_other_chain(chain)
        return chain.bound(self.fields)

    def refuse_other_source(self, source: str, settings: Any) -> None:  # noqa: ANN401 - each kind has its own
        """Refuse an index that was made before the stream's source settings were changed."""
        wanted = json.loads(json.dumps({"source": source, **asdict(settings)}))
        made = {"source": self.meta.source, **self.meta.settings}
        if made != wanted:
            raise DataError(
                expected=f"an index made with {_listed(wanted)}",
                got=f"one made with {_listed(made)}",
                where=str(self.folder),
                remedy="The stream's source has changed: run loader-server index.",
            )

    def _refuse_other_chain(self, chain: Chain) -> None:
        if chain.recipe != self.meta.recipe:
            raise DataError(
                expected="an index whose lengths were measured with these transforms",
                got="one measured with others" if self.meta.recipe else "one without measured lengths",
                where=str(self.folder),
                remedy="Run loader-server index, or declare the transforms with @transform(…).",
            )


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items())


def open_index(folder: Path) -> Index:
    """Open an index; DataError where there is none or it is of another format."""
    meta = read_meta(folder)
    columns = folder / meta.folder
    try:
        return Index(
            folder=folder,
            meta=meta,
            columns={name: mapped(columns / f"{name}.npy").view(np.int64) for name in meta.numbers},
            strings={name: open_strings(columns, name) for name in meta.strings},
            measured={
                key: mapped(columns / f"measured_{place}.npy").view(np.int64) for place, key in enumerate(meta.measured)
            },
            fields=tuple(Field(**{**field, "shape": tuple(field["shape"])}) for field in meta.fields),
        )
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from None


def read_meta(folder: Path) -> Meta:
    """What the index says of itself; DataError where there is none or it is of another format."""
    try:
        found = json.loads((folder / "meta.json").read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(expected="an index", got="none", where=str(folder), remedy="Run loader-server index.") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else "none"
        raise DataError(
            expected=f"an index of format {FORMAT}",
            got=f"format {got}",
            where=str(folder),
            remedy="It was made by another version: run loader-server index.",
        )
    try:
        return Meta(**found)
    except TypeError as error:
        raise _damaged(folder, str(error)) from None


def _damaged(folder: Path, got: str) -> DataError:
    return DataError(
        expected="a whole index", got=got, where=str(folder), remedy="It is damaged: run loader-server index."
    )


def columns_fingerprint(columns: Path, settings: str) -> str:
    """Of all columns but the times of change, so that copies of a data set on several machines have one fingerprint."""
    files = sorted(file for file in columns.iterdir() if file.name != "mtime_ns.npy")
    parts = (part for file in files for part in (file.name, mapped(file).view(np.uint8).data))
    return fingerprint(settings, *parts)


def meta_json(meta: Meta) -> str:
    """The text of `meta.json`."""
    return json.dumps(asdict(meta), indent=1, ensure_ascii=False, sort_keys=True)
