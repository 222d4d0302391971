"""The command `loader-server`: one function per sub-command, each of which imports what it needs when it runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.arguments import (
    add_advertise,
    add_fetch,
    add_index,
    add_joining,
    add_listen,
    add_metrics,
    add_parent,
    add_plan,
    add_show,
    advertise_arguments,
    command_named,
    metrics_arguments,
    metrics_listening,
    tells_its_error,
)
from loader_server.machine.oom_score import WORKER_OFFER, offer_once
from shared.commands import add_common_arguments, allow_many_files, run_command
from shared.quick_import import quick_import
from shared.system.system_errors import refuse_small_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from loader_server.machine.asking import Asker
    from loader_server.machine.nursery import Nursery

__all__ = ["be_nursery", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, and end the process."""
    # Each process is meant to use one core. numpy reads this when it is loaded, so it has to be set before.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    run_command(_parser(words[0] if words else ""), words)


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of this command alone, or of all if there is no such command.

    Adding those of all takes 5 ms, which each process of a job would wait for.
    """
    parser = argparse.ArgumentParser(
        prog="loader-server",
        description="Read, preprocess and batch a data set, and push the batches to trainers.",
        epilog="example: loader-server run job.toml",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adding = {
        "demo": _add_demo,
        "index": add_index,
        "plan": add_plan,
        "show": add_show,
        "run": _add_run,
        "fetch": add_fetch,
        "add": _add_add,
        "end": _add_end,
        "status": _add_status,
        "coordinator": _add_coordinator,
        "worker": _add_worker,
        "forgive": _add_forgive,
        "keys": _add_keys,
    }
    for add in [adding[command]] if command in adding else adding.values():
        serves = add in (_add_run, _add_coordinator, _add_worker)
        add_common_arguments(add(commands), log_level="info", serves=serves)
    return parser


# --- demo ---


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "Train a small model on made-up recordings, from nothing to the end, in under three minutes."
    command = command_named(commands, "demo", _run_demo, about, "loader-server demo --keep digits")
    command.add_argument(
        "--keep", type=Path, default=Path(".demo"), metavar="DIR", help="folder for corpus, job file and model (.demo)"
    )
    command.add_argument("--samples", type=_whole, default=None, metavar="N", help="recordings to make (1500)")
    command.add_argument("--epochs", type=_whole, default=6, metavar="N", help="epochs to train (6)")
    command.add_argument(
        "--workers", type=_whole, default=0, metavar="N", help="worker processes (one per core, from 2 to 4)"
    )
    return command


def _run_demo(options: argparse.Namespace) -> int:
    with contextlib.closing(_open_nursery("coordinator", "worker")) as nursery:
        from loader_server.demo.acts import DemoOptions, run

        demo = DemoOptions(
            folder=options.keep,
            samples=options.samples,
            epochs=options.epochs,
            workers=options.workers or min(4, max(2, os.cpu_count() or 1)),
            # The demo prints its story; the processes' own logs appear only if they are asked for.
            log_level="error" if options.log_level == "info" else options.log_level,
        )
        return run(demo, nursery)


def _open_nursery(*services: str) -> Nursery:
    from loader_server.machine.nursery import Nursery

    _import_for_children(*services)
    return Nursery(_be_forked)


def _import_for_children(*services: str) -> None:
    """Import the modules that all processes of this machine share, because the nursery forks them from this one."""
    # numpy imports `numpy.ma` at the first call of `unique`, which all of them make.
    modules = (*(f"loader_server.{service}.service" for service in services), "loader_server.metrics", "numpy.ma")
    with quick_import():
        for module in modules:
            import_module(module)


def be_nursery(socket_fd: int, owner_pid: int) -> None:
    """Replace the nursery of a supervisor, which has died, and end the process, which was started only for this."""
    from loader_server.machine.nursery import serve_owner
    from loader_server.machine.processes import end_with_parent

    end_with_parent(owner_pid, signal.SIGKILL)
    _import_for_children("coordinator", "worker")
    serve_owner(socket.socket(fileno=socket_fd), _be_forked, owner_pid)


def _be_forked(arguments: Sequence[str]) -> None:
    """Run what a child of the nursery is for: a command, or trials for a worker."""
    from loader_server.building.crash_trial import TRIAL, serve_trials

    if arguments[0] == "worker":
        offer_once(WORKER_OFFER)  # before its modules are imported; it logs a failure later
    if arguments[0] == TRIAL:
        serve_trials(arguments)
    else:
        main(arguments)


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 1000000, got {text}")
    return number


# --- run ---


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = (
        "Run the loader side of one machine: a coordinator for each job, and one worker per core for all of them. "
        "Given endpoints instead of job files, join jobs that are served elsewhere, with workers alone."
    )
    command = command_named(commands, "run", _run_machine, about, "loader-server run job.toml --workers 4")
    command.add_argument(
        "job",
        nargs="+",
        metavar="JOB|ENDPOINT",
        help="the job file, or several; or the endpoints (tcp://…, file:///…) of jobs to join",
    )
    command.add_argument(
        "--workers", type=int, default=0, help="worker processes; 0: as the job file says, or one per core"
    )
    add_listen(command)
    add_advertise(command, "HOST")
    add_metrics(command)
    add_joining(command)
    return command


def _run_machine(options: argparse.Namespace) -> int:
    refuse_small_limits()
    with contextlib.closing(_open_nursery("coordinator", "worker")) as nursery, contextlib.ExitStack() as held:
        return _run_loaders(options, nursery, held)


def _run_loaders(options: argparse.Namespace, nursery: Nursery, held: contextlib.ExitStack) -> int:
    from loader_server.commands import run
    from loader_server.machine.granted_cores import granted_cores
    from loader_server.machine.machine_probes import serve_probes
    from loader_server.machine.served_job import PrintedError
    from loader_server.machine.supervisor import Supervisor, SupervisorSettings

    jobs = run.jobs_of(options, held)
    settings = SupervisorSettings(
        workers=options.workers or max(job.settings.workers for job in jobs) or granted_cores(),
        insecure=options.insecure,
        log_level=options.log_level,
        arguments=metrics_arguments(options) + advertise_arguments(options),
        announce=run.announce_joined if jobs[0].joined is not None else run.announce,
    )
    supervisor = Supervisor(settings, nursery)
    _on_stop(supervisor.stop)
    probed = (
        serve_probes(supervisor, metrics_listening(options)) if options.metrics_listen else contextlib.nullcontext()
    )
    try:
        with probed:
            supervisor.start(jobs, options.listen)
            supervisor.run()
    except PrintedError as error:
        return error.exit_code
    finally:
        supervisor.close()
    return 0


def _on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM and SIGINT."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


# --- add and end: jobs of a machine that runs ---


def _add_add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "Serve one more job by the workers of a `loader-server run` on this machine. Returns once it is served."
    command = command_named(commands, "add", _add_job, about, "loader-server add other.toml --to job.toml")
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument("--to", type=Path, required=True, metavar="JOB", help="the job file of a job served there")
    return command


def _add_job(options: argparse.Namespace) -> int:
    from loader_server.commands import machine

    machine.add(options.job, to=options.to)
    return 0


def _add_end(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "End a job of a `loader-server run` on this machine; the others get its workers. The last one ends it all."
    command = command_named(commands, "end", _end_job, about, "loader-server end other.toml --drain 60")
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument(
        "--drain",
        type=float,
        default=0.0,
        metavar="S",
        help="let trainers finish what they have and leave, for so many seconds at most; Ctrl-C waits no longer (0)",
    )
    return command


def _end_job(options: argparse.Namespace) -> int:
    from loader_server.commands import machine

    machine.end(options.job, drain_s=options.drain)
    return 0


# --- coordinator and worker, for fleets; `run` starts these very commands ---


def _add_coordinator(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "Run only the coordinator, which knows who is alive and how far the job is."
    command = command_named(
        commands,
        "coordinator",
        tells_its_error(_run_coordinator),
        about,
        "loader-server coordinator job.toml --listen tcp://0.0.0.0:7400",
    )
    command.add_argument("job", type=Path, help="the job file")
    add_listen(command)
    add_advertise(command)
    add_parent(command)
    return command


def _add_worker(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "Run one worker: it builds the batches that trainers ask for."
    command = command_named(
        commands,
        "worker",
        tells_its_error(_run_worker),
        about,
        "loader-server worker job.toml --coordinator tcp://loader-1:7400 --listen tcp://0.0.0.0:7410",
    )
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument("--name", default="", help="the worker's name; default: host and process")
    command.add_argument(
        "--coordinator", default="", help="the coordinator's endpoint, or its file (file:///…); default: the job file's"
    )
    command.add_argument(
        "--drain-seconds", type=float, default=5.0, help="how long SIGTERM waits for what is being built"
    )
    command.add_argument("--shelf", default="", help=argparse.SUPPRESS)
    command.add_argument("--nursery-fd", type=int, default=-1, help=argparse.SUPPRESS)
    add_listen(command)
    add_advertise(command)
    add_parent(command)
    return command


def _run_coordinator(options: argparse.Namespace) -> int:
    refuse_small_limits()
    with quick_import():
        from loader_server import metrics
        from loader_server.coordinator.service import open_coordinator
        from loader_server.job_file import read_job
        from loader_server.machine.processes import end_with_parent, say_more
        from loader_server.machine.served_job import DRAIN_SIGNAL, END_SIGNAL
        from loader_server.machine.shares import demand_of
        from shared.endpoints import check_endpoint
        from shared.keys import ServerKeys
        from shared.metrics.server import MetricsServer

    if options.parent:
        end_with_parent(options.parent)
    allow_many_files()
    job = read_job(options.job)
    listen = options.listen or job.settings.listen
    check_endpoint(listen, where=f"{options.job}, listen", encrypted=job.keys is not None, insecure=options.insecure)
    keys = ServerKeys.read(job.keys, "coordinator") if job.keys else None
    coordinator = open_coordinator(job, listen, keys, advertise=options.advertise)
    _on_stop(coordinator.stop)
    signal.signal(DRAIN_SIGNAL, lambda _number, _frame: coordinator.end_job(drains=True))
    signal.signal(END_SIGNAL, lambda _number, _frame: coordinator.end_job(drains=False))
    labels = {"job": job.settings.name, "role": "coordinator"}
    samples = partial(metrics.coordinator_metrics, coordinator)
    listening = metrics_listening(options)
    with MetricsServer(
        samples,
        listening=listening,
        labels=labels,
        targets_folder=job.targets_folder,
        probes=coordinator.probes(job.settings.build_timeout_s),
    ) as served:
        say_more(options.ready_fd, endpoint=coordinator.endpoint, metrics=served.address)
        coordinator.run(lambda report: say_more(options.ready_fd, **asdict(demand_of(report)), ends=report["ends"]))
    return 0


def _run_worker(options: argparse.Namespace) -> int:
    refuse_small_limits()
    from loader_server.machine.asking import Asker

    if options.nursery_fd >= 0:
        return _serve_batches(options, Asker(socket.socket(fileno=options.nursery_fd), os.getppid()))
    with contextlib.closing(_open_nursery("worker")) as nursery:  # for trials alone
        return _serve_batches(options, nursery)


def _serve_batches(options: argparse.Namespace, nursery: Asker) -> int:
    with quick_import():
        from loader_server.commands.serve_worker import serve_worker
    return serve_worker(options, nursery, _on_stop)


# --- status, forgive and keys ---


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = (
        "Show how a running job is doing: streams, trainers, workers. In a terminal the table stays live until Ctrl-C."
    )
    command = command_named(commands, "status", _show_status, about, "loader-server status tcp://127.0.0.1:7400 --json")
    command.add_argument(
        "endpoint",
        nargs="?",
        default="tcp://127.0.0.1:7400",
        metavar="ENDPOINT|JOB",
        help="a job's endpoint; or, on its machine, its job file: that shows all jobs that are served there",
    )
    command.add_argument("--keys", default="", help="folder with the job's keys")
    command.add_argument("--timeout-seconds", type=float, default=5.0, help="how long to wait for an answer")
    command.add_argument("--once", action="store_true", help="print the table once, even in a terminal")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _show_status(options: argparse.Namespace) -> int:
    from loader_server.commands import status

    status.show(
        options.endpoint, keys=options.keys, timeout_s=options.timeout_seconds, as_json=options.json, once=options.once
    )
    return 0


def _add_forgive(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = (
        "List the samples that are known to kill the process that decodes them, or let some be used again. "
        "Run it on the coordinator's machine, whether or not the coordinator runs."
    )
    command = command_named(commands, "forgive", _list_or_forgive, about, "loader-server forgive job.toml --all")
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument(
        "identity", nargs="*", metavar="IDENTITY", help="a sample as the list names it; none: list them"
    )
    command.add_argument("--all", action="store_true", help="let all of them be used again")
    command.add_argument("--stream", default="", help="only those of this stream")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _list_or_forgive(options: argparse.Namespace) -> int:
    from loader_server.commands import forgive
    from loader_server.job_file import read_job

    forgive.run(
        read_job(options.job),
        forgive.ForgiveOptions(
            identities=options.identity, every=options.all, stream=options.stream, as_json=options.json
        ),
    )
    return 0


def _add_keys(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    about = "Make a folder of keys, for loaders and trainers that talk across machines."
    command = command_named(commands, "keys", _make_keys, about, "loader-server keys ./keys")
    command.add_argument("folder", type=Path, help="the folder to make")
    return command


_KEYS_MADE = """\
Keys are in {folder}: write keys = "{folder}" in [job], and give each machine its part of the folder.
  coordinator  coordinator.key_secret, allowed/
  workers      worker.key_secret, coordinator.key, allowed/
  trainers     trainer.key_secret, coordinator.key, worker.key
A machine that runs `loader-server run` needs the files of the first two. Who is let in, and with which role, is read
from allowed/ while the job runs: put a public key into the folder of its role, or take it out."""


def _make_keys(options: argparse.Namespace) -> int:
    from shared.keys import make_keys

    make_keys(options.folder)
    print(_KEYS_MADE.format(folder=options.folder))
    return 0
