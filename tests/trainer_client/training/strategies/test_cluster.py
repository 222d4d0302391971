"""What TensorFlow makes of a role: a real server, a resolver, and where variables of a graph go."""

from __future__ import annotations

import pytest
import tensorflow as tf

import trainer_client
from shared.errors import SettingsError
from tests.support.reserved_host import reserved_host

HOSTS = {"ps_hosts": "ps-0:2222,ps-1:2222", "worker_hosts": "w-0:2222,w-1:2222", "master_host": "m:2222"}


def placed(role):
    """The devices of three variables and a product in a graph."""
    with tf.Graph().as_default(), tf.compat.v1.device(trainer_client.device_function(role)):
        variables = [tf.compat.v1.get_variable(f"v{n}", [1], use_resource=True) for n in range(3)]
        product = variables[0] * 2.0
    return [one.device for one in (*variables, product)]


@pytest.mark.heritage("L11")
def test_a_role_makes_a_device_function():
    role = trainer_client.role(job_name="worker", task_index=1, **HOSTS)
    assert placed(role) == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0", "/job:worker/task:1"]
    without = trainer_client.role(job_name="master", master_host="m:2222", worker_hosts="w-0:2222")
    assert set(placed(without)) == {"/job:chief/task:0"}
    assert set(placed(trainer_client.role(job_name="worker"))) == {""}


def test_a_role_makes_a_cluster_resolver():
    resolver = trainer_client.cluster_resolver(trainer_client.role(job_name="worker", task_index=1, **HOSTS))
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["m:2222"],
        "worker": ["w-0:2222", "w-1:2222"],
        "ps": ["ps-0:2222", "ps-1:2222"],
    }


@pytest.mark.heritage("L11")
def test_a_role_makes_a_server():
    with reserved_host() as host:
        role = trainer_client.role(job_name="worker", worker_hosts=host)
        server = trainer_client.start_server(role)
    assert server.target == f"grpc://{role.worker_hosts[0]}"
    with tf.Graph().as_default(), tf.compat.v1.device(trainer_client.device_function(role)):
        answer = tf.constant(6) * 7
        with tf.compat.v1.Session(server.target) as session:
            assert session.run(answer) == 42


@pytest.mark.parametrize(
    ("said", "got"),
    [
        ({"job_name": "worker"}, "a role on one machine, without hosts"),
        ({"job_name": "evaluator", **HOSTS}, "an evaluator, which works alone"),
    ],
)
def test_who_has_no_address_has_no_server(said, got):
    with pytest.raises(SettingsError, match=f"start_server: expected a role with an address in its cluster, got {got}"):
        trainer_client.start_server(trainer_client.role(**said))
