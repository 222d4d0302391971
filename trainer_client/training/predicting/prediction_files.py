"""Output files of a prediction: JSON lines or Parquet, a line for each sample, in the order of the source.

Rules: the columns are the sample's number, its name and the model's outputs. Samples that could not be used are counted
and left out. A sample that comes twice is an error. NaN and infinities are null in JSON, which has no such numbers.
Only some rows are in memory at a time. It must not know how the rows came about.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.extras import library
from trainer_client.training.predicting.prediction_parts import MASKED, SAMPLE, came_again, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

    from trainer_client.training.predicting.prediction_parts import Finished

__all__ = ["FORMATS", "check_format", "write_rows"]

_Row = dict[str, Any]

#: How many rows are collected for one write to Parquet.
_ROWS = 4096


def check_format(output: Path) -> None:
    """Raise MissingLibraryError, a SettingsError, if the output is Parquet and pyarrow cannot be imported."""
    if output.suffix == ".parquet":
        _parquet()


def write_rows(file: IO[bytes], suffix: str, rows: Iterable[NDArray[np.void]]) -> Finished:
    """Write the usable rows in the suffix's format, and return how many rows were usable and how many were not.

    Raise DataError if a sample comes twice, or out of order, usable or not; errors of `rows` and of writing are passed
    on, and MissingLibraryError if Parquet lacks pyarrow.
    """
    finished, last = {"samples": 0, MASKED: 0}, -1
    with FORMATS[suffix](file) as write:
        for row in rows:
            if row[SAMPLE] <= last:
                raise came_again(int(row[SAMPLE]), "the parts of a prediction")
            last = int(row[SAMPLE])
            finished[MASKED if row[MASKED] else "samples"] += 1
            if not row[MASKED]:
                write(row)
    return finished


def _plain(row: NDArray[np.void], value_of: Callable[[Any], Any]) -> _Row:
    assert row.dtype.names is not None
    return {name: value_of(row[name]) for name in row.dtype.names if name != MASKED}


def _plain_value(value: Any) -> Any:
    if value.dtype.kind == "S":
        texts = np.asarray(value)
        value = np.array([text_of(text) for text in texts.ravel().tolist()], object).reshape(texts.shape)
    return value.tolist() if hasattr(value, "tolist") else value


# --- JSON lines ---


@contextmanager
def _json_lines(file: IO[bytes]) -> Iterator[Callable[[NDArray[np.void]], None]]:
    def write(row: NDArray[np.void]) -> None:
        line = json.dumps(_plain(row, _json_value), ensure_ascii=False, allow_nan=False) + "\n"
        file.write(line.encode())

    yield write


def _json_value(value: Any) -> Any:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        plain = np.array(value, object)
        plain[~np.isfinite(value)] = None
        return plain.tolist()
    return _plain_value(value)


# --- Parquet ---


def _parquet() -> Any:
    return library(
        "pyarrow.parquet", extra="parquet", use="which writes Parquet", where="--output",
        otherwise="or name an output that ends in .jsonl",
    )  # fmt: skip


class _ParquetRows:
    """A Parquet writer whose column types are those of the first row.

    Types hold no lengths: arrays become lists, so later rows may have other lengths.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rows: list[_Row] = []
        self._schema: Any = None
        self._writer: Any = None

    def add(self, row: NDArray[np.void]) -> None:
        if self._schema is None:
            self._schema = _schema(row.dtype)
        self._rows.append(_plain(row, _plain_value))
        if len(self._rows) == _ROWS:
            self.flush()

    def flush(self) -> None:
        pa, parquet = library("pyarrow", extra="parquet", use="which writes Parquet"), _parquet()
        if self._schema is None:
            self._schema = pa.schema([(SAMPLE, pa.int64())])
        # Closing comes here too, so that a file without any rows is a Parquet file all the same.
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, self._schema)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        self.flush()
        self._writer.close()


def _schema(dtype: np.dtype[np.void]) -> Any:
    pa = library("pyarrow", extra="parquet", use="which writes Parquet")
    assert dtype.names is not None
    return pa.schema([(name, _type_of(pa, dtype[name])) for name in dtype.names if name != MASKED])


def _type_of(pa: Any, dtype: np.dtype[Any]) -> Any:
    found = pa.string() if dtype.base.kind in "SU" else pa.from_numpy_dtype(dtype.base)
    for _ in dtype.shape:
        found = pa.list_(found)
    return found


@contextmanager
def _parquet_rows(file: IO[bytes]) -> Iterator[Callable[[NDArray[np.void]], None]]:
    rows = _ParquetRows(file)
    yield rows.add
    rows.close()


#: Writers by the suffix of the output.
FORMATS = {".jsonl": _json_lines, ".parquet": _parquet_rows}
