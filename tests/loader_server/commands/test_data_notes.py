"""What `index` and `plan` say of letters and rates, for each kind of source and each state of an index."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import soundfile

from loader_server.cli import main
from loader_server.commands import data_notes
from loader_server.commands.index import index_missing, index_streams
from loader_server.index.folder import open_index
from loader_server.job_file import JobFile
from shared.errors import DataError
from tests.loader_server.sources.speech.kaldi_data import table, write_recordings
from tests.support.corpora import tone
from tests.support.shards import write_shard
from tests.support.stores import plain_server

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ("Weasels Ça und Ä", "all is well here, or is it", "thirty-three letters of no interest")
#: 13 + 19 + 30 letters.
LETTERS, DROPPED, FOLDED = 62, 2, 1
COUNTS = {
    "samples": 3,
    "letters": LETTERS,
    "dropped": DROPPED,
    "folded": FOLDED,
    "others_dropped": 2,
    "samples_dropped": 1,
    "samples_folded": 1,
    "samples_unknown": 3,
    "commonest": {"Ç": 1, "Ä": 1},
    "unknown": "drop",
}
LINES = 'source = "lines"\npaths = ["a.txt"]'


def write_clips(folder: Path, rate: int = 8000) -> list[str]:
    for number in range(len(TEXTS)):
        soundfile.write(folder / f"{number}.wav", tone(number, rate // 2, rate), rate)
    return [f"{number}.wav" for number in range(len(TEXTS))]


def write_lines(folder: Path) -> str:
    (folder / "a.txt").write_text("\n".join((*TEXTS, "")), "utf-8")
    return LINES


def write_csv(folder: Path) -> str:
    rows = [f'{clip},"{text}"' for clip, text in zip(write_clips(folder), TEXTS, strict=True)]
    (folder / "a.csv").write_text("\n".join(("audio,text", *rows, "")), "utf-8")
    return 'source = "manifest"\npaths = ["a.csv"]'


def write_jsonl(folder: Path) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps({"n": 1, "text": text}) + "\n" for text in TEXTS), "utf-8")
    return 'source = "jsonl"\npaths = ["a.jsonl"]'


def write_parallel(folder: Path) -> str:
    write_lines(folder)
    shutil.copy(folder / "a.txt", folder / "b.txt")
    return 'source = "parallel"\npaths = { other = "b.txt", text = "a.txt" }'


def write_kaldi(folder: Path) -> str:
    write_recordings(folder / "kaldi", "a", "b", "c", seconds=0.5)
    table(folder / "kaldi", "text", *(f"{key} {text}" for key, text in zip("abc", TEXTS, strict=True)))
    return 'source = "kaldi"\npaths = ["kaldi"]'


def write_cuts(folder: Path) -> str:
    with (folder / "cuts.jsonl").open("w", encoding="utf-8") as file:
        for clip, text in zip(write_clips(folder), TEXTS, strict=True):
            source = {"type": "file", "channels": [0], "source": clip}
            recording = {"id": clip, "sources": [source], "sampling_rate": 8000, "num_samples": 4000, "duration": 0.5}
            said = {"id": clip, "recording_id": clip, "start": 0.0, "duration": 0.5, "channel": 0, "text": text}
            cut = {"id": clip, "start": 0.0, "duration": 0.5, "channel": 0, "type": "MonoCut"}
            file.write(json.dumps(cut | {"supervisions": [said], "recording": recording}) + "\n")
    return 'source = "lhotse"\npaths = ["cuts.jsonl"]'


def write_parquet(folder: Path) -> str:
    columns = {"text": ["", None, *TEXTS][1:], "n": [0, 1, 2, 3]}
    pyarrow.parquet.write_table(pa.table(columns), folder / "a.parquet", row_group_size=2)
    return 'source = "parquet"\npaths = ["a.parquet"]'


def write_arrow(folder: Path) -> str:
    made = pa.table({"text": TEXTS, "n": [0, 1, 2]})
    with pa.ipc.new_file(folder / "a.arrow", made.schema) as file:
        file.write_table(made, max_chunksize=2)
    return 'source = "arrow"\npaths = ["a.arrow"]'


SOURCES = {
    "lines": write_lines,
    "manifest": write_csv,
    "jsonl": write_jsonl,
    "parallel": write_parallel,
    "kaldi": write_kaldi,
    "lhotse": write_cuts,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def job_with(folder: Path, stream: str, settings: str = "", transforms: str = '"characters"') -> Path:
    stream += f'\ntransforms = [{transforms}]\nlength = "text"\nbudget = "100 characters"'
    text = f'[job]\nname = "j"\nmax_bad = "100 %"\n[streams.train]\n{stream}\n{settings}\n'
    (folder / "job.toml").write_text(text, "utf-8")
    return folder / "job.toml"


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What a command prints; or its error, if it ends with one."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    out, err = capsys.readouterr()
    return err if ended.value.code else out


def notes_of(capsys: pytest.CaptureFixture[str], command: str, path: Path) -> dict[str, Any]:
    answer = json.loads(printed(capsys, command, path, "--json"))
    return answer["train"] if command == "index" else answer.get("notes", {}).get("train", {})


def folder_of(path: Path) -> Path:
    return JobFile(path).index_folder("train")


def index(path: Path, **how: Any) -> None:
    index_streams(JobFile(path), ["train"], processes=1, **how)


@pytest.mark.parametrize("kind", SOURCES)
def test_letters_are_counted_in_each_source_whose_texts_are_at_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = job_with(tmp_path, SOURCES[kind](tmp_path))
    assert notes_of(capsys, "index", path)["letters"] == COUNTS
    assert notes_of(capsys, "plan", path)["letters"] == COUNTS


def test_people_read_the_counts_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_with(tmp_path, write_lines(tmp_path))
    line = (
        "characters: 2 of 62 letters dropped (3.2 %), in 1 of 3 samples: 'Ä' 1, 'Ç' 1; 1 folded to the other case, in "
        "1 samples; 2 blanks and punctuation dropped\n"
    )
    assert f"\n  {line}" in printed(capsys, "index", path)
    assert f"\n  {line}" in printed(capsys, "index", path), "unchanged as well"
    assert f"train: {line}" in printed(capsys, "plan", path)


def test_texts_that_lose_nothing_are_told_shortly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("nothing but letters\n", "utf-8")
    printed_lines = printed(capsys, "index", job_with(tmp_path, LINES)).splitlines()
    assert printed_lines[1:] == ["  characters: none of 17 letters dropped"]


def test_masked_samples_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_with(tmp_path, write_lines(tmp_path), '[streams.train.characters]\nunknown = "mask"\nalphabet = "abc"')
    assert "letters outside the alphabet" in (out := printed(capsys, "index", path))
    assert out.endswith("; 3 samples are masked\n")


GERMAN = "Ä Ö ü ß\n"


def test_data_that_lose_more_letters_leave_no_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_with(tmp_path, LINES)
    (tmp_path / "a.txt").write_text(GERMAN, "utf-8")
    said = (
        r"\[streams\.train\]: expected at most 5 %.* got 4 of 4 \(100\.0 %\), in 1 of 1 samples, most often 'Ä' 1.*äößü"
    )
    with pytest.raises(DataError, match=said):
        index(path)
    assert not (folder_of(path) / "meta.json").exists()
    assert not list(tmp_path.rglob("columns*"))
    assert "expected an index, got none" in printed(capsys, "plan", path)
    with pytest.raises(DataError, match="at most 5 %"):
        index_missing(JobFile(path))


@pytest.mark.parametrize("line", ['unknown = "drop"', 'alphabet = "abcdefghijklmnopqrstuvwxyz \'0123456789äößü"'])
def test_either_line_that_the_refusal_names_makes_an_index(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(GERMAN, "utf-8")
    path = job_with(tmp_path, LINES, f"[streams.train.characters]\n{line}")
    index(path)
    index_missing(JobFile(path))


def test_the_index_that_was_there_stays_but_serves_no_job_that_drops_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(GERMAN, "utf-8")
    index(job_with(tmp_path, LINES, '[streams.train.characters]\nunknown = "drop"'))
    path = job_with(tmp_path, LINES)
    before = (folder_of(path) / "meta.json").read_bytes()
    for refused in (lambda: index(path), lambda: index_missing(JobFile(path))):
        with pytest.raises(DataError, match="expected at most 5 %"):
            refused()
    assert "expected at most 5 %" in printed(capsys, "plan", path)
    index_missing(JobFile(job_with(tmp_path, LINES, transforms='"tests.support.transforms:noise", "characters"')))
    assert (folder_of(path) / "meta.json").read_bytes() == before


def test_another_alphabet_is_counted_anew_without_another_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index(job_with(tmp_path, write_lines(tmp_path)))
    path = job_with(tmp_path, LINES, '[streams.train.characters]\nalphabet = "abcdefghijklmnopqrstuvwxyzäç"')
    for command in ("plan", "index"):
        assert notes_of(capsys, command, path)["letters"]["dropped"] == 0
    assert notes_of(capsys, "index", path)["unchanged"]
    index_streams(
        JobFile(job_with(tmp_path, LINES, '[streams.train.characters]\nalphabet = "zyx"\nunknown = "drop"')), ["train"]
    )
    with pytest.raises(DataError, match="expected at most 5 %"):
        index(job_with(tmp_path, LINES, '[streams.train.characters]\nalphabet = "zyx"'))


def test_an_index_without_counts_serves_and_plan_counts_what_is_soon_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_with(tmp_path, write_lines(tmp_path))
    index(path)
    (kept,) = folder_of(path).rglob("letters.json")
    for damage in (kept.unlink, lambda: kept.write_text("{"), lambda: kept.write_text("[]")):
        damage()
        index_missing(JobFile(path))
        assert notes_of(capsys, "plan", path)["letters"] == COUNTS
    monkeypatch.setattr(data_notes, "_COUNTED_AT_ONCE", 2)
    assert "loader-server index makes them" in notes_of(capsys, "plan", path)["letters"]["not_counted"]
    assert notes_of(capsys, "index", path)["letters"] == COUNTS
    assert notes_of(capsys, "plan", path)["letters"] == COUNTS


def test_an_index_where_counts_cannot_be_kept_serves_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_with(tmp_path, write_lines(tmp_path))
    index(path)
    (kept,) = folder_of(path).rglob("letters.json")
    kept.unlink()
    kept.mkdir()
    assert notes_of(capsys, "index", path)["letters"] == COUNTS
    assert kept.is_dir()
    assert notes_of(capsys, "plan", path)["letters"] == COUNTS


def test_counts_are_no_part_of_an_index(tmp_path: Path) -> None:
    index(job_with(tmp_path, write_csv(tmp_path), transforms='"logmel", "characters"'))
    path = job_with(
        tmp_path, write_csv(tmp_path), '[streams.train.characters]\nalphabet = "abcdefghijklmnopqrstuvwxyzäç"'
    )
    before = open_index(folder_of(path)).meta
    index(path, force=True)
    after = open_index(folder_of(path)).meta
    assert after.fingerprint == before.fingerprint
    assert after.about == before.about


def test_letters_that_cannot_be_counted_are_said_to_be_uncounted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "a.tar", [("1.txt", GERMAN.encode())])
    path = job_with(tmp_path, 'source = "webdataset"\npaths = ["a.tar"]')
    for command in ("index", "plan"):
        assert "only when its samples are read" in notes_of(capsys, command, path)["letters"]["not_counted"]
    own = "tests.support.transforms:noise"
    path = job_with(tmp_path, write_csv(tmp_path), transforms=f'"{own}", "characters"')
    said = f"characters: letters not counted: {own} comes before it and may change the texts"
    assert said in printed(capsys, "index", path)


@pytest.mark.parametrize("kind", ["lines", "jsonl", "parallel", "parquet"])
def test_remote_texts_are_not_fetched_again_to_be_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (tmp_path / "far").mkdir()
    stream = SOURCES[kind](tmp_path / "far")
    with plain_server(tmp_path / "far", ranges=True) as address:
        path = job_with(tmp_path, re.sub(r'"([ab]\.)', rf'"http://{address}/\1', stream))
        for command in ("index", "plan"):
            assert list(notes_of(capsys, command, path)["letters"]) == ["not_counted"]


def test_each_source_of_a_mixture_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.txt").write_text("nothing but letters\n")
    mixed = "".join(f'\n[[streams.train.sources]]\nsource = "lines"\npaths = ["{name}.txt"]' for name in "ab")
    write_lines(tmp_path)
    path = job_with(tmp_path, "", mixed)
    reports = json.loads(printed(capsys, "index", path, "--json"))
    dropped = [report["letters"]["dropped"] for report in reports.values()]
    notes = json.loads(printed(capsys, "plan", path, "--json"))["notes"]
    assert list(reports) == list(notes)
    assert dropped == [of["letters"]["dropped"] for of in notes.values()] == [2, 0]
    (tmp_path / "b.txt").write_text(GERMAN, "utf-8")
    with pytest.raises(DataError, match=r"got 4 of 4 "):
        index(path)


def test_recordings_of_a_lower_rate_are_told_with_the_bands_that_get_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_with(tmp_path, write_csv(tmp_path), transforms='"logmel", "characters"')
    (low,) = notes_of(capsys, "index", path)["low_rates"]
    assert notes_of(capsys, "plan", path)["low_rates"] == [low]
    facts = {"transform": "logmel", "rate": 16_000, "own_rate": 8000, "samples": 3, "highest_hz": 4000.0, "bands": 80}
    assert {**facts, "empty_bands": low["empty_bands"]} == low
    line = (
        "logmel: 3 samples are recorded at 8,000 Hz and resampled to 16,000 Hz: "
        f"{low['empty_bands']} of 80 bands are above 4,000 Hz and get nothing\n"
    )
    assert f"\n  {line}" in printed(capsys, "index", path)
    assert f"train: {line}" in printed(capsys, "plan", path)


def test_recordings_of_the_rate_of_their_features_are_not_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "[streams.train.logmel]\nrate = 8000"
    path = job_with(tmp_path, write_csv(tmp_path), settings, transforms='"logmel", "characters"')
    assert "low_rates" not in notes_of(capsys, "index", path)
    assert "low_rates" not in notes_of(capsys, "plan", path)


def test_recordings_that_are_cut_count_once_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = write_csv(tmp_path) + '\ntransforms = ["waveform"]\nlength = "audio"\nbudget = "9 s"\nchunk = "0.1 s"\n'
    (tmp_path / "job.toml").write_text(f'[job]\nname = "j"\n[streams.train]\n{stream}')
    (low,) = notes_of(capsys, "index", tmp_path / "job.toml")["low_rates"]
    assert (low["samples"], low["bands"]) == (3, 0)
    plan = printed(capsys, "plan", tmp_path / "job.toml")
    assert "resampled to 16,000 Hz: there is nothing above 4,000 Hz" in plan


def test_a_difference_in_alphabets_is_told_by_its_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_with(tmp_path, write_lines(tmp_path))
    index(path)
    other = tmp_path / "other.toml"
    other.write_text(path.read_text() + '[streams.train.characters]\nunknown = "mask"\n')
    differing = json.loads(printed(capsys, "plan", path, "--diff", other, "--json"))
    assert differing["notes.train.letters.unknown"] == ["drop", "mask"]
