"""Floods of valid messages, and of questions whose answers nobody reads, against each port of ours.

    python -m tests.faults.flood [--seconds 60] [--port coordinator,worker,server] [--kind mixed,unread]
        [--connections 1,30] [--keys no,yes] --json

One process floods as fast as it can: without keys by plain TCP, which is faster than any client of libzmq; with keys as
a trainer whose key is allowed. Meanwhile a trainer reads, and somebody asks for the status. A row says how much memory
the server had before, at most, and ten seconds after the flood; how long an answer and a batch took at most, and how
long before. The flooding process gives way to others (nice), as if it ran on another machine. --json adds one JSON
object as last line; the exit code is 1 if a limit was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import secrets
import select
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psutil
import zmq

import trainer_client
from loader_server.commands import status
from shared.endpoints import port_of
from shared.errors import LostError
from shared.keys import ClientKeys, make_keys
from shared.sockets import connect_dealer
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.message_parts import Cursor, Lease, Ticket
from shared.wire.topics import server_messages as servers
from tests.support.forked import start_talking
from tests.support.loaders import running
from tests.support.reserved_host import reserved_host
from tests.support.zmtp import GREETING, frame, ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

__all__ = ["KINDS", "PORTS", "Flood", "Row", "flooded"]

PORTS = ("coordinator", "worker", "server")
KINDS = ("mixed", "unread")

#: What a server may have at most, how much more than before after ten seconds, and how long anything may take.
MOST_MB, LEFT_MB, ANSWER_S, LATER_S = 150.0, 20.0, 1.0, 0.1

#: A parameter server has TensorFlow, which takes up half a gigabyte before anything is said: what it gains counts.
_MOST_GAIN_MB = 100.0

_SETTLED_S = 10.0
_MB = 2**20

#: As much as a client says in one go; each is unlike the others.
_MESSAGES = 3000

_JOB = """
[job]
name = "flooded"
seed = 3
listen = "tcp://127.0.0.1:*"
{job}

[streams.train]
source = "synthetic"
samples = 4000
kind = "features"
median_length = 20
bands = 8
length = "features"
budget = "400 steps"

[streams.dev]
like = "train"
order = "sorted"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """What is flooded, with what and by how many connections at once; `keys` is a folder, or empty."""

    port: str
    kind: str
    connections: int
    keys: str = ""


@dataclass(slots=True, kw_only=True)
class Row:
    """What came of one flood."""

    port: str
    kind: str
    connections: int
    with_keys: bool
    before_mb: float = 0.0
    peak_mb: float = 0.0
    after_mb: float = 0.0
    status_s: float = 0.0
    calm_wait_s: float = 0.0
    wait_s: float = 0.0
    culprits: int = 0
    said: int = 0

    def missed(self) -> list[str]:
        """The limits that were not kept."""
        most_mb = MOST_MB if self.port != "server" else self.before_mb + _MOST_GAIN_MB
        found = {
            "memory": self.peak_mb > most_mb,
            "memory after": self.after_mb > self.before_mb + LEFT_MB,
            "status": self.status_s > ANSWER_S,
            "waiting": self.wait_s > self.calm_wait_s + LATER_S,
            "culprits": self.culprits > 0,
        }
        return [name for name, is_missed in found.items() if is_missed]


# --- what is said ---


def _words(random: Random) -> str:
    return "x" * random.choice((4, 30, 200))


def _to_coordinator(random: Random, plan: str, *, asks: bool) -> m.Message:
    """One that a stranger may say, and that ends nobody's training; `asks`: a question with a long answer."""
    some, few = random.getrandbits(62) + 1, random.randrange(1, 1000)
    place = {"rank": 0, "incarnation": some}
    cursor = Cursor(0, 0, 1, plan)
    attach = m.Attach(
        serial=few, job="flooded", stream="dev", rank=0, replicas=1, world=1, incarnation=some, name=_words(random),
        cursor=cursor if few % 2 else None, work=None, done=None, world_version=None, tenure=None,
    )  # fmt: skip
    if asks:
        return random.choice((m.StatusQuery(), attach))
    leases = tuple(Lease(0, number, 1) for number in range(few % 20))
    endpoint = f"tcp://127.0.0.1:{few + 1024}"
    register = m.Register(
        worker=_words(random),
        incarnation=some,
        endpoint=endpoint,
        boot_id="b",
        uid=1,
        builder="none",
        metrics="",
    )
    beat = dict.fromkeys(
        ("waiting", "building", "built", "masked", "kept", "decoded", "taken", "remote_bytes", "remote_found",
         "remote_waited", "busy_us", "awaited_us", "read_us", "held_up_us",
         "throttled_us", "queued_us", "culprits"), few,
    )  # fmt: skip
    progress = m.Progress(
        stream="dev",
        **place,
        epoch=0,
        number=few,
        read_epoch=0,
        read_number=few,
        waited_permille=1,
        batches_read=few,
        prefetch=few,
        wire_us=few,
        computed_us=few,
        metrics="",
        members=few,
    )
    outcomes = m.Outcomes(
        stream="dev", work="evaluate", incarnation=some, serial=few, book=None, generation=1,
        done=leases, failed=(), returned=(), in_hand=None, wanted=few % 16, before=0, snapshot=True,
    )  # fmt: skip
    results = m.Results(
        stream="dev", incarnation=some, serial=few, epoch=0, step=few, rows=few, values=((_words(random), 1.0),),
        ended="", aside=False,
    )  # fmt: skip
    return random.choice(
        (
            attach, progress, outcomes, results, register, m.StatusQuery(),
            m.Beat(worker="w", incarnation=some, **beat),
            m.Leave(worker="w", incarnation=some),
            m.Detach(stream="dev", **place),
            m.StandsStill(stream="dev", incarnation=some, epoch=0, number=few),
            m.Culprit(worker="w", stream="train", identity=f"sample {some}", ends="signal SIGSEGV"),
            m.Failing(worker=f"w{some}", expected=_words(random), got=_words(random), where="here", remedy="none"),
            m.Forgive(stream="dev", identity=_words(random)),
            m.GraphOffer(job="flooded", stream="dev", digest="d", nbytes=few),
            m.BundleWanted(digest="d", offset=few),
        )
    )  # fmt: skip


def _to_worker(random: Random, plan: str, *, asks: bool) -> m.Message:
    some, few = random.getrandbits(62) + 1, random.randrange(1, 1000)
    hello = m.Hello(job="flooded", stream="train", incarnation=some, shared=None, verify=False, seal=None)
    name = m.NameQuery(stream="train", plan_digest=plan, sample=few)
    if asks:
        return random.choice((m.Ping(number=few), name, hello))
    ticket = Ticket(few % 64, few)
    want = m.Want(
        job="flooded", stream="train", epoch=0, number=few % 40, empty=False, group=1, plan_digest=plan, attempt=0,
        trainer=some, worker=few, ticket=ticket, in_slot=False, urgent=True,
    )  # fmt: skip
    query = m.EpochQuery(stream="train", plan_digest=plan, epoch=few, group=1 + few % 8)
    return random.choice((hello, name, want, query, m.Cancel(ticket=ticket), m.Ping(number=few)))


def _to_server(random: Random, _plan: str, *, asks: bool) -> m.Message:
    some, few = random.getrandbits(62) + 1, random.randrange(1, 1000)
    look = servers.Look(serial=few, trainer=some)
    pull = servers.Pull(serial=few, trainer=some, generation=0, at_least=0)
    if asks:
        return random.choice((look, pull))
    save = servers.Save(serial=few, generation=some, cut=few, settled=0)
    rows = servers.PullRows(
        serial=few, trainer=some, generation=some, at_least=few, table=0, cut=0, ids=bytes(8 * random.randrange(2**10))
    )
    order = servers.Order(generation=some, what="apply", version=few, trainer=some, lease=None, cut=few, rate=None)
    push = servers.Push(
        serial=few,
        trainer=some,
        generation=some,
        lease=Lease(0, few, 1),
        based_on=0,
        refused=None,
        parts=(),
        tables=(),
        nbytes=0,
        is_step=True,
    )
    return random.choice((look, pull, rows, save, order, push, servers.Quit(trainer=some)))


_SAYS: dict[str, Callable[..., m.Message]] = {
    "coordinator": _to_coordinator, "worker": _to_worker, "server": _to_server,
}  # fmt: skip


def _frames(flood: Flood, plan: str) -> list[bytes]:
    random = Random(flood.connections)
    return [encode(_SAYS[flood.port](random, plan, asks=flood.kind == "unread")) for _ in range(_MESSAGES)]


# --- those who flood ---


class _Clients:
    """Connections by plain TCP that say all of a blob again and again, and read or do not read."""

    def __init__(self, endpoint: str, blob: bytes, *, reads: bool) -> None:
        self.sent = 0
        self._endpoint, self._blob, self._reads = endpoint, memoryview(blob), reads
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._poller = select.poll()

    def connect(self, count: int) -> None:
        """Have so many connections, in place of those that were ended."""
        while len(self._open) < count:
            try:
                client = _connect(self._endpoint)
            except OSError:  # nobody is let in now
                return
            self._open[client.fileno()] = client, 0
            self._poller.register(client, select.POLLOUT | (select.POLLIN if self._reads else 0))

    def turn(self) -> None:
        """Send and read as much as goes now."""
        for fd, events in self._poller.poll(100):
            client, at = self._open[fd]
            try:
                self._open[fd] = client, self._talk(client, at, events)
            except BlockingIOError:
                continue
            except OSError:
                self._poller.unregister(fd)
                client.close()
                del self._open[fd]

    def _talk(self, client: socket.socket, at: int, events: int) -> int:
        if events & select.POLLIN and not client.recv(2**16):
            raise ConnectionResetError
        if not events & select.POLLOUT:
            return at
        count = client.send(self._blob[at : at + 2**17])
        self.sent += count
        return (at + count) % len(self._blob)

    def close(self) -> None:
        for client, _ in self._open.values():
            client.close()


def _flood_by_tcp(endpoint: str, frames: list[bytes], flood: Flood, until_s: float) -> int:
    """Say all of them again and again on each connection; how many messages got out."""
    blob = b"".join(frame(one) for one in frames)
    clients = _Clients(endpoint, blob, reads=flood.kind == "mixed")
    while time.monotonic() < until_s:
        clients.connect(flood.connections)
        clients.turn()
    clients.close()
    return clients.sent * len(frames) // len(blob)


def _connect(endpoint: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=5)
    try:
        client.sendall(GREETING + ready(secrets.token_bytes(16)))
        heard = b""
        while b"READY" not in heard:
            got = client.recv(4096)
            if not got:
                raise ConnectionResetError
            heard += got
        client.setblocking(False)
    except BaseException:
        client.close()
        raise
    return client


def _flood_by_libzmq(endpoint: str, frames: list[bytes], flood: Flood, until_s: float) -> int:
    """The same with keys, as a trainer."""
    context = zmq.Context()
    keys = ClientKeys.read(Path(flood.keys), "trainer", to="coordinator" if flood.port == "coordinator" else "worker")
    dealers = []
    for _ in range(flood.connections):
        dealer = connect_dealer(context, endpoint, keys, secrets.token_bytes(16))
        dealer.disconnect(endpoint)  # options hold for connections that are made later
        dealer.setsockopt(zmq.RCVHWM, 1000 if flood.kind == "mixed" else 1)
        dealer.setsockopt(zmq.SNDHWM, 1000)
        dealer.connect(endpoint)
        dealers.append(dealer)
    sent, turns = 0, itertools.cycle(frames)
    while time.monotonic() < until_s:
        before = sent
        for dealer in dealers:
            with contextlib.suppress(zmq.Again):
                while flood.kind == "mixed":
                    dealer.recv(zmq.DONTWAIT)
            with contextlib.suppress(zmq.Again):
                for one in itertools.islice(turns, 200):
                    dealer.send(one, zmq.DONTWAIT)
                    sent += 1
        if sent == before:
            time.sleep(0.001)
    context.destroy(linger=0)
    return sent


def _be_flooder(words: Sequence[str]) -> None:
    """The process that floods: its flood, the endpoint, the plan, and for how long."""
    told, endpoint, plan, seconds = words
    flood = Flood(**json.loads(told))
    os.nice(10)
    frames = _frames(flood, plan)
    say = _flood_by_libzmq if flood.keys else _flood_by_tcp
    print(say(endpoint, frames, flood, time.monotonic() + float(seconds)))


# --- those who are flooded ---

_SERVER = """
import sys
import keras
from shared.keys import ClientKeys, ServerKeys
from pathlib import Path
from trainer_client.training.servers.service import ParameterServer
from trainer_client.training.servers.share_store import ShareStore
keys = None
if sys.argv[2]:
    folder = Path(sys.argv[2])
    keys = ServerKeys.read(folder, "worker"), ClientKeys.read(folder, "trainer", to="worker")
server = ParameterServer(sys.argv[1], ShareStore(lambda: keras.optimizers.SGD(0.1)), is_first=True, keys=keys)
print("ready", flush=True)
server.serve()
"""


@dataclass(slots=True)
class _Target:
    """A server that is to be flooded, and the rest of its job."""

    process: psutil.Process
    endpoint: str
    plan: str
    #: Takes a batch, or whatever the port's good clients want.
    use: Callable[[], None]
    #: Asks the server how it is.
    ask: Callable[[], None]
    #: How many culprits are journaled.
    culprits: Callable[[], int]


@contextlib.contextmanager
def _target(flood: Flood, folder: Path) -> Iterator[_Target]:
    with _server(flood) if flood.port == "server" else _loaders(flood, folder) as target:
        yield target


@contextlib.contextmanager
def _loaders(flood: Flood, folder: Path) -> Iterator[_Target]:
    job = folder / "job.toml"
    job.write_text(_JOB.format(job=f'keys = "{flood.keys}"' if flood.keys else ""))
    with (
        running(job, workers=1) as loaders,
        trainer_client.connect(loaders.endpoint, keys=flood.keys, shared_memory=False) as feed,
        feed.open() as reading,
    ):
        report = status.ask(loaders.endpoint, keys=flood.keys)
        is_worker = flood.port == "worker"
        batches = _endless(feed, reading)
        yield _Target(
            psutil.Process((loaders.workers()[0] if is_worker else loaders.coordinator()).pid),
            report["workers"][0]["endpoint"] if is_worker else loaders.endpoint,
            report["streams"]["train"]["plan_digest"],
            lambda: next(batches),
            lambda: status.ask(loaders.endpoint, keys=flood.keys, timeout_s=10.0) and None,
            lambda: len(status.ask(loaders.endpoint, keys=flood.keys)["culprits"]),
        )


def _endless(feed: trainer_client.Feed, reading: Iterator[Any]) -> Iterator[None]:
    while True:
        for _ in reading:
            feed.trained()
            yield
        with feed.open() as again:
            for _ in again:
                feed.trained()
                yield


@contextlib.contextmanager
def _server(flood: Flood) -> Iterator[_Target]:
    with reserved_host() as host, contextlib.ExitStack() as stack:
        endpoint = f"tcp://{host}"
        process = stack.enter_context(start_talking("-c", _SERVER, endpoint, flood.keys, tensorflow=True))
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        context = stack.enter_context(zmq.Context())
        keys = ClientKeys.read(Path(flood.keys), "trainer", to="worker") if flood.keys else None
        lookers = [connect_dealer(context, endpoint, keys, secrets.token_bytes(16)) for _ in range(2)]
        for looker in lookers:
            stack.callback(looker.close)

        def look(dealer: zmq.Socket[bytes]) -> None:
            """Ask as a trainer does, who asks again if its question was lost with a connection."""
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                with contextlib.suppress(zmq.Again):
                    dealer.send(encode(servers.Look(serial=1, trainer=1)), zmq.DONTWAIT)
                if dealer.poll(2_000):
                    break
            while dealer.poll(0):
                assert isinstance(decode(dealer.recv()), servers.Shown)

        use, ask = (lambda: look(lookers[0])), (lambda: look(lookers[1]))
        yield _Target(psutil.Process(process.pid), endpoint, "", use, ask, lambda: 0)


# --- what comes of it ---


class _Watch:
    """Watches a target in threads of its own: its memory, the longest answer and the longest wait for a batch."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._done = threading.Event()
        self.peak_mb = self.status_s = self.wait_s = 0.0
        self._threads = [
            threading.Thread(target=self._repeat, args=(watch, pause_s))
            for watch, pause_s in ((self._weigh, 0.02), (self._ask, 0.25), (self._use, 0.02))
        ]

    def _repeat(self, watch: Callable[[], None], pause_s: float) -> None:
        while not self._done.wait(pause_s):
            watch()

    def _weigh(self) -> None:
        self.peak_mb = max(self.peak_mb, weight_mb(self._target.process))

    def _ask(self) -> None:
        began_s = time.monotonic()
        try:
            self._target.ask()
            self.status_s = max(self.status_s, time.monotonic() - began_s)
        except LostError:
            self.status_s = math.inf

    def _use(self) -> None:
        began_s = time.monotonic()
        self._target.use()
        self.wait_s = max(self.wait_s, time.monotonic() - began_s)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()


def weight_mb(process: psutil.Process) -> float:
    """Resident memory, in MB."""
    return float(process.memory_info().rss / _MB)


def flooded(flood: Flood, seconds: float, folder: Path) -> Row:
    """Flood a new server for so long, and say what came of it."""
    row = Row(port=flood.port, kind=flood.kind, connections=flood.connections, with_keys=bool(flood.keys))
    with _target(flood, folder) as target:
        for _ in range(30):
            target.use()
        with _Watch(target) as calm:
            time.sleep(min(seconds, 10.0))
        row.before_mb, row.calm_wait_s = round(weight_mb(target.process), 1), round(calm.wait_s, 3)
        words = (json.dumps(asdict(flood)), target.endpoint, target.plan, str(seconds))
        with _Watch(target) as watch, start_talking("tests.faults.flood", "--flooder", *words) as flooder:
            said, errors = flooder.communicate(10 * seconds + 100)
        assert flooder.returncode == 0, errors
        row.said = int(said)
        time.sleep(_SETTLED_S)
        row.after_mb, row.culprits = round(weight_mb(target.process), 1), target.culprits()
        assert target.process.is_running()
    row.peak_mb, row.status_s, row.wait_s = round(watch.peak_mb, 1), round(watch.status_s, 3), round(watch.wait_s, 3)
    return row


def _floods(options: argparse.Namespace, keys: str) -> Iterator[Flood]:
    for port, kind, connections, with_keys in itertools.product(
        options.port, options.kind, options.connections, options.keys
    ):
        yield Flood(port=port, kind=kind, connections=int(connections), keys=keys if with_keys == "yes" else "")


def main() -> None:
    """Run the command."""
    if sys.argv[1:2] == ["--flooder"]:
        _be_flooder(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = {"type": lambda text: text.split(",")}
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each flood is (60)")
    parser.add_argument("--port", default=PORTS, help="which servers, of coordinator,worker,server (all)", **listed)
    parser.add_argument("--kind", default=KINDS, help="which floods, of mixed,unread (both)", **listed)
    parser.add_argument("--connections", default=("1", "30"), help="by how many connections (1,30)", **listed)
    parser.add_argument("--keys", default=("no", "yes"), help="without and with keys (no,yes)", **listed)
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    options = parser.parse_args()
    rows, missed = list[Row](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        make_keys(Path(folder) / "keys")
        for number, flood in enumerate(_floods(options, str(Path(folder) / "keys"))):
            (own := Path(folder) / str(number)).mkdir()
            row = flooded(flood, options.seconds, own)
            rows.append(row)
            missed.update(row.missed())
            print({**asdict(row), "missed": row.missed()}, flush=True)
    if options.json:
        print(json.dumps({"seconds": options.seconds, "rows": [asdict(row) for row in rows], "missed": dict(missed)}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
