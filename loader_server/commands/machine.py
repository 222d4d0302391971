"""`loader-server add` and `loader-server end`: jobs that come and go while a machine runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loader_server.job_folder import JobFolder
from loader_server.machine.job_socket import ask_machine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["add", "end"]


def add(path: Path, *, to: Path) -> None:
    """Have a job served by the process that serves the job at `to`; print where."""
    JobFolder(path)  # its own errors are best reported here
    told = ask_machine(JobFolder(to).state, do="add", job=str(path.resolve()))
    print(f"Job {told['job']} is served at {told['endpoint']}, for now by {told['workers']} of the workers.")


def end(path: Path, *, drain_s: float) -> None:
    """Have a job end once its trainers have left, or after so many seconds; with Ctrl-C, at once."""
    state = JobFolder(path).state
    try:
        told = ask_machine(state, do="end", drain=drain_s)
    except KeyboardInterrupt:
        if not drain_s:
            raise
        told = ask_machine(state, do="end", drain=0.0)
    print(f"Job {told['job']} has ended.")
