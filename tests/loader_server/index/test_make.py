"""The index: whole or not at all, the same however it is made, every bad row reported."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import soundfile

import loader_server.index.make as making
from loader_server.index.make import IndexRequest, make_index, open_index
from loader_server.sources.source import Source
from loader_server.transforms.chain import Chain
from shared.bad_limit import BadLimit
from shared.errors import DataError
from shared.wire.batch_layout import Field
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.corpora import make_corpus, utterances
from tests.support.sources import spec_of

RAW = (Field(key="audio", dtype="float32", shape=(None,)),)

FUNCTIONS = """
import numpy as np

def doubled(sample, rng):
    sample["audio"] = np.repeat(sample["audio"], 2)

def same(sample, rng):
    sample["audio"] = -sample["audio"]

def changing(sample, rng):
    if sample["text"].startswith("seven"):
        sample["audio"] = sample["audio"].astype("float64")

def changing_shape(sample, rng):
    sample["extra"] = np.zeros((2, 3 if sample["text"].startswith("seven") else 4), np.int8)

def failing(sample, rng):
    if sample["text"].startswith("seven"):
        raise ValueError("no sevens")
"""


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "corpus", samples=6)


@pytest.fixture
def users(tmp_path, monkeypatch):
    name = f"functions_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FUNCTIONS))
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *names: Chain.make(tuple(n if n == "logmel" else f"{name}:{n}" for n in names), {}, "job", RAW)


def request(manifest, **changes):
    base = manifest.parent
    spec = spec_of("manifest", base, paths=[manifest.name])
    return IndexRequest(**{"folder": base / "index", "spec": spec, "source": spec.make(), "processes": 1, **changes})


def lengths(index, manifest):
    source = spec_of("manifest", manifest.parent, paths=[manifest.name]).make()
    source.open(index.indexed)
    return source.lengths


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder):
    """All that an index holds, but names that differ each time."""
    (columns,) = (path for path in folder.iterdir() if path.is_dir())
    meta = json.loads((folder / "meta.json").read_text())
    return {path.name: path.read_bytes() for path in columns.iterdir()}, {**meta, "folder": ""}


def test_an_index_knows_lengths_and_segments(corpus):
    report = make_index(request(corpus))
    index = open_index(report.folder)
    made = utterances(6)
    assert (index.samples, report.samples, report.rows, report.bad) == (6, 6, 6, ())
    assert lengths(index, corpus)["audio"].tolist() == [len(u.audio) for u in made]
    assert lengths(index, corpus)["audio_rate"].tolist() == [8000] * 6
    assert lengths(index, corpus)["text"].tolist() == [len(u.text) for u in made]
    assert index.fingerprint == report.fingerprint
    assert len(index.fingerprint) == 32


def test_the_index_is_the_same_whatever_the_number_of_processes(corpus, monkeypatch, users):
    chain = users("doubled")
    monkeypatch.setattr("loader_server.index.request._MEASURED_PIECES_THAT_PAY", 0)
    monkeypatch.setattr(Source, "measured_rows", 1)
    with corpus.open("a") as file:
        file.write("missing.wav,x\n")
    seen = []
    one = make_index(request(corpus, chain=chain))
    first = content(corpus.parent / "index")
    several = make_index(request(corpus, chain=chain, processes=2, progress=lambda *at: seen.append(at)))
    assert content(corpus.parent / "index") == first
    assert (several.fingerprint, several.bad) == (one.fingerprint, one.bad)
    assert seen == [(done, 7) for done in range(8)]


def test_indexing_again_gives_the_same_fingerprint_and_another_data_set_another(corpus, tmp_path):
    first = make_index(request(corpus)).fingerprint
    assert make_index(request(corpus)).fingerprint == first
    copy = make_corpus(tmp_path / "copy", samples=6)
    assert make_index(request(copy)).fingerprint == first
    copy.write_text(copy.read_text().replace("zero", "hero"))
    assert make_index(request(copy)).fingerprint != first
    (copy.parent / "other.csv").write_text(copy.read_text())
    assert make_index(request(copy.parent / "other.csv")).fingerprint != make_index(request(copy)).fingerprint


def test_an_index_has_the_fingerprint_that_it_always_had(tmp_path):
    """Plans and checkpoints hang on it: whoever changes this raises FORMAT."""
    for style, fingerprint in GOLDEN.items():
        report = make_index(request(make_corpus(tmp_path / style, samples=6, style=style)))
        assert (style, report.fingerprint) == (style, fingerprint)


def test_what_a_source_says_may_stand_among_the_rest_as_it_did_in_older_indexes(corpus):
    folder = make_index(request(corpus)).folder
    before = open_index(folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta.pop("about"), **meta}))
    after = open_index(folder)
    assert after.meta == before.meta
    assert after.indexed.about == {"others": [], "rate": 8000}
    assert lengths(after, corpus)["audio"].tolist() == lengths(before, corpus)["audio"].tolist()


def bad_corpus(folder):
    """The manifest with one of each fault."""
    manifest = make_corpus(folder, samples=2)
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.wav").write_text("I am no audio.\n" * 40)
    soundfile.write(folder / "nothing.wav", np.zeros(0, np.float32), 8000)
    (folder / "raw.raw").write_bytes(b"0123456789" * 10)
    (folder / "folder.wav").mkdir()
    os.mkfifo(folder / "pipe.wav")
    rows = ["missing.wav,x", "empty.wav,x", "nothing.wav,x", "text.wav,x", "clips/00000.wav," + utterances(1)[0].text]
    rows += ["clips/00001.wav", "raw.raw,x", "folder.wav,x", "pipe.wav,x"]
    with manifest.open("a") as file:
        file.write("\n".join(rows) + "\n")
    return manifest


GOLDEN = {
    "csv": "5fb1640a000ef81322075ba55143466a",
    "nemo": "b7677d1b0ad9c4ada4848f27ff178846",
}

REASONS = [
    "missing_file",
    "empty_file",
    "empty_audio",
    "undecodable",
    "duplicate",
    "missing_column",
    "undecodable",
    "not_a_file",
    "not_a_file",
]


def test_bad_rows_are_reported_with_line_and_reason_and_the_others_indexed(tmp_path):
    report = make_index(request(bad_corpus(tmp_path)))
    assert report.samples == 2
    assert report.rows == 11
    assert [(row.line, row.reason) for row in report.bad] == list(enumerate(REASONS, 4))
    assert report.bad_counts == {reason: REASONS.count(reason) for reason in sorted(set(REASONS))}
    assert open_index(report.folder).meta.bad == report.bad_counts
    assert {row.where for row in report.bad} == {str(tmp_path / "csv.csv")}
    details = {row.reason: row.detail for row in report.bad}
    assert details["duplicate"] == f"expected each row once, got clips/00000.wav as in {tmp_path / 'csv.csv'}, line 2"
    assert details["missing_file"] == f"No such file or directory: {tmp_path / 'missing.wav'}"
    assert details["missing_column"] == 'expected a value for the column "text", got none'
    assert details["empty_audio"] == f"expected audio, got a file of zero samples: {tmp_path / 'nothing.wav'}"


def test_strict_refuses_bad_rows_and_leaves_no_index(tmp_path):
    manifest = bad_corpus(tmp_path)
    message = (
        r"csv.csv: expected only good rows, as --strict asks, "
        r"got 9 bad of 11 \(2 not_a_file, 2 undecodable, 1 .*line 4: missing_file: "
    )
    with pytest.raises(DataError, match=message):
        make_index(request(manifest, strict=True))
    assert not (tmp_path / "index" / "meta.json").exists()


def test_a_manifest_without_a_good_row_is_refused(tmp_path):
    (tmp_path / "m.csv").write_text("audio,text\nmissing.wav,x\n")
    with pytest.raises(DataError, match=r"expected at least one good row, got 1 bad of 1 \(1 missing_file\)"):
        make_index(request(tmp_path / "m.csv"))
    (tmp_path / "m.csv").write_text("audio,text\n")
    with pytest.raises(DataError, match=r"expected at least one good row, got 0 bad of 0 \(no rows at all\)"):
        make_index(request(tmp_path / "m.csv"))


INTERRUPTED = """
import pathlib, sys, time
import loader_server.index.make as making
from tests.support.sources import spec_of

def progress(done, total):
    if done == 2:
        print("under way", flush=True)
        while True:  # a signal just before one of them is heeded after it
            time.sleep(0.05)

if __name__ == "__main__":
    base = pathlib.Path(sys.argv[1])
    spec = spec_of("manifest", base, paths=["csv.csv"])
    request = making.IndexRequest(
        folder=base / "index", spec=spec, source=spec.make(), processes=2, piece_rows=1, progress=progress
    )
    try:
        making.make_index(request)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_ctrl_c_of_the_whole_group_ends_quietly_without_processes_or_an_index(corpus, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, script, corpus.parent]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, **pipes, env=paths, start_new_session=True) as process:
        assert process.stdout.readline() == b"under way\n"
        os.killpg(process.pid, signal.SIGINT)
        # Returns once every process that held the pipes is gone.
        assert process.communicate() == (b"", b"")
    assert process.returncode == 130
    assert not (corpus.parent / "index" / "meta.json").exists()


def test_a_new_index_replaces_the_old_one_and_what_a_killed_indexer_left(corpus):
    make_index(request(corpus))
    folder = corpus.parent / "index"
    old = open_index(folder)
    (folder / "columns-left").mkdir()
    corpus.write_text("\n".join(corpus.read_text().splitlines()[:3]) + "\n")
    make_index(request(corpus))
    assert open_index(folder).samples == 2
    assert old.indexed.strings["path"][5] == "clips/00005.wav"
    assert len(files(folder)) == 2
    assert files(folder)[1] == "meta.json"


def test_a_second_indexer_is_refused(corpus):
    def again(done, total):
        if done:
            make_index(request(corpus))

    with pytest.raises(
        DataError,
        match=r"index: expected to be the only one that makes this index, got another loader-server index at work",
    ):
        make_index(request(corpus, progress=again))
    assert make_index(request(corpus)).samples == 6


def test_a_missing_index_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: expected an index, got none\. Run loader-server index"):
        open_index(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.write_text("{"), r"expected a whole index, got .*It is damaged: run loader-server index"),
        (lambda meta: meta.write_text("[]"), r"expected an index of format 1, got format none"),
        (
            lambda meta: meta.write_text(meta.read_text().replace('"format": 1', '"format": 9')),
            r"format 1, got format 9.*another version",
        ),
        (
            lambda meta: meta.write_text(meta.read_text().replace('"recipe"', '"recip"')),
            r"expected a whole index, got .*recip",
        ),
        (lambda meta: next(meta.parent.glob("*/frames.npy")).unlink(), r"expected a whole index, got .*frames.npy"),
        (lambda meta: next(meta.parent.glob("*/frames.npy")).write_bytes(b"x"), r"expected a whole index"),
        (lambda meta: shorten(next(meta.parent.glob("*/frames.npy"))), r"expected a whole index"),
    ],
)
def test_a_damaged_index_is_refused_and_can_be_made_anew(corpus, change, message):
    folder = make_index(request(corpus)).folder
    change(folder / "meta.json")
    with pytest.raises(DataError, match=message):
        open_index(folder)
    make_index(request(corpus))
    assert open_index(folder).samples == 6


def test_an_index_of_another_user_is_not_called_damaged(corpus):
    folder = make_index(request(corpus)).folder
    folder.chmod(0o700)
    with as_another_user(), pytest.raises(DataError, match=r"Permission denied.*Let this user read it"):
        open_index(folder)


@pytest.mark.fault(66)
def test_an_index_of_another_user_is_read(corpus):
    with folder_for_all() as folder:
        make_index(request(corpus, folder=folder / "index"))
        with as_another_user():
            assert open_index(folder / "index").samples == 6


def test_an_index_made_with_other_settings_is_refused(corpus):
    index = open_index(make_index(request(corpus)).folder)
    index.refuse_other_source("manifest", spec_of("manifest", corpus, paths=["csv.csv"]).settings)
    message = r'index made with source = "manifest", paths = \["b.csv"\], got one made with .*\["csv.csv"\]\. The'
    with pytest.raises(DataError, match=message):
        index.refuse_other_source("manifest", spec_of("manifest", corpus, paths=["b.csv"]).settings)


def test_a_setting_that_came_later_changes_no_index_that_does_not_say_it(corpus):
    plain = open_index(make_index(request(corpus)).folder)
    assert plain.meta.settings == {"paths": ["csv.csv"]}
    said = spec_of("manifest", corpus.parent, paths=["csv.csv"], channel=0)
    with pytest.raises(DataError, match="channel = 0"):
        plain.refuse_other_source("manifest", said.settings)
    chosen = open_index(
        make_index(request(corpus, spec=said, source=said.make(), folder=corpus.parent / "chosen")).folder
    )
    assert chosen.meta.settings["channel"] == 0


def shorten(path):
    path.write_bytes(path.read_bytes()[:-8])


# --- lengths that are measured ---


def test_undeclared_transforms_are_measured(corpus, users):
    chain = users("doubled")
    index = open_index(make_index(request(corpus, chain=chain)).folder)
    assert index.measured_lengths(chain)["audio"].tolist() == [2 * len(u.audio) for u in utterances(6)]
    assert index.bound(chain).fields == (Field(key="audio", dtype="float32", shape=(None,)),)


def test_a_measured_field_keeps_its_time_where_lengths_are_the_declared_ones(corpus, users):
    index = open_index(make_index(request(corpus, chain=users("same", "logmel"))).folder)
    assert index.fields == (Field(key="audio", dtype="float32", shape=(None, 80), per_second=100.0),)
    index = open_index(make_index(request(corpus, chain=users("doubled", "logmel"))).folder)
    assert index.fields == (Field(key="audio", dtype="float32", shape=(None, 80)),)


def test_declared_chains_need_no_measuring(corpus, users):
    index = open_index(make_index(request(corpus, chain=users("logmel"))).folder)
    assert index.measured == {}
    assert index.bound(users("logmel")).fields[0].per_second == 100.0


def test_lengths_measured_with_other_transforms_are_refused(corpus, users):
    index = open_index(make_index(request(corpus, chain=users("doubled"))).folder)
    with pytest.raises(
        DataError,
        match=r"index: expected an index whose lengths were measured with these transforms, got one measured",
    ):
        index.measured_lengths(users("same"))
    plain = open_index(make_index(request(corpus)).folder)
    with pytest.raises(DataError, match=r"got one without measured lengths\. Run loader-server index, or declare"):
        plain.bound(users("same"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "changing",
            r'0000\d.wav \(.*, line \d\): expected "audio" as float32 \[any\], as .* got "audio" as float64 \[any\]',
        ),
        (
            "changing_shape",
            r'expected "extra" as int8 \[any, 4\], as the samples before, got "extra" as int8 \[any, 3\]',
        ),
    ],
)
def test_a_dtype_or_shape_that_changes_is_refused_while_indexing(corpus, users, monkeypatch, name, message):
    for rows in (1, 16):
        monkeypatch.setattr(Source, "measured_rows", rows)
        with pytest.raises(DataError, match=message):
            make_index(request(corpus, chain=users(name)))
    assert not (corpus.parent / "index").exists()


@pytest.mark.fault(7)
def test_a_sample_whose_transform_fails_is_a_bad_row(corpus, users):
    report = make_index(request(corpus, chain=users("failing")))
    failing = [number for number, u in enumerate(utterances(6)) if u.text.startswith("seven")]
    assert [row.line for row in report.bad] == [number + 2 for number in failing]
    assert report.bad[0].reason == "transform"
    assert "ValueError: no sevens" in report.bad[0].detail
    assert len(open_index(report.folder).measured["audio"]) == 6 - len(failing)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (BadLimit(0.81), r"expected at most 81 % of .*max_bad.*, got 9 bad of 11 \(2 not_a_file, 2 undecodable, 1 "),
        (BadLimit(0.2), r"expected at most 20 % of the rows to be bad .*got 3 bad of the first 5 rows of 11 \(1 "),
        (BadLimit(samples=1), r"at most 1 samples of .*got 2 bad of the first 4 rows of 11 \(1 empty_file, 1 missing"),
    ],
)
def test_more_bad_rows_than_max_bad_are_refused_as_soon_as_that_is_certain(tmp_path, limit, said):
    manifest = bad_corpus(tmp_path)
    with pytest.raises(DataError, match=said + r".*jsonl: mend them, or raise max_bad in \[job\]\.$") as refused:
        make_index(request(manifest, max_bad=limit, piece_rows=1))
    counted = int(refused.value.got.split()[0])
    assert len((tmp_path / "index" / "refused_rows.jsonl").read_text().splitlines()) == counted
    assert files(tmp_path / "index") == ["refused_rows.jsonl"]


def test_as_many_bad_rows_as_max_bad_are_borne_and_an_unchanged_index_is_judged_again(tmp_path):
    manifest = bad_corpus(tmp_path)
    make_index(request(manifest, max_bad=BadLimit(samples=9)))
    assert making.unchanged_index(request(manifest, max_bad=BadLimit(9 / 11))) is not None
    assert making.unchanged_index(request(manifest, max_bad=BadLimit(samples=8))) is None
    with pytest.raises(DataError, match="at most 8 samples"):
        make_index(request(manifest, max_bad=BadLimit(samples=8)))
    assert open_index(tmp_path / "index").samples == 2
