"""The program that serves a job in Ray: `python -m loader_server.fleet.ray job.toml --workers 2:16`.

Rules: it stays until the job ends, and with it ends all that it started in Ray. What passes through Ray is small:
options, keys, and how many workers are wanted. Keys pass only if Ray asks everybody for a token; batches never do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from loader_server.arguments import COMMANDS
from loader_server.fleet.process_keeper import LISTEN_FILE
from loader_server.fleet.ray_actor import NodeActor, asks_for_token
from loader_server.fleet.ray_fleet import NAMESPACE, RayFleet
from shared.commands import LONGEST_WAIT_S, add_common_arguments, run_command
from shared.errors import LostError, SettingsError, require
from shared.extras import library
from shared.keys import ServerKeys
from shared.settings.job import parse_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shared.settings.job import JobSettings

__all__ = ["main"]

#: How long connecting may take, to the address and to Ray, and Ray's answer whether it asks for a token.
_REACH_S, _CONNECT_S, _PROBE_S = 10.0, 60.0, 120.0
_MOST_WORKERS = 4096

#: The files of a folder of keys that a coordinator and its workers need, beside those below `allowed`.
_KEYS: dict[Literal["coordinator", "worker"], tuple[str, ...]] = {
    "coordinator": ("coordinator.key_secret",),
    "worker": ("worker.key_secret", "coordinator.key"),
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve a job in Ray as the arguments say (None: those of the process), and end the process with its exit code.

    Errors of ours and refusals of the system are printed; other exceptions are raised, those of Ray among them.
    """
    run_command(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loader_server.fleet.ray",
        description="Serve a job in Ray: an actor with the coordinator, and as many with a worker as trainers need. "
        "Ray starts them again on other nodes if theirs is lost. Needs Stoker on all nodes.",
        epilog="example: python -m loader_server.fleet.ray job.toml --workers 2:16",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add("job", help="the job file, on a folder that all nodes share, or in the working directory that Ray uploads")
    span = "how many workers, or the least and the most (1:16)"
    add("--workers", type=_worker_range, default=(1, 16), metavar="LEAST:MOST", help=span)
    add("--listen", default="tcp://0.0.0.0:*", help="where the coordinator serves (default: at any free port)")
    add("--keys", default="", metavar="FOLDER", help="folder with keys on each node; default: the job's keys are sent")
    add("--insecure", action="store_true", help="serve without keys, or send them through a Ray without a token")
    of_ray = parser.add_argument_group("as Ray's own commands have them")
    add = of_ray.add_argument
    add("--address", default=None, help="the Ray to use (default: RAY_ADDRESS, one that runs here, or a new one)")
    add("--num-cpus", type=float, default=1.0, metavar="N", help="cores of each worker (default: 1)")
    add("--resources", type=_table, default={}, metavar="JSON", help="your own resources of each worker")
    add("--label-selector", type=_table, default={}, metavar="JSON", help="labels of the nodes to use")
    add("--runtime-env-json", type=_table, default={}, metavar="JSON", help="runtime environment of all actors")
    joining = parser.add_argument_group("of the workers, as of `loader-server run ENDPOINT`")
    for option in COMMANDS["run"].joining:
        if option.names[0] in _JOINING:
            joining.add_argument(*option.names, **option.settings)
    add_common_arguments(parser, log_level="info", serves=True)
    return parser


_JOINING = ("--state", "--data", "--index", "--accept-code")


def _run(options: argparse.Namespace) -> int:
    """Serve the job until it ends or a signal comes, and return 0.

    Raise SettingsError for a mistake in options, job file or keys, if Ray is not installed or has a job of this name
    already, if nobody could connect to the coordinator, or if keys would pass through an open Ray; LostError if no Ray
    answers; MachineError if Ray cannot run the coordinator's actor; or the error with which the coordinator cannot
    serve. Exceptions of Ray pass through.
    """
    placing = {name: getattr(options, name) for name in ("num_cpus", "resources", "label_selector")}
    job = _read_job(Path(options.job))
    ray = library("ray", extra="ray", use="which runs the loaders' actors")
    _refuse_placing(ray, placing)
    with _deadline(options.address or os.environ.get("RAY_ADDRESS", "")):
        ray.init(options.address, namespace=NAMESPACE, runtime_env=options.runtime_env_json or None)
    try:
        orders = _orders(ray, options, job)
        # After `init`, which sets handlers of its own, and after a wait that Ctrl-C may cut, as nothing is started yet.
        is_stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: is_stopping.set())
        _serve(RayFleet(ray, job.name, orders, placing, options.workers), job.name, is_stopping)
    finally:
        ray.shutdown()
    return 0


def _serve(fleet: RayFleet, job: str, is_stopping: threading.Event) -> None:
    """Serve until the job ends or this process has to, print where, and end all actors; raise what `turn` raises."""
    printed = ""
    try:
        # In short waits, because Python misses a signal that arrives just as it begins to wait (see shared.commands).
        while not fleet.is_over and not is_stopping.wait(LONGEST_WAIT_S):
            fleet.turn()
            if fleet.endpoint != printed:
                printed = fleet.endpoint
                print(f"Job {job} is served at {printed} by workers in Ray. Ctrl-C ends it.", flush=True)
    finally:
        fleet.close()


def _read_job(path: Path) -> JobSettings:
    """Return the table [job]; raise SettingsError if the file cannot be read or has a mistake."""
    try:
        return parse_job(path.read_text("utf-8"), str(path)).settings
    except (OSError, UnicodeDecodeError) as error:
        remedy = "Name an existing job.toml."
        raise SettingsError(expected="a job file", got=str(error), where=str(path), remedy=remedy) from error


def _worker_range(text: str) -> tuple[int, int]:
    """Return the least and the most workers that `4` or `2:16` names; raise argparse's error for other text."""
    least, _, most = text.partition(":")
    with contextlib.suppress(ValueError):
        if 1 <= int(least) <= int(most or least) <= _MOST_WORKERS:
            return int(least), int(most or least)
    raise argparse.ArgumentTypeError(f"expected 4 or 2:16, say, from 1 to {_MOST_WORKERS}, got {text!r}")


def _table(text: str) -> dict[str, Any]:
    """Return the table that a JSON object gives; raise argparse's error for other text."""
    with contextlib.suppress(ValueError):
        if isinstance(table := json.loads(text), dict):
            return table
    raise argparse.ArgumentTypeError(f'expected a table as JSON, such as {{"loader": 1}}, got {text!r}')


def _refuse_placing(ray: Any, placing: dict[str, Any]) -> None:
    """Raise SettingsError if Ray refuses what a worker is to take of its node, which it checks without a cluster."""
    try:
        ray.remote(NodeActor).options(**placing)
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingsError(
            expected="cores, resources and labels as Ray has them",
            got=str(error),
            where="--num-cpus, --resources, --label-selector",
            remedy='Write such as --num-cpus 1, {"loader": 1} and {"pool": "loaders"}.',
        ) from error


@contextlib.contextmanager
def _deadline(address: str) -> Iterator[None]:
    """Connect to Ray in the block; raise LostError for its ConnectionError, or if nothing listens at a HOST:PORT.

    Ray itself would try for minutes, in which Ctrl-C does nothing. So if an address is given, other than "local", and
    connecting takes over 60 s, this process prints that error and ends, without leaving the block.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
        except (OSError, OverflowError) as error:
            raise _no_ray(address, str(error)) from error
    watch = threading.Timer(_CONNECT_S, _end_without_ray, [address])
    watch.daemon = True
    if address not in ("", "local"):  # a new Ray takes as long as it takes, and would be left behind
        watch.start()
    try:
        yield
    except ConnectionError as error:  # such as for a missing token
        raise _no_ray(address, str(error)) from error
    finally:
        watch.cancel()


def _end_without_ray(address: str) -> None:
    print(_no_ray(address, f"no answer in {_CONNECT_S:g} s"), file=sys.stderr, flush=True)
    os._exit(LostError.exit_code)


def _no_ray(address: str, reason: str) -> LostError:
    remedy = "Correct --address or RAY_ADDRESS; `ray status` shows what it names."
    return LostError(expected="a running Ray", got=reason, where=f"the address {address}", remedy=remedy)


def _orders(ray: Any, options: argparse.Namespace, job: JobSettings) -> dict[str, dict[str, Any]]:
    """Return the orders of a coordinator's and a worker's actor, with the job's keys if they are to be sent.

    Raise SettingsError if these keys cannot be used, or if anybody could get them out of Ray; other errors of
    `_sent_keys` are passed on. In command lines stand
    `{reports}`, `{parent}`, `{listen}`, `{folder}` and `{address}`, which only the node knows.
    """
    # Below the working directory if Ray has uploaded it.
    there = str if ray.get_runtime_context().runtime_env.get("working_dir") else _absolute
    files: Mapping[str, dict[str, str]] = {} if options.keys or not job.keys else _sent_keys(ray, options, job.keys)
    security = ("--keys", there(options.keys) if options.keys else "{folder}/keys") if options.keys or files else ()
    common = ("--parent", "{parent}", "--log-level", options.log_level)
    last = ("--advertise", "{address}", *common, *security, *(("--insecure",) if options.insecure else ()))
    joining = ["--workers", "1", "--state", "{folder}/state", *(("--accept-code",) if options.accept_code else ())]
    for name in ("state", "data", "index"):
        if folder := getattr(options, name):
            joining += (f"--{name}", there(folder))
    name, reporting = there(options.job), ("--ready-fd", "{reports}")
    return {
        "coordinator": {
            "commands": (
                ("index", name, "--missing", *reporting, *common),
                ("coordinator", name, "--listen", "{listen}", *reporting, *last),
            ),
            "files": {LISTEN_FILE: options.listen, **files.get("coordinator", {})},
            # The exit code 0 of a coordinator is the job's end; a worker that ends is started again.
            "ends_job": True,
        },
        "worker": {
            "commands": (("run", "file://{folder}/endpoint", *joining, *last),),
            "files": files.get("worker", {}),
            "ends_job": False,
        },
    }


def _absolute(path: str | Path) -> str:
    """Return a path in a folder that all nodes share, where actors have another working directory, as text."""
    return str(Path(path).absolute())


def _sent_keys(ray: Any, options: argparse.Namespace, keys: str) -> Mapping[str, dict[str, str]]:
    """Return the files of keys to send to a coordinator and to a worker.

    Raise SettingsError if they cannot be used, or would pass through a Ray that anybody can talk to; OSError if a file
    cannot be read. Exceptions of Ray pass through.
    """
    folder = Path(options.job).parent / keys
    has_token = asks_for_token() and ray.get(ray.remote(asks_for_token).options(num_cpus=0).remote(), timeout=_PROBE_S)
    require(
        has_token or options.insecure,
        expected="a Ray that asks for a token, as the job's keys are sent through it",
        got="one without token authentication",
        where=f"keys, {folder}",
        remedy="Start Ray with RAY_AUTH_MODE=token on all nodes and here; or put the keys on each node and name their "
        "folder there by --keys; or write --insecure to send them openly.",
    )
    return {role: _key_files(folder, role) for role in _KEYS}


def _key_files(folder: Path, role: Literal["coordinator", "worker"]) -> dict[str, str]:
    """Return the text of each file of keys for a role, by a name such as keys/coordinator.key.

    Raise SettingsError if they cannot be used, and OSError if one cannot be read.
    """
    ServerKeys.read(folder, role)  # a mistake is best reported here
    paths = (*(folder / name for name in _KEYS[role]), *sorted((folder / "allowed").rglob("*.key")))
    return {f"keys/{path.relative_to(folder)}": path.read_text("utf-8") for path in paths}


if __name__ == "__main__":
    main()
