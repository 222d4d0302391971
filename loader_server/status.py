"""`loader-server status`: how a running job stands, as a live table, a table, or JSON."""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import zmq
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from shared.codec import decode, encode
from shared.endpoints import check_endpoint
from shared.errors import LostError
from shared.keys import ClientKeys
from shared.messages import Status, StatusQuery
from shared.sockets import connect_dealer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ask", "show"]

_REFRESH_S = 0.5


def show(endpoint: str, *, keys: str, timeout_s: float, as_json: bool, once: bool) -> None:
    """Print the status; in a terminal keep it fresh until Ctrl-C."""
    console = Console()
    if as_json:
        print(json.dumps(ask(endpoint, keys=keys, timeout_s=timeout_s)))
    elif once or not console.is_terminal:
        console.print(_tables(ask(endpoint, keys=keys, timeout_s=timeout_s)))
    else:
        with Live(_tables(ask(endpoint, keys=keys, timeout_s=timeout_s)), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_REFRESH_S)
                live.update(_tables(ask(endpoint, keys=keys, timeout_s=timeout_s)), refresh=True)


def ask(endpoint: str, *, keys: str = "", timeout_s: float = 5.0) -> dict[str, Any]:
    """The coordinator's report."""
    check_endpoint(endpoint, where="status", encrypted=True, insecure=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = connect_dealer(
        context, endpoint, ClientKeys.read_any(keys, to="coordinator") if keys else None, secrets.token_bytes(16)
    )
    try:
        until_s = time.monotonic() + timeout_s
        if dealer.poll(int(1000 * timeout_s), zmq.POLLOUT):
            dealer.send(encode(StatusQuery()))
            if dealer.poll(max(0, int(1000 * (until_s - time.monotonic())))):
                answer = decode(dealer.recv())
                if isinstance(answer, Status):
                    report: dict[str, Any] = json.loads(answer.report)
                    return report
        raise LostError(
            expected=f"a coordinator that answers within {timeout_s:g} s",
            got="no answer",
            where=endpoint,
            remedy="Start it with `loader-server run job.toml`, or correct the endpoint.",
        )
    finally:
        dealer.close()
        context.term()


def _tables(report: dict[str, Any]) -> Group:
    return Group(f"job [bold]{report['job']}[/]", _streams(report), _workers(report))


def _streams(report: dict[str, Any]) -> Table:
    table = Table("stream", "epoch", "batch", "of", "done", "group", "trainers")
    for name, stream in report["streams"].items():
        batches = stream["batches"]
        done = f"{stream['number'] / batches:.1%}" if batches else "-"
        trainers = ", ".join(_trainer(one) for one in stream["trainers"]) or "-"
        kind = f"{name} (evaluation)" if stream["evaluation"] else name
        table.add_row(
            kind, *map(str, (stream["epoch"], stream["number"], batches or "-", done, stream["group"] or "-")), trainers
        )
    return table


def _trainer(trainer: dict[str, Any]) -> str:
    last = trainer["rank"] + trainer["replicas"] - 1
    ranks = f"rank {trainer['rank']}" if last == trainer["rank"] else f"ranks {trainer['rank']}-{last}"
    return f"{ranks} of {trainer['world']} ({trainer['name']})"


def _workers(report: dict[str, Any]) -> Table:
    table = Table("worker", "endpoint", "waiting", "building", "built", "masked", "silent s")
    for one in _sorted(report):
        table.add_row(
            one["name"],
            one["endpoint"],
            *(str(one[key]) for key in ("waiting", "building", "built", "masked", "silent_s")),
        )
    return table


def _sorted(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from sorted(report["workers"], key=lambda one: str(one["name"]))
