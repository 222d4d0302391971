"""The jobs of a machine: those that `loader-server run` begins with, and those that come and go while it runs.

A run's first jobs are its own, by their files, or jobs to join, by their endpoints; the latter can also be fetched
without serving. `add` and `end` ask the process that serves a job on this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.arguments import metrics_listening
from loader_server.fleet.job_joining import JoinSettings, fetch, join
from loader_server.job_folder import JobFolder
from loader_server.machine.job_socket import ask_machine
from shared.endpoints import is_connectable
from shared.errors import SettingsError

if TYPE_CHECKING:
    import argparse
    from contextlib import ExitStack

__all__ = ["add_job", "announce", "announce_joined", "end_job", "fetch_jobs", "jobs_of"]

_LAST_PORT = 65535


def jobs_of(options: argparse.Namespace, held: ExitStack) -> list[JobFolder]:
    """Return the jobs that the arguments name, after fetching what is missing of those to join.

    Their folders on this host are reserved for this process until `held` ends. Raises SettingsError for options that do
    not go together, or what reading a job file or joining raises.
    """
    _refuse_port(options.advertise)
    if any("://" in word for word in options.job):
        _refuse_metrics_port(options)
        hosts = [held.enter_context(join(settings)) for settings in _joining(options)]
        return [JobFolder(host.job_file) for host in hosts]
    _refuse_options_of_joining(options)
    if options.listen and len(options.job) > 1:
        raise SettingsError(
            expected="one job",
            got=f"{len(options.job)}",
            where="--listen",
            remedy="Write listen = … into [job] of each.",
        )
    return [JobFolder(path) for path in options.job]


def _refuse_port(advertise: str) -> None:
    """Raise SettingsError if the address to advertise has a port, or is none that others can connect to."""
    if advertise and not is_connectable(f"tcp://{advertise}:1"):
        raise SettingsError(
            expected="a host alone, such as loader-1 or 203.0.113.7",
            got=repr(advertise),
            where="--advertise",
            remedy="Each process of a machine has a port of its own: publish these under the same numbers.",
        )


def _refuse_metrics_port(options: argparse.Namespace) -> None:
    """Raise SettingsError if not all ports from --metrics-port on exist, or if --metrics-listen names another one.

    What `metrics_listening` raises passes through.
    """
    port, last = options.metrics_port, options.metrics_port + max(1, options.workers)
    if port and not 0 < port < last <= _LAST_PORT:
        raise SettingsError(
            expected=f"a port with room for a port of each worker after it, up to {_LAST_PORT}",
            got=f"{port}, for {max(1, options.workers)} workers",
            where="--metrics-port",
            remedy="Write 9100, say, or leave it out for any free ports.",
        )
    if port and metrics_listening(options).port != port:
        raise SettingsError(
            expected="one port for this host's probes",
            got=f"{port}, and {options.metrics_listen} by --metrics-listen",
            where="--metrics-port",
            remedy="Name the host alone by --metrics-listen.",
        )


def _refuse_options_of_joining(options: argparse.Namespace) -> None:
    """Raise SettingsError for options that only jobs to join have: the job files of a machine's own set the same."""
    for name in ("keys", "state", "data", "index", "accept_code", "metrics_port"):
        if getattr(options, name) not in (None, False):
            raise SettingsError(
                expected=f"--{name.replace('_', '-')} with the endpoint of a job that is served elsewhere",
                got=f"it with {options.job[0]}",
                where="loader-server run",
                remedy="Leave it out: a job of this machine's own has this setting in its job file.",
            )


def fetch_jobs(options: argparse.Namespace) -> int:
    """Fetch what is missing here of the jobs at these endpoints, and return the exit code.

    Raises SettingsError for options that do not go together or an unusable endpoint, or what `fetch` raises.
    """
    for settings in _joining(options):
        fetch(settings, options.into)
    return 0


def _joining(options: argparse.Namespace) -> list[JoinSettings]:
    """Return the settings to join each job; all endpoints are checked before anything is fetched.

    Raise SettingsError for a job file among them, --accept-code without --keys, or an endpoint that is malformed, may
    not be joined, or whose file is unsafe.
    """
    joining = [_join_settings(endpoint, options) for endpoint in options.job]
    for settings in joining:
        settings.follow()
    return joining


def _join_settings(endpoint: str, options: argparse.Namespace) -> JoinSettings:
    """Return the settings to join one job; raise SettingsError for a job file, or --accept-code without --keys."""
    if "://" not in endpoint:
        raise SettingsError(
            expected="endpoints alone, or job files alone",
            got=f"{endpoint} beside an endpoint",
            where="loader-server run",
            remedy="Serve the job file by a `loader-server run` of its own.",
        )
    if options.accept_code and options.keys is None:
        raise SettingsError(
            expected="--accept-code with --keys, as anybody who poses as the coordinator would run code here",
            got="no keys",
            where="loader-server run",
            remedy="Name the folder with this host's keys, or install the job's modules on this host.",
        )
    return JoinSettings(
        endpoint=endpoint,
        state=options.state or Path(".stoker"),
        keys=options.keys,
        data=options.data,
        index=options.index,
        insecure=options.insecure,
        accepts_code=options.accept_code,
        metrics_port=options.metrics_port,
    )


def announce_joined(name: str, endpoint: str, workers: int) -> None:
    """Print that a job was joined, with its endpoint and the number of this host's workers."""
    print(f"Job {name} at {endpoint} has {workers} workers of this host. Ctrl-C ends them.", flush=True)


def announce(name: str, endpoint: str, workers: int) -> None:
    """Print that a job is served, with its endpoint and the number of workers."""
    print(f"Job {name} is served at {endpoint} by {workers} workers. Ctrl-C ends it.", flush=True)


def add_job(options: argparse.Namespace) -> int:
    """Have a job served by the process that serves the job at `options.to`; print where, and return the exit code.

    Raises LostError if no process serves that job or it does not answer, SettingsError if a job file or the socket
    cannot be used, or the error for which this job cannot be served.
    """
    JobFolder(options.job)  # its own errors are best reported here
    answer = ask_machine(JobFolder(options.to).state, do="add", job=str(options.job.resolve()))
    print(f"Job {answer['job']} is served at {answer['endpoint']}, for now by {answer['workers']} of the workers.")
    return 0


def end_job(options: argparse.Namespace) -> int:
    """Have a job end once its trainers have left, or after so many seconds; with Ctrl-C, at once.

    Print that it has ended; return the exit code. Raise LostError if no process serves the job or it does not answer,
    SettingsError if the job file or the socket cannot be used, or the error with which the process refuses; raise
    KeyboardInterrupt again if `drain` is 0.
    """
    state = JobFolder(options.job).state
    try:
        answer = ask_machine(state, do="end", drain=options.drain)
    except KeyboardInterrupt:
        if not options.drain:
            raise
        # The job goes on draining though the first request is gone; this one leaves its trainers no time.
        answer = ask_machine(state, do="end", drain=0.0)
    print(f"Job {answer['job']} has ended.")
    return 0
