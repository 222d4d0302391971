"""What is served reads back as what was counted, and the server is gone when it was closed.

Who makes room for whom, and when a connection is over.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import statistics
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loader_server.metrics.coordinator_metrics import ATTACHES, WORKERS
from loader_server.metrics.worker_metrics import BUILD_SECONDS
from shared.errors import SettingsError
from shared.metrics import names
from shared.metrics.listening import Listening
from shared.metrics.probes import Probes
from shared.metrics.server import ANSWERING_S, ASKING_S, BoundedConnections, MetricSamples, MetricsServer, Spread
from tests.support.another_user import as_another_user, folder_for_all
from tests.support.loaders import wait_until
from tests.support.scraping import fetch_metrics
from trainer_client.session.metrics import DATA_WAIT, STALE_BATCHES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LABELS = {"job": "tones", "role": "worker", "worker": "w-0"}


def _serve(*samples: MetricSamples, port: int = 0, targets_folder: Path | None = None) -> MetricsServer:
    return MetricsServer(
        lambda: iter(samples), listening=Listening(port=port), labels=LABELS, targets_folder=targets_folder
    )


def test_values_come_across_with_their_labels_and_help() -> None:
    seconds = MetricSamples(BUILD_SECONDS, {("train", "write_and_digest"): 1.5, ("dev", "plan_and_read"): 0.25})
    with _serve(MetricSamples.single(WORKERS, 3), seconds) as server:
        text = urllib.request.urlopen(f"http://{server.address}/metrics", timeout=30).read().decode()
        values = fetch_metrics(server.address)
    assert values["stoker_workers", ()] == 3
    assert values["stoker_build_seconds_total", (("phase", "write_and_digest"), ("stream", "train"))] == 1.5
    assert values["stoker_build_seconds_total", (("phase", "plan_and_read"), ("stream", "dev"))] == 0.25
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["stoker_workers"].documentation == WORKERS.help_text
    assert families["stoker_build_seconds"].type == "counter"


def test_a_histogram_counts_at_or_below_each_bound() -> None:
    counts = [0] * (len(names.WAIT_BOUNDS_S) + 1)
    counts[0], counts[3], counts[-1] = 2, 1, 4
    with _serve(MetricSamples(DATA_WAIT, {("train",): Spread(counts, 99.5)})) as server:
        values = fetch_metrics(server.address)

    def below(bound: str) -> float:
        return values["stoker_data_wait_seconds_bucket", (("le", bound), ("stream", "train"))]

    assert [below(bound) for bound in ("0.0001", "0.0025", "0.005", "60.0", "+Inf")] == [2, 2, 3, 3, 7]
    assert values["stoker_data_wait_seconds_count", (("stream", "train"),)] == 7
    assert values["stoker_data_wait_seconds_sum", (("stream", "train"),)] == 99.5


def test_numbers_are_taken_when_asked() -> None:
    count = iter(range(1, 9))

    def samples() -> Iterator[MetricSamples]:
        yield MetricSamples.single(ATTACHES, next(count))

    with MetricsServer(samples, labels=LABELS, targets_folder=None) as server:
        seen = [fetch_metrics(server.address)["stoker_attaches_total", ()] for _ in range(2)]
    assert seen == [1, 2]


def test_it_serves_on_loopback_with_the_process_s_own_numbers() -> None:
    with _serve() as server:
        assert server.address.startswith("127.0.0.1:")
        assert fetch_metrics(server.address)["process_cpu_seconds_total", ()] > 0


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    with _serve() as server:
        port = int(server.address.partition(":")[2])
        with pytest.raises(SettingsError, match=rf"metrics_port: expected a free port .* on {port}\. Name another"):
            _serve(port=port)


def test_a_port_that_is_none_is_an_error_that_says_so() -> None:
    with pytest.raises(SettingsError, match=r"metrics_port: expected a free port .* 0-65535.* on 70000"):
        _serve(port=70_000)


def _answering() -> int:
    """Threads of ours that wait for what somebody asks."""
    return sum(one.name == "stoker-metrics-answer" for one in threading.enumerate())


_READY = Probes(lambda _now_s: "", lambda _now_s: "")


def _crowd(server: MetricsServer, count: int, crowd: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that have asked nothing, and hold little of an answer."""
    host, _, port = server.address.partition(":")
    made = [crowd.enter_context(socket.socket()) for _ in range(count)]
    for one in made:
        one.settimeout(60)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((host, int(port)))
    return made


def _seconds_to_ready(address: str) -> float:
    began_s = time.monotonic()
    assert _ask(address, "/readyz") == (200, "ok\n")
    return time.monotonic() - began_s


@pytest.mark.fault(38)
def test_a_crowd_that_asks_nothing_takes_few_threads_and_keeps_no_probe_waiting() -> None:
    with MetricsServer(list, labels=LABELS, targets_folder=None, probes=_READY) as server:
        with contextlib.ExitStack() as crowd:
            _crowd(server, 50, crowd)
            wait_until(lambda: _answering() > 0, "some are waited for")
            assert statistics.median(_seconds_to_ready(server.address) for _ in range(5)) < 1.0
            wait_until(lambda: _answering() <= 8, "who made room has gone")
        wait_until(lambda: _answering() == 0, "nobody is waited for any longer")


@pytest.mark.fault(38)
@pytest.mark.parametrize("said", [b"GET /readyz HTTP/1.0\r\nSlow: ", b"GET /metrics HTTP/1.0\r\n\r\n"])
def test_a_crowd_that_asks_slowly_or_reads_nothing_keeps_no_probe_waiting(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a request; and a whole one, for more than a connection holds. None of them is ended because it is late."""
    monkeypatch.setattr("shared.metrics.server.ASKING_S", 600)
    monkeypatch.setattr("shared.metrics.server.ANSWERING_S", 600)
    samples = [MetricSamples(STALE_BATCHES, {(f"{number:09999}",): number for number in range(500)})]
    with contextlib.ExitStack() as crowd:
        server = crowd.enter_context(MetricsServer(lambda: samples, labels=LABELS, targets_folder=None, probes=_READY))
        for one in _crowd(server, 8, crowd):
            one.sendall(said)
        wait_until(lambda: _answering() == 8, "there is no more room")
        for _ in range(5):
            assert _ask(server.address, "/readyz") == (200, "ok\n")


def test_who_asks_nothing_is_cut_off_after_two_seconds_whatever_it_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.metrics.server.ASKING_S", 0.5)
    with _serve() as server, contextlib.ExitStack() as crowd:
        slow, silent = _crowd(server, 2, crowd)
        began_s = time.monotonic()
        with contextlib.suppress(OSError):  # it has hung up
            while time.monotonic() - began_s < 30:
                slow.sendall(b"G")
                if select.select([slow], [], [], 0.05)[0]:
                    break
        assert 0.3 < time.monotonic() - began_s < 30
        silent.settimeout(30)
        assert silent.recv(1) == b""


def test_who_has_asked_has_longer_to_read_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.metrics.server.ASKING_S", 0.3)
    came = threading.Event()

    def unready(_now_s: float) -> str:
        assert came.wait(30)
        return ""

    probes = Probes(lambda _now_s: "", unready)
    with contextlib.ExitStack() as crowd:
        server = crowd.enter_context(MetricsServer(list, labels=LABELS, targets_folder=None, probes=probes))
        asking, silent = _crowd(server, 2, crowd)
        asking.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        silent.settimeout(30)
        assert silent.recv(1) == b""
        came.set()
        assert asking.recv(12) == b"HTTP/1.0 200"


def _ask(address: str, path: str, authorization: str = "") -> tuple[int, str]:
    """The status and the text of an answer."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Authorization": authorization})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_are_answered_by_one_word_and_no_other_path_has_anything() -> None:
    reasons = {"dead": "", "unready": "starting"}
    probes = Probes(lambda _now_s: reasons["dead"], lambda _now_s: reasons["unready"])
    with MetricsServer(list, labels=LABELS, targets_folder=None, probes=probes) as server:
        assert _ask(server.address, "/healthz") == (200, "ok\n")
        assert _ask(server.address, "/readyz") == (503, "starting\n")
        reasons |= {"dead": "loop", "unready": ""}
        assert _ask(server.address, "/healthz") == (503, "loop\n")
        assert _ask(server.address, "/readyz?verbose") == (200, "ok\n")
        assert _ask(server.address, "/metrics")[0] == 200
        for path in ("/", "/healthz/", "/metrics/x", "/readyz2"):
            assert _ask(server.address, path)[0] == 404, path


def test_metrics_and_targets_are_for_those_who_show_the_token_and_probes_for_all() -> None:
    told = [{"targets": ["10.0.0.7:9101"], "labels": {"instance": "worker-w0"}}]
    probes = Probes(
        lambda _now_s: "", lambda _now_s: "journal", lambda host, port: [*told, {"targets": [f"{host}:{port}"]}]
    )
    listening = Listening(host="0.0.0.0", token="0123456789abcdef")
    with MetricsServer(list, labels=LABELS, targets_folder=None, listening=listening, probes=probes) as server:
        assert server.bound.startswith("0.0.0.0:")
        assert server.address.startswith("127.0.0.1:")
        for path in ("/metrics", "/targets"):
            assert _ask(server.address, path) == (401, "show the token\n")
            assert _ask(server.address, path, "Bearer 0123456789abcdeg") == (401, "show the token\n")
            assert _ask(server.address, path, "Bearer 0123456789abcdef")[0] == 200
        _, text = _ask(server.address, "/targets", "Bearer 0123456789abcdef")
        assert json.loads(text) == [*told, {"targets": [server.address]}]
        assert _ask(server.address, "/healthz") == (200, "ok\n")
        assert _ask(server.address, "/readyz") == (503, "journal\n")
        assert _ask(server.address, "/")[0] == 404
    with MetricsServer(list, labels=LABELS, targets_folder=None, listening=Listening(host="::1")) as server:
        assert server.address.startswith("[::1]:")
        assert _ask(server.address, "/metrics")[0] == 200
        assert _ask(server.address, "/targets")[0] == 404


def test_a_process_without_probes_has_metrics_only() -> None:
    with _serve() as server:
        assert [_ask(server.address, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [404, 404, 200]


@pytest.mark.fault(66)
def test_a_closed_folder_for_targets_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with folder_for_all() as folder, as_another_user(), _serve(targets_folder=folder / "targets") as server:
        assert fetch_metrics(server.address)
    assert "where metrics are served is not written" in caplog.text
    assert str(folder / "targets") in caplog.text


def test_closed_means_gone(tmp_path: Path) -> None:
    server = _serve(targets_folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["worker-w-0.json"]
    server.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetch_metrics(server.address)
    with _serve(port=int(server.address.partition(":")[2])) as again:
        assert again.address == server.address


class Crowd:
    """Connections, each with a thread that leaves its place once it is ended."""

    def __init__(self, connections: BoundedConnections, cleanup: contextlib.ExitStack) -> None:
        self._connections, self._cleanup = connections, cleanup

    def come(self, now_s: float = 0.0) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._cleanup.callback(theirs.close)
        self._cleanup.callback(ours.close)
        assert self._connections.admit(ours, now_s)
        thread = threading.Thread(target=self._serve, args=(ours,))
        self._cleanup.callback(thread.join, 60)
        self._cleanup.callback(ours.shutdown, socket.SHUT_RDWR)
        thread.start()
        return ours

    def _serve(self, connection: socket.socket) -> None:
        connection.recv(1)
        self._connections.leave(connection)


def is_ended(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_the_oldest_that_has_not_asked_makes_room_and_then_the_oldest(
    cleanup: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.metrics.server._LEAVING_S", 60)
    connections = BoundedConnections(3)
    crowd = Crowd(connections, cleanup)
    first, second, third = (crowd.come() for _ in range(3))
    assert connections.note_asked(first, 0.0)
    fourth = crowd.come()
    assert [is_ended(one) for one in (first, second, third)] == [False, True, False]
    assert connections.note_asked(third, 0.0)
    assert connections.note_asked(fourth, 0.0)
    crowd.come()
    assert [is_ended(one) for one in (first, third, fourth)] == [True, False, False]


def test_where_nobody_leaves_the_newest_gets_no_place_and_an_ended_one_is_not_answered(
    cleanup: contextlib.ExitStack,
) -> None:
    connections = BoundedConnections(1)
    (first, _other), (second, _another) = (
        tuple(map(cleanup.enter_context, map(contextlib.closing, socket.socketpair()))) for _ in range(2)
    )
    assert connections.admit(first, 0.0)
    assert not connections.admit(second, 0.0)
    assert not connections.note_asked(first, 0.0)
    connections.leave(second)  # which has none to give back
    assert not connections.admit(second, 0.0)
    connections.leave(first)
    assert connections.admit(second, 0.0)


def test_who_does_not_ask_or_read_is_ended_when_its_time_is_over(cleanup: contextlib.ExitStack) -> None:
    connections = BoundedConnections(8)
    assert connections.end_overdue(0.0) is None
    crowd = Crowd(connections, cleanup)
    silent, asking, later = crowd.come(0.0), crowd.come(0.5), crowd.come(1.0)
    assert connections.note_asked(asking, 1.0)
    assert connections.end_overdue(1.5) == pytest.approx(ASKING_S - 1.5)
    assert not is_ended(silent)
    assert connections.end_overdue(ASKING_S) == pytest.approx(1.0)
    assert [is_ended(one) for one in (silent, asking, later)] == [True, False, False]
    assert connections.end_overdue(ASKING_S + 1.0) == pytest.approx(ANSWERING_S - ASKING_S)
    assert [is_ended(one) for one in (asking, later)] == [False, True]
    assert connections.end_overdue(ANSWERING_S + 1.0) is None
    assert is_ended(asking)
