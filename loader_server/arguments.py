"""Arguments of commands: those that several share, those of index, plan and show, and those of joining a job.

Rules: what a command does is imported when it runs, so that `--help` and the others start without it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import StokerError
from shared.quick_import import quick_import
from shared.system.system_errors import is_refusal, system_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.metrics.listening import Listening

__all__ = [
    "add_advertise",
    "add_fetch",
    "add_index",
    "add_joining",
    "add_listen",
    "add_metrics",
    "add_parent",
    "add_plan",
    "add_show",
    "advertise_arguments",
    "command_named",
    "metrics_arguments",
    "metrics_listening",
    "tells_its_error",
]


def command_named(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    about: str,
    example: str,
) -> argparse.ArgumentParser:
    """Add a sub-command with its description and an example, and return its parser."""
    command = commands.add_parser(name, help=about, description=about, epilog=f"example: {example}")
    command.set_defaults(run=run)
    return command


def tells_its_error(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Make a command report its error to the process that started it as well.

    If its predecessor ended with the same error, the error is not printed again.
    """

    def told(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except Exception as failure:  # the process that started us gets it before it is raised
            from loader_server.machine.processes import say_error
            from shared.hashing import fingerprint

            if not (isinstance(failure, StokerError) or is_refusal(failure)):
                raise
            error = failure if isinstance(failure, StokerError) else system_error(failure)
            say_error(options.ready_fd, error)
            if fingerprint(*error.words().values()) == getattr(options, "said", ""):
                raise SystemExit(error.exit_code) from None
            raise

    return told


# --- what serves ---


def add_listen(command: argparse.ArgumentParser) -> None:
    """Add the options for the endpoint to serve, and for serving without keys."""
    command.add_argument(
        "--listen", default="", help="endpoint to serve instead of the job file's, such as tcp://127.0.0.1:7400"
    )
    command.add_argument("--insecure", action="store_true", help="serve beyond loopback without keys")


def add_advertise(command: argparse.ArgumentParser, metavar: str = "HOST[:PORT]") -> None:
    """Add the option for the address that others are told to connect to."""
    command.add_argument(
        "--advertise",
        default="",
        metavar=metavar,
        help="what others are told to connect to, if they cannot reach this address: behind NAT, or a published port",
    )


def advertise_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the arguments for a machine's processes: they advertise its host, each with its own port."""
    return ("--advertise", options.advertise) if options.advertise else ()


def add_metrics(command: argparse.ArgumentParser) -> None:
    """Add the options for where metrics and probes are served, and for the token that reads them."""
    command.add_argument(
        "--metrics-listen",
        default="",
        metavar="HOST[:PORT]",
        help="where to serve metrics and probes, such as 0.0.0.0:9100; default: loopback",
    )
    command.add_argument(
        "--metrics-token",
        type=Path,
        default=None,
        metavar="FILE",
        help="file with the token that reads metrics (Authorization: Bearer); needed beyond loopback, or --insecure",
    )


def metrics_listening(options: argparse.Namespace) -> Listening:
    """Return where metrics are served according to these options."""
    from shared.metrics.listening import listening_of

    port = getattr(options, "metrics_port", 0)
    return listening_of(options.metrics_listen, port, options.metrics_token, insecure=options.insecure)


def metrics_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the metrics arguments for a machine's processes, each of which has a port of its own."""
    from shared.metrics.listening import bracketed

    listen = ("--metrics-listen", bracketed(metrics_listening(options).host)) if options.metrics_listen else ()
    token = ("--metrics-token", str(options.metrics_token.absolute())) if options.metrics_token is not None else ()
    return (*listen, *token)


def add_parent(command: argparse.ArgumentParser) -> None:
    """Add the options that a process of a job gets from the process that starts it."""
    add_metrics(command)
    command.add_argument(
        "--metrics-port",
        type=int,
        default=0,
        help="port to serve metrics on; 0: any free one, named in the state folder",
    )
    command.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    command.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    command.add_argument("--said", default="", help=argparse.SUPPRESS)


# --- index ---


def add_index(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command `loader-server index`."""
    about = "Make the index of each stream's source: where each sample is, and how long it is."
    command = command_named(
        commands, "index", tells_its_error(_make_indexes), about, "loader-server index job.toml --strict"
    )
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument("--stream", action="append", help="only this stream (may be given several times)")
    command.add_argument("--strict", action="store_true", help="refuse data with bad rows instead of leaving them out")
    command.add_argument("--force", action="store_true", help="make them anew even if nothing has changed")
    command.add_argument(
        "--statistics", action="store_true", help="also make the statistics files that normalise reads"
    )
    command.add_argument("--processes", type=int, default=0, help="processes to use; 0: one per core")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.add_argument("--missing", action="store_true", help=argparse.SUPPRESS)
    command.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    command.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    return command


def _make_indexes(options: argparse.Namespace) -> int:
    with quick_import():
        from loader_server.commands import index, statistics
    from loader_server.job_file import read_job
    from loader_server.machine.processes import end_with_parent

    if options.parent:
        end_with_parent(options.parent)

    job = read_job(options.job)
    if options.missing:
        index.index_missing(job)
        return 0
    names = options.stream or [name for name in job.recipes if not job.is_awaited(name)]
    made = statistics.make_statistics(job, names, processes=options.processes) if options.statistics else []
    reports = index.index_streams(
        job,
        names,
        strict=options.strict,
        processes=options.processes,
        force=options.force,
    )
    index.show(reports, made, as_json=options.json)
    return 0


# --- plan ---


def add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command `loader-server plan`."""
    about = "Show what the settings amount to: buckets, rows, padding, steps, and what is dropped."
    command = command_named(commands, "plan", _show_plan, about, "loader-server plan job.toml --plot lengths.png")
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument("--stream", default="train", help="the stream (default: train)")
    command.add_argument(
        "--group", type=int, default=0, help="batches of one shape in a row; 0: as the job file says, or 1"
    )
    command.add_argument("--epoch", type=int, default=0, help="the epoch (default: 0)")
    command.add_argument("--find", default="", metavar="NAME", help="say in which batch this sample is")
    command.add_argument("--diff", type=Path, metavar="JOB", help="say what differs in another job file")
    command.add_argument("--plot", type=Path, metavar="PNG", help="draw the lengths and the buckets' boundaries")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _show_plan(options: argparse.Namespace) -> int:
    from loader_server.commands import plan
    from loader_server.job_file import read_job

    job = read_job(options.job)
    plan.show(
        job,
        plan.PlanQuestion(
            stream=options.stream,
            group=options.group or job.settings.group or 1,
            epoch=options.epoch,
            find=options.find,
            other=read_job(options.diff) if options.diff else None,
            plot=options.plot,
            as_json=options.json,
        ),
    )
    return 0


# --- show ---


def add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command `loader-server show`."""
    about = (
        "Look at any batch of a stream: its samples, lengths, texts and masked rows, and what the transforms drew. "
        "No job has to run."
    )
    command = command_named(
        commands, "show", _show_batch, about, "loader-server show job.toml train --epoch 3 --batch 41"
    )
    command.add_argument("job", type=Path, help="the job file")
    command.add_argument("stream", nargs="?", default="train", help="the stream (default: train)")
    command.add_argument("--epoch", type=_number, default=0, metavar="N", help="the epoch (default: 0)")
    command.add_argument("--batch", type=_number, default=0, metavar="N", help="the batch's number (default: 0)")
    command.add_argument(
        "--group",
        type=_number,
        default=0,
        metavar="N",
        help="batches of one shape in a row; 0: as the job has it, or 1",
    )
    command.add_argument(
        "--sample", default="", metavar="NAME", help="say in which batches of the epoch this sample is"
    )
    command.add_argument(
        "--png", type=Path, metavar="FILE", help="draw the batch: spectrograms, waves, tokens, padding"
    )
    command.add_argument(
        "--wav", type=_number, default=-1, metavar="ROW", help="write this row as sound, into the current folder"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text}")
    return number


def _show_batch(options: argparse.Namespace) -> int:
    from loader_server.commands.showing import show
    from loader_server.job_file import read_job

    show.show(
        read_job(options.job),
        show.ShowQuestion(
            stream=options.stream,
            epoch=options.epoch,
            batch=options.batch,
            group=options.group,
            sample=options.sample,
            png=options.png,
            wav=options.wav,
            as_json=options.json,
        ),
    )
    return 0


# --- joining ---


def add_joining(command: argparse.ArgumentParser) -> None:
    """Add the options that `run ENDPOINT` and `fetch` share."""
    joining = command.add_argument_group("to join a job by its endpoint")
    joining.add_argument("--keys", type=Path, metavar="FOLDER", help="this host's keys; without them only on loopback")
    joining.add_argument("--state", type=Path, metavar="FOLDER", help="where what is fetched is kept (.stoker)")
    joining.add_argument("--data", type=Path, metavar="FOLDER", help="stands for the job's folder in paths of data")
    joining.add_argument("--index", type=Path, metavar="FOLDER", help="an equal index of this host's, not to fetch one")
    joining.add_argument("--accept-code", action="store_true", help="fetch the job's own modules; only with keys")


def add_fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command `loader-server fetch`."""
    about = "Fetch what `run ENDPOINT` needs onto this host, without serving; `run` does so itself."
    command = command_named(commands, "fetch", _fetch, about, "loader-server fetch tcp://loader-a:7400 --keys keys")
    command.add_argument("job", nargs="+", metavar="ENDPOINT", help="the endpoints of the jobs")
    command.add_argument("--insecure", action="store_true", help="fetch from beyond loopback without keys")
    add_joining(command)
    command.add_argument("--into", type=Path, default=None, help=argparse.SUPPRESS)
    command.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    command.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    command.add_argument("--said", default="", help=argparse.SUPPRESS)
    return command


def _fetch(options: argparse.Namespace) -> int:
    from loader_server.commands import run
    from loader_server.machine.processes import end_with_parent

    if options.parent:
        end_with_parent(options.parent)
    run.fetch_jobs(options)
    return 0
