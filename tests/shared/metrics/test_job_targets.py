"""Prometheus is sent to the hosts that workers come from, and to no others."""

from __future__ import annotations

import pytest

from shared.endpoints import scrape_address
from shared.metrics.job_targets import job_targets


@pytest.mark.parametrize(
    ("bound", "peer_host", "address"),
    [
        ("0.0.0.0:9101", "10.0.0.7", "10.0.0.7:9101"),
        ("10.0.0.7:9101", "10.0.0.7", "10.0.0.7:9101"),
        ("0.0.0.0:9101", "::ffff:10.0.0.7", "10.0.0.7:9101"),
        ("[::]:9101", "2001:db8::7", "[2001:db8::7]:9101"),
        ("127.0.0.1:9101", "127.0.0.1", "127.0.0.1:9101"),
        ("0.0.0.0:9101", "127.0.0.1", ":9101"),
        ("127.0.0.1:9101", "10.0.0.7", ""),
        ("169.254.169.254:80", "10.0.0.7", ""),
        ("loader-1:9101", "10.0.0.7", ""),
        ("0.0.0.0:0", "10.0.0.7", ""),
        ("0.0.0.0:9101", "", ""),
        ("", "10.0.0.7", ""),
    ],
)
def test_a_target_is_where_its_connection_comes_from(bound, peer_host, address):
    assert scrape_address(bound, peer_host) == address


def _addresses(host, *metrics):
    workers = [{"name": f"w{number}", "metrics": address} for number, address in enumerate(metrics)]
    targets = job_targets({"job": "digits", "workers": workers}, host, 9100)
    return {target["labels"]["instance"]: target["targets"] for target in targets}


def test_who_asks_from_elsewhere_is_sent_to_what_it_reaches():
    everywhere = ("10.0.0.7:9101", ":9102", "127.0.0.1:9103", "")
    assert _addresses("10.0.0.1", *everywhere) == {
        "coordinator": ["10.0.0.1:9100"],
        "worker-w0": ["10.0.0.7:9101"],
        "worker-w1": ["10.0.0.1:9102"],
    }
    assert _addresses("127.0.0.1", *everywhere) == {
        "coordinator": ["127.0.0.1:9100"],
        "worker-w0": ["10.0.0.7:9101"],
        "worker-w1": ["127.0.0.1:9102"],
        "worker-w2": ["127.0.0.1:9103"],
    }


def test_targets_carry_the_labels_of_the_files():
    (_, worker) = job_targets({"job": "digits", "workers": [{"name": "w0", "metrics": "10.0.0.7:9101"}]}, "h", 1)
    assert worker["labels"] == {"instance": "worker-w0", "job": "digits", "role": "worker", "worker": "w0"}
