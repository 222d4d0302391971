"""Layout of an HDF5 file: which keys samples have, and where each sample's values are.

Rules: in a group a dataset `<key>` has a sample a row, and `<key>_values` with `<key>_offsets` (or just `values` with
`offsets`) is a ragged one, as in NumPy files, and so is one of a variable-length type. Of a key of any size these are
the cells of a table, whose rows and columns `<key>_shapes` has. A file with `inputs` or `targets` and `seqLengths` is
RETURNN's: `inputs` is called `data`, targets by their names, and `seqTags` name the sequences. Datasets that do not fit
together are a DataError, and so are those whose values lie in other files, except virtual datasets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.sources.batch_columns import selected
from loader_server.sources.hdf5.outside import link_outside, refuse_link_outside, refuse_values_outside
from shared.errors import DataError
from shared.wire.batch_layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import h5py
    from numpy.typing import NDArray

__all__ = ["Hdf5Column", "Hdf5Layout", "layout_of_file"]

#: How many rows' lengths are in memory at once.
_BLOCK = 2**16
#: Names of RETURNN's datasets.
_LENGTHS, _TAGS, _INPUTS, _TARGETS = "seqLengths", "seqTags", "inputs", "targets/data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Column:
    """One key: its dataset, dtype ("text" for strings), the shape of a value, and whether samples have several.

    A `ragged` sample has as many values as offsets or lengths say, or as its row holds itself (`nested`, of a
    variable-length type). Of a key of any size the values are cells, and `shapes` is the dataset with the rows and
    columns of each sample.
    """

    key: str
    dataset: str
    dtype: str
    inner: tuple[int, ...]
    ragged: bool
    nested: bool
    shapes: str = ""

    @property
    def axes(self) -> tuple[int | None, ...]:
        """Return the further axes of a sample's value, None for columns that differ."""
        return (None, *self.inner) if self.shapes else self.inner

    @property
    def is_text(self) -> bool:
        """Return whether the column holds strings, which are for transforms."""
        return self.dtype == "text"


@dataclass(frozen=True, slots=True)
class Hdf5Layout:
    """Columns of a file, number of samples, dataset of their names (or ""), and whether it is RETURNN's."""

    columns: tuple[Hdf5Column, ...]
    samples: int
    tags: str
    returnn: bool

    def begins(self, file: h5py.File, rows: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield blocks of at most `rows` rows: the first row, and where values begin in each ragged column.

        The second is an array with a column for each ragged key (nested ones left out): where each row begins, and
        behind these where the last row ends. Yield nothing without samples. Errors of h5py pass, such as an OSError if
        the file is damaged.
        """
        ragged = [column for column in self.columns if column.ragged and not column.nested]
        ends = np.zeros((1, len(ragged)), np.int64)
        for start in range(0, self.samples, rows):
            ends = self._ends(file, ragged, (start, min(start + rows, self.samples)), ends[-1:])
            yield start, ends

    def _ends(
        self, file: h5py.File, ragged: Sequence[Hdf5Column], rows: tuple[int, int], before: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return where these rows' values begin, and where the last row's end, in each ragged column.

        Offsets say so; RETURNN's lengths are added up from the last end of the block before. Errors of h5py pass, such
        as an OSError if the file is damaged.
        """
        start, stop = rows
        if not self.returnn:
            offsets = [file[_offsets_of(column.dataset)][start : stop + 1].astype(np.int64) for column in ragged]
            return np.stack(offsets, axis=1) if offsets else np.zeros((stop - start + 1, 0), np.int64)
        places = _places_of_lengths(file)
        lengths = file[_LENGTHS][start:stop].astype(np.int64)[:, [places[column.dataset] for column in ragged]]
        return np.concatenate([before, before + np.cumsum(lengths, axis=0)])


def layout_of_file(
    file: h5py.File, group: str, wanted: Sequence[str], where: str, any_size: Sequence[str] = ()
) -> Hdf5Layout:
    """Return the layout of an open file, with the wanted keys, or all if none is named.

    Those of `any_size` have shapes. Raise a DataError if a key is missing, if there are none, if datasets do not fit
    together or have unusable types, or if values lie in other files; a SettingsError if h5py is missing. Errors of h5py
    pass, such as an OSError if the file is damaged.
    """
    refuse_link_outside(file, _LENGTHS, where)
    returnn = _LENGTHS in file
    listed = _returnn(file, where) if returnn else _rows(file, group, wanted, where)
    columns = _with_shapes({column.key: column for column in listed}, any_size, where)
    chosen = selected(columns, wanted, "a dataset", where, "Mend `keys` or `group`.")
    if not chosen:
        raise _unusable(where, "datasets of samples", _quoted(file), "Name the group that they are in by `group`.")
    for column in chosen:
        _refuse_unusable(column, where)
    tags = _TAGS if returnn and _TAGS in file else ""
    # Before any value is read: zeros that the library makes up for a missing file would pass as lengths.
    _refuse_outside(file, chosen, _datasets_beside(chosen, tags, returnn=returnn), where)
    samples = _samples_of_returnn(file, where) if returnn else _common_samples(file, chosen, where)
    layout = Hdf5Layout(tuple(chosen), samples, tags, returnn)
    _refuse_misfit(file, layout, where)
    return layout


def _with_shapes(columns: Mapping[str, Hdf5Column], any_size: Sequence[str], where: str) -> dict[str, Hdf5Column]:
    """Return the columns, those of any size with the dataset of their shapes, which is no column then.

    Raise a DataError if a key of any size is not ragged, or has no dataset of shapes.
    """
    made = dict(columns)
    for key in any_size:
        # A dataset that is called just `values` has no name in front, and so has the one beside it.
        name = "shapes" if key == "values" else f"{key}_shapes"
        column, shapes = made.get(key), made.pop(name, None)
        if column is None or not column.ragged or column.is_text or shapes is None or shapes.inner != (2,):
            raise _unusable(
                where,
                f'"{key}" as ragged cells, with "{name}" of rows and columns a sample, as any_size says',
                f'no "{key}"' if column is None else f'"{key}" of one shape' if not column.ragged else f'no "{name}"',
                f"Write {key}_values, {key}_offsets and {name}, or mend any_size.",
            )
        made[key] = replace(column, shapes=shapes.dataset)
    return made


def _refuse_outside(file: h5py.File, columns: Sequence[Hdf5Column], beside: Iterable[str], where: str) -> None:
    """Raise a DataError if values of these columns, or of the datasets beside them, lie in other files.

    Only the columns' own datasets may be virtual. Raise a KeyError if a dataset is missing, or a SettingsError if h5py
    is.
    """
    for column in columns:
        refuse_values_outside(file, column.dataset, where, may_be_virtual=True)
    for path in beside:
        refuse_values_outside(file, path, where)


def _refuse_unusable(column: Hdf5Column, where: str) -> None:
    """Raise a DataError if a sample has several strings, or values of an unsupported dtype."""
    if column.is_text and (column.ragged or column.inner):
        raise _unusable(where, f'one string a sample as "{column.key}"', "several", "Leave it out by `keys`.")
    if not column.is_text and column.dtype not in DTYPES:
        raise _unusable(
            where,
            f'"{column.key}" of strings, or of a dtype of {", ".join(sorted(DTYPES))}',
            column.dtype,
            "Convert it, or leave it out by `keys`.",
        )


def _datasets_beside(columns: Sequence[Hdf5Column], tags: str, *, returnn: bool) -> Iterator[str]:
    """Yield the paths of the datasets of offsets, lengths and tags that belong to these columns."""
    for column in columns:
        if column.ragged and not column.nested and not returnn:
            yield _offsets_of(column.dataset)
        if column.shapes:
            yield column.shapes
    yield from (_LENGTHS,) if returnn else ()
    yield from (tags,) if tags else ()


def _rows(file: h5py.File, group: str, wanted: Sequence[str], where: str) -> Iterator[Hdf5Column]:
    """Yield the columns of a group.

    Raise a DataError if there is no such group, or a dataset of that name, or if it or a key to be taken links to
    another file; a SettingsError if h5py is missing. Errors of h5py pass, such as an OSError if the file is damaged.
    """
    refuse_link_outside(file, group, where)
    if group not in file:
        raise _unusable(where, f'a group "{group}"', _quoted(file), "Mend `group`.")
    if hasattr(file[group], "shape"):
        raise _unusable(where, f'a group "{group}"', "a dataset of that name", "Mend `group`.")
    members = {}
    for name in file[group]:
        if not link_outside(file, f"{group}/{name}"):
            members[name] = file[group].get(name)
        # A link to another file is refused only if it may hold a key to be taken; others do no harm.
        elif not wanted or _keys_beside(name) & set(wanted):
            refuse_link_outside(file, f"{group}/{name}", where)
    datasets = {name: member for name, member in members.items() if hasattr(member, "shape")}
    offsets = {name: _offsets_of(name) for name in datasets if _offsets_of(name) in datasets}
    for name, dataset in datasets.items():
        if name in offsets:
            yield _column(name.removesuffix("_values"), dataset, ragged=True)
        elif dataset.ndim and name not in offsets.values():
            yield _column(name, dataset, ragged=False)


def _offsets_of(values: str) -> str:
    """Return the name of the dataset of offsets that belongs to a dataset of values.

    Return an empty name unless the dataset is called `values`, or ends in `_values`.
    """
    stem, _, name = values.rpartition("/")
    if name != "values" and not name.endswith("_values"):
        return ""
    return f"{stem}{'/' if stem else ''}{name.removesuffix('values')}offsets"


def _keys_beside(name: str) -> set[str]:
    """Return the keys that a dataset of this name may belong to, as values or as offsets."""
    return {name, name.removesuffix("_values"), name.removesuffix("_offsets"), *(["values"] * (name == "offsets"))}


def _column(key: str, dataset: h5py.Dataset, *, ragged: bool) -> Hdf5Column:
    """Return the column that a dataset makes under this key: of text for strings, ragged for variable-length types."""
    # h5py describes a variable-length type by its metadata; strings are such types, too.
    inside = (dataset.dtype.metadata or {}).get("vlen")
    is_text = inside in (str, bytes) or dataset.dtype.kind == "S"
    nested = inside is not None and not is_text
    dtype = np.dtype(inside) if nested else dataset.dtype
    return Hdf5Column(
        key=key,
        dataset=dataset.name.lstrip("/"),
        dtype="text" if is_text else dtype.newbyteorder("=").name,
        inner=tuple(dataset.shape[1:]),
        ragged=ragged or nested,
        nested=nested,
    )


def _returnn(file: h5py.File, where: str) -> Iterator[Hdf5Column]:
    """Yield the columns of RETURNN's layout, `data` first; raise a DataError for links to other files.

    Raise a SettingsError if h5py is missing. Errors of h5py pass, such as an OSError if the file is damaged.
    """
    for path in (_INPUTS, _TARGETS, _TAGS):
        refuse_link_outside(file, path, where)
    if _INPUTS in file:
        yield _column("data", file[_INPUTS], ragged=True)
    for name in sorted(file[_TARGETS]) if _TARGETS in file else ():
        refuse_link_outside(file, f"{_TARGETS}/{name}", where)
        yield _column(name, file[_TARGETS][name], ragged=True)


def _places_of_lengths(file: h5py.File) -> Mapping[str, int]:
    """Return for each of RETURNN's datasets which column of the lengths is its own.

    The inputs come first, if there are any, then the targets in sorted order.
    """
    names = ([_INPUTS] if _INPUTS in file else []) + [f"{_TARGETS}/{name}" for name in sorted(file.get(_TARGETS, ()))]
    return {name: place for place, name in enumerate(names)}


def _common_samples(file: h5py.File, columns: Sequence[Hdf5Column], where: str) -> int:
    """Return how many samples the columns have; raise a DataError if they differ, or offsets are unusable.

    Errors of h5py pass, such as an OSError if the file is damaged.
    """
    counts = {column.key: _count(file, column, where) for column in columns}
    counts |= {column.shapes: len(file[column.shapes]) for column in columns if column.shapes}
    first, *others = counts.items()
    for key, count in others:
        if count != first[1]:
            raise _unusable(
                where,
                f'{first[1]} samples of "{key}", as of "{first[0]}"',
                str(count),
                "Datasets of samples are equally long: choose by `keys`.",
            )
    return first[1]


def _count(file: h5py.File, column: Hdf5Column, where: str) -> int:
    """Return how many samples a column has.

    Raise a DataError if its offsets are not whole numbers in one axis, or there are none. Errors of h5py pass, such as
    an OSError if the file is damaged.
    """
    # Rows of a variable-length type hold their own lengths.
    if not column.ragged or column.nested:
        return len(file[column.dataset])
    offsets = file[_offsets_of(column.dataset)]
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise _unusable(
            where,
            f'offsets of "{column.key}": whole numbers in one axis, one more than there are samples',
            f"{offsets.dtype} {list(offsets.shape)}",
        )
    return len(offsets) - 1


def _refuse_misfit(file: h5py.File, layout: Hdf5Layout, where: str) -> None:
    """Raise a DataError if offsets do not begin with 0, or offsets or lengths fall or do not add up to the values.

    Errors of h5py pass, such as an OSError if the file is damaged.
    """
    ragged = [column for column in layout.columns if column.ragged and not column.nested]
    last = np.zeros(len(ragged), np.int64)
    for start, ends in layout.begins(file, _BLOCK):
        # In blocks, because lengths of hundreds of millions of rows would not fit into memory.
        fall = np.argwhere(np.diff(ends, axis=0) < 0)
        if len(fall) or (not start and ends[:1].any()):
            row, place = fall[0].tolist() if len(fall) else (0, int(np.argmax(ends[0] != 0)))
            expected = f'lengths of "{ragged[place].key}" from 0 up, and offsets that begin with 0'
            raise _unusable(where, expected, f"others in row {start + row}")
        last = ends[-1]
    for column, end in zip(ragged, last.tolist(), strict=True):
        if end != len(file[column.dataset]):
            expected = f'{end} values in {column.dataset}, as the lengths of "{column.key}" say'
            raise _unusable(where, expected, str(len(file[column.dataset])))


def _samples_of_returnn(file: h5py.File, where: str) -> int:
    """Return the number of sequences.

    Raise a DataError if lengths are no whole numbers with a column for each dataset, or tags are of another number.
    Errors of h5py pass, such as an OSError if the file is damaged.
    """
    lengths, needed = file[_LENGTHS], len(_places_of_lengths(file))
    if lengths.ndim != 2 or lengths.dtype.kind not in "iu" or lengths.shape[1] < needed:
        raise _unusable(
            where,
            f"{_LENGTHS} of whole numbers, with a column for each of {needed} datasets",
            f"{lengths.dtype} {list(lengths.shape)}",
        )
    if _TAGS in file and len(file[_TAGS]) != len(lengths):
        raise _unusable(where, f"{len(lengths)} names in {_TAGS}", str(len(file[_TAGS])))
    return len(lengths)


def _quoted(names: Any) -> str:
    """Return names as messages show them."""
    return ", ".join(f'"{name}"' for name in names) or "nothing"


def _unusable(where: str, expected: str, got: str, remedy: str = "") -> DataError:
    """Return the DataError for a file whose datasets cannot be used."""
    remedy = remedy or "Write the file anew: its datasets do not belong together."
    return DataError(expected=expected, got=got, where=where, remedy=remedy)
