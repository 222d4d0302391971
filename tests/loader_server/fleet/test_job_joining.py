"""A host joins by endpoint: what it has afterwards, what it refuses, and what it fetches only once."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from loader_server.building.fingerprint import builder_fingerprint
from loader_server.commands.index import index_missing
from loader_server.commands.statistics import make_statistics
from loader_server.coordinator.service import open_coordinator
from loader_server.fleet import job_joining
from loader_server.fleet.bundle import Bundle, bundle_files
from loader_server.fleet.job_joining import JoinSettings, fetch, join
from loader_server.job_file import JobFile
from loader_server.job_folder import JobFolder
from loader_server.stream import Stream
from shared.errors import DataError, LostError, RefusedError, SettingsError
from shared.keys import ServerKeys, make_keys
from shared.system.endpoint_file import write_endpoint
from shared.wire import messages as m
from shared.wire.codec import encode
from tests.loader_server.fleet.bundles import answered, made
from tests.support.loaders import wait_until, write_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader_server.coordinator.service import Coordinator


def make_job(folder: Path, job: str = "") -> JobFile:
    """A job with a file that a transform names, indexed."""
    folder.mkdir()
    write_job(
        folder,
        samples=12,
        transforms=("logmel", "normalise", "characters"),
        job=job,
        stream='[streams.train.normalise]\nstatistics = "mean.json"',
    )
    made = JobFile(folder / "job.toml")
    make_statistics(made, ["train"], processes=1)
    index_missing(made)
    return made


@contextmanager
def served(job: JobFile, keys: Path | None = None, endpoint: str = "tcp://127.0.0.1:*") -> Iterator[Coordinator]:
    """The job's coordinator, in a thread of its own."""
    made: list[Coordinator] = []
    is_ready = threading.Event()

    def run() -> None:
        made.append(open_coordinator(job, endpoint, ServerKeys.read(keys, "coordinator") if keys else None))
        is_ready.set()
        made[0].run()

    thread = threading.Thread(target=run)
    thread.start()
    assert is_ready.wait(60)
    try:
        yield made[0]
    finally:
        made[0].stop()
        thread.join(30)


def builder(job: JobFile) -> str:
    return builder_fingerprint({name: Stream(job, name) for name in job.recipes}, {})


def joined(endpoint: str, state: Path, **how: Path) -> JobFile:
    with join(JoinSettings(endpoint=endpoint, state=state, **how)) as host:
        return JobFile(host.job_file)


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    return make_job(tmp_path / "own")


def test_it_would_build_the_same_bytes_and_has_settings_of_its_own(job: JobFile, tmp_path: Path) -> None:
    with served(job) as coordinator:
        other = joined(coordinator.endpoint, tmp_path / "state")
    assert builder(other) == builder(job)
    assert other.settings.listen == coordinator.endpoint
    assert other.state == tmp_path / "state" / "hosts" / os.uname().nodename / "tones"
    assert other.base == job.base
    for path in (other.path, other.index_folder("train"), other.cache.folder, other.feature_cache.folder):
        assert path.is_relative_to(tmp_path / "state")
    assert other.keys is None


def test_two_joins_of_one_state_folder_have_a_folder_and_a_name_each(job: JobFile, tmp_path: Path) -> None:
    with served(job) as coordinator:
        settings = JoinSettings(endpoint=coordinator.endpoint, state=tmp_path / "state")
        with join(settings) as first, join(settings) as second:
            jobs = [JobFile(host.job_file) for host in (first, second)]
            assert jobs[0].state != jobs[1].state
            assert jobs[0].cache.folder != jobs[1].cache.folder
            assert {made.joined.tag for made in jobs if made.joined} == {first.tag, second.tag}
            assert jobs[0].index_folder("train") == jobs[1].index_folder("train")
            assert builder(jobs[1]) == builder(job)


def test_who_has_a_folder_can_have_it_brought_up_to_date(job: JobFile, tmp_path: Path) -> None:
    with served(job) as coordinator:
        endpoint = coordinator.endpoint
        settings = JoinSettings(endpoint=endpoint, state=tmp_path / "state")
        host = join(settings)
    job.path.write_text(job.path.read_text().replace("seed = 7", "seed = 8"))
    with host, served(JobFile(job.path), endpoint=endpoint):
        fetch(settings)
        assert JobFile(host.job_file).settings.seed == 7
        fetch(settings, host.path)
        made = JobFile(host.job_file)
        assert made.settings.seed == 8
        assert made.joined is not None
        assert made.joined.tag == host.tag
        assert list(made.joined.again)[-2:] == ["--into", str(host.path)]
        with pytest.raises(DataError, match="elsewhere"):
            fetch(settings, tmp_path / "elsewhere")


def test_bundles_of_earlier_indexes_do_not_pile_up(job: JobFile, tmp_path: Path) -> None:
    bundles = tmp_path / "state" / "bundles"
    names: list[str] = []
    for seed in range(6):
        job.path.write_text(job.path.read_text().replace(f"seed = {7 + seed}", f"seed = {8 + seed}"))
        with served(JobFile(job.path)) as coordinator:
            settings = JoinSettings(endpoint=coordinator.endpoint, state=tmp_path / "state")
            if seed == 0:
                first = join(settings)
            fetch(settings)
        made = sorted(bundles.glob("*/job.toml"), key=lambda path: path.parent.stat().st_mtime_ns)[-1].parent
        names.append(made.name)
    assert len(set(names)) == 6
    assert {path.name for path in bundles.iterdir() if path.is_dir()} == {names[0], *names[-3:]}
    assert builder(JobFile(first.job_file))  # it can still be read
    first.close()


def test_files_that_transforms_name_are_those_that_were_fetched(job: JobFile, tmp_path: Path) -> None:
    expected = builder(job)
    with served(job) as coordinator:
        other = joined(coordinator.endpoint, tmp_path / "state")
    (job.base / "mean.json").unlink()
    (job.base / "job.toml").unlink()
    shutil.rmtree(job.state)
    assert builder(JobFile(other.path)) == expected


def test_a_folder_stands_for_that_of_the_job(job: JobFile, tmp_path: Path) -> None:
    shutil.copytree(job.base, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("job.toml", ".stoker", "mean.json"))
    with served(job) as coordinator:
        other = joined(coordinator.endpoint, tmp_path / "state", data=tmp_path / "elsewhere")
    expected = builder(job)
    stream = Stream(job, "train")
    raw = list(stream.source.read([0]))
    shutil.rmtree(job.base)
    assert builder(other) == expected
    assert list(Stream(other, "train").source.read([0])) == raw


def test_it_is_fetched_once_though_three_join_at_a_time(job: JobFile, tmp_path: Path) -> None:
    counts: list[int] = []
    with served(job) as coordinator:
        bundle = coordinator._bundle
        assert bundle is not None
        answer = bundle.answer

        def counting(wanted):
            counts.append(wanted.offset)
            return answer(wanted)

        bundle.answer = counting  # type: ignore[method-assign]
        hosts = [threading.Thread(target=joined, args=(coordinator.endpoint, tmp_path / "state")) for _ in range(3)]
        for host in hosts:
            host.start()
        for host in hosts:
            host.join(60)
    assert counts.count(0) == 3  # each asks which bundle there is
    assert len([offset for offset in counts if offset]) == len({offset for offset in counts if offset})


def test_after_a_cut_only_the_rest_is_fetched(job: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = job_joining.BundleFolder.write

    def cut(self, piece):
        if len(written) == 3:
            raise OSError("the host was cut off")
        written.append(piece.file.name)
        write(self, piece)

    def noting(self, piece):
        written.append(piece.file.name)
        write(self, piece)

    with served(job) as coordinator:
        monkeypatch.setattr(job_joining.BundleFolder, "write", cut)
        with pytest.raises(OSError, match="cut off"):
            joined(coordinator.endpoint, tmp_path / "state")
        monkeypatch.setattr(job_joining.BundleFolder, "write", noting)
        other = joined(coordinator.endpoint, tmp_path / "state")
    assert len(written) == len(set(written))
    assert builder(other) == builder(job)


def test_a_coordinator_that_comes_back_with_another_bundle_is_fetched_anew(
    job: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mid-fetch: the endpoint is the same, but the index was made of more data."""
    write, is_first = job_joining.BundleFolder.write, threading.Event()
    go_on = threading.Event()

    def stopping(self, piece):
        write(self, piece)
        if not is_first.is_set():
            is_first.set()
            assert go_on.wait(60)

    monkeypatch.setattr(job_joining.BundleFolder, "write", stopping)
    found: list[JobFile] = []
    with served(job) as coordinator:
        endpoint = coordinator.endpoint
        host = threading.Thread(target=lambda: found.append(joined(endpoint, tmp_path / "state")))
        host.start()
        assert is_first.wait(60)
    job.path.write_text(job.path.read_text().replace("seed = 7", "seed = 8"))
    again = JobFile(job.path)
    with served(again, endpoint=endpoint):
        go_on.set()
        host.join(60)
    assert found[0].settings.seed == 8
    assert builder(found[0]) == builder(again)


def test_an_equal_index_of_its_own_is_used_and_none_is_fetched(job: JobFile, tmp_path: Path) -> None:
    own = tmp_path / "index"
    shutil.copytree(job.state, own)
    with served(job) as coordinator:
        other = joined(coordinator.endpoint, tmp_path / "state", index=own)
    assert other.index_folder("train") == own / "index-train"
    assert builder(other) == builder(job)
    assert not list((tmp_path / "state" / "bundles").rglob("*.npy"))


def test_another_index_is_refused(job: JobFile, tmp_path: Path) -> None:
    meta = tmp_path / "index" / "index-train" / "meta.json"
    shutil.copytree(job.state, tmp_path / "index")
    meta.write_text(meta.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    with served(job) as coordinator, pytest.raises(DataError) as error:
        joined(coordinator.endpoint, tmp_path / "state", index=tmp_path / "index")
    assert "an index with the fingerprint" in error.value.expected
    assert "loader-server index" in error.value.remedy
    with served(job) as coordinator, pytest.raises(DataError, match="none in"):
        joined(coordinator.endpoint, tmp_path / "state", index=tmp_path / "nowhere")


def test_above_the_limit_the_error_names_both_ways_and_the_coordinator_gives_no_more(tmp_path: Path) -> None:
    job = make_job(tmp_path / "own", 'bundle_bytes = "5 KiB"')
    with served(job) as coordinator, pytest.raises(DataError) as error:
        joined(coordinator.endpoint, tmp_path / "state")
    assert "5120 bytes" in error.value.expected
    assert "--index FOLDER" in error.value.remedy
    assert "both hosts share" in error.value.remedy
    bundle = Bundle(job)
    offsets = {
        file.name: bundle.piece_of(bundle.manifest, bundle.manifest.offset_of(file)) for file in bundle.manifest.files
    }
    assert offsets["job.toml"] == job.path.read_bytes()
    assert {name for name, content in offsets.items() if content is None} == bundle.manifest.refused
    bundle.close()
    with served(job) as coordinator:  # with an index of its own the rest is small enough
        other = joined(coordinator.endpoint, tmp_path / "state", index=job.state)
    assert builder(other) == builder(job)


def test_only_a_workers_key_gets_a_bundle(job: JobFile, tmp_path: Path) -> None:
    keys, thieves = tmp_path / "keys", tmp_path / "thieves"
    make_keys(keys)
    shutil.copytree(keys, thieves)
    for half in ("key", "key_secret"):  # a trainer that shows its own pair
        shutil.copyfile(keys / f"trainer.{half}", thieves / f"worker.{half}")
    with served(job, keys) as coordinator:
        with pytest.raises(RefusedError, match="allowed/worker"):
            joined(coordinator.endpoint, tmp_path / "thief", keys=thieves)
        assert not list((tmp_path / "thief" / "bundles").glob("*/job.toml"))
        other = joined(coordinator.endpoint, tmp_path / "state", keys=keys)
    assert other.keys == keys


NOISES = """
from joined_own_level import LEVEL
from loader_server.transforms import transform

@transform()
def none(sample, rng): ...
"""


def make_own(folder: Path) -> tuple[JobFile, Path]:
    """A job with a transform of its own, which imports from beside it, and its keys."""
    folder.mkdir()
    make_keys(folder / "keys")
    (folder / "joined_own").mkdir()
    (folder / "joined_own" / "__init__.py").touch()
    (folder / "joined_own" / "noises.py").write_text(NOISES)
    (folder / "joined_own_level.py").write_text("LEVEL = 0\n")
    transforms = ("logmel", "joined_own.noises:none", "characters")
    write_job(folder, samples=12, transforms=transforms, job='keys = "keys"')
    job = JobFile(folder / "job.toml")
    job.make_importable()
    index_missing(job)
    return job, folder / "keys"


OWN = ["code/joined_own/__init__.py", "code/joined_own/noises.py", "code/joined_own_level.py"]


@pytest.fixture
def own_path() -> Iterator[None]:
    """Forget what a test made importable and imported."""
    before = list(sys.path)
    yield
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("joined_own")]:
        del sys.modules[name]


@pytest.mark.usefixtures("own_path")
def test_with_keys_code_comes_for_who_accepts_it(tmp_path: Path) -> None:
    job, keys = make_own(tmp_path / "own")
    settings = JoinSettings(endpoint="", state=tmp_path / "state", keys=keys, data=tmp_path / "data")
    (tmp_path / "data").mkdir()
    with served(job, keys) as coordinator:
        plain = dataclasses.replace(settings, endpoint=coordinator.endpoint)
        accepting = dataclasses.replace(plain, accepts_code=True, metrics_port=9100)
        with join(plain) as without, join(accepting) as host:
            assert JobFolder(without.job_file).joined.code == ""  # type: ignore[union-attr]
            folder = JobFolder(host.job_file).joined
            assert folder is not None
            assert folder.again[-5:-2] == ["--metrics-port", "9100", "--accept-code"]
            code = Path(folder.code)
            assert sorted(f"code/{path.relative_to(code)}" for path in code.rglob("*.py")) == OWN
            others = [path for path in (tmp_path / "state").rglob("*.py") if not path.is_relative_to(code)]
            assert others == []
            made = JobFile(host.job_file)
            made.make_importable()
            assert sys.path[0] == folder.code
            assert sys.path[1] == str(tmp_path / "data")


@pytest.mark.usefixtures("own_path")
def test_other_code_changes_nothing_for_who_does_not_take_it(tmp_path: Path) -> None:
    job, keys = make_own(tmp_path / "own")
    with served(job, keys) as coordinator:
        endpoint = coordinator.endpoint
        fetch(JoinSettings(endpoint=endpoint, state=tmp_path / "state", keys=keys))
    (job.base / "joined_own_level.py").write_text("LEVEL = 17\n")
    with served(job, keys, endpoint):
        fetch(JoinSettings(endpoint=endpoint, state=tmp_path / "state", keys=keys))
    assert len(list((tmp_path / "state" / "bundles").glob("*/job.toml"))) == 1


@pytest.mark.usefixtures("own_path")
def test_without_keys_no_code_is_given(tmp_path: Path) -> None:
    job, _ = make_own(tmp_path / "own")
    job.path.write_text(job.path.read_text().replace('keys = "keys"', ""))
    assert not [name for name, _ in bundle_files(JobFile(job.path)) if name.startswith("code/")]


def test_graphs_are_left_to_the_workers_and_change_nothing_for_the_host(job: JobFile, tmp_path: Path) -> None:
    before = {"job.toml": job.path.read_bytes(), "index/index-train/meta.json": b"{}"}
    after = {**before, "graphs/sent/graph": b"graph", "graphs/sent/index/meta.json": b"{}"}
    with served(job) as coordinator:
        bundle = coordinator._bundle
        assert bundle is not None
        settings = JoinSettings(endpoint=coordinator.endpoint, state=tmp_path / "state")
        for files in (before, after):
            bundle.answer = partial(answered, made(files), files)  # type: ignore[method-assign]
            fetch(settings)
    (job_file,) = (tmp_path / "state" / "bundles").glob("*/job.toml")
    fetched = [file for file in job_file.parent.rglob("*") if file.is_file()]
    assert {file.relative_to(job_file.parent).as_posix() for file in fetched} == set(before)


def test_nobody_is_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_joining, "_LOST_S", 0.2)
    with pytest.raises(LostError) as error:
        joined("tcp://127.0.0.1:9", tmp_path / "state")
    assert "--keys" in error.value.remedy


def test_a_coordinator_is_waited_for_that_has_not_written_its_file_yet(
    job: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_joining, "_LOG_AFTER_S", 0.05)
    file, found = tmp_path / "endpoint", list[JobFile]()
    host = threading.Thread(target=lambda: found.append(joined(f"file://{file}", tmp_path / "state")))
    with caplog.at_level("WARNING", "stoker"):
        host.start()
        wait_until(lambda: "waits for the coordinator" in caplog.text, "it says what it waits for")
        with served(job) as coordinator:
            file.write_text("tcp://127.0.")  # half of it
            write_endpoint(file, coordinator.endpoint)
            host.join(60)
    assert caplog.text.count("waits for the coordinator") == 1
    assert 'reason="No such file or directory"' in caplog.text
    assert builder(found[0]) == builder(job)
    assert found[0].settings.listen == f"file://{file}"


def test_a_coordinator_is_followed_to_another_address_in_mid_fetch(
    job: JobFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_first, go_on = job_joining.BundleFolder.write, threading.Event(), threading.Event()

    def stopping(self, piece):
        write(self, piece)
        if not is_first.is_set():
            is_first.set()
            assert go_on.wait(60)

    monkeypatch.setattr(job_joining.BundleFolder, "write", stopping)
    file, found = tmp_path / "endpoint", list[JobFile]()
    with served(job) as coordinator:
        write_endpoint(file, coordinator.endpoint)
        host = threading.Thread(target=lambda: found.append(joined(f"file://{file}", tmp_path / "state")))
        host.start()
        assert is_first.wait(60)
    with served(job, endpoint="tcp://127.0.0.2:*") as coordinator:
        write_endpoint(file, coordinator.endpoint)
        go_on.set()
        host.join(60)
    assert builder(found[0]) == builder(job)


def test_a_file_that_says_nothing_is_named_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_joining, "_LOST_S", 0.2)
    with pytest.raises(LostError) as error:
        joined(f"file://{tmp_path}/endpoint", tmp_path / "state")
    assert (error.value.got, error.value.where) == ("No such file or directory", f"file://{tmp_path}/endpoint")


def test_an_address_beyond_this_host_that_a_file_says_late_is_refused_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "endpoint"
    connect = job_joining._FetchConnection._connect

    def write_then(self):
        dealer = connect(self)
        write_endpoint(file, "tcp://192.0.2.1:7400")
        return dealer

    monkeypatch.setattr(job_joining._FetchConnection, "_connect", write_then)
    with pytest.raises(SettingsError, match=r"tcp://192\.0\.2\.1:7400 without keys"):
        joined(f"file://{file}", tmp_path / "state")


def test_what_is_no_endpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nonsense"):
        joined("nonsense://x", tmp_path / "state")


def test_a_flood_of_requests_is_bounded_and_others_are_answered(job: JobFile, tmp_path: Path) -> None:
    """A host that asks for thousands of pieces and reads none."""
    context = zmq.Context()
    flood = context.socket(zmq.DEALER)
    flood.setsockopt(zmq.RCVHWM, 1)
    flood.setsockopt(zmq.LINGER, 0)
    with served(job) as coordinator:
        flood.connect(coordinator.endpoint)
        for _ in range(5000):
            flood.send(encode(m.BundleWanted(digest="", offset=0)))
        other = joined(coordinator.endpoint, tmp_path / "state")
        wait_until(lambda: coordinator.unheard > 0, "the flood is not heard any more")
        assert coordinator._pieces.total <= 16 * 2**20
    flood.close()
    context.term()
    assert builder(other) == builder(job)
