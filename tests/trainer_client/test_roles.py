"""`role()` as a user's script calls it in each process of a cluster, and the place that `connect` takes from it."""

from __future__ import annotations

import json
import logging

import pytest

import trainer_client
from shared.errors import SettingsError
from tests.support.ends import Ends

HOSTS = {"PS_HOSTS": "ps-0:2222,ps-1:2222", "WORKER_HOSTS": "w-0:2222,w-1:2222", "MASTER_HOST": "m:2222"}
CLUSTER = {"chief": ["m:2222"], "worker": ["w-0:2222", "w-1:2222"], "ps": ["ps-0:2222", "ps-1:2222"]}


@pytest.fixture
def environment(monkeypatch):
    """A function that sets the variables which say a role, and no others of them."""
    monkeypatch.delenv("TF_CONFIG", raising=False)

    def say(**variables):
        for name in ("TF_CONFIG", "JOB_NAME", "TASK_INDEX", *HOSTS):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    say()
    return say


@pytest.mark.heritage("L1")
def test_a_role_comes_from_tf_config_else_from_plain_variables_else_it_is_an_error(environment):
    environment(TF_CONFIG=json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}), JOB_NAME="ps")
    from_tf_config = trainer_client.role()
    environment(JOB_NAME="worker", TASK_INDEX="1", **HOSTS)
    assert trainer_client.role() == from_tf_config
    assert trainer_client.role(job_name="ps", ps_hosts="ps-0:1", worker_hosts=["w-0:1"]).is_ps
    environment()
    with pytest.raises(SettingsError, match=r"expected a role: flags, TF_CONFIG, or JOB_NAME and TASK_INDEX, got"):
        trainer_client.role()


@pytest.mark.heritage("L2")
def test_hosts_are_lists_or_texts_and_one_machine_needs_none(environment):
    environment(JOB_NAME="worker", TASK_INDEX="0", **HOSTS)
    listed = {name.lower(): hosts.split(",") for name, hosts in HOSTS.items()}
    texts = {name.lower(): hosts for name, hosts in HOSTS.items()}
    assert trainer_client.role() == trainer_client.role(job_name="worker", task_index=0, **texts)
    assert trainer_client.role() == trainer_client.role(
        job_name="worker", task_index=0, **{**listed, "master_host": "m:2222"}
    )
    alone = trainer_client.role(job_name="master")
    assert (alone.is_master, alone.rank, alone.world, alone.cluster) == (True, 0, 1, {})


@pytest.mark.heritage("L3")
@pytest.mark.heritage("D3")
def test_the_master_comes_first_and_worker_0_is_master_where_there_is_none(environment):
    environment(JOB_NAME="master", **HOSTS)
    master = trainer_client.role()
    environment(JOB_NAME="worker", TASK_INDEX="0", **HOSTS)
    first = trainer_client.role()
    assert [(one.is_master, one.rank, one.world) for one in (master, first)] == [(True, 0, 3), (False, 1, 3)]
    environment(JOB_NAME="worker", TASK_INDEX="0", **{**HOSTS, "MASTER_HOST": ""})
    chief = trainer_client.role()
    assert (chief.is_master, chief.rank, chief.world) == (True, 0, 2)
    environment(JOB_NAME="worker")
    assert trainer_client.role().is_master


@pytest.mark.heritage("L4")
def test_what_a_role_is(environment):
    answers = {}
    for kind in ("master", "worker", "ps", "evaluator"):
        environment(JOB_NAME=kind, TASK_INDEX="0", **HOSTS)
        one = trainer_client.role()
        answers[kind] = (one.is_master, one.is_worker, one.is_ps, one.is_evaluator)
    assert answers == {
        "master": (True, True, False, False),
        "worker": (False, True, False, False),
        "ps": (False, False, True, False),
        "evaluator": (False, False, False, True),
    }


@pytest.mark.heritage("L5")
def test_the_last_worker_can_evaluate_if_there_is_another(environment):
    environment(JOB_NAME="worker", TASK_INDEX="1", **HOSTS)
    assert trainer_client.role(last_worker_evaluates=True).is_evaluator
    environment(JOB_NAME="worker", TASK_INDEX="0", **HOSTS)
    other = trainer_client.role(last_worker_evaluates=True)
    assert (other.is_evaluator, other.world) == (False, 2)
    with pytest.raises(SettingsError, match="expected two workers or more, so that the last may evaluate, got 1"):
        trainer_client.role(job_name="worker", worker_hosts="w-0:2222", last_worker_evaluates=True)


# --- the place that `connect` takes ---


def place_asked_for(ends, **how):
    ends.heard.clear()
    with trainer_client.connect(ends.endpoint, **how) as feed:
        asked = feed._session.receiver.settings.core.ranks
    return asked.rank, asked.replicas, asked.world


@pytest.fixture(scope="module")
def ends():
    with Ends() as both:
        yield both


def test_connect_takes_its_place_from_the_role(environment, ends, caplog):
    environment(JOB_NAME="worker", TASK_INDEX="1", **HOSTS)
    with caplog.at_level(logging.INFO, logger="stoker"):
        assert place_asked_for(ends) == (2, 1, 3)
    assert "rank as the environment says" in caplog.text
    assert place_asked_for(ends, world=3) == (2, 1, 3)
    environment(JOB_NAME="evaluator", TASK_INDEX="0", **HOSTS)
    assert place_asked_for(ends) == (0, 1, 1)


def test_a_role_of_two_replicas_has_two_ranks(environment, ends):
    environment(JOB_NAME="worker", TASK_INDEX="1", WORKER_HOSTS="w-0:1,w-1:1")
    assert place_asked_for(ends, replicas=2) == (2, 2, 4)


def test_a_rank_that_is_given_counts_and_the_environment_is_not_asked(environment, ends):
    environment(TF_CONFIG="nonsense")
    assert place_asked_for(ends, rank=0) == (0, 1, 1)
    assert place_asked_for(ends, rank=1, world=2) == (1, 1, 2)


def test_without_a_place_in_the_environment_a_trainer_is_alone(environment, ends):
    assert place_asked_for(ends) == (0, 1, 1)
    environment(JOB_NAME="nightly/build-17")  # as tools for other purposes set it
    assert place_asked_for(ends, replicas=2) == (0, 2, 2)
    assert place_asked_for(ends, world=2) == (0, 1, 2)


@pytest.mark.parametrize(
    ("said", "how", "words"),
    [
        ({"TASK_INDEX": "1"}, {}, "JOB_NAME: expected one of master, chief, worker, ps, evaluator, got none."),
        ({"JOB_NAME": "ps", "TASK_INDEX": "0"}, {}, "rank: expected a role that reads data, got parameter server 0."),
        (
            {"JOB_NAME": "worker", "TASK_INDEX": "0"},
            {"world": 2},
            "connect: expected world=3, as the environment says,",
        ),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_opened(environment, said, how, words):
    environment(**said, **(HOSTS if "JOB_NAME" in said else {}))
    with pytest.raises(SettingsError) as caught:
        trainer_client.connect("tcp://127.0.0.1:1", **how)
    assert str(caught.value).startswith(words)
