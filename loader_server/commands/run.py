"""The jobs that `loader-server run` serves: its own, by their files, or jobs to join, by their endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.fleet.joining import JoinSettings, fetch, join
from loader_server.job_folder import JobFolder
from shared.endpoints import is_connectable
from shared.errors import SettingsError

if TYPE_CHECKING:
    import argparse
    from contextlib import ExitStack

__all__ = ["announce", "announce_joined", "fetch_jobs", "jobs_of"]


def jobs_of(options: argparse.Namespace, held: ExitStack) -> list[JobFolder]:
    """Return the jobs that the arguments name, after fetching what is missing of those to join.

    Their folders on this host are reserved for this process until `held` ends. Raises SettingsError for options that do
    not go together.
    """
    _refuse_port(options.advertise)
    if any("://" in word for word in options.job):
        hosts = [held.enter_context(join(settings)) for settings in _joining(options)]
        return [JobFolder(host.job_file) for host in hosts]
    if options.listen and len(options.job) > 1:
        raise SettingsError(
            expected="one job",
            got=f"{len(options.job)}",
            where="--listen",
            remedy="Write listen = … into [job] of each.",
        )
    return _own_jobs(options)


def _refuse_port(advertise: str) -> None:
    if advertise and not is_connectable(f"tcp://{advertise}:1"):
        raise SettingsError(
            expected="a host alone, such as loader-1 or 203.0.113.7",
            got=repr(advertise),
            where="--advertise",
            remedy="Each process of a machine has a port of its own: publish these under the same numbers.",
        )


def _own_jobs(options: argparse.Namespace) -> list[JobFolder]:
    names = ("keys", "state", "data", "index", "accept_code")
    given = [name.replace("_", "-") for name in names if getattr(options, name) not in (None, False)]
    if given:
        raise SettingsError(
            expected=f"--{given[0]} with the endpoint of a job that is served elsewhere",
            got=f"it with {options.job[0]}",
            where="loader-server run",
            remedy="Leave it out: for a job of this machine's own the job file says it.",
        )
    return [JobFolder(path) for path in options.job]


def fetch_jobs(options: argparse.Namespace) -> None:
    """Fetch what is missing here of the jobs at these endpoints."""
    for settings in _joining(options):
        fetch(settings, options.into)


def _joining(options: argparse.Namespace) -> list[JoinSettings]:
    """Return the settings to join each job; all endpoints are checked before anything is fetched."""
    joining = [_join_settings(endpoint, options) for endpoint in options.job]
    for settings in joining:
        settings.follow()
    return joining


def _join_settings(endpoint: str, options: argparse.Namespace) -> JoinSettings:
    if "://" not in endpoint:
        raise SettingsError(
            expected="endpoints alone, or job files alone",
            got=f"{endpoint} beside an endpoint",
            where="loader-server run",
            remedy="Serve the job file by a `loader-server run` of its own.",
        )
    if options.accept_code and options.keys is None:
        raise SettingsError(
            expected="--accept-code with --keys, as whoever poses as the coordinator would run code here",
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
    )


def announce_joined(name: str, endpoint: str, workers: int) -> None:
    """Print that a job was joined."""
    print(f"Job {name} at {endpoint} has {workers} workers of this host. Ctrl-C ends them.", flush=True)


def announce(name: str, endpoint: str, workers: int) -> None:
    """Print that a job is served."""
    print(f"Job {name} is served at {endpoint} by {workers} workers. Ctrl-C ends it.", flush=True)
