"""The same bytes on machines of several kinds: a job that names a processor level, on this processor and emulated ones.

The emulator is `qemu-x86_64`, of Debian's qemu-user; without it only this processor is tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
from numpy._core import _multiarray_umath as numpy_loops  # what it chooses loops by

from loader_server.processor.levels import environment_of
from shared.memory import boot_id
from shared.settings.job import PROCESSORS
from tests.support.corpora import tone
from tests.support.forked import ROOT, run_module
from tests.support.level_digests import __file__ as PROGRAM
from tests.support.loaders import ask, wait_until
from tests.support.token_models import TEXTS, train_sentencepiece, train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Processors that the emulator can be, by the highest level that they are of.
EMULATED = {"x86-64-v2": "Nehalem", "x86-64-v3": "Haswell"}
WITH_AVX512 = bool(numpy_loops.__cpu_features__.get("X86_V4"))

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64")
emulating = pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64, of qemu-user")

STREAMS = """
[streams.logmel]
transforms = ["logmel", "spec_augment"]
[streams.librosa]
transforms = ["logmel"]
logmel = { convention = "librosa", rate = 16000 }
[streams.kaldi]
transforms = ["logmel"]
logmel = { convention = "kaldi", rate = 16000 }
[streams.mfcc]
transforms = ["mfcc"]
mfcc = { rate = 16000 }
[streams.resampled]
transforms = ["waveform"]
waveform = { rate = 22050 }
[streams.faster]
transforms = ["speed_perturb", "logmel"]
[streams.tokens]
transforms = ["tokenizers"]
tokenizers = { models = { text = "tokenizer.json" } }
[streams.pieces]
transforms = ["sentencepiece"]
sentencepiece = { models = { text = "pieces.model" } }
[streams.rooms]
transforms = ["noise", "reverberation", "waveform"]
noise = { recordings = { source = "manifest", paths = ["rooms.csv"] } }
reverberation = { recordings = { source = "manifest", paths = ["rooms.csv"] } }
"""


def write_recordings(folder: Path, suffixes: tuple[str, ...]) -> None:
    """Recordings of each format, and impulse responses."""
    rng = np.random.Generator(np.random.PCG64(5))
    rows, rooms = ["audio,text"], ["audio,text"]
    for number in range(2 * len(suffixes)):
        suffix = suffixes[number % len(suffixes)]
        sound = tone(number % 10, 9000 + 777 * number, 16000)
        sound = np.stack([sound, sound[::-1] + 0.02 * rng.standard_normal(len(sound))], axis=1)
        form = {"format": "OGG", "subtype": "OPUS"} if suffix == "opus" else {}
        soundfile.write(folder / f"{number}.{suffix}", sound, 16000, **form)
        rows.append(f"{number}.{suffix},{TEXTS[number % len(TEXTS)]}")
    for number in range(3):
        response = rng.standard_normal(3000) * np.exp(-np.arange(3000) / 400) / 8
        soundfile.write(folder / f"room{number}.wav", response, 16000)
        rooms.append(f"room{number}.wav,room")
    train_tokenizer(folder / "tokenizer.json")
    train_sentencepiece(folder / "pieces.model")
    (folder / "train.csv").write_text("\n".join(rows) + "\n")
    (folder / "rooms.csv").write_text("\n".join(rooms) + "\n")


def write_level_job(folder: Path, level: str, streams: str = STREAMS, *, name: str = "mixed") -> Path:
    common = 'source = "manifest"\npaths = ["train.csv"]\nlength = "audio"\nbudget = "90000 frames"\n'
    words = streams.replace("]\ntransforms", f"]\n{common}transforms")
    processor = f'processor = "{level}"\n' if level else ""
    path = folder / f"{level or 'any'}.toml"
    path.write_text(f'[job]\nname = "{name}"\nseed = 7\nlisten = "tcp://127.0.0.1:*"\n{processor}{words}')
    return path


def usual_environment() -> dict[str, str]:
    """This process's environment without limits, and as loaders have it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_CORETYPE", "NPY_"))}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def loader_server(*words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loader_server", *words]
    return subprocess.run(
        command, env=environment or usual_environment(), capture_output=True, text=True, check=False, timeout=250
    )


def digests(job: Path, level: str, *emulator: str) -> dict[str, Any]:
    """Return what the job's samples are in a process that keeps to the level, emulated if an emulator is named."""
    environment = environment_of(level, numpy_loops.__cpu_dispatch__, usual_environment(), boot_id())
    command = [*emulator, sys.executable, PROGRAM, str(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def emulated(processor: str) -> tuple[str, ...]:
    return ("qemu-x86_64", "-cpu", processor)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings, and the indexes of its jobs."""
    folder = tmp_path_factory.mktemp("mixed")
    write_recordings(folder, ("wav", "flac", "ogg", "opus", "mp3"))
    job = write_level_job(folder, "")
    done = loader_server("index", str(job))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@emulating
def test_a_level_gives_the_same_bytes_on_this_processor_and_on_an_older_one(recordings: Path) -> None:
    job = write_level_job(recordings, "x86-64-v3")
    here = digests(job, "x86-64-v3")
    assert len(here) == 9
    assert digests(job, "x86-64-v3", *emulated("Haswell")) == here


@pytest.mark.slow
@emulating
@pytest.mark.skipif(not WITH_AVX512, reason="this processor has no more than the emulated one")
def test_without_a_level_the_bytes_differ(recordings: Path) -> None:
    """Or the test above could not fail."""
    tables = re.split(r"(?=^\[streams)", STREAMS, flags=re.MULTILINE)
    job = write_level_job(recordings, "", "".join(table for table in tables if re.match(r".*(librosa|rooms)", table)))
    here, there = digests(job, ""), digests(job, "", *emulated("Haswell"))
    assert here.keys() == {"librosa", "rooms"}
    assert all(here[name]["samples"] != there[name]["samples"] for name in here)


@pytest.mark.slow
@emulating
def test_the_lowest_level_gives_the_same_bytes_with_and_without_avx(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("wav", "flac", "ogg", "opus"))
    job = write_level_job(tmp_path, "x86-64-v2")
    assert loader_server("index", str(job)).returncode == 0
    here = digests(job, "x86-64-v2")
    assert digests(job, "x86-64-v2", *emulated("Nehalem")) == here


@pytest.mark.slow
def test_levels_differ_so_each_does_something(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("flac",))
    assert loader_server("index", str(write_level_job(tmp_path, ""))).returncode == 0
    levels = PROCESSORS if WITH_AVX512 else PROCESSORS[:2]
    found = [digests(write_level_job(tmp_path, level), level)["librosa"] for level in levels]
    assert len({digest["samples"] for digest in found}) == len(levels)
    assert len({digest["builder"] for digest in found}) == len(levels)


@pytest.mark.slow
def test_commands_execute_themselves_again(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("flac",))
    job = write_level_job(tmp_path, "x86-64-v2")
    for command in (("index", str(job)), ("plan", str(job), "--stream", "mfcc")):
        done = loader_server(*command)
        assert done.returncode == 0, done.stderr
    # What the command's environment says counts, not what a user's shell says for another purpose.
    done = loader_server(
        "show", str(job), "--stream", "mfcc", environment={**usual_environment(), "OPENBLAS_CORETYPE": "Zen"}
    )
    assert done.returncode == 0, done.stderr


NATIVE = """
import msgpack
from loader_server.transforms import transform

@transform()
def unsure(sample, rng): pass

@transform(processor_safe=True)
def sure(sample, rng): pass
"""
PURE = """
import rich, math, soxr, numpy
from loader_server.transforms import transform

@transform()
def pure(sample, rng): pass
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What workers of a job at the lowest level are compared by, for transforms of one's own."""
    folder = tmp_path_factory.mktemp("own")
    write_recordings(folder, ("flac",))
    (folder / "native.py").write_text(NATIVE)
    (folder / "pure.py").write_text(PURE)
    own = {"unsure": "native:unsure", "sure": "native:sure", "pure": "pure:pure", "built_in": "logmel"}
    streams = "".join(f'[streams.{name}]\ntransforms = ["{transform}"]\n' for name, transform in own.items())
    job = write_level_job(folder, "x86-64-v2", streams)
    done = loader_server("index", str(job))
    assert done.returncode == 0, done.stderr
    return digests(job, "x86-64-v2")


@pytest.mark.parametrize("stream", ["sure", "pure", "built_in"])
def test_the_level_stands_in_place_of_the_features(compared: dict[str, Any], stream: str) -> None:
    assert compared[stream]["processor"] == "x86-64-v2"
    assert compared[stream]["unproved"] == {}


def test_native_code_that_promises_nothing_keeps_the_features(compared: dict[str, Any]) -> None:
    assert compared["unsure"]["unproved"] == {"native:unsure": ["msgpack"]}
    assert compared["unsure"]["processor"].startswith("x86-64-v2 x86_64 ")
    assert "OPENBLAS_CORETYPE=Nehalem" in compared["unsure"]["processor"]


@pytest.mark.slow
@emulating
def test_a_machine_below_the_level_is_refused(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("flac",))
    job = write_level_job(tmp_path, "x86-64-v3")
    command = [*emulated("Nehalem"), sys.executable, "-m", "loader_server", "index", str(job)]
    done = subprocess.run(command, env=usual_environment(), capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 1
    assert "expected a processor of level x86-64-v3 or above, got one without AVX, AVX2," in done.stderr
    assert f"{job}, [job], processor" in done.stderr


def test_mp3_is_refused_at_the_lowest_level(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("mp3",))
    done = loader_server("index", str(write_level_job(tmp_path, "x86-64-v2")))
    assert done.returncode == 1
    assert "got MP3, which libmpg123 decodes otherwise where there is AVX" in done.stderr
    assert 'processor = "x86-64-v3"' in done.stderr


# --- several jobs of one machine ---


@contextlib.contextmanager
def machine(*jobs: Path) -> Iterator[dict[str, str]]:
    """Serve jobs by one `loader-server run`; yield their endpoints by name."""
    log = jobs[0].parent / "run.log"
    command = [sys.executable, "-m", "loader_server", "run", *map(str, jobs), "--workers", str(len(jobs))]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=usual_environment(), stdout=file, stderr=file)
    try:
        wait_until(
            lambda: log.read_text().count("is served at") == len(jobs) or process.poll() is not None, "it serves"
        )
        assert process.poll() is None, log.read_text()
        yield dict(re.findall(r"Job (\S+) is served at (\S+)", log.read_text()))
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
        assert "killed" not in log.read_text()


def verified(endpoint: str, stream: str) -> str:
    ended, out, err = run_module("trainer_client", "verify", endpoint, "--stream", stream, "--json")
    assert ended == 0, err
    return str(json.loads(out)["digest"])


@pytest.mark.slow
def test_jobs_of_one_machine_keep_to_a_level_each(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("flac",))
    levels = ("", *PROCESSORS) if WITH_AVX512 else ("", *PROCESSORS[:2])
    jobs = [write_level_job(tmp_path, level, name=f"job{number}") for number, level in enumerate(levels)]
    with machine(*jobs) as endpoints:
        together = {name: verified(endpoint, "librosa") for name, endpoint in endpoints.items()}
    with machine(jobs[1]) as endpoints:
        assert verified(endpoints["job1"], "librosa") == together["job1"]
    assert len(set(together.values())) >= len(levels) - 1, "this processor's own kind may be one of the levels"


@pytest.mark.slow
def test_a_host_that_joins_keeps_to_the_level_of_the_job_that_it_fetched(tmp_path: Path) -> None:
    write_recordings(tmp_path, ("flac",))
    job = write_level_job(tmp_path, "x86-64-v2")
    log, state = tmp_path / "joined.log", tmp_path / "state"
    with machine(job) as endpoints, log.open("w") as file:
        words = ("run", endpoints["mixed"], "--workers", "1", "--state", str(state), "--data", str(tmp_path))
        command = [sys.executable, "-m", "loader_server", *words]
        joined = subprocess.Popen(command, env=usual_environment(), stdout=file, stderr=file)
        try:
            wait_until(lambda: "has 1 workers of this host" in log.read_text() or joined.poll() is not None, "joined")
            wait_until(lambda: len(ask(endpoints["mixed"])["workers"]) == 2, "its worker builds the same bytes")
        finally:
            joined.terminate()
            assert joined.wait(60) == 0, log.read_text()
    assert "keeps to" not in log.read_text()


@pytest.mark.slow
def test_samples_that_kill_are_found_by_children_of_the_same_level(tmp_path: Path) -> None:
    """A worker's children are forked from the nursery, which keeps to no level."""
    write_recordings(tmp_path, ("flac",))
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom loader_server.transforms import transform\n@transform()\n"
        "def deadly(sample, rng):\n    if sample['text'] == 'zero': os.abort()\n"
    )
    streams = '[streams.train]\ntransforms = ["deadly:deadly", "logmel"]\n'
    (tmp_path / "train.csv").write_text((tmp_path / "train.csv").read_text() + "0.flac,zero\n")
    jobs = [write_level_job(tmp_path, level, streams, name=f"job-{level}") for level in ("", "x86-64-v2")]
    with machine(*jobs) as endpoints:
        for name, endpoint in endpoints.items():
            assert verified(endpoint, "train")
            (path,) = tmp_path.glob(f".stoker/{name}/quarantine.jsonl")
            named = [json.loads(line) for line in path.read_text().splitlines()]  # by each worker that masks it
            assert {(sample["name"], sample["reason"]) for sample in named} == {("0.flac", "kills_decoder")}
