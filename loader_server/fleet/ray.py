"""The program that serves a job in Ray: `python -m loader_server.fleet.ray job.toml --workers 2:16`.

Rules: it stays until the job ends, and with it ends all that it started in Ray. What passes through Ray is small:
options, keys, and how many workers are wanted.
"""

from __future__ import annotations

import argparse
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from loader_server.fleet.ray_actor import asks_for_token
from loader_server.fleet.ray_fleet import NAMESPACE, RayFleet
from loader_server.fleet.ray_settings import (
    COORDINATOR_KEYS,
    WORKER_KEYS,
    RaySettings,
    WorkerRange,
    actor_resources,
    parse_table,
    refuse_open_ray,
)
from shared.commands import LONGEST_WAIT_S, add_common_arguments, run_command
from shared.errors import SettingsError
from shared.extras import library
from shared.keys import ServerKeys
from shared.settings.job import parse_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shared.settings.job import JobSettings

__all__ = ["main"]

#: How long Ray may take to answer whether it asks for a token.
_PROBE_S = 120.0


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
    add("--workers", default="1:16", metavar="LEAST:MOST", help="how many workers, or the least and the most (1:16)")
    add("--listen", default="tcp://0.0.0.0:*", help="where the coordinator serves (default: at any free port)")
    add("--keys", default="", metavar="FOLDER", help="folder with keys on each node; default: the job's keys are sent")
    add("--insecure", action="store_true", help="serve without keys, or send them through a Ray without a token")
    of_ray = parser.add_argument_group("as Ray's own commands have them")
    add = of_ray.add_argument
    add("--address", default=None, help="the Ray to use (default: RAY_ADDRESS, one that runs here, or a new one)")
    add("--num-cpus", type=float, default=1.0, metavar="N", help="cores of each worker (default: 1)")
    add("--resources", default="", metavar="JSON", help="your own resources of each worker")
    add("--label-selector", default="", metavar="JSON", help="labels of the nodes to use")
    add("--runtime-env-json", default="", metavar="JSON", help="runtime environment of all actors")
    joining = parser.add_argument_group("of the workers, as of `loader-server run ENDPOINT`")
    for name in _FOLDERS:
        joining.add_argument(f"--{name}", default="", metavar="FOLDER")
    joining.add_argument("--accept-code", action="store_true")
    add_common_arguments(parser, log_level="info", serves=True)
    return parser


_FOLDERS = ("state", "data", "index")


def _run(options: argparse.Namespace) -> int:
    """Serve the job until it ends or a signal comes, and return the exit code.

    Raise SettingsError for a mistake in options, job file or keys, or if keys would pass through an open Ray;
    MachineError if Ray cannot run the coordinator's actor; or the error with which the coordinator cannot serve.
    Exceptions of Ray pass through.
    """
    workers = WorkerRange.parse(options.workers)
    placing = actor_resources(options.num_cpus, options.resources, options.label_selector)
    environment = parse_table(options.runtime_env_json, "--runtime-env-json")
    job = _read_job(options.job)
    ray = library("ray", extra="ray", use="which runs the loaders' actors")
    ray.init(options.address, namespace=NAMESPACE, runtime_env=environment or None)
    try:
        settings = _settings(ray, options, job)
        # After `init`, which sets handlers of its own, and after a wait that Ctrl-C may cut, as nothing is started yet.
        is_stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: is_stopping.set())
        _serve(RayFleet(ray, job.name, settings, workers, placing), job.name, workers, is_stopping)
    finally:
        ray.shutdown()
    return 0


def _read_job(path: str) -> JobSettings:
    """Return the table [job]; raise SettingsError if the file cannot be read or has a mistake."""
    try:
        return parse_job(Path(path).read_text("utf-8"), path).settings
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            expected="a job file", got=str(error), where=path, remedy="Name an existing job.toml."
        ) from error


def _serve(fleet: RayFleet, job: str, workers: WorkerRange, is_stopping: threading.Event) -> None:
    """Serve until the job ends or this process has to, and print where; raise what `RayFleet.turn` raises."""
    printed = ""
    try:
        # In short waits, because Python misses a signal that arrives just as it begins to wait (see shared.commands).
        while not fleet.is_over and not is_stopping.wait(LONGEST_WAIT_S):
            fleet.turn()
            if fleet.endpoint != printed:
                printed = fleet.endpoint
                print(f"Job {job} is served at {printed} by {workers} workers in Ray. Ctrl-C ends it.", flush=True)
    finally:
        fleet.close()


def _settings(ray: Any, options: argparse.Namespace, job: JobSettings) -> RaySettings:
    """Return the settings, with the job's keys if they are to be sent.

    Raise SettingsError if these keys cannot be used, or if anybody could get them out of Ray.
    """
    is_uploaded = bool(ray.get_runtime_context().runtime_env.get("working_dir"))

    def there(path: str) -> str:
        """Return a path as nodes have it: below the uploaded working directory, or in a folder that all share."""
        return path if is_uploaded or not path else str(Path(path).absolute())

    folders = {name: there(getattr(options, name)) for name in _FOLDERS}
    joining = [word for name, folder in folders.items() if folder for word in (f"--{name}", folder)]
    settings = RaySettings(
        job=there(options.job),
        listen=options.listen,
        keys=there(options.keys),
        joining=(*joining, *(("--accept-code",) if options.accept_code else ())),
        insecure=options.insecure,
        log_level=options.log_level,
    )
    if options.keys or not job.keys:
        return settings
    folder = Path(options.job).parent / job.keys
    has_token = asks_for_token() and ray.get(ray.remote(asks_for_token).options(num_cpus=0).remote(), timeout=_PROBE_S)
    refuse_open_ray(has_token=has_token, insecure=options.insecure, folder=str(folder))
    for role in ("coordinator", "worker"):
        ServerKeys.read(folder, role)  # a mistake is best reported here
    return replace(
        settings,
        coordinator_files=dict(_key_files(folder, COORDINATOR_KEYS)),
        worker_files=dict(_key_files(folder, WORKER_KEYS)),
    )


def _key_files(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield these files of a folder of keys and all that are allowed; raise OSError if one cannot be read."""
    for path in (*(folder / name for name in names), *sorted((folder / "allowed").rglob("*.key"))):
        yield f"keys/{path.relative_to(folder)}", path.read_text("utf-8")


if __name__ == "__main__":
    main()
