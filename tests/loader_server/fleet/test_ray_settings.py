"""A job's options in Ray: what is understood, what is refused, and what the processes are ordered to run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loader_server.arguments import COMMANDS
from loader_server.fleet.ray_settings import (
    MOST_ARGUMENT_BYTES,
    Orders,
    RaySettings,
    WorkerRange,
    actor_resources,
    parse_table,
    refuse_open_ray,
)
from shared.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "least", "most"), [("4", 4, 4), ("2:16", 2, 16), ("1:1", 1, 1), ("4096", 4096, 4096), ("02:03", 2, 3)]
)
def test_a_number_of_workers_or_a_range_is_understood(text: str, least: int, most: int) -> None:
    assert WorkerRange.parse(text) == WorkerRange(least, most)


@pytest.mark.parametrize(
    "text", ["", "0", "0:4", "4:2", "4097", "1:4097", "-1", "2:", ":2", "2:3:4", "two", "2 :3", "٣", "1e3", "9999999"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--workers: expected a number of workers") as refused:
        WorkerRange.parse(text)
    assert refused.value.got == repr(text)


@pytest.mark.parametrize(
    ("wanted", "present", "size"),
    [(None, 0, 2), (None, 5, 5), (1, 5, 2), (2, 5, 2), (7, 5, 7), (16, 2, 16), (40, 2, 16), (None, 20, 16)],
)
def test_the_wanted_number_is_followed_within_the_range(wanted: int | None, present: int, size: int) -> None:
    assert WorkerRange(2, 16).size(wanted, present) == size


def test_a_range_reads_as_people_say_it() -> None:
    assert (str(WorkerRange(2, 16)), str(WorkerRange(4, 4))) == ("2 to 16", "4")


def test_a_table_is_given_as_json() -> None:
    assert parse_table('{"pip": ["lz4"]}', "--runtime-env-json") == {"pip": ["lz4"]}
    assert parse_table("", "--resources") == {}


@pytest.mark.parametrize("text", ["[]", "loader=1", "1", "{", "null"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--resources: expected a table as JSON"):
        parse_table(text, "--resources")


def test_resources_and_labels_go_to_the_actors_as_they_are() -> None:
    assert actor_resources(0.5, '{"loader": 1, "disk": 0.25}', '{"pool": "!gpu"}') == {
        "num_cpus": 0.5,
        "resources": {"loader": 1, "disk": 0.25},
        "label_selector": {"pool": "!gpu"},
    }
    assert actor_resources(0, "", "") == {"num_cpus": 0, "resources": {}, "label_selector": {}}


@pytest.mark.parametrize(
    ("cpus", "resources", "labels", "where"),
    [
        (-1, "", "", "--num-cpus"),
        (float("nan"), "", "", "--num-cpus"),
        (float("inf"), "", "", "--num-cpus"),
        (0.00001, "", "", "--num-cpus"),
        (1, '{"loader": 0.00001}', "", "--resources"),
        (1, '{"loader": 0}', "", "--resources"),
        (1, '{"loader": -1}', "", "--resources"),
        (1, '{"loader": true}', "", "--resources"),
        (1, '{"loader": "1"}', "", "--resources"),
        (1, '{"loader": NaN}', "", "--resources"),
        (1, '{"CPU": 1}', "", "--resources"),
        (1, '{"GPU": 1}', "", "--resources"),
        (1, '{"memory": 1}', "", "--resources"),
        (1, "", '{"pool": 1}', "--label-selector"),
    ],
)
def test_what_ray_could_not_grant_is_refused(cpus: float, resources: str, labels: str, where: str) -> None:
    with pytest.raises(SettingsError) as refused:
        actor_resources(cpus, resources, labels)
    assert refused.value.where == where


def test_keys_pass_through_a_ray_with_tokens_alone() -> None:
    refuse_open_ray(has_token=True, insecure=False, folder="keys")
    refuse_open_ray(has_token=False, insecure=True, folder="keys")
    with pytest.raises(SettingsError, match="RAY_AUTH_MODE=token") as refused:
        refuse_open_ray(has_token=False, insecure=False, folder="keys")
    assert "--insecure" in refused.value.remedy
    assert "--keys" in refused.value.remedy


def _settings(**change: Any) -> RaySettings:
    return RaySettings(job="/srv/job.toml", **change)


def test_the_coordinator_indexes_and_then_serves() -> None:
    orders = _settings().coordinator_orders()
    assert [command[:2] for command in orders.commands] == [
        ("index", "/srv/job.toml"),
        ("coordinator", "/srv/job.toml"),
    ]
    assert orders.ends_job
    assert orders.listen == "tcp://0.0.0.0:*"


def test_a_worker_joins_by_the_file_that_follows_the_coordinator() -> None:
    orders = _settings(joining=("--data", "/srv")).worker_orders("tcp://10.0.0.7:7400")
    (command,) = orders.commands
    assert command[:4] == ("run", "file://{folder}/endpoint", "--workers", "1")
    assert orders.files == {"endpoint": "tcp://10.0.0.7:7400\n"}
    assert not orders.ends_job


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"insecure": True}, ["--insecure"]),
        ({"keys": "/etc/keys"}, ["--keys", "/etc/keys"]),
        ({"coordinator_files": {"keys/a": ""}, "worker_files": {"keys/a": ""}}, ["--keys", "{folder}/keys"]),
    ],
)
def test_both_get_the_keys_of_their_node_or_those_that_are_sent(change: Any, expected: list[str]) -> None:
    settings = _settings(**change)
    for orders in (settings.coordinator_orders(), settings.worker_orders("tcp://10.0.0.7:7400")):
        words = orders.commands[-1]
        assert [word for word in words if word in ("--keys", "/etc/keys", "{folder}/keys", "--insecure")] == expected


def test_the_commands_take_all_these_options() -> None:
    settings = _settings(joining=("--state", "s", "--data", "d", "--index", "i", "--accept-code"), keys="k")
    orders = (*settings.coordinator_orders().commands, *settings.worker_orders("tcp://10.0.0.7:7400").commands)
    for name, *words in orders:
        command = COMMANDS[name]
        known = {option for group in (command.options, command.joining) for found in group for option in found.names}
        assert {word for word in words if word.startswith("--")} <= known | {"--log-level"}


def test_orders_are_one_line() -> None:
    orders = Orders(commands=(("run", "x"),), files={"endpoint": "a\n"})
    line = orders.line()
    assert (line.count("\n"), line[-1]) == (1, "\n")
    assert json.loads(line) == {
        "commands": [["run", "x"]],
        "files": {"endpoint": "a\n"},
        "listen": "",
        "ends_job": False,
    }


def test_orders_that_ray_would_put_into_its_store_are_refused() -> None:
    empty = len(Orders(commands=(), files={"keys/allowed/trainer/a.key": ""}).line())
    fits = {"keys/allowed/trainer/a.key": "k" * (MOST_ARGUMENT_BYTES - empty)}
    assert len(Orders(commands=(), files=fits).line()) == MOST_ARGUMENT_BYTES
    with pytest.raises(SettingsError, match="expected at most 65536 bytes"):
        Orders(commands=(), files=fits | {"b": ""}).line()
