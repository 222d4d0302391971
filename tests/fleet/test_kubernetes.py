"""The manifests: numbers that follow from settings, and what must hold so that losing a pod costs little.

Each test takes them as they are written, and as kubectl renders them if there is one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml

from loader_server.fleet import job_joining
from loader_server.machine import machine_probes, supervisor
from loader_server.machine.supervisor import SupervisorSettings
from shared.errors import LostError, RefusedError, WorldChangedError
from shared.keys import ALLOWED, AllowedKeys, ClientKeys, ServerKeys, make_keys
from shared.metrics.probes import LOOP_S
from shared.settings.job import parse_job
from tests.fleet.kubectl import find_kubectl, find_validator, render, validate
from tests.fleet.manifests import KUBERNETES, OVERLAYS, Pod, find, option, options, pods, read_written
from tests.support.forked import ROOT
from trainer_client.core.settings import CoreSettings, slots_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainer_client.core.stream_spec import StreamSpec

Documents = list[dict[str, Any]]

JOB = parse_job((KUBERNETES / "base/job.toml").read_text(), "job.toml").settings
#: By which a pod may live longer than its processes may take to end.
SPARE_S = 5
#: What fetching a bundle is given at the least; the largest one is 1 GiB.
SLOWEST_FETCH = 10e6


@pytest.fixture(scope="module", params=["written", "rendered"])
def manifests(request: pytest.FixtureRequest) -> Callable[[str], Documents]:
    """The documents of one of the folders."""
    if request.param == "written":
        return lambda folder: read_written(KUBERNETES / folder)
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("there is no kubectl; `make fleet-test` gets one")
    return lambda folder: render(kubectl, KUBERNETES / folder)


@pytest.fixture
def everything(manifests: Callable[[str], Documents]) -> list[Pod]:
    """All pods of all folders."""
    return [pod for folder in OVERLAYS for pod in pods(manifests(folder))]


def loaders(everything: list[Pod]) -> Iterator[Pod]:
    """The pods that serve."""
    return (pod for pod in everything if pod.component != "trainer")


def number_of_workers(pod: Pod) -> int:
    return int(option(pod.container, "--workers"))


def seconds(probe: dict[str, int]) -> int:
    """After how long at the earliest a probe that always fails has an effect: the first failure may come at once."""
    return probe["periodSeconds"] * (probe["failureThreshold"] - 1)


# --- pods ---


def test_there_are_pods_of_all_components(everything: list[Pod]) -> None:
    made = {(pod.component, pod.made_by) for pod in everything}
    assert made == {
        ("coordinator", "StatefulSet"), ("worker", "Deployment"), ("trainer", "Job"),
        ("coordinator", "JobSet"), ("worker", "JobSet"), ("trainer", "JobSet"),
    }  # fmt: skip


def test_pods_are_as_the_restricted_pod_security_standard_wants_them(
    everything: list[Pod], manifests: Callable[[str], Documents]
) -> None:
    for pod in everything:
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
        assert pod.spec["automountServiceAccountToken"] is False
        kinds = {kind for volume in pod.spec["volumes"] for kind in volume.keys() - {"name"}}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    labels = find(manifests("namespace"), "Namespace", "stoker")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_who_deletes_a_job_keeps_the_namespace_with_its_claims_and_secrets(
    manifests: Callable[[str], Documents],
) -> None:
    made = {document["kind"] for folder in OVERLAYS[1:] for document in manifests(folder)}
    assert not made & {"Namespace", "Secret"}


def test_what_is_mounted_is_a_volume_of_the_pod(everything: list[Pod]) -> None:
    for pod in everything:
        claims = {"state"} if pod.made_by == "StatefulSet" else set()
        volumes = {volume["name"] for volume in pod.spec["volumes"]} | claims
        assert {mount["name"] for container in pod.containers for mount in container["volumeMounts"]} == volumes


def test_what_the_job_file_names_is_mounted(everything: list[Pod]) -> None:
    stream = parse_job((KUBERNETES / "base/job.toml").read_text(), "job.toml").streams["train"]
    for pod in loaders(everything):
        mounts = {mount["mountPath"]: mount for mount in pod.container["volumeMounts"]}
        assert {JOB.keys, JOB.state} <= mounts.keys()
        assert not mounts[JOB.state].get("readOnly")
        assert all(Path(path).is_relative_to("/data") for path in stream["paths"])
        assert mounts["/data"]["readOnly"] is True
        for container in pod.spec.get("initContainers", ()):
            assert all(mounts[mount["mountPath"]] == mount for mount in container["volumeMounts"])


def test_a_pod_may_take_as_long_to_end_as_its_processes_and_some_more(everything: list[Pod]) -> None:
    grace = ceil(SupervisorSettings(workers=1).drain_timeout_s) + SPARE_S
    assert {pod.spec["terminationGracePeriodSeconds"] for pod in loaders(everything)} == {grace}
    assert {pod.spec["terminationGracePeriodSeconds"] for pod in everything if pod.component == "trainer"} == {60}


def test_memory_is_limited_and_a_worker_has_a_core(everything: list[Pod]) -> None:
    assert all(container["resources"]["limits"]["memory"] for pod in everything for container in pod.containers)
    for pod in everything:
        if pod.component == "worker":
            assert pod.container["resources"]["requests"]["cpu"] == str(number_of_workers(pod))


# --- probes ---


def test_a_process_that_a_transform_holds_up_is_not_restarted(everything: list[Pod]) -> None:
    """Nor a supervisor or a coordinator that has as long."""
    longest_s = max(JOB.build_timeout_s + LOOP_S, machine_probes._DEAD_S)
    for pod in loaders(everything):
        probe = pod.container["livenessProbe"]
        assert probe["httpGet"]["path"] == "/healthz"
        assert longest_s < seconds(probe) < 2 * longest_s


def test_a_pod_that_does_not_serve_is_soon_not_ready(everything: list[Pod]) -> None:
    for pod in loaders(everything):
        probe = pod.container["readinessProbe"]
        assert probe["httpGet"]["path"] == "/readyz"
        assert seconds(probe) <= 2 * LOOP_S
        if pod.component == "worker":  # the machine asks all of its workers before it answers
            assert probe["timeoutSeconds"] > number_of_workers(pod) * machine_probes._ANSWER_S


def test_starting_may_take_as_long_as_it_may_take(everything: list[Pod]) -> None:
    fetching_s = JOB.bundle_bytes / SLOWEST_FETCH
    longest_s = {
        "coordinator": supervisor._READY_TIMEOUT_S,
        "worker": job_joining._LOST_S + fetching_s + supervisor._READY_TIMEOUT_S,
    }
    for pod in loaders(everything):
        probe = pod.container["startupProbe"]
        assert longest_s[pod.component] < seconds(probe) < 2 * longest_s[pod.component] + 60
        assert probe["httpGet"]["path"] == "/healthz"


def test_probes_ask_at_the_port_that_answers_them(everything: list[Pod]) -> None:
    for pod in loaders(everything):
        kinds = ("startupProbe", "readinessProbe", "livenessProbe")
        (port,) = {pod.container[kind]["httpGet"]["port"] for kind in kinds}
        given = options(pod.container)
        listens = given["--metrics-listen"].rpartition(":")[2] if "--metrics-port" not in given else ""
        assert str(pod.ports[port]) == (listens or given["--metrics-port"])


# --- who finds whom ---


def test_the_coordinator_is_found_though_it_is_not_ready(manifests: Callable[[str], Documents]) -> None:
    for folder in (".", "base", "scaled", "jobset"):
        documents = manifests(folder)
        service = find(documents, "Service", "stoker-coordinator")["spec"]
        assert service["publishNotReadyAddresses"] is True
        assert service["clusterIP"] == "None"
        found = [pod for pod in pods(documents) if pod.is_selected({"matchLabels": service["selector"]})]
        assert [pod.component for pod in found] == ["coordinator"]
        (port,) = service["ports"]
        assert found[0].ports[port["targetPort"]] == port["port"]
        assert option(found[0].container, "--listen") == f"tcp://0.0.0.0:{port['port']}"


def test_the_others_go_to_the_coordinators_service(everything: list[Pod]) -> None:
    for pod in everything:
        endpoints = [word for word in pod.container["args"] if "tcp://stoker" in word]
        expected = {"coordinator": [], "worker": ["tcp://stoker-coordinator:7400"]}
        assert endpoints == expected.get(pod.component, ["--feed=tcp://stoker-coordinator:7400"])


def test_a_hosts_ports_are_those_that_its_options_lead_to(everything: list[Pod]) -> None:
    for pod in everything:
        if pod.component == "worker":
            first = int(option(pod.container, "--listen").rpartition(":")[2])
            metrics = int(option(pod.container, "--metrics-port"))
            expected = {"probes": metrics}
            for number in range(number_of_workers(pod)):
                expected |= {f"metrics-{number}": metrics + 1 + number}
                expected |= {f"worker-{number}": first + 2 * number, f"sealed-{number}": first + 2 * number + 1}
            assert pod.ports == expected


def test_only_named_ports_are_open_and_all_that_others_connect_to(manifests: Callable[[str], Documents]) -> None:
    for folder in ("base", "jobset"):
        documents = manifests(folder)
        policies = [document["spec"] for document in documents if document["kind"] == "NetworkPolicy"]
        assert all(policy["policyTypes"] == ["Ingress"] for policy in policies)
        for pod in pods(documents):
            (policy,) = (policy for policy in policies if pod.is_selected(policy["podSelector"]))
            rules = policy.get("ingress", ())
            assert all(rule["from"] and rule["ports"] for rule in rules)
            names = {port["port"] for rule in rules for port in rule["ports"]}
            assert names == pod.ports.keys() - {"probes"}  # nodes, where probes come from, are let in anyway


def test_loaders_are_asked_by_those_who_have_to_and_metrics_by_prometheus(
    manifests: Callable[[str], Documents],
) -> None:
    stoker = {"app.kubernetes.io/name": "stoker"}
    expected = {"coordinator": stoker, "worker": {**stoker, "app.kubernetes.io/component": "trainer"}}
    documents = manifests("base")
    for name, labels in expected.items():
        policy = find(documents, "NetworkPolicy", f"stoker-{name}{'s' * (name == 'worker')}")["spec"]
        served, metrics = policy["ingress"]
        assert served["from"] == [{"podSelector": {"matchLabels": labels}}]
        assert metrics["from"] == [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ]
        assert all(port["port"].startswith("metrics") for port in metrics["ports"])
        assert not any(port["port"].startswith("metrics") for port in served["ports"])


# --- many pods ---


def test_worker_hosts_leave_one_by_one_and_are_spread(manifests: Callable[[str], Documents]) -> None:
    documents = manifests("base")
    (worker,) = (pod for pod in pods(documents) if pod.component == "worker")
    budget = find(documents, "PodDisruptionBudget", "stoker-workers")["spec"]
    assert (budget["maxUnavailable"], worker.is_selected(budget["selector"])) == (1, True)
    # Without a coordinator no host is ready, and no node could be drained.
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    (spread,) = worker.spec["topologySpreadConstraints"]
    assert (spread["topologyKey"], worker.is_selected(spread["labelSelector"])) == ("kubernetes.io/hostname", True)
    deployment = find(documents, "Deployment", "stoker-workers")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_coordinator_that_never_became_ready_is_replaced_once_its_job_file_is_mended(
    manifests: Callable[[str], Documents],
) -> None:
    """OrderedReady, the default, waits for the broken pod, so somebody would have to delete it."""
    coordinator = find(manifests("base"), "StatefulSet", "stoker-coordinator")["spec"]
    assert (coordinator["replicas"], coordinator["podManagementPolicy"]) == (1, "Parallel")


def test_the_number_of_hosts_is_left_to_what_scales_them(manifests: Callable[[str], Documents]) -> None:
    documents = manifests("scaled")
    scaled = find(documents, "ScaledObject", "stoker-workers")["spec"]
    (worker,) = (pod for pod in pods(documents) if pod.component == "worker")
    (trigger,) = scaled["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    assert trigger["metadata"]["query"] == f'max(stoker_workers_wanted{{job="{JOB.name}"}})'
    assert trigger["metadata"]["threshold"] == str(number_of_workers(worker))
    assert trigger["metadata"]["ignoreNullValues"] == "false", "nobody knows the number: not the smallest one"
    assert find(documents, "Deployment", scaled["scaleTargetRef"]["name"])
    assert scaled["minReplicaCount"] >= 1
    # The number goes down slowly by itself; a window on top (300 s unless it is set) would only be late.
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert {behavior[way]["stabilizationWindowSeconds"] for way in ("scaleUp", "scaleDown")} == {0}
    patches = yaml.safe_load((KUBERNETES / "scaled/kustomization.yaml").read_text())["patches"]
    assert yaml.safe_load(patches[0]["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]


def test_a_monitor_reads_each_port_that_has_metrics(manifests: Callable[[str], Documents]) -> None:
    documents = manifests(".")
    monitor = find(documents, "PodMonitor", "stoker")["spec"]
    served = {name for pod in pods(documents) for name in pod.ports if name.startswith("metrics")}
    endpoints = monitor["podMetricsEndpoints"]
    assert {endpoint["port"] for endpoint in endpoints} == served
    for pod in pods(documents):
        assert pod.is_selected(monitor["selector"])
        assert pod.metadata["labels"][monitor["jobLabel"]] == JOB.name
        (token,) = (volume["secret"] for volume in pod.spec["volumes"] if volume["name"] == "metrics")
        assert option(pod.container, "--metrics-token") == "/metrics/token"
        names = {endpoint["authorization"]["credentials"]["name"] for endpoint in endpoints}
        assert names == {token["secretName"]}


def test_a_monitors_labels_are_those_that_alerts_and_dashboard_expect(manifests: Callable[[str], Documents]) -> None:
    for endpoint in find(manifests("pod-monitor"), "PodMonitor", "stoker")["spec"]["podMetricsEndpoints"]:
        labels = {label["targetLabel"]: label for label in endpoint["relabelings"]}
        component = ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
        assert labels["role"]["sourceLabels"] == component
        _, _, number = endpoint["port"].partition("-")
        if not number:
            assert labels["instance"]["sourceLabels"] == component
            continue
        assert labels["worker"]["sourceLabels"] == ["__meta_kubernetes_pod_name"]
        assert labels["worker"]["replacement"] == f"$1-{number}"
        assert (labels["instance"]["sourceLabels"], labels["instance"]["replacement"]) == (["worker"], "worker-$1")


# --- one JobSet ---


def test_a_jobset_is_a_success_by_its_trainers_alone_and_fails_by_them_alone(
    manifests: Callable[[str], Documents],
) -> None:
    spec = find(manifests("jobset"), "JobSet", "stoker")["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainers"]}
    (rule,) = spec["failurePolicy"]["rules"]
    assert (rule["action"], rule["targetReplicatedJobs"]) == ("FailJobSet", ["trainers"])
    assert spec["failurePolicy"]["maxRestarts"] == 0
    jobs = {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}
    assert jobs.keys() == {"coordinator", "workers", "trainers"}
    for name in ("coordinator", "workers"):
        job = jobs[name]
        assert job["backoffLimit"] == 2**31 - 1, "no number of lost pods fails it"
        assert job["completions"] == 2**31 - 1, "a pod that drained and ended well is replaced too"
        assert (job["completionMode"], job["template"]["spec"]["restartPolicy"]) == ("NonIndexed", "OnFailure")
        assert not {"activeDeadlineSeconds", "podFailurePolicy", "ttlSecondsAfterFinished"} & job.keys()
    assert jobs["coordinator"]["parallelism"] == 1
    assert jobs["coordinator"]["podReplacementPolicy"] == "Failed", "never two coordinators at once"
    # Names of its own for pods would need indexes; the coordinator is found by its Service.
    assert spec["network"] == {"enableDNSHostnames": False}
    assert "dependsOn" not in str(spec)
    assert "startupPolicy" not in spec, "a lost coordinator must not hold up the others"


def test_nodes_with_pods_of_a_jobset_can_be_drained(manifests: Callable[[str], Documents]) -> None:
    """By what must stay: Jobs do not say how many pods they should have, as `maxUnavailable` would need it."""
    patches = yaml.safe_load((KUBERNETES / "jobset/kustomization.yaml").read_text())["patches"]
    (patch,) = (patch for patch in patches if patch["target"]["kind"] == "PodDisruptionBudget")
    budget = find(manifests("jobset"), "PodDisruptionBudget", patch["target"]["name"])["spec"]
    changes = {change["path"].rpartition("/")[2]: change for change in yaml.safe_load(patch["patch"])}
    assert (changes["maxUnavailable"]["op"], changes["minAvailable"]["op"]) == ("remove", "add")
    (worker,) = (pod for pod in pods(manifests("jobset")) if pod.component == "worker")
    assert worker.is_selected(budget["selector"])
    jobs = find(manifests("jobset"), "JobSet", "stoker")["spec"]["replicatedJobs"]
    (hosts,) = (job["template"]["spec"]["parallelism"] for job in jobs if job["name"] == "workers")
    assert changes["minAvailable"]["value"] == hosts - 1


def test_trainers_that_lose_their_node_come_back_however_often(manifests: Callable[[str], Documents]) -> None:
    single = find(manifests("trainer"), "Job", "stoker-trainer")["spec"]
    jobs = find(manifests("jobset"), "JobSet", "stoker")["spec"]["replicatedJobs"]
    (in_set,) = (job["template"]["spec"] for job in jobs if job["name"] == "trainers")
    for job in (single, in_set):
        lost, waiting, wrong = job["podFailurePolicy"]["rules"]
        assert lost["action"] == "Ignore"
        assert lost["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        # An index that takes an hour to build must not fail a JobSet, whose trainers start with the coordinator.
        codes = [LostError.exit_code, WorldChangedError.exit_code]
        assert (waiting["action"], waiting["onExitCodes"]["values"]) == ("Ignore", codes)
        assert (wrong["action"], wrong["onExitCodes"]["values"]) == ("FailJob", [2, RefusedError.exit_code])
        assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_the_pods_of_a_jobset_are_those_of_the_other_folders(everything: list[Pod]) -> None:
    """But for what differs by kind: the restart policy, and that a StatefulSet makes its claim itself."""

    def plain(pod: Pod) -> dict[str, Any]:
        volumes = [
            volume for volume in pod.spec["volumes"] if (pod.component, volume["name"]) != ("coordinator", "state")
        ]
        return {**pod.spec, "restartPolicy": "", "volumes": volumes, "labels": pod.metadata["labels"]}

    in_set = {pod.component: plain(pod) for pod in everything if pod.made_by == "JobSet"}
    assert {pod.component: plain(pod) for pod in everything if pod.made_by != "JobSet"} == in_set


# --- a trainer's memory ---


def test_a_trainers_memory_counts_its_slots() -> None:
    text = (KUBERNETES / "trainer/trainer.yaml").read_text()
    # What the job file's budget of 60 s is at most, in frames of 10 ms with 80 bands of float32.
    largest = 60 * 100 * 80 * 4
    ranks = SimpleNamespace(replicas=1)
    settings = SimpleNamespace(ranks=ranks, prefetch=None, prefetch_bytes=2**30, verifies=False)
    spec = SimpleNamespace(at_a_time=1, largest_bytes=lambda: largest, producers=0)
    numbers = slots_for(cast("CoreSettings", settings), cast("StreamSpec", spec))
    # Slots have memory while they are used: what is asked for ahead at first, and no more unless that helps.
    slots = numbers.start + numbers.hands
    words = f"{slots + 1} (prefetch {numbers.start}, {numbers.hands} in TensorFlow's hands, a reserve)"
    assert words in text
    plain = " ".join(text.replace("#", " ").split())
    assert f"{largest / 1e6:.1f} MB with a budget of 60 s, so {(slots + 1) * largest / 1e6:.0f} MB" in plain
    assert f"add {slots + 1} batches, and 1 GiB (`prefetch_bytes`) at the most" in plain
    assert (JOB.name, CoreSettings.__dataclass_fields__["prefetch_bytes"].default) == ("digits", 2**30)
    # 0.6 GB, as measured, and room for half as much again.
    assert yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "1Gi"


# --- keys ---


def test_secrets_are_for_the_pods_user_alone(everything: list[Pod]) -> None:
    for pod in everything:
        volumes = [volume for volume in pod.spec["volumes"] if "secret" in volume]
        assert {volume["name"] for volume in volumes} >= {"keys"}
        assert {volume["secret"]["defaultMode"] for volume in volumes} == {0o400}
        # Files are root's: without a group of its own the user could not read them.
        assert pod.spec["securityContext"]["fsGroup"] == pod.spec["securityContext"]["runAsGroup"]
        # Some drivers give volumes of data to the group as well: not file by file with each pod.
        assert pod.spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        mounts = {mount["name"]: mount for mount in pod.container["volumeMounts"]}
        assert all(mounts[volume["name"]]["readOnly"] for volume in volumes)


def test_each_role_gets_its_own_secret_key_and_no_other(everything: list[Pod], tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    kustomization = yaml.safe_load((KUBERNETES / "secrets/kustomization.yaml").read_text())
    assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}, "pods name them as they are"
    made = kustomization["secretGenerator"]
    given = {secret["name"]: dict(_named(file) for file in secret["files"]) for secret in made}
    (tmp_path / "token").touch()
    assert all((tmp_path / path).exists() for files in given.values() for path in files.values())
    for pod in everything:
        (keys,) = (volume["secret"] for volume in pod.spec["volumes"] if volume["name"] == "keys")
        files = given[keys["secretName"]]
        for item in keys.get("items", [{"key": key, "path": key} for key in files]):
            assert files[item["key"]] == f"keys/{item['path']}"
        secret = [path for path in files.values() if path.endswith("_secret")]
        assert secret == [f"keys/{pod.component}.key_secret"]


def test_the_token_is_made_without_a_newline_because_prometheus_sends_it_as_it_is(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in (KUBERNETES / "secrets/kustomization.yaml").read_text().splitlines()]
    (line,) = (line for line in lines if line.startswith("openssl"))
    assert f"$ {line}\n" in (ROOT / "docs/fleet.md").read_text()
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    (tmp_path / "deploy/kubernetes/secrets").mkdir(parents=True)
    subprocess.run(line, shell=True, check=True, cwd=tmp_path)
    made = (tmp_path / "deploy/kubernetes/secrets/token").read_bytes()
    assert re.fullmatch(rb"[0-9a-f]{64}", made)


def test_images_are_named_in_one_place_for_all_folders(tmp_path: Path) -> None:
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("there is no kubectl; `make fleet-test` gets one")
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes/images/kustomization.yaml"
    named = yaml.safe_load(file.read_text())
    for image in named["images"]:
        image |= {"newName": f"registry.example.com/{image['name']}", "newTag": "7"}
    file.write_text(yaml.safe_dump(named))
    for folder in OVERLAYS:
        for pod in pods(render(kubectl, tmp_path / "kubernetes" / folder)):
            name = "trainer" if pod.component == "trainer" else "loader"
            images = {container["image"] for container in pod.containers}
            assert images == {f"registry.example.com/stoker-{name}:7"}


def _named(file: str) -> tuple[str, str]:
    """Return the key in the secret, and the file that it is made of."""
    key, equals, path = file.partition("=")
    return (key, path) if equals else (Path(file).name, file)


def test_keys_are_read_as_the_kubelet_mounts_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By links into a folder whose name changes with the secret, and readable for user and group."""
    make_keys(tmp_path / "made")
    mounted = tmp_path / "keys"
    mounted.mkdir()
    (tmp_path / "made").rename(mounted / "..2026_11_26")
    (mounted / "..data").symlink_to("..2026_11_26")
    for path in (mounted / "..data").iterdir():
        (mounted / path.name).symlink_to(f"..data/{path.name}")
        for file in (path, *path.rglob("*")):
            file.chmod(0o440 if file.is_file() else 0o755)
    mounted.chmod(0o3777)  # as the kubelet leaves it; it is mounted read-only
    ServerKeys.read(mounted, "coordinator")
    ClientKeys.read(mounted, "worker", to="coordinator")
    ClientKeys.read(mounted, "trainer", to="worker")
    allowed = AllowedKeys(mounted / ALLOWED)
    public = re.findall(r'public-key = "(.+)"', (mounted / "worker.key").read_text())
    assert allowed.roles(public[0]) == {"worker"}
    assert "everybody" not in capfd.readouterr().err
    # Another release of the secret: another folder behind the same links.
    (mounted / "..2026_11_26").rename(mounted / "..2026_11_27")
    (mounted / "..new").symlink_to("..2026_11_27")
    (mounted / "..new").rename(mounted / "..data")
    (mounted / "..data/allowed/worker/worker.key").unlink()
    assert allowed.follow()
    assert allowed.roles(public[0]) == set()


# --- fields that there are ---


@pytest.mark.slow
def test_a_misspelt_field_is_found() -> None:
    python = find_validator()
    if python is None:
        pytest.skip("there is no kubernetes-validate; `make fleet-test` gets one")
    documents = read_written(KUBERNETES / "scaled") + read_written(KUBERNETES / "jobset")
    assert validate(python, documents).errors == ()
    for document in documents:
        spec = document.get("spec")
        if spec is not None:
            spec["replicaz"] = 3
    errors = validate(python, documents).errors
    assert {error.partition(":")[0] for error in errors} >= {"JobSet", "ScaledObject", "PodMonitor", "Deployment"}
    assert len(errors) == sum("spec" in document for document in documents)
