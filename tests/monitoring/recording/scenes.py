"""The scenes: jobs that are well, and jobs with one trouble each, whose remedy ends the alert.

Samples take time and no CPU, so that what is recorded does not depend on the machine.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.fleet import fleet
from tests.support.loaders import wait_until, write_job
from tests.support.stores import StoreProxy, plain_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.monitoring.recording.stage import Stage

__all__ = ["SCENES", "Scene"]

_HEALTHY_S = 780.0
_STEADY_S = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One scene; `alerts` are to fire within so many seconds after the trouble began: none if the job is well."""

    about: str
    play: Callable[[Stage], None]
    alert: str = ""
    within_s: float = 0.0


# --- jobs that are well ---


def _lockstep(stage: Stage) -> None:
    stage.write_job(samples=600)
    stage.delay(transform_s=0.02, step_s=0.3)
    endpoint = stage.run(2).endpoint
    for rank in range(2):
        stage.train(endpoint, rank=rank, world=2)
    stage.wait(_HEALTHY_S)


def _queue(stage: Stage) -> None:
    stage.write_job(samples=600, stream='mode = "queue"')
    stage.delay(transform_s=0.02, fast_s=0.4, slow_s=1.2)
    endpoint = stage.run(2).endpoint
    for name in ("fast", "slow"):
        stage.train(endpoint, "queue", name=name)
    stage.wait(_HEALTHY_S)


def _elastic(stage: Stage) -> None:
    samples = 400
    write_job(stage.folder, name="recorded", samples=samples, budget="2 s")
    endpoint = stage.run(1).endpoint

    def member(name: str) -> object:
        log = stage.folder / f"{name}.log"
        words = (endpoint, stage.folder, 100, samples, 1, 3, 0.4, log, stage.targets)
        return stage.start("tests.support.elastic_trainer", *map(str, words))

    member("first")
    stage.wait(150)
    second = member("second")
    stage.wait(200)
    member("third")
    stage.wait(150)
    second.send_signal(signal.SIGINT)  # type: ignore[attr-defined] # it leaves in good order
    stage.wait(_HEALTHY_S - 500)


def _evaluation(stage: Stage) -> None:
    stage.write_job(samples=600, stream='[streams.dev]\nlike = "train"\norder = "sorted"\n')
    stage.delay(transform_s=0.02, step_s=0.3, dev_s=0.1, pause_s=60.0)
    endpoint = stage.run(2).endpoint
    stage.train(endpoint)
    stage.train(endpoint, "evaluation", stream="dev", name="dev")
    stage.wait(_HEALTHY_S)


def _long_compile(stage: Stage) -> None:
    stage.write_job(samples=600)
    stage.delay(transform_s=0.02, step_s=0.3, first_step_s=720.0)
    endpoint = stage.run(2).endpoint
    for rank in range(2):
        stage.train(endpoint, rank=rank, world=2)
    stage.wait(_HEALTHY_S + 120)


# --- jobs with one trouble ---


def _stall(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.02, step_s=0.3)
    loaders = stage.run(1)
    stage.train(loaders.endpoint)
    stage.wait(_STEADY_S)
    stage.begin()
    stage.delay(transform_s=0.125)  # half a second a batch, of which a trainer waits for 0.2
    stage.wait_for("StokerDataStall", within_s=480)
    stage.delay(transform_s=0.2)
    stage.wait_for("StokerDataStall", "critical", within_s=480)
    for number in range(3):
        stage.join(f"more-{number}", loaders.endpoint)
    stage.wait_for_end_of("StokerDataStall", "critical")
    stage.wait_for_end_of("StokerDataStall")


def _slow_worker(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.05, step_s=0.1)
    loaders = stage.run(3)
    stage.train(loaders.endpoint)
    stage.wait(_STEADY_S + 45)
    slow = f"transform_s:{loaders.workers()[-1].pid}"
    stage.begin()
    stage.delay_all({slow: 0.2})
    stage.wait_for("StokerWorkerSlow", within_s=300)
    stage.delay_all({slow: 0.05})
    stage.wait_for_end_of("StokerWorkerSlow")


def _flapping(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.02, step_s=0.3)
    loaders = stage.run(2)
    stage.train(loaders.endpoint)
    stage.wait(_STEADY_S)
    stage.begin()
    until_s = time.monotonic() + 50
    for _ in range(12):
        wait_until(lambda: len(loaders.workers()) == 2, "both workers are there")
        loaders.workers()[0].kill()
        stage.wait(max(0.0, min(4.0, until_s - time.monotonic())))
    stage.wait_for("StokerWorkersFlapping", within_s=120)
    stage.wait_for_end_of("StokerWorkersFlapping")


def _missing(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.1, step_s=0.1)
    made = stage.on_end(fleet(stage.job, "worker-0", "worker-1", "worker-2"))
    stage.train(made.endpoint)
    stage.wait(_STEADY_S)
    stage.begin()
    made.processes["worker-2"].kill()
    stage.wait_for("StokerWorkersMissing", within_s=300)
    made.processes["worker-1"].kill()
    made.processes["worker-0"].kill()
    stage.wait_for("StokerWorkersMissing", "critical", within_s=300)
    for name in ("worker-0", "worker-1", "worker-2"):
        made.join(name)
    stage.train(made.endpoint)  # the first gave up, as it found no worker for a minute
    stage.wait_for_end_of("StokerWorkersMissing", "critical")
    stage.wait_for_end_of("StokerWorkersMissing")


def _masked(stage: Stage) -> None:
    transforms = ("tests.support.transforms:raises", "logmel", "characters", "tests.support.slowed.parts:takes_time")
    # It fails on texts that begin with "three": one in ten.
    write_job(stage.folder, name="recorded", samples=600, transforms=transforms)
    stage.delay(transform_s=0.02, step_s=0.3)
    loaders = stage.run(2)
    stage.begin()
    trainer = stage.train(loaders.endpoint)
    stage.wait_for("StokerSamplesMasked", within_s=240)
    # The remedy: the texts that quarantine.jsonl names are mended, and the job is indexed and started again.
    trainer.terminate()
    trainer.wait(20)
    loaders.close()
    manifest = stage.folder / "csv.csv"
    manifest.write_text(manifest.read_text().replace(",three", ",four"))
    assert stage.start("loader_server", "index", str(stage.job)).wait(60) == 0
    stage.train(stage.run(2).endpoint)
    stage.wait_for_end_of("StokerSamplesMasked")
    stage.wait(60)


def _left_out(stage: Stage) -> None:
    write_job(stage.folder, name="recorded", samples=300)
    recordings = sorted((stage.folder).glob("**/*.wav"))
    kept = {path: path.read_bytes() for path in recordings if int(path.stem.split("-")[-1], 10) % 5 < 2}
    for path in kept:
        path.write_bytes(b"")
    stage.delay(step_s=0.3)
    loaders = stage.run(2)
    stage.begin()
    trainer = stage.train(loaders.endpoint)
    stage.wait_for("StokerSamplesLeftOut", within_s=60)
    trainer.terminate()
    trainer.wait(20)
    loaders.close()
    for path, content in kept.items():
        path.write_bytes(content)
    assert stage.start("loader_server", "index", str(stage.job), "--force").wait(60) == 0
    stage.train(stage.run(2).endpoint)
    stage.wait_for_end_of("StokerSamplesLeftOut")


def _ranks_apart(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.02, step_s=0.3, other_s=0.3)
    endpoint = stage.run(2).endpoint
    stage.train(endpoint, rank=0, world=2)
    stage.train(endpoint, rank=1, world=2, name="other")
    stage.wait(_STEADY_S)
    stage.begin()
    stage.delay(other_s=0.6)
    stage.wait_for("StokerRanksApart", within_s=600)
    stage.delay(other_s=0.3)
    stage.wait_for_end_of("StokerRanksApart")


def _starved(stage: Stage) -> None:
    """CPU that the workers' control group may not have is missing in the same way as CPU that others take."""
    stage.write_job()
    stage.delay(spin_s=0.01, step_s=0.2)
    group = Path("/sys/fs/cgroup/cpu") / f"stoker-recorded-{os.getpid()}"
    group.mkdir()
    loaders = stage.run(2)
    try:
        for worker in loaders.workers():
            (group / "cgroup.procs").write_text(str(worker.pid))
        stage.train(loaders.endpoint)
        stage.wait(_STEADY_S)
        stage.begin()
        quota = group / "cpu.cfs_quota_us"
        quota.write_text("15000")  # of 100 ms: a seventh of a core for both
        stage.wait_for("StokerHostStarved", within_s=480)
        quota.write_text("-1")
        stage.wait_for_end_of("StokerHostStarved")
    finally:
        loaders.close()
        wait_until(lambda: _removes(group), "the group is empty")


def _removes(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _rejected(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.02, step_s=0.3)
    loaders = stage.run(2)
    stage.train(loaders.endpoint, verify=True)
    stage.wait(_STEADY_S)
    stage.begin()
    liar = stage.join("liar", loaders.endpoint, "digest")
    stage.wait_for("StokerBatchRejected", "critical", within_s=120)
    liar.terminate()
    stage.wait_for_end_of("StokerBatchRejected", "critical")


def _refused(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.02, step_s=0.3)
    endpoint = stage.run(2).endpoint
    stage.train(endpoint, rank=0, world=2)
    stage.train(endpoint, rank=1, world=2)
    stage.wait(_STEADY_S)
    stage.begin()
    stage.train(endpoint, rank=0, world=1, job="another")
    stage.wait_for("StokerRefused", within_s=120)
    stage.wait_for_end_of("StokerRefused")


def _trainer_gone(stage: Stage) -> None:
    stage.write_job()
    stage.delay(transform_s=0.02, step_s=0.3)
    endpoint = stage.run(2).endpoint
    stage.train(endpoint, rank=0, world=2)
    victim = stage.train(endpoint, rank=1, world=2)
    stage.wait(_STEADY_S)
    stage.begin()
    victim.kill()
    stage.wait_for("StokerTrainerGone", within_s=120)


def _remote_slow(stage: Stage) -> None:
    manifest = write_job(stage.folder, name="recorded", samples=600).parent / "csv.csv"
    store = stage.on_end(StoreProxy(stage.on_end(plain_server(stage.folder, ranges=True))))
    text = stage.job.read_text().replace(f'"{manifest.name}"', f'"{store.url}/{manifest.name}"')
    stage.job.write_text(text.replace("seed = 7", 'seed = 7\nremote_cache_bytes = "1 MiB"'))
    took = {"s": 0.0}

    def delay(method: str, _path: str) -> None:
        if method == "GET":
            time.sleep(took["s"])

    store.fault = delay
    stage.delay(step_s=0.5)
    loaders = stage.run(2)
    stage.train(loaders.endpoint)
    stage.wait(_STEADY_S)
    stage.begin()
    took["s"] = 2.0
    stage.wait_for("StokerRemoteSlow", within_s=480)
    took["s"] = 0.0
    stage.wait_for_end_of("StokerRemoteSlow")


_MODULE = """
import keras


class MeanLevel(keras.layers.Layer):
    def call(self, audio):
        return keras.ops.sum(audio, axis=1) / int(audio.shape[1])  # it needs sizes, so each shape is traced


def model(units=1):
    return keras.Sequential([MeanLevel(), keras.layers.Dense(units)])


def optimizer(rate=1e-3):
    return keras.optimizers.Adam(rate)


loss = "mse"
feed_keys = {"inputs": "audio", "targets": "audio_length", "weights": "weight"}
"""


def _retracing(stage: Stage) -> None:
    transforms = ("logmel", "characters", "tests.support.slowed.parts:takes_time")
    write_job(stage.folder, name="recorded", samples=400, transforms=transforms, stream='pad_to = "batch"')
    stage.delay(transform_s=0.03)
    (stage.folder / "module.py").write_text(_MODULE)
    loaders = stage.run(1)
    stage.begin()
    arguments = ["--model", "module", "--feed", loaders.endpoint, "--checkpoint", str(stage.folder / "checkpoints")]
    arguments += ["--max-time", "1200", "--metrics-listen", "127.0.0.1", str(stage.targets)]
    trainer = stage.start("trainer_client", "train", *arguments)
    stage.wait_for("StokerRetracing", within_s=300)
    trainer.terminate()
    trainer.wait(60)
    loaders.close()
    stage.job.write_text(stage.job.read_text().replace('pad_to = "batch"', 'pad_to = "bucket"'))
    stage.delay(transform_s=0.0)
    again = stage.run(1)
    arguments[3], arguments[5] = again.endpoint, str(stage.folder / "again")
    stage.start("trainer_client", "train", *arguments)
    stage.wait_for_end_of("StokerRetracing")
    stage.wait(90)


SCENES: dict[str, Scene] = {
    "healthy_lockstep": Scene(about="two ranks in lockstep, epoch after epoch", play=_lockstep),
    "healthy_queue": Scene(about="a queue with trainers of unequal speed", play=_queue),
    "healthy_elastic": Scene(about="an elastic run that two trainers join, and one leaves", play=_elastic),
    "healthy_evaluation": Scene(about="a trainer, and an evaluation that comes once a minute", play=_evaluation),
    "healthy_long_compile": Scene(about="two ranks whose first step takes twelve minutes", play=_long_compile),
    "stall": Scene(about="transforms become slow, then slower", play=_stall, alert="StokerDataStall", within_s=420),
    "slow_worker": Scene(
        about="one of three workers becomes four times as slow", play=_slow_worker, alert="StokerWorkerSlow",
        within_s=300,
    ),
    "flapping": Scene(
        about="twelve times kill -9 of a worker within 50 s", play=_flapping, alert="StokerWorkersFlapping",
        within_s=120,
    ),
    "missing": Scene(
        about="one of three workers is killed and not started again, then the others", play=_missing,
        alert="StokerWorkersMissing", within_s=300,
    ),
    "masked": Scene(
        about="a transform fails on one sample in ten", play=_masked, alert="StokerSamplesMasked", within_s=240
    ),
    "left_out": Scene(
        about="two of five recordings cannot be read", play=_left_out, alert="StokerSamplesLeftOut", within_s=60
    ),
    "ranks_apart": Scene(
        about="one of two ranks becomes half as fast", play=_ranks_apart, alert="StokerRanksApart", within_s=600
    ),
    "starved": Scene(
        about="workers get a seventh of a core", play=_starved, alert="StokerHostStarved", within_s=480
    ),
    "rejected": Scene(
        about="a worker joins that sends wrong digests", play=_rejected, alert="StokerBatchRejected", within_s=120
    ),
    "refused": Scene(
        about="a trainer of another job asks to attach", play=_refused, alert="StokerRefused", within_s=120
    ),
    "trainer_gone": Scene(
        about="one of two trainers is killed with -9", play=_trainer_gone, alert="StokerTrainerGone", within_s=120
    ),
    "remote_slow": Scene(
        about="a store takes two seconds a request", play=_remote_slow, alert="StokerRemoteSlow", within_s=480
    ),
    "retracing": Scene(
        about="a stream whose shapes cannot be planned", play=_retracing, alert="StokerRetracing", within_s=300
    ),
}  # fmt: skip
