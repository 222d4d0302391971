"""The job on Kubernetes' manifests: checked as a whole, and each container of them run in Docker as it is written.

A folder on top of `deploy/kubernetes` names the job file, the job's module and the keys, as a user's would. Of that
kubectl makes the manifests. A cluster is not there: nothing is scheduled, replaced or scaled, and no network policy
holds anybody up.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from tests.fleet.containers import reason_not_here as no_containers_here
from tests.fleet.docker_engine import DockerEngine
from tests.fleet.job import BATCHES, verify
from tests.fleet.kubectl import Checked, find_kubectl, find_validator, render, validate
from tests.fleet.manifests import KUBERNETES, OVERLAYS
from tests.fleet.pods import Kubelet
from tests.fleet.reading import read_by
from tests.support.loaders import ask, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.fleet.pods import Drained
    from tests.fleet.reading import EpochRead

__all__ = ["measure", "reason_not_here"]

_COORDINATOR, _HOSTS = "stoker-coordinator-0", ("stoker-workers-a", "stoker-workers-b")
_PORT = 7400
#: Who the images' processes are.
_USER = 65534
#: Workers of a host, as the manifests say.
_WORKERS = 2
#: For the trainer's pod, from its start to its end.
_LONGEST_TRAINING_S = 200.0


def reason_not_here() -> str:
    """Return why the manifests cannot be tried here; nothing if they can. What is missing is installed."""
    if reason := no_containers_here():
        return reason
    try:
        find_kubectl(download=True)
        find_validator(download=True)
    except AssertionError as error:
        return f"kubectl or kubernetes-validate cannot be had: {str(error).splitlines()[0]}"
    return ""


def measure(job: Path, work: Path) -> dict[str, Any]:
    """Return what was checked of the manifests, and what a job gave in their containers.

    That is an undisturbed epoch's digest, and those of epochs with a worker host's pod killed, and evicted.
    """
    checked = _check()
    documents = _render_own(job, work / "own")
    claims = _make_claims(job, work / "claims")
    with DockerEngine(work / "docker") as engine:
        engine.build("deploy/loader.Dockerfile", "stoker-loader", "loader")
        with ThreadPoolExecutor(1) as builder:  # building TensorFlow's image is most of the time
            built = builder.submit(engine.build, "deploy/trainer.Dockerfile", "stoker-trainer", "trainer-cpu")
            reference = _serve_alone(engine, work / "own", claims["stoker-data"])
            built.result()
        cluster = _Cluster(engine, documents, claims, work / "volumes", job)
        cluster.start()
        digest, batches = cluster.verify_in_a_pod()
        lost = cluster.read(then=partial(cluster.kubelet.lose, _HOSTS[1]))
        cluster.replace_lost(_HOSTS[1])
        drained = [cluster.begin_again()]
        evicted = cluster.read(then=lambda: drained.append(cluster.kubelet.evict(_HOSTS[1])))
        drained.append(cluster.begin_again())
        cluster.train()
        drained += [cluster.kubelet.evict(name) for name in (_HOSTS[0], _COORDINATOR)]
        refuse_killed(drained)
    return {
        "reference": reference,
        "digest": digest,
        "batches": batches,
        "lost_node": _case(lost),
        "evicted_pod": _case(evicted) | {"drained_s": [end.seconds for end in drained]},
        "validated": checked.validated,
        "not_checked": checked.not_checked,
    }


def refuse_killed(drained: Sequence[Drained]) -> None:
    """Raise AssertionError if a pod did not end by itself, with code 0."""
    assert {end.code for end in drained} == {0}, f"pods ended with {drained}"


def _case(epoch: EpochRead) -> dict[str, Any]:
    return {"digest": epoch.digest, "gap_s": epoch.gap_s, "lost": epoch.lost, "repeated": epoch.repeated}


# --- manifests ---


def _check() -> Checked:
    """Render all folders, and check what comes out; raise AssertionError if a document has errors."""
    kubectl, python = find_kubectl(), find_validator()
    assert kubectl is not None
    assert python is not None
    documents = [document for folder in OVERLAYS for document in render(kubectl, KUBERNETES / folder)]
    checked = validate(python, documents)
    assert not checked.errors, "\n".join(checked.errors)
    return checked


def _render_own(job: Path, folder: Path) -> list[dict[str, Any]]:
    """Render the manifests with a job of one's own, whose module the workers fetch, and with its keys."""
    kubectl = find_kubectl()
    assert kubectl is not None
    folder.mkdir(parents=True)
    settings = job.read_text()
    for name, place in (("paths", '["/data"]'), ("keys", '"/keys"'), ("state", '"/var/cache/stoker"')):
        lines = [f"{name} = {place}" if line.startswith(f"{name} =") else line for line in settings.splitlines()]
        settings = "\n".join(lines)
    (folder / "job.toml").write_text(settings)
    shutil.copy2(job.parent / "features.py", folder)
    accept = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--accept-code"}]
    model = [{"op": "replace", "path": "/spec/template/spec/containers/0/args/6", "value": "--epochs=1"}]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "stoker",
        "resources": [os.path.relpath(KUBERNETES / name, folder) for name in (".", "trainer")],
        "configMapGenerator": [
            {"name": "stoker-job", "behavior": "replace", "files": ["job.toml", "features.py"]},
            {"name": "stoker-model", "behavior": "replace", "files": ["levels.py"]},
        ],
        "patches": [
            {"target": {"kind": "Deployment", "name": "stoker-workers"}, "patch": json.dumps(accept)},
            {"target": {"kind": "Job", "name": "stoker-trainer"}, "patch": json.dumps(model)},
        ],
    }
    # The example's model, for the features of this job.
    levels = (KUBERNETES / "trainer/levels.py").read_text()
    (folder / "levels.py").write_text(levels.replace('"audio', '"tokens'))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    secrets = folder / "secrets"
    shutil.copytree(KUBERNETES / "secrets", secrets)
    shutil.copytree(job.parent / "keys", secrets / "keys", dirs_exist_ok=True)
    (secrets / "token").write_text("0123456789abcdef" * 2)
    return [*render(kubectl, folder), *render(kubectl, secrets)]


def _make_claims(job: Path, folder: Path) -> dict[str, Path]:
    """Make the volumes that are claimed: the data, a coordinator's state, and a trainer's checkpoints."""
    claims = {"stoker-data": folder / "data", "state": folder / "state", "stoker-checkpoints": folder / "checkpoints"}
    shutil.copytree(job.parent / "data", claims["stoker-data"])
    for path in (claims["stoker-data"], *claims["stoker-data"].rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("state", "stoker-checkpoints"):
        claims[name].mkdir()
    return claims


# --- containers ---


def _serve_alone(engine: DockerEngine, own: Path, data: Path) -> str:
    """Return the digest that `loader-server run` on one machine gives of the job as its file names it.

    The paths of data in a job file are part of what plans are made of, and here they are those of containers.
    """
    keys = own / "secrets" / "keys"
    for path in (keys, *keys.rglob("*")):
        os.chown(path, _USER, _USER)
    mounts = {own: "/job", keys: "/keys", data: "/data"}
    volumes = (f"--volume={source}:{target}:ro" for source, target in mounts.items())
    how = ("--detach", "--name=alone", "--network=fleet", "--read-only", "--tmpfs=/var/cache/stoker")
    serve = ("run", "/job/job.toml", f"--workers={_WORKERS}", f"--listen=tcp://0.0.0.0:{_PORT}")
    engine.docker("run", *how, *volumes, "stoker-loader", *serve)
    wait_until(lambda: engine.address("alone") and "Ctrl-C ends" in engine.logs("alone"), "the job is served", 100)
    digest, _ = verify((), f"tcp://{engine.address('alone')}:{_PORT}", keys)
    engine.docker("rm", "--force", "alone")
    return digest


class _Cluster:
    """The pods of one job."""

    def __init__(
        self,
        engine: DockerEngine,
        documents: Sequence[dict[str, Any]],
        claims: dict[str, Path],
        work: Path,
        job: Path,
    ) -> None:
        self.kubelet = Kubelet(engine, documents, claims, work)
        self._engine, self._keys, self._state = engine, job.parent / "keys", claims["state"]

    def start(self) -> None:
        """Start the coordinator and the worker hosts, and return once all are ready."""
        self._start_coordinator()
        for host in _HOSTS:
            self.kubelet.start("worker", host)
        for host in _HOSTS:
            self.kubelet.wait_ready(host)
        assert all(map(self.kubelet.is_alive, (_COORDINATOR, *_HOSTS)))
        self._wait_workers(len(_HOSTS) * _WORKERS)

    def _start_coordinator(self) -> None:
        self.kubelet.start("coordinator", _COORDINATOR)
        self.kubelet.wait_ready(_COORDINATOR)

    def _wait_workers(self, number: int) -> None:
        wait_until(
            lambda: len(ask(self._endpoint, keys=str(self._keys))["workers"]) == number, f"{number} workers", 100
        )

    @property
    def _endpoint(self) -> str:
        return f"tcp://{self._engine.address(_COORDINATOR)}:{_PORT}"

    def verify_in_a_pod(self) -> tuple[str, int]:
        """Return digest and batches of an epoch, read in the trainer's pod."""
        words = ("trainer-client", "verify", "tcp://stoker-coordinator:7400", "--keys=/keys", "--json")
        self.kubelet.start("trainer", "stoker-verify", words)
        code = self.kubelet.wait_end("stoker-verify", _LONGEST_TRAINING_S)
        output = self._engine.logs("stoker-verify")
        assert code == 0, output
        (line,) = (line for line in output.splitlines() if line.startswith('{"digest"') or '"digest":' in line)
        outcome = json.loads(line)
        return outcome["digest"], outcome["batches"]

    def read(self, then: Any) -> EpochRead:
        """Read an epoch from outside, and do something in its middle."""
        return read_by((), self._endpoint, keys=self._keys, at=BATCHES // 3, then=then)

    def begin_again(self) -> Drained:
        """Evict the coordinator, and start it with an empty volume, so that the job begins at its first epoch."""
        drained = self.kubelet.evict(_COORDINATOR)
        for path in self._state.iterdir():
            shutil.rmtree(path)
        self._start_coordinator()
        return drained

    def replace_lost(self, name: str) -> None:
        """Start the pod that comes instead of a lost one."""
        self._engine.docker("rm", name)
        self.kubelet.start("worker", name)
        self.kubelet.wait_ready(name)
        self._wait_workers(len(_HOSTS) * _WORKERS)

    def train(self) -> None:
        """Run the trainer's pod as it is written; raise AssertionError if it does not train its epoch."""
        begun_s = time.monotonic()
        self.kubelet.start("trainer", "stoker-trainer")
        code = self.kubelet.wait_end("stoker-trainer", _LONGEST_TRAINING_S)
        output = self._engine.logs("stoker-trainer")
        assert code == 0, output
        assert "FINISHED" in output, output
        print(f"trained in {time.monotonic() - begun_s:.1f} s", file=sys.stderr)
