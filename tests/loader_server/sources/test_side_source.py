"""A source that a transform draws from: its content counts, and every row of it has to be good."""

import datetime as dt

import numpy as np
import pytest
import soundfile

from loader_server.sources.files.file_facts import CacheSettings, FilePlaces
from loader_server.sources.side_source import side_source
from shared.errors import DataError, SettingsError

TABLE = {"source": "manifest", "paths": ["noises.csv"]}


@pytest.fixture
def folder(tmp_path):
    for name, frames in (("hum", 300), ("hiss", 500)):
        soundfile.write(tmp_path / f"{name}.wav", np.full(frames, 0.25, np.float32), 8000)
    (tmp_path / "noises.csv").write_text("audio,kind\nhum.wav,low\nhiss.wav,high\n")
    return tmp_path


def test_its_samples_can_be_read_without_an_index(folder):
    source = side_source(TABLE).at(FilePlaces(folder)).open("noise")
    assert source.samples == 2
    samples = [source.decode(number, raw) for number, raw in enumerate(source.read([0, 1]))]
    assert [(len(one["audio"]), one["kind"]) for one in samples] == [(300, "low"), (500, "high")]
    assert {path.suffix for path in folder.iterdir()} == {".wav", ".csv"}


def test_it_counts_by_its_content(folder, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    said = side_source(TABLE)
    before = said.at(FilePlaces(folder)).digest("noise")
    assert said.at(FilePlaces(copy)).digest("noise") == before
    for other in (np.full(300, 0.5, np.float32), np.full(301, 0.25, np.float32)):
        soundfile.write(copy / "hum.wav", other, 8000)
        assert said.at(FilePlaces(copy)).digest("noise") != before


def test_equal_tables_are_equal_settings(folder):
    one, other = (side_source(dict(reversed(TABLE.items()) if turned else TABLE)) for turned in (False, True))
    assert (one == other, hash(one) == hash(other)) == (True, True)
    assert one.at(FilePlaces(folder)) != other


def test_a_bad_row_is_an_error(folder):
    (folder / "noises.csv").write_text("audio\nhum.wav\nno.wav\n")
    with pytest.raises(
        DataError,
        match=r"noise: expected recordings that can all be used, got 1 bad rows and 1 good ones; .*ises\.csv, line 3: "
        r"missing_file: .*no\.wav\. Mend or remove the bad rows",
    ):
        side_source(TABLE).at(FilePlaces(folder)).open("noise")


@pytest.mark.parametrize("value", [{}, "noises.csv", {"source": 3}, [TABLE]])
def test_what_is_no_table_of_a_source_is_refused(value):
    with pytest.raises(
        SettingsError, match=r"^recordings: expected a table with a source and its settings, got .*Write for instance {"
    ):
        side_source(value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"source": "manifes"},
            'noise, source: expected source = .*, perhaps "manifest"|perhaps "manifest", got "manifes"',
        ),
        ({"source": "manifest"}, r'noise: expected "paths" .*, got no such setting'),
        (
            {"source": "manifest", "paths": ["x"], "path": "y"},
            r'noise: expected a known setting, perhaps "paths", got "path"',
        ),
        ({"source": "manifest", "paths": ["gone.csv"]}, r"^noise, .*gone\.csv: expected a manifest that can be read"),
    ],
)
def test_bad_tables(folder, table, message):
    with pytest.raises((SettingsError, DataError), match=message):
        side_source(table).at(FilePlaces(folder)).open("noise")


def test_its_remote_files_are_kept_and_counted_where_those_of_the_job_are(folder, tmp_path_factory):
    cache = CacheSettings(folder=tmp_path_factory.mktemp("kept"), bytes=2**30)
    source = side_source(TABLE).at(FilePlaces(folder, cache)).open("noise")
    assert source.files.cache is cache


def test_a_date_in_the_table_is_refused_in_words() -> None:
    with pytest.raises(SettingsError, match=r"expected a table with a source and its settings, got .*datetime"):
        side_source({"source": "manifest", "since": dt.date(2026, 1, 1)})
