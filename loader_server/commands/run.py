"""What `loader-server run` serves: jobs of this machine's own, by their files, or jobs to join, by their endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loader_server.fleet.joining import JoinSettings, join
from loader_server.job_folder import JobFolder
from shared.endpoints import is_connectable
from shared.errors import SettingsError

if TYPE_CHECKING:
    import argparse

__all__ = ["announce", "announce_joined", "jobs_of", "joined_jobs"]


def jobs_of(options: argparse.Namespace) -> list[JobFolder]:
    """Return the jobs that the arguments name; those to join are fetched first, unless they are here."""
    _refuse_port(options.advertise)
    if any("://" in word for word in options.job):
        return joined_jobs(options)
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
    given = [name for name in ("keys", "state", "data", "index") if getattr(options, name) is not None]
    if given:
        raise SettingsError(
            expected=f"--{given[0]} with the endpoint of a job that is served elsewhere",
            got=f"it with {options.job[0]}",
            where="loader-server run",
            remedy="Leave it out: for a job of this machine's own the job file says it.",
        )
    return [JobFolder(path) for path in options.job]


def joined_jobs(options: argparse.Namespace) -> list[JobFolder]:
    """Fetch what the jobs at these endpoints need, unless it is here."""
    settings = [_join_settings(endpoint, options) for endpoint in options.job]
    for job in settings:  # all of them, before anything is fetched
        job.follow()
    return [join(job) for job in settings]


def _join_settings(endpoint: str, options: argparse.Namespace) -> JoinSettings:
    if "://" not in endpoint:
        raise SettingsError(
            expected="endpoints alone, or job files alone",
            got=f"{endpoint} beside an endpoint",
            where="loader-server run",
            remedy="Serve the job file by a `loader-server run` of its own.",
        )
    return JoinSettings(
        endpoint=endpoint,
        state=options.state or Path(".stoker"),
        keys=options.keys,
        data=options.data,
        index=options.index,
        insecure=options.insecure,
    )


def announce_joined(name: str, endpoint: str, workers: int) -> None:
    """Say that a job was joined."""
    print(f"Job {name} at {endpoint} has {workers} workers of this host. Ctrl-C ends them.", flush=True)


def announce(name: str, endpoint: str, workers: int) -> None:
    """Say that a job is served."""
    print(f"Job {name} is served at {endpoint} by {workers} workers. Ctrl-C ends it.", flush=True)
