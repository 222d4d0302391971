"""Places that are closed: who need not write there serves, and who must says so in one sentence before any work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import trainer_client
from shared.keys import make_keys
from tests.end_to_end.test_several_jobs import command
from tests.support.closed import CLOSED, may_close
from tests.support.fleet import fleet
from tests.support.forked import run_module, start_module
from tests.support.loaders import ROOT, running, wait_until, write_job
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = 'keys = "keys"'


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody may write to, with a job file in it, and nothing that was made of that."""
    folder = tmp_path / "closed"
    folder.mkdir()
    write_job(folder, samples=6)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The only folder that can be written to, where a machine is read-only."""
    if not may_close():
        pytest.skip("only root can make file systems read-only")
    folder = tmp_path / "alone"
    folder.mkdir()
    return folder


def said_by(*words: object) -> str:
    """What a command without root's rights complains of: one sentence, and no more."""
    code, _, errors = run_module(CLOSED, *map(str, words))
    assert code == 1, errors
    assert errors.count("\n") == 1, errors
    assert errors.startswith(("loader-server: ", "trainer-client: "))
    return errors


@pytest.mark.fault(66)
@pytest.mark.parametrize(
    "words", [("index",), ("index", "--processes", 1), ("coordinator",), ("run", "--workers", 1)], ids=str
)
def test_who_needs_a_state_folder_names_the_setting_the_folder_and_the_user(
    closed: Path, words: tuple[object, ...]
) -> None:
    name, *options = words
    errors = said_by("loader_server", name, closed / "job.toml", *options)
    assert f"{closed / 'job.toml'}, [job], state: expected a folder that user {os.geteuid()} may write to" in errors
    assert f"got {closed} of user {closed.stat().st_uid} with mode 555. Let this user write there" in errors


@pytest.mark.fault(66)
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("loader_server", "keys", "{}/keys"), "{}/keys"),
        (("loader_server", "fetch", "tcp://127.0.0.1:9", "--state", "{}/s"), "--state"),
        (("loader_server", "run", "tcp://127.0.0.1:9", "--state", "{}/s"), "--state"),
        (("loader_server", "demo", "--keep", "{}/demo"), "{}/.demo"),
        (("trainer_client", "load-test", "train", "--report", "{}/report"), "--report"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_who_writes_says_where_it_may_not(closed: Path, words: tuple[str, ...], where: str) -> None:
    errors = said_by(*(word.format(closed) for word in words))
    assert f": {where.format(closed)}" in errors
    assert "may write to" in errors or "Permission denied" in errors


@pytest.mark.fault(66)
@pytest.mark.parametrize(
    ("state", "statistics", "where"),
    [
        ("closed/state", "s.json", "[job], state"),
        ("state", "closed/s.json", "[streams.train], normalise, statistics"),
    ],
)
def test_statistics_are_refused_before_the_data_are_read(
    tmp_path: Path, state: str, statistics: str, where: str
) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    transforms = ("logmel", "normalise", "characters")
    job = write_job(tmp_path, samples=6, transforms=transforms, job=f'state = "{state}"')
    job.write_text(job.read_text() + f'[streams.train.normalise]\nstatistics = "{statistics}"\n')
    errors = said_by("loader_server", "index", job, "--statistics")
    assert f"{where}: expected a folder that user {os.geteuid()} may write to, got {tmp_path / 'closed'}" in errors
    assert not (tmp_path / "state").exists()


@pytest.mark.fault(66)
def test_what_is_indexed_already_is_planned_shown_and_found_unchanged(closed: Path) -> None:
    job = closed / "job.toml"
    closed.chmod(0o755)
    assert command("index", job)[0] == 0
    state = closed / ".stoker"
    folders = [state, *(path for path in state.rglob("*") if path.is_dir())]
    for folder in (closed, *folders):
        folder.chmod(0o555)
    try:
        for words in (("index", job), ("plan", job), ("show", job)):
            code, _, errors = run_module(CLOSED, "loader_server", *map(str, words))
            assert (code, errors) == (0, "")
        assert "with mode 555" in said_by("loader_server", "coordinator", job)
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.slow
@pytest.mark.fault(66)
def test_a_worker_on_a_read_only_machine_serves_with_one_warning(tmp_path: Path) -> None:
    if not may_close():
        pytest.skip("only root can make file systems read-only")
    job = write_job(tmp_path, samples=24, job='feature_cache_bytes = "1 MB"')
    with fleet(job, "usual") as loaders:
        usual = read(loaders.endpoint)
    before = len(loaders.text())
    with fleet(job) as loaders:
        words = (CLOSED, "only=", "loader_server", "worker", str(job), "--name", "closed")
        loaders.processes["closed"] = start_module(
            (*words, "--coordinator", loaders.endpoint), folder=tmp_path, log=loaders.log, environment=environment()
        )
        wait_until(lambda: "closed" in loaders.members(), "the worker registers")
        assert read(loaders.endpoint) == usual
    said = loaders.text()[before:]
    assert said.count('"level": "warning"') == 3, "the state folder, and the feature cache of each of two streams"
    assert said.count("state folder is closed") == 1
    assert f"{tmp_path / '.stoker' / 'tones'}, which is on a read-only file system" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.fault(66)
def test_a_host_of_which_only_one_folder_can_be_written_joins_and_serves(tmp_path: Path, alone: Path) -> None:
    job = write_job(tmp_path, samples=24)
    log = tmp_path / "joined.log"
    log.touch()
    with running(job, workers=1) as loaders:
        usual = read(loaders.endpoint)
        words = (CLOSED, f"only={alone}", "loader_server", "run", loaders.endpoint, "--workers", "1")
        joined = start_module(
            (*words, "--state", str(alone / "state")), folder=tmp_path, log=log, environment=environment()
        )
        try:
            wait_until(lambda: "has 1 workers of this host" in log.read_text(), "the host has joined")
            loaders.workers()[0].kill()
            assert read(loaders.endpoint) == usual
        finally:
            joined.terminate()
            assert joined.wait(60) == 0
    assert "Traceback" not in log.read_text()
    assert '"level": "warning"' not in log.read_text()


@pytest.mark.fault(66)
@pytest.mark.parametrize("words", [("coordinator",), ("worker",), ("run", "--workers", "1")], ids=str)
@pytest.mark.parametrize("folder", ["keys", "keys/allowed", "keys/allowed/trainer"])
def test_whoever_may_not_look_into_a_folder_of_keys_serves_nobody(
    tmp_path: Path, words: tuple[str, ...], folder: str
) -> None:
    make_keys(tmp_path / "keys")
    job = write_job(tmp_path, samples=6, job=KEYS)
    assert command("index", job)[0] == 0
    (tmp_path / folder).chmod(0)
    try:
        name, *options = words
        errors = said_by("loader_server", name, job, *options)
    finally:
        (tmp_path / folder).chmod(0o755)
    assert f"{tmp_path / folder}" in errors
    assert "ermission denied" in errors
    assert "Let this user read it and its folder (chown, chmod)" in errors


@pytest.mark.slow
@pytest.mark.fault(66)
def test_lines_are_indexed_by_one_process_where_processes_cannot_share_work(tmp_path: Path, alone: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(f"line {number}\n" for number in range(200_000)))
    job = tmp_path / "job.toml"
    job.write_text(LINES.format(state=alone))
    code, said, errors = run_module(CLOSED, f"only={alone}", "loader_server", "index", str(job), "--processes", "2")
    assert code == 0, errors
    assert "train: 200000 samples" in said
    assert errors.count("one process works alone: processes share work through /dev/shm") == 1
    assert '"level": "warning"' in errors


LINES = """
[job]
name = "lines"
state = "{state}"
[streams.train]
source = "lines"
paths = ["t.txt"]
transforms = ["characters"]
length = "text"
budget = "2000 characters"
"""


# --- trainers ---


@pytest.mark.fault(66)
def test_without_a_place_for_temporary_files_the_remedy_is_said(alone: Path) -> None:
    errors = said_by(f"only={alone}", "trainer_client", "load-test", "train")
    assert "TMPDIR: expected" in errors
    assert "Set TMPDIR to a folder that this user may write to." in errors


@pytest.mark.slow
@pytest.mark.fault(66)
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("train", "--checkpoint", "{}/checkpoints", "--epochs", "1"), "--checkpoint"),
        (("train", "--checkpoint", "{}/../c", "--epochs", "1", "--summaries", "{}/logs"), "--summaries"),
        (("train", "--checkpoint", "{}/../c", "--epochs", "1", "--export", "{}/model.keras"), "--export"),
        (("evaluate", "--checkpoint", "{}/../c", "--stream", "dev", "--summaries", "{}/logs"), "--summaries"),
        (("predict", "--checkpoint", "{}/../c", "--stream", "dev", "--output", "{}/out.jsonl"), "--output"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_a_trainer_is_refused_before_it_trains(closed: Path, words: tuple[str, ...], option: str) -> None:
    job = write_job(closed.parent, samples=6)
    model = ("--model", "trainer_client.demo")
    with (
        running(job, workers=1) as loaders,
        Program(
            closed.parent, "trainer_client", *(word.format(closed) for word in words), *model,
            "--feed", loaders.endpoint, module=CLOSED,
        ) as program,
    ):  # fmt: skip
        code, said, errors = program.ended()
    assert code == 1
    assert f"trainer-client: {option}: expected a folder that user {os.geteuid()} may write to, got {closed}" in errors
    assert "Traceback" not in errors
    assert "epoch 1" not in said


def read(endpoint: str) -> list[tuple[int, int]]:
    """The first epoch of the stream dev, as (number, digest)."""
    with trainer_client.connect(endpoint, stream="dev", lost_timeout_s=60) as feed:
        return [(batch.number, batch.digest) for batch in feed]


def environment() -> dict[str, str]:
    """The environment of a process of ours."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
