"""Columns grow while they are written, are mapped when read, and are plain .npy files."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loader_server.index.columns import ColumnWriter, StringsWriter, mapped, open_strings


@given(parts=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1))))
def test_numbers_come_back(parts, tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "numbers.npy"
    writer = ColumnWriter(path, "int64")
    for part in parts:
        writer.append(part)
    writer.close()
    assert mapped(path).tolist() == [number for part in parts for number in part]
    assert np.load(path, allow_pickle=False).dtype == np.int64


@given(parts=st.lists(st.lists(st.text(st.characters(codec="utf-8")))))
def test_strings_come_back(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    writer = StringsWriter(folder, "words")
    for part in parts:
        writer.append(part)
    writer.close()
    words = [word for part in parts for word in part]
    column = open_strings(folder, "words")
    assert len(column) == len(words)
    assert [column[row] for row in range(len(column))] == words


def test_reading_maps_the_file_and_copies_nothing(tmp_path):
    writer = ColumnWriter(tmp_path / "n.npy", "int64")
    writer.append(range(1000))
    writer.close()
    column = mapped(tmp_path / "n.npy")
    assert not column.flags.owndata
    assert not column.flags.writeable
