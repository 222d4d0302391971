"""The program `loader-server`: parses the arguments, and runs the commands that fork other processes.

The commands and their options are in `arguments`, the other functions that run them in `commands`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from loader_server.arguments import (
    COMMANDS,
    Command,
    advertise_arguments,
    metrics_arguments,
    metrics_listening,
)
from shared.commands import allow_many_files, run_command
from shared.errors import StokerError
from shared.quick_import import quick_import
from shared.system.system_errors import is_refusal, refuse_small_limits, system_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import FrameType

    from loader_server.job_folder import JobFolder
    from loader_server.machine.asking import Asker, OwnedNursery
    from loader_server.machine.nursery import Nursery

__all__ = [
    "be_child",
    "be_nursery",
    "main",
    "make_key_folder",
    "run_coordinator",
    "run_demo",
    "run_machine",
    "run_worker",
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name (None: those of the process), and end the process with its exit code.

    Errors of ours and refusals of the system are printed; other exceptions are raised.
    """
    # Each process is meant to use one core. numpy reads this when it is loaded, so it has to be set before.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    run_command(_parser(words[0] if words else "", is_program=arguments is None), words)


def _parser(name: str, *, is_program: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the command of this name alone, or of all commands if there is no such command.

    The command is to run as this process's program, or as a part of another.
    """
    parser = argparse.ArgumentParser(
        prog="loader-server",
        description="Read, preprocess and batch a data set, and push the batches to trainers.",
        epilog="example: loader-server run job.toml",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # Adding all of them takes 5 ms, which each process of a job would wait for.
    for chosen in [name] if name in COMMANDS else COMMANDS:
        COMMANDS[chosen].add_to(commands, chosen, partial(_run, COMMANDS[chosen], is_program))
    return parser


def _run(command: Command, is_program: bool, options: argparse.Namespace) -> int:  # noqa: FBT001 - bound by `partial`
    """Import the function that runs a command, call it, and return its exit code.

    A process of a job ends with its parent, and reports the error that ends it to its parent as well. A program first
    executes itself again if its job files name a processor level that it does not keep to. Raise MachineError if a
    server's limits are too small, what importing and running raise, or SystemExit if the parent has ended already, or
    the last process has printed the same error.
    """
    # Before the slow imports: if the parent is killed meanwhile, nobody else would end this process.
    if getattr(options, "parent", 0):
        from loader_server.machine.processes import end_with_parent  # imports libzmq, which `--help` need not wait for

        end_with_parent(options.parent)
    try:
        # Before numpy is imported: with too little address space its OpenBLAS ends the process without a word of ours.
        if command.serves:
            refuse_small_limits()
        if is_program and command.keeps_to_processor:
            _keep_to_processor(options.job if isinstance(options.job, list) else [options.job])
        module, _, function = command.run.partition(":")
        with quick_import():
            run: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
        return run(options)
    except Exception as error:  # the process that started this one gets it before it is raised
        if command.reports_errors and (isinstance(error, StokerError) or is_refusal(error)):
            _report(error if isinstance(error, StokerError) else system_error(error), options)
        raise


def _keep_to_processor(jobs: Sequence[str | Path]) -> None:
    """Execute this process again if its libraries do not keep to the processor level of these job files.

    If the files differ in that, it keeps to none, and each process of a job that has a level executes itself again.
    Endpoints of jobs do not count. Raise SettingsError if a job file cannot be read, or the machine is below the level;
    errors of `execute_again` pass through.
    """
    with quick_import():
        from loader_server.job_folder import JobFolder
        from loader_server.processor.capping import execute_again, keep_to
    levels = {JobFolder(job).settings.processor for job in jobs if "://" not in str(job)}
    keep_to(levels.pop() if len(levels) == 1 else "", f"{jobs[0]}, [job], processor", execute_again)


def _report(error: StokerError, options: argparse.Namespace) -> None:
    """Send an error to our parent; raise SystemExit if our predecessor has printed the same one already."""
    from loader_server.machine.processes import send_facts
    from shared.hashing import fingerprint

    send_facts(options.ready_fd, error=error.words())
    if fingerprint(*error.words().values()) == getattr(options, "last_error", ""):
        raise SystemExit(error.exit_code) from None


def _on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` at SIGTERM and SIGINT; raise ValueError outside the main thread."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


# --- the nursery, and what is forked from it ---


def _open_nursery(*services: str) -> Nursery:
    from loader_server.machine.nursery import Nursery

    _import_for_children(*services)
    return Nursery(_be_forked)


def _import_for_children(*services: str) -> None:
    """Import the modules that all processes of this machine share, because the nursery forks them from this one.

    Errors of importing pass through.
    """
    # numpy imports `numpy.ma` at the first call of `unique`, which all of them make.
    modules = [f"loader_server.{service}.service" for service in services]
    modules += [f"loader_server.metrics.{service}_metrics" for service in services] + ["numpy.ma"]
    with quick_import():
        for module in modules:
            import_module(module)


def be_nursery(socket_fd: int, owner_pid: int) -> None:
    """Be the successor of a supervisor's nursery that has died, until the supervisor ends; then end this process.

    Raise SystemExit if the supervisor has ended already, or OSError if it has just hung up.
    """
    from loader_server.machine.nursery import serve_owner
    from loader_server.machine.processes import end_with_parent

    # Before the imports: if the supervisor is killed meanwhile, nobody else would end this process.
    end_with_parent(owner_pid, signal.SIGKILL)
    _import_for_children("coordinator", "worker")
    serve_owner(socket.socket(fileno=socket_fd), _be_forked, owner_pid)


def _be_forked(arguments: Sequence[str]) -> None:
    """Run what a child of the nursery is for: trials for a worker, or a command, which ends the process.

    Processes that open streams execute themselves again first, if their job has another processor level than the
    nursery. A worker then raises its OOM score before anything else. Trials raise SystemExit if their parent has ended.
    Errors that are neither ours nor refusals of the system are raised.
    """
    from loader_server.building.crash_trial import TRIAL, serve_trials
    from loader_server.machine.processes import WORKER_OFFER, offer_once

    _keep_child_to_processor(arguments)
    if arguments[0] == "worker":
        # Before its modules are imported: until then the kernel, short of memory, may as well kill the coordinator. A
        # failure is logged once there is a log.
        offer_once(WORKER_OFFER)
    if arguments[0] == TRIAL:
        serve_trials(arguments)
    else:
        main(arguments)


def _keep_child_to_processor(arguments: Sequence[str]) -> None:
    """Execute this child of the nursery again if its job has another processor level than the nursery keeps to.

    Nothing happens to a process that opens no streams, or that cannot open its job file here, which it reports itself.
    OSError of `execute_child` passes through.
    """
    from loader_server.building.crash_trial import TRIAL
    from loader_server.job_folder import JobFolder
    from loader_server.machine.nursery import execute_child
    from loader_server.processor.capping import keep_to

    command = COMMANDS.get(arguments[0])
    if arguments[0] == TRIAL or (command is not None and command.keeps_to_processor):
        with contextlib.suppress(StokerError):
            where = f"{arguments[1]}, [job], processor"
            keep_to(JobFolder(arguments[1]).settings.processor, where, partial(execute_child, arguments))


def be_child(arguments: Sequence[str]) -> None:
    """Go on as a nursery's child that has just executed itself again, and end this process; errors are printed."""
    from loader_server.machine.nursery import live_as_child

    live_as_child(_be_forked, arguments)


# --- commands that fork ---


def run_demo(options: argparse.Namespace) -> int:
    """Play the demo, and return its exit code; raise what keeps it from being played to the end."""
    with contextlib.closing(_open_nursery("coordinator", "worker")) as nursery:
        from loader_server.demo.acts import run

        return run(options, nursery)


def run_machine(options: argparse.Namespace) -> int:
    """Serve jobs until told to end, with a coordinator for each and the machine's workers; return the exit code.

    Raise OSError or MachineError if there is no room for a process, and what else keeps first jobs from being served.
    An error that a child has printed already only sets the exit code.
    """
    # The nursery first: a process with threads may hang when it forks, and fetching a bundle starts libzmq's threads.
    with contextlib.closing(_open_nursery("coordinator", "worker")) as nursery, contextlib.ExitStack() as held:
        return _run_loaders(options, nursery, held)


def _nursery_for(jobs: Sequence[JobFolder], nursery: OwnedNursery, held: contextlib.ExitStack) -> OwnedNursery:
    """Return the nursery, or another in its place if jobs that were joined all have a level that it does not keep to.

    The other is closed at the end of `held`. Raise SettingsError if this machine is below the level, MachineError if
    no other nursery can be started.
    """
    from loader_server.machine.nursery_keeper import start_nursery
    from loader_server.processor.capping import keep_to

    def start_another(environment: dict[str, str]) -> None:
        # For this process's children alone: it opens no streams itself, and must not be executed again, as it holds the
        # folders of the jobs that it has just fetched.
        os.environ.clear()
        os.environ.update(environment)
        nursery.close()
        others.append(held.enter_context(contextlib.closing(start_nursery())))

    others: list[OwnedNursery] = []
    levels = {job.settings.processor for job in jobs if job.joined is not None}
    if len(levels) == 1:
        keep_to(levels.pop(), f"{jobs[0].path}, [job], processor", start_another)
    return others[0] if others else nursery


def _run_loaders(options: argparse.Namespace, nursery: OwnedNursery, held: contextlib.ExitStack) -> int:
    """Run a supervisor until it has to end, and return the exit code.

    Raise what keeps a job from being served; if a child printed it already, return its exit code instead. Raise
    MachineError if nurseries die again and again.
    """
    from loader_server.commands import machine_jobs
    from loader_server.machine.free_room import granted_cores
    from loader_server.machine.machine_probes import serve_probes
    from loader_server.machine.served_job import PrintedError
    from loader_server.machine.supervisor import Supervisor, SupervisorSettings

    jobs = machine_jobs.jobs_of(options, held)
    nursery = _nursery_for(jobs, nursery, held)
    settings = SupervisorSettings(
        workers=options.workers or max(job.settings.workers for job in jobs) or granted_cores(),
        insecure=options.insecure,
        log_level=options.log_level,
        arguments=metrics_arguments(options) + advertise_arguments(options),
        announce=machine_jobs.announce_joined if jobs[0].joined is not None else machine_jobs.announce,
    )
    supervisor = Supervisor(settings, nursery)
    _on_stop(supervisor.stop)
    has_probes = options.metrics_listen or options.metrics_port
    probed = serve_probes(supervisor, metrics_listening(options)) if has_probes else contextlib.nullcontext()
    try:
        with probed:
            supervisor.start(jobs, options.listen)
            supervisor.run()
    except PrintedError as error:
        return error.exit_code
    finally:
        supervisor.close()
    return 0


def run_coordinator(options: argparse.Namespace) -> int:
    """Serve as a job's coordinator until told to end, and return the exit code.

    Raise SettingsError for a mistake in the job file, keys, endpoint or metrics' address, DataError or MachineError if
    journal, data or a port cannot be opened, HeldError if another process serves the job, or OSError if a kept graph or
    the journal's files cannot be read.
    """
    with quick_import():
        from loader_server.coordinator.service import open_coordinator
        from loader_server.job_file import read_job
        from loader_server.machine.processes import send_facts
        from loader_server.machine.served_job import DRAIN_SIGNAL, END_SIGNAL
        from loader_server.metrics.coordinator_metrics import coordinator_metrics
        from shared.endpoints import check_endpoint
        from shared.keys import ServerKeys
        from shared.metrics.server import MetricsServer

    allow_many_files()
    job = read_job(options.job)
    listen = options.listen or job.settings.listen
    folder = options.keys or job.keys
    check_endpoint(listen, where=f"{options.job}, listen", encrypted=folder is not None, insecure=options.insecure)
    keys = ServerKeys.read(folder, "coordinator") if folder else None
    coordinator = open_coordinator(job, listen, keys, advertise=options.advertise)
    _on_stop(coordinator.stop)
    signal.signal(DRAIN_SIGNAL, lambda _number, _frame: coordinator.end_job(drains=True))
    signal.signal(END_SIGNAL, lambda _number, _frame: coordinator.end_job(drains=False))
    with MetricsServer(
        partial(coordinator_metrics, coordinator, restarts=options.restarts),
        listening=metrics_listening(options),
        labels={"job": job.settings.name, "role": "coordinator"},
        targets_folder=job.targets_folder,
        probes=coordinator.probes(job.settings.build_timeout_s),
    ) as served:
        send_facts(options.ready_fd, endpoint=coordinator.endpoint, metrics=served.address)
        reported = ("workers_wanted", "ends")
        coordinator.run(lambda report: send_facts(options.ready_fd, **{key: report[key] for key in reported}))
    return 0


def run_worker(options: argparse.Namespace) -> int:
    """Serve as a worker until told to end, and return the exit code.

    Raise a StokerError for what keeps it from serving, or OSError if there is no room for a nursery of its own; other
    errors of `serve_worker` pass through.
    """
    from loader_server.machine.asking import Asker

    if options.nursery_fd >= 0:
        return _serve_batches(options, Asker(socket.socket(fileno=options.nursery_fd), os.getppid()))
    # A worker that was started by hand has no nursery to ask, so it opens one, for trials of samples alone.
    with contextlib.closing(_open_nursery("worker")) as nursery:
        return _serve_batches(options, nursery)


def _serve_batches(options: argparse.Namespace, nursery: Asker) -> int:
    with quick_import():
        from loader_server.commands.serve_worker import serve_worker
    return serve_worker(options, nursery, _on_stop)


# --- keys ---

_KEYS_MADE = """\
Keys are in {folder}: write keys = "{folder}" in [job], and give each machine its part of the folder.
  coordinator  coordinator.key_secret, allowed/
  workers      worker.key_secret, coordinator.key, allowed/
  trainers     trainer.key_secret, coordinator.key, worker.key
A machine that runs `loader-server run` needs the files of the first two. Which keys are let in, and with which role, is
read from allowed/ while the job runs: put a public key into the folder of its role, or take it out."""


def make_key_folder(options: argparse.Namespace) -> int:
    """Make a folder of keys, print who needs which, and return the exit code.

    Raises SettingsError if the folder has keys already, or OSError if it cannot be written.
    """
    from shared.keys import make_keys

    make_keys(options.folder)
    print(_KEYS_MADE.format(folder=options.folder))
    return 0
