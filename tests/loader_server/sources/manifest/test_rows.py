"""Manifests are read row by row; each bad row has its line."""

import json

import pytest

from loader_server.sources.manifest.rows import Columns, columns_of, named_paths, read_rows
from loader_server.sources.source import BadRow
from shared.errors import DataError


def written(tmp_path, name, content, encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def rows_of(path):
    columns = columns_of(path)
    return list(read_rows(path, 0, columns, columns.others))


def shown(rows):
    return [(r.line, r.reason) if isinstance(r, BadRow) else (r.line, r.path, r.text, *r.others) for r in rows]


def test_csv_of_deepspeech(tmp_path):
    path = written(
        tmp_path, "m.csv", 'wav_filename,wav_filesize,transcript\na.wav,12,one two\nb.wav,13,"three, four"\n'
    )
    assert columns_of(path) == Columns("wav_filename", "transcript", ("wav_filesize",))
    assert shown(rows_of(path)) == [(2, "a.wav", "one two", "12"), (3, "b.wav", "three, four", "13")]


#: Rows as Common Voice's files have them: quotes are part of the sentence, wherever they stand.
COMMON_VOICE = (
    "client_id\tpath\tsentence\tup_votes\n"
    'a1\tcommon_voice_de_1.mp3\t"Ja", sagte er.\t2\n'
    'a2\tcommon_voice_de_2.mp3\tEin " allein; und, so weiter\t3\n'
)


def test_tables_of_common_voice(tmp_path):
    path = written(tmp_path, "train.tsv", COMMON_VOICE)
    assert columns_of(path) == Columns("path", "sentence", ("client_id", "up_votes"))
    assert shown(rows_of(path)) == [
        (2, "clips/common_voice_de_1.mp3", '"Ja", sagte er.', "a1", "2"),
        (3, "clips/common_voice_de_2.mp3", 'Ein " allein; und, so weiter', "a2", "3"),
    ]
    assert list(named_paths(path)) == ["clips/common_voice_de_1.mp3", "clips/common_voice_de_2.mp3"]


@pytest.mark.parametrize(("name", "column"), [("m.tsv", "audio"), ("m.csv", "path")])
def test_only_bare_names_of_common_voice_lie_in_its_folder(tmp_path, name, column):
    path = written(tmp_path, name, f"{column}\ttext\na.wav\tx\n")
    assert shown(rows_of(path)) == [(2, "a.wav", "x")]
    path = written(tmp_path, "n.tsv", "path\ttext\nsounds/a.wav\tx\n")
    assert shown(rows_of(path)) == [(2, "sounds/a.wav", "x")]


@pytest.mark.parametrize(("delimiter", "named"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs")])
def test_what_parts_the_cells_of_a_csv_is_seen_in_its_first_line(tmp_path, delimiter, named):
    rows = (["audio", "text"], ["a.wav", '"one; two, three\tfour"'], ["b.wav", "x", "y"])
    path = written(tmp_path, "m.csv", "".join(delimiter.join(cells) + "\n" for cells in rows))
    good, bad = rows_of(path)
    assert (good.path, good.text) == ("a.wav", "one; two, three\tfour")
    assert bad.detail == f"expected 2 columns, got 3: put a text with {named} in quotes"
    assert list(named_paths(path)) == ["a.wav", "b.wav"]


def test_a_row_of_a_tsv_with_a_tab_too_many_is_no_matter_of_quotes(tmp_path):
    (bad,) = rows_of(written(tmp_path, "m.tsv", 'audio\ttext\na.wav\t"x\ty"\n'))
    assert (bad.reason, bad.detail) == ("malformed", "expected 2 columns, got 3")


def test_json_lines_of_nemo(tmp_path):
    rows = [
        {"audio_filepath": "a.wav", "duration": 1.5, "text": "one"},
        {"audio_filepath": "b.wav", "duration": 2, "text": ""},
    ]
    path = written(tmp_path, "m.json", "\n".join(map(json.dumps, rows)))
    assert shown(rows_of(path)) == [(1, "a.wav", "one", "1.5"), (2, "b.wav", "", "2")]


def test_columns_of_json_are_those_of_any_object_and_may_be_missing(tmp_path):
    path = written(
        tmp_path, "m.jsonl", '{"audio":"a","text":"x"}\n\n{"audio":"b","text":"y","speaker":null,"tags":["é"]}\n'
    )
    assert columns_of(path).others == ("speaker", "tags") or columns_of(path).others == ("tags",)
    assert shown(rows_of(path))[1][:3] == (3, "b", "y")
    assert shown(rows_of(path))[1][-1] == '["é"]'


def test_lines_count_from_where_a_quoted_row_begins(tmp_path):
    path = written(tmp_path, "m.csv", '\ufeffaudio,text\na.wav,"one\ntwo"\n\nb.wav,three\n')
    assert shown(rows_of(path)) == [(2, "a.wav", "one\ntwo"), (5, "b.wav", "three")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("m.csv", "audio,text\na.wav\nb.wav,x\n", [(2, "missing_column"), (3, "b.wav", "x")]),
        ("m.csv", "audio,text\n,x\n", [(2, "missing_column")]),
        ("m.csv", "audio,text\na.wav,one, two\n", [(2, "malformed")]),
        ("m.csv", b"audio,text\na.wav,caf\xe9\nb.wav,x\n", [(2, "not_utf8"), (3, "b.wav", "x")]),
        ("m.csv", "audio,text\n" + "x" * 200_000 + ",y\nb.wav,x\n", [(2, "malformed"), (3, "b.wav", "x")]),
        ("m.jsonl", '{"audio":"a","text":"x"}\n{"audio":"b"}\n', [(1, "a", "x"), (2, "missing_column")]),
        ("m.jsonl", '{"audio":"a"}\nnonsense\n[1]\n', [(1, "a", ""), (2, "malformed"), (3, "malformed")]),
        ("m.jsonl", '{"audio":"a"}\n{"audio":"\\ud800"}\n', [(1, "a", ""), (2, "not_utf8")]),
        ("m.jsonl", '{"audio":"a\\u0000b"}\n', [(1, "malformed")]),
        ("m.jsonl", '{"audio":"a","offset":0}\n{"audio":"a","offset":"x"}\n', [(1, "a", "", "0"), (2, "malformed")]),
    ],
)
def test_bad_rows_have_line_and_reason(tmp_path, name, content, expected):
    assert shown(rows_of(written(tmp_path, name, content))) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "m.txt",
            "audio\ta\n",
            r'expected a manifest that ends in \.csv, \.tsv, \.jsonl or \.json \(one object a line\), got "m\.txt"',
        ),
        ("m.csv", "file,words\na,b\n", r'expected a column "audio" or .*"path", got the columns file, words\. Rename'),
        ("m.csv", "", r"got no columns"),
        ("m.jsonl", "\n", r"got no columns"),
    ],
)
def test_a_manifest_that_says_nothing_of_audio_is_refused(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        columns_of(written(tmp_path, name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "m.csv",
            "text,audio\nx,a.wav\nshort\nx,b.wav,too,long\n\nx,\xff.wav\n" + 'x,"' + "l" * 200_000 + '"\nx,c.wav\n',
        ),
        (
            "m.jsonl",
            '{"audio":"a.wav"}\nno object\n{"text":"x"}\n{"audio":"b.wav"}\n1\n{"audio":"\xff.wav"}\n{"audio":"c.wav"}',
        ),
    ],
)
def test_the_files_that_rows_name_are_told_quickly_those_of_bad_rows_too(tmp_path, name, content):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    assert list(named_paths(tmp_path / name)) == ["a.wav", "b.wav", "\udcff.wav", "c.wav"]
