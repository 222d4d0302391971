"""Who a process is: every source of it, every question, and every combination that cannot be."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cluster_role import Role, has_place, role_of
from shared.errors import SettingsError

PS = ("10.0.0.1:2222", "10.0.0.2:2222")
WORKERS = ("10.0.1.1:2222", "10.0.1.2:2222", "10.0.1.3:2222")
MASTER = "10.0.2.1:2222"


def tf_config(cluster=None, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster or {}, **({"task": task} if task else {})})}


def variables(kind, index, *, master=MASTER):
    return {
        "JOB_NAME": kind,
        "TASK_INDEX": str(index),
        "PS_HOSTS": ",".join(PS),
        "WORKER_HOSTS": ", ".join(WORKERS),
        "MASTER_HOST": master,
    }


def flags(kind, index, *, master=MASTER):
    return {
        "job_name": kind,
        "task_index": index,
        "ps_hosts": list(PS),
        "worker_hosts": WORKERS,
        "master_host": master,
    }


def in_tf_config(kind, index, *, master=MASTER):
    chief = {"chief": [master]} if master else {}
    return tf_config({**chief, "worker": list(WORKERS), "ps": list(PS)}, type=kind, index=index)


def whole(kind, index, *, master=MASTER):
    return Role(kind=kind, index=index, master_host=master, worker_hosts=WORKERS, ps_hosts=PS)


ALL = [("master", 0), *(("worker", n) for n in range(3)), *(("ps", n) for n in range(2)), ("evaluator", 0)]


@pytest.mark.parametrize(("kind", "index"), ALL)
@pytest.mark.parametrize("master", [MASTER, ""])
def test_flags_tf_config_and_variables_say_the_same(kind, index, master):
    if kind == "master" and not master:
        return
    want = whole(kind, index, master=master)
    assert role_of(flags(kind, index, master=master), {}) == want
    assert role_of({}, in_tf_config(kind, index, master=master)) == want
    assert role_of({}, variables(kind, index, master=master)) == want


def test_the_first_that_says_anything_says_everything():
    environment = {**in_tf_config("worker", 1), **variables("ps", 1)}
    assert role_of(flags("worker", 2), environment).index == 2
    assert role_of({"job_name": "worker"}, environment) == Role(kind="worker")
    assert role_of({"task_index": None, "ps_hosts": (), "job_name": ""}, environment) == whole("worker", 1)
    assert role_of({}, {**environment, "TF_CONFIG": ""}) == whole("ps", 1)


def test_a_task_index_alone_is_a_flag_too():
    with pytest.raises(
        SettingsError, match=r"^job_name: expected one of master, chief, worker, ps, evaluator, got none"
    ):
        role_of({"task_index": 0}, in_tf_config("worker", 1))


@pytest.mark.parametrize(
    ("kind", "index", "master", "answers"),
    [
        # is_master, is_worker, is_ps, is_evaluator, rank, world
        ("master", 0, MASTER, (True, True, False, False, 0, 4)),
        ("worker", 0, MASTER, (False, True, False, False, 1, 4)),
        ("worker", 2, MASTER, (False, True, False, False, 3, 4)),
        ("evaluator", 0, MASTER, (False, False, False, True, 0, 1)),
        ("worker", 0, "", (True, True, False, False, 0, 3)),
        ("worker", 1, "", (False, True, False, False, 1, 3)),
        ("worker", 2, "", (False, True, False, False, 2, 3)),
        ("evaluator", 0, "", (False, False, False, True, 0, 1)),
    ],
)
def test_what_each_is_asked(kind, index, master, answers):
    role = whole(kind, index, master=master)
    assert (role.is_master, role.is_worker, role.is_ps, role.is_evaluator, role.rank, role.world) == answers


def test_a_parameter_server_reads_no_data():
    role = whole("ps", 1)
    assert (role.is_master, role.is_worker, role.is_ps, role.is_evaluator) == (False, False, True, False)
    with pytest.raises(SettingsError, match=r"^rank: expected a role that reads data, got parameter server 1\."):
        role.rank  # noqa: B018 - asking is what raises


@pytest.mark.parametrize("master", [MASTER, ""])
def test_ranks_are_those_of_a_world_each_once_and_one_is_master(master):
    roles = [whole("worker", n, master=master) for n in range(3)] + ([whole("master", 0)] if master else [])
    assert sorted(role.rank for role in roles) == list(range(len(roles)))
    assert {role.world for role in roles} == {len(roles)}
    assert [role.rank for role in roles if role.is_master] == [0]


def test_hosts_by_tensorflows_names():
    assert whole("ps", 0).cluster == {"chief": [MASTER], "worker": list(WORKERS), "ps": list(PS)}
    assert Role(kind="worker", worker_hosts=WORKERS).cluster == {"worker": list(WORKERS)}
    assert Role(kind="master").cluster == {}
    assert [whole(kind, 0).task_type for kind in ("master", "worker", "ps")] == ["chief", "worker", "ps"]


# --- one machine ---


@pytest.mark.parametrize(
    ("said", "environment", "role"),
    [
        ({}, {"TF_CONFIG": "{}"}, Role(kind="master")),
        ({}, {"TF_CONFIG": '{"cluster": null, "task": null, "job": {"region": "x"}}'}, Role(kind="master")),
        ({}, tf_config(type="worker", index=0), Role(kind="worker")),
        ({}, {"JOB_NAME": "worker"}, Role(kind="worker")),
        ({}, {"JOB_NAME": "master", "TASK_INDEX": "0", "PS_HOSTS": "", "WORKER_HOSTS": ""}, Role(kind="master")),
        ({}, {"JOB_NAME": "evaluator"}, Role(kind="evaluator")),
        ({"job_name": "chief"}, {}, Role(kind="master")),
    ],
)
def test_on_one_machine_hosts_and_index_may_be_left_out(said, environment, role):
    assert role_of(said, environment) == role
    assert (role.rank, role.world, role.is_master) == (0, 1, role.kind != "evaluator")


def test_the_only_one_of_its_kind_needs_no_index():
    assert role_of({}, {**variables("master", 0), "TASK_INDEX": ""}) == whole("master", 0)
    with pytest.raises(
        SettingsError, match=r"^TASK_INDEX: expected the number of a worker of 3, counted from 0, got none"
    ):
        role_of({}, {**variables("worker", 0), "TASK_INDEX": ""})


def test_master_is_another_word_for_chief_and_hosts_may_be_a_text():
    one = tf_config({"master": MASTER, "worker": ",".join(WORKERS), "ps": list(PS)}, type="chief", index=0)
    assert role_of({}, one) == whole("master", 0)


def test_the_evaluator_of_a_cluster_may_have_a_host():
    cluster = {"chief": [MASTER], "worker": list(WORKERS), "evaluator": ["10.0.3.1:1"]}
    role = role_of({}, tf_config(cluster, type="evaluator", index=0))
    assert role == Role(kind="evaluator", master_host=MASTER, worker_hosts=WORKERS)
    assert (role.rank, role.world) == (0, 1)


# --- the last worker evaluates ---


@pytest.mark.parametrize("master", [MASTER, ""])
def test_the_last_worker_is_the_evaluator_in_everybodys_eyes(master):
    kinds = [("worker", n) for n in range(3)] + [("ps", 1)] + ([("master", 0)] if master else [])
    roles = [role_of(flags(*one, master=master), {}, last_worker_evaluates=True) for one in kinds]
    assert [role.is_evaluator for role in roles[:3]] == [False, False, True]
    assert {role.worker_hosts for role in roles} == {WORKERS[:2]}
    assert {role.world for role in roles if role.is_worker} == {3 if master else 2}
    assert roles[2] == Role(kind="evaluator", master_host=master, worker_hosts=WORKERS[:2], ps_hosts=PS)


def test_beside_a_master_the_only_worker_may_evaluate():
    said = {"job_name": "worker", "worker_hosts": WORKERS[:1], "master_host": MASTER}
    assert role_of(said, {}, last_worker_evaluates=True) == Role(kind="evaluator", master_host=MASTER)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"job_name": "worker", "worker_hosts": WORKERS[:1]}, "worker_hosts: expected two workers or more, so that"),
        ({"job_name": "worker"}, "worker_hosts: expected two workers or more, so that the last may evaluate, got 1,"),
        ({"job_name": "master", "master_host": MASTER}, "worker_hosts: expected two workers or more"),
        (flags("evaluator", 0), "evaluator: expected no evaluator beside the last worker, got one."),
    ],
)
def test_no_last_worker_to_spare(said, words):
    with pytest.raises(SettingsError) as caught:
        role_of(said, {}, last_worker_evaluates=True)
    assert str(caught.value).startswith(words)


def test_an_evaluator_in_tf_config_leaves_no_room_for_another():
    cluster = {"worker": list(WORKERS), "evaluator": ["10.0.3.1:1"]}
    with pytest.raises(SettingsError, match=r"^TF_CONFIG, cluster\.evaluator: expected no evaluator beside the last"):
        role_of({}, tf_config(cluster, type="worker", index=0), last_worker_evaluates=True)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {},
            "the environment: expected a role: flags, TF_CONFIG, or JOB_NAME and TASK_INDEX, got none of them. Set TF",
        ),
        ({"TF_CONFIG": "{cluster"}, "TF_CONFIG: expected a JSON object, got '{cluster' ("),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG: expected a JSON object, got [1]. Write it as {"),
        ({"TF_CONFIG": '"null"'}, "TF_CONFIG: expected a JSON object, got 'null'."),
        ({"TF_CONFIG": "null"}, "TF_CONFIG: expected a JSON object, got None."),
        ({"TF_CONFIG": '{"task": "worker"}'}, "TF_CONFIG, task: expected a JSON object, got 'worker'."),
        ({"TF_CONFIG": '{"cluster": []}'}, "TF_CONFIG, cluster: expected a JSON object, got []."),
        (tf_config({"workers": ["a:1"]}), "ps, evaluator, perhaps \"worker\", got 'workers'. Name no others."),
        (
            tf_config({"chief": ["a:1"], "master": ["b:1"]}),
            "TF_CONFIG, cluster: expected a chief or a master, got both.",
        ),
        (tf_config({"chief": ["a:1", "b:1"]}), "TF_CONFIG, cluster.chief: expected one master, got 2 hosts. Make the"),
        (
            tf_config({"evaluator": ["a:1", "b:1"]}),
            "TF_CONFIG, cluster.evaluator: expected one evaluator, got 2 hosts.",
        ),
        (
            tf_config({"worker": ["a:1"]}),
            "TF_CONFIG, task.type: expected one of master, chief, worker, ps, evaluator, got",
        ),
        (tf_config(type="wroker", index=0), "evaluator, perhaps \"worker\", got 'wroker'. Set what this process is."),
        (tf_config(type=1, index=0), "TF_CONFIG, task.type: expected one of"),
        (
            tf_config({"worker": {"0": "a:1"}}, type="worker"),
            "TF_CONFIG, cluster.worker: expected a list of hosts, or a",
        ),
        (
            tf_config({"worker": [7]}, type="worker"),
            "TF_CONFIG, cluster.worker: expected hosts like 10.0.0.7:2222, got 7.",
        ),
        (tf_config({"worker": ["a"]}, type="worker"), "expected hosts like 10.0.0.7:2222, got 'a'. Write host:port"),
        (
            tf_config({"worker": ["a:1"]}, type="worker", index=1),
            "TF_CONFIG, task.index: expected 0, the only worker, got 1",
        ),
        (tf_config({"worker": ["a:1"]}, type="worker", index=True), "expected 0, the only worker, got True."),
        (tf_config(type="master", index=1), "TF_CONFIG, task.index: expected 0, the only master, got 1. Number the"),
        (
            tf_config({"worker": ["a:1"]}, type="chief", index=0),
            "TF_CONFIG, cluster.chief: expected hosts of the master that",
        ),
        (
            tf_config({"chief": ["a:1"]}, type="worker", index=0),
            "TF_CONFIG, cluster.worker: expected hosts of the worker that",
        ),
        (
            tf_config({"worker": ["a:1"]}, type="ps", index=0),
            "TF_CONFIG, cluster.ps: expected hosts of the ps that this",
        ),
        (
            tf_config({"worker": ["a:1", "a:1"]}, type="worker", index=0),
            "TF_CONFIG, cluster.worker: expected each host and port",
        ),
        (
            tf_config({"ps": ["a:1"]}, type="ps", index=0),
            "expected hosts of workers beside parameter servers, got none.",
        ),
        ({"TASK_INDEX": "0"}, "JOB_NAME: expected one of master, chief, worker, ps, evaluator, got none."),
        ({"JOB_NAME": "ps"}, "PS_HOSTS: expected hosts of the ps that this process is, got none. Name its own"),
        (variables("worker", 3), "TASK_INDEX: expected the number of a worker of 3, counted from 0, got '3'."),
        (variables("worker", -1), "TASK_INDEX: expected the number of a worker of 3, counted from 0, got '-1'."),
        (variables("worker", "one"), "counted from 0, got 'one'."),
        (variables("worker", "٣"), "counted from 0, got '٣'."),
        (variables("worker", "9" * 5000), "TASK_INDEX: expected the number of a worker of 3"),
        (variables("ps", 2), "TASK_INDEX: expected the number of a ps of 2, counted from 0, got '2'."),
        (
            variables("master", 0, master=""),
            "MASTER_HOST: expected hosts of the master that this process is, got none.",
        ),
        (
            {**variables("worker", 0), "WORKER_HOSTS": "a:1,,b:1"},
            "WORKER_HOSTS: expected hosts like 10.0.0.7:2222, got none.",
        ),
        ({**variables("worker", 0), "MASTER_HOST": "a:1,b:1"}, "MASTER_HOST: expected one master, got 2 hosts."),
        (
            {**variables("worker", 0), "MASTER_HOST": PS[0]},
            f"PS_HOSTS: expected each host and port once, got {PS[0]} twice.",
        ),
    ],
)
def test_what_cannot_be_is_named(environment, words):
    with pytest.raises(SettingsError) as caught:
        role_of({}, environment)
    assert words in str(caught.value)


NAMES = ("JOB_NAME", "TASK_INDEX", "PS_HOSTS", "WORKER_HOSTS", "MASTER_HOST")
SAYINGS = st.sampled_from(
    ["", "master", "worker", "ps", "evaluator", "0", "1", "a:1", "b:1,c:1", "a:1,a:1", "nonsense"]
)


@given(st.dictionaries(st.sampled_from(NAMES), SAYINGS))
def test_every_combination_is_a_role_or_an_error_of_the_users(environment):
    with contextlib.suppress(SettingsError):
        role = role_of({}, environment)
        assert role.is_ps or 0 <= role.rank < role.world
        assert sum((role.is_worker, role.is_ps, role.is_evaluator)) == 1


@pytest.mark.parametrize("said", [frozenset(s) for n in range(3) for s in itertools.combinations(NAMES, n)])
def test_a_job_name_alone_does_not_place_a_process(said):
    assert has_place(dict.fromkeys(said, "1")) == bool(said - {"JOB_NAME"})
    assert not has_place(dict.fromkeys(said, ""))


def test_tf_config_places_a_process():
    assert has_place({"TF_CONFIG": "{}"})
