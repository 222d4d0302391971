"""Pods of rendered manifests, each container started in Docker as it is written there.

Command, user, groups, mounts, memory, read-only root, capabilities, seccomp and grace are those of the manifest.
Volumes are as a kubelet makes them: config maps and secrets behind links, with the pod's group, and secrets readable
for it; claims and empty folders belong to the group. A service is a name that its pods have on the network. What a
cluster decides is not here: where a pod runs, who may connect to it, and when it is replaced.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.fleet.manifests import pods

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.fleet.docker_engine import DockerEngine
    from tests.fleet.manifests import Pod

__all__ = ["Drained", "Kubelet"]


@dataclass(frozen=True, slots=True)
class Drained:
    """How a pod ended: after which time, and with which exit code."""

    seconds: float
    code: int


class Kubelet:
    """What starts pods; `claims` has the folder that stands for each claim of a volume, by the claim's name."""

    def __init__(
        self, engine: DockerEngine, documents: Sequence[dict[str, Any]], claims: Mapping[str, Path], work: Path
    ) -> None:
        self._engine, self._documents, self._claims, self._work = engine, documents, claims, work
        self._pods: dict[str, Pod] = {}

    # --- life of a pod ---

    def start(self, component: str, name: str, args: Sequence[str] = ()) -> None:
        """Start a component's pod under a name, and return once its startup probe has succeeded.

        Containers that run first have ended well by then. `args` stand for those of the manifest, if there are any.
        Raise AssertionError if one fails, or a probe fails for too long.
        """
        shutil.rmtree(self._work / name, ignore_errors=True)  # a pod of this name that has ended takes nothing along
        pod = self._pods[name] = next(pod for pod in pods(self._documents) if pod.component == component)
        for container in pod.spec.get("initContainers", ()):
            self._start_container(name, container, container["args"], "--rm")
        self._start_container(name, pod.container, args or pod.container["args"], "--detach")
        if "startupProbe" in pod.container:
            self._wait_probe(name, "startupProbe")

    def wait_ready(self, name: str) -> None:
        """Return once a pod's readiness probe has succeeded; raise AssertionError if it has not within a minute."""
        self._wait_probe(name, "readinessProbe", within_s=60)

    def is_alive(self, name: str) -> bool:
        """Return whether a pod's liveness probe succeeds now."""
        return self._probe(name, self._pods[name].container["livenessProbe"]) == ""

    def evict(self, name: str) -> Drained:
        """End a pod as a node that is drained does: SIGTERM, and SIGKILL once its grace is over."""
        begun_s = time.monotonic()
        self._engine.docker("stop", "--time", str(self._pods[name].spec["terminationGracePeriodSeconds"]), name)
        seconds = round(time.monotonic() - begun_s, 2)
        state = json.loads(self._engine.docker("inspect", name))[0]["State"]
        self._engine.docker("rm", name)
        return Drained(seconds, state["ExitCode"])

    def lose(self, name: str) -> None:
        """Kill a pod."""
        self._engine.docker("kill", name)

    def wait_end(self, name: str, within_s: float) -> int:
        """Return the exit code of a pod that ends by itself; raise AssertionError if it has not within so long."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            state = json.loads(self._engine.docker("inspect", name))[0]["State"]
            if not state["Running"]:
                code: int = state["ExitCode"]
                return code
            time.sleep(0.5)
        raise AssertionError(f"{name} has not ended within {within_s:g} s:\n{self._engine.logs(name)}")

    # --- containers ---

    def _start_container(self, name: str, container: Mapping[str, Any], args: Sequence[str], *how: str) -> None:
        pod = self._pods[name]
        mounts = {volume["name"]: self._volume(name, pod, volume) for volume in self._volumes(pod)}
        words = (*_security(pod, container), *self._network(name, pod, container), *_process(pod, container, mounts))
        self._engine.docker("run", *how, *words, container["image"], *container.get("command", ())[1:], *args)

    def _network(self, name: str, pod: Pod, container: Mapping[str, Any]) -> Iterator[str]:
        yield from (f"--hostname={name}", "--network=fleet")
        if container is not pod.container:
            return
        yield f"--name={name}"
        for document in self._documents:
            if document["kind"] == "Service" and pod.is_selected({"matchLabels": document["spec"]["selector"]}):
                yield f"--network-alias={document['metadata']['name']}"

    # --- volumes ---

    def _volumes(self, pod: Pod) -> Iterator[Mapping[str, Any]]:
        yield from pod.spec["volumes"]
        for document in self._documents:
            if document["kind"] == "StatefulSet" and pod.made_by == "StatefulSet":
                for claim in document["spec"]["volumeClaimTemplates"]:
                    name = claim["metadata"]["name"]
                    yield {"name": name, "persistentVolumeClaim": {"claimName": name}}

    def _volume(self, name: str, pod: Pod, volume: Mapping[str, Any]) -> str:
        """Make a pod's volume, and return its folder."""
        group = pod.spec["securityContext"]["fsGroup"]
        if "persistentVolumeClaim" in volume:
            folder = self._claims[volume["persistentVolumeClaim"]["claimName"]]
            if not volume["persistentVolumeClaim"].get("readOnly"):
                _give(folder, group)
            return str(folder)
        folder = self._work / name / volume["name"]
        if folder.exists():
            return str(folder)  # all containers of a pod have it
        folder.mkdir(parents=True)
        _give(folder, group)
        if "configMap" in volume:
            _mount(folder, self._contents("ConfigMap", volume["configMap"]["name"]), volume["configMap"], group)
        elif "secret" in volume:
            _mount(folder, self._contents("Secret", volume["secret"]["secretName"]), volume["secret"], group)
        return str(folder)

    def _contents(self, kind: str, name: str) -> dict[str, bytes]:
        """Return the files of a config map or a secret, by key."""
        (found,) = (
            document for document in self._documents
            if (document["kind"], document["metadata"]["name"]) == (kind, name)
        )  # fmt: skip
        texts = {key: text.encode() for key, text in found["data"].items()}
        return {key: base64.b64decode(text) for key, text in texts.items()} if kind == "Secret" else texts

    # --- probes ---

    def _wait_probe(self, name: str, kind: str, within_s: float = 0.0) -> None:
        """Ask as often as a probe says until it succeeds; raise AssertionError once it has failed for too long."""
        probe = self._pods[name].container[kind]
        deadline_s = time.monotonic() + (within_s or probe["periodSeconds"] * probe["failureThreshold"])
        while reason := self._probe(name, probe):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"the {kind} of {name} fails: {reason}\n{self._engine.logs(name)}")
            time.sleep(probe["periodSeconds"])

    def _probe(self, name: str, probe: Mapping[str, Any]) -> str:
        """Ask once, from the pod's network; return what is wrong, empty if it succeeds."""
        port = self._pods[name].ports[probe["httpGet"]["port"]]
        connection = http.client.HTTPConnection(self._engine.address(name), port, timeout=probe["timeoutSeconds"])
        try:
            connection.request("GET", probe["httpGet"]["path"])
            answer = connection.getresponse()
            text = answer.read().decode().strip()
            return "" if answer.status < 400 else f"{answer.status} {text}"
        except OSError as error:
            return str(error)
        finally:
            connection.close()


def _security(pod: Pod, container: Mapping[str, Any]) -> Iterator[str]:
    context, own = pod.spec["securityContext"], container["securityContext"]
    yield f"--user={context['runAsUser']}:{context['runAsGroup']}"
    yield f"--group-add={context['fsGroup']}"
    for capability in own["capabilities"]["drop"]:
        yield f"--cap-drop={capability}"
    if own["readOnlyRootFilesystem"]:
        yield "--read-only"
    if not own["allowPrivilegeEscalation"]:
        yield "--security-opt=no-new-privileges"
    # RuntimeDefault is what Docker does unless it is told otherwise.
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def _process(pod: Pod, container: Mapping[str, Any], mounts: Mapping[str, str]) -> Iterator[str]:
    for mount in container["volumeMounts"]:
        yield f"--volume={mounts[mount['name']]}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"
    for variable in container.get("env", ()):
        yield f"--env={variable['name']}={variable['value']}"
    if "workingDir" in container:
        yield f"--workdir={container['workingDir']}"
    if "command" in container:
        yield f"--entrypoint={container['command'][0]}"
    yield f"--memory={container['resources']['limits']['memory'].removesuffix('i').lower()}"
    yield f"--stop-timeout={pod.spec['terminationGracePeriodSeconds']}"


def _give(folder: Path, group: int) -> None:
    """Let a group write to a folder and to all that is in it, as `fsGroup` does."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, -1, group, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))


def _mount(folder: Path, contents: Mapping[str, bytes], source: Mapping[str, Any], group: int) -> None:
    """Fill a folder with the files of a config map or a secret: behind links, and readable for a group."""
    folder.chmod(0o3777)
    files = folder / "..2026_11_26"
    items = source.get("items", [{"key": key, "path": key} for key in contents])
    for item in items:
        file = files / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents[item["key"]])
        file.chmod(source.get("defaultMode", 0o644) | 0o440)
    for path in (files, *files.rglob("*")):
        os.chown(path, 0, group)
        if path.is_dir():
            path.chmod(0o2755)
    (folder / "..data").symlink_to(files.name)
    for path in files.iterdir():
        (folder / path.name).symlink_to(f"..data/{path.name}")
