"""The sub-commands of `loader-server`: what each is for, an example, its options, and the function that runs it.

Rules: plain values. The function is named, and imported only when the command runs, so that `--help` and the other
commands start without its modules.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.commands import add_common_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shared.metrics.listening import Listening

__all__ = ["COMMANDS", "Command", "advertise_arguments", "metrics_arguments", "metrics_listening"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command, as `ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]


def _option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A sub-command; its name is its key in `COMMANDS`."""

    #: The module and the function that runs it, which takes the options and returns the exit code.
    run: str
    about: str
    example: str
    options: tuple[Option, ...]
    #: Options that only make sense with the endpoint of a job, under a heading of their own.
    joining: tuple[Option, ...] = ()
    #: Whether it serves until it is stopped, so that ending by a signal is success.
    serves: bool = False
    #: Whether it reports its error to the process that started it as well.
    reports_errors: bool = False
    #: Whether it opens the streams of its job files, and so keeps to the processor level that these name.
    keeps_to_processor: bool = False

    def add_to(
        self,
        commands: argparse._SubParsersAction[argparse.ArgumentParser],
        name: str,
        run: Callable[[argparse.Namespace], int],
    ) -> None:
        """Add a parser for this command, which has its options and sets `run` as what runs it."""
        parser = commands.add_parser(name, help=self.about, description=self.about, epilog=f"example: {self.example}")
        parser.set_defaults(run=run)
        for option in self.options:
            parser.add_argument(*option.names, **option.settings)
        if self.joining:
            group = parser.add_argument_group("to join a job by its endpoint")
            for option in self.joining:
                group.add_argument(*option.names, **option.settings)
        add_common_arguments(parser, log_level="info", serves=self.serves)


def _whole(text: str) -> int:
    """Return a number from 1 to a million; raise argparse's error for another number, ValueError for other text."""
    number = int(text)
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 1000000, got {text}")
    return number


def _number(text: str) -> int:
    """Return a number from 0 to below 2**31; raise argparse's error for another number, ValueError for other text."""
    number = int(text)
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text}")
    return number


def _seconds_back(text: str) -> float:
    """Return seconds from above 0 to an hour; raise argparse's error for others, ValueError for other text."""
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds above 0 and up to 3600, got {text}")
    return seconds


class _NamedStream(argparse.Action):
    """The name of the one stream that a command is about: after --stream, or behind the job file."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Take the stream; if it stands behind the job file, print the other way; two streams are wrong usage."""
        stream, other = str(values), getattr(namespace, "named_stream", values)
        if stream != other:
            parser.error(f"expected one stream, got {other} and {stream}")
        if option_string is None:
            print(f"{parser.prog}: a stream is written --stream {stream}; it is taken here, too", file=sys.stderr)
        namespace.stream = namespace.named_stream = stream


# --- options of several commands ---

_JOB = _option("job", type=Path, help="the job file")
_JSON = _option("--json", action="store_true", help="print one JSON object")
_STREAM = (
    _option("--stream", action=_NamedStream, default="train", help="the stream (default: train)"),
    _option("stream", nargs="?", action=_NamedStream, default=argparse.SUPPRESS, help=argparse.SUPPRESS),
)

_LISTEN = (
    _option("--listen", default="", help="endpoint to serve instead of the job file's, such as tcp://127.0.0.1:7400"),
    _option("--insecure", action="store_true", help="serve beyond loopback without keys"),
)
_ADVERTISE_HELP = "address for others to connect to, if they cannot reach this one: behind NAT, or a published port"

_METRICS = (
    _option(
        "--metrics-listen",
        default="",
        metavar="HOST[:PORT]",
        help="where to serve metrics and probes, such as 0.0.0.0:9100; default: loopback",
    ),
    _option(
        "--metrics-token",
        type=Path,
        default=None,
        metavar="FILE",
        help="file with the token that reads metrics (Authorization: Bearer); needed beyond loopback, or --insecure",
    ),
)

_PARENT = _option("--parent", type=int, default=0, help=argparse.SUPPRESS)
_READY_FD = _option("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
#: The fingerprint of the error that the process ended with last time, which is then not printed again.
_LAST_ERROR = _option("--last-error", default="", help=argparse.SUPPRESS)
#: How often the supervisor has started this process before.
_RESTARTS = _option("--restarts", type=int, default=0, help=argparse.SUPPRESS)

#: Options of a process of a job; the hidden ones come from the process that starts it.
_JOB_PROCESS = (
    *_LISTEN,
    _option("--advertise", default="", metavar="HOST[:PORT]", help=_ADVERTISE_HELP),
    *_METRICS,
    _option(
        "--metrics-port",
        type=int,
        default=0,
        help="port to serve metrics on; 0: any free one, named in the state folder",
    ),
    _PARENT,
    _READY_FD,
    _LAST_ERROR,
    _RESTARTS,
)

_JOINING = (
    _option("--keys", type=Path, metavar="FOLDER", help="folder with this host's keys; needed beyond loopback"),
    _option("--state", type=Path, metavar="FOLDER", help="folder for what is fetched (default: .stoker)"),
    _option("--data", type=Path, metavar="FOLDER", help="folder where relative paths of data start on this host"),
    _option("--index", type=Path, metavar="FOLDER", help="this host's own index of the same data, instead of fetching"),
    _option("--accept-code", action="store_true", help="fetch the job's own modules; only with keys"),
)


# --- the commands ---

COMMANDS = {
    "demo": Command(
        run="loader_server.cli:run_demo",
        about="Train a small model on made-up recordings, from nothing to the end, in under three minutes.",
        example="loader-server demo --keep digits",
        options=(
            _option(
                "--keep",
                type=Path,
                default=Path(".demo"),
                metavar="DIR",
                help="folder for corpus, job file and model (default: .demo)",
            ),
            _option("--samples", type=_whole, default=None, metavar="N", help="recordings to make (default: 1500)"),
            _option("--epochs", type=_whole, default=6, metavar="N", help="epochs to train (default: 6)"),
            _option(
                "--workers",
                type=_whole,
                default=0,
                metavar="N",
                help="worker processes (default: one per core, from 2 to 4)",
            ),
        ),
    ),
    "index": Command(
        run="loader_server.commands.index:run",
        about="Make the index of each stream's source: where each sample is, and how long it is.",
        example="loader-server index job.toml --strict",
        keeps_to_processor=True,
        reports_errors=True,
        options=(
            _JOB,
            _option("--stream", action="append", help="only this stream (may be given several times)"),
            _option("--strict", action="store_true", help="refuse data with bad rows instead of leaving them out"),
            _option("--force", action="store_true", help="make the indexes again even if nothing has changed"),
            _option("--statistics", action="store_true", help="also make the statistics files that normalise reads"),
            _option("--processes", type=int, default=0, help="processes to use; 0: one per core"),
            _option("--json", action="store_true", help="print the report as JSON"),
            _option("--missing", action="store_true", help=argparse.SUPPRESS),
            _PARENT,
            _READY_FD,
        ),
    ),
    "plan": Command(
        run="loader_server.commands.plan_command:run",
        about="Show the effect of the settings: buckets, rows, padding, steps, and which samples are dropped.",
        example="loader-server plan job.toml --plot lengths.png",
        keeps_to_processor=True,
        options=(
            _JOB,
            *_STREAM,
            _option("--group", type=int, default=0, help="batches of one shape in a row; 0: the job file's, or 1"),
            _option("--epoch", type=int, default=0, help="the epoch (default: 0)"),
            _option("--find", default="", metavar="NAME", help="show which batch has the sample of this name"),
            _option("--diff", type=Path, metavar="JOB", help="show how the plan of another job file differs"),
            _option("--plot", type=Path, metavar="PNG", help="draw the lengths and the buckets' boundaries"),
            _JSON,
        ),
    ),
    "show": Command(
        run="loader_server.commands.showing.show:run",
        about="Look at any batch of a stream: its samples, lengths, texts and masked rows, and what the transforms "
        "drew. No job has to run.",
        example="loader-server show job.toml --stream train --epoch 3 --batch 41",
        keeps_to_processor=True,
        options=(
            _JOB,
            *_STREAM,
            _option("--epoch", type=_number, default=0, metavar="N", help="the epoch (default: 0)"),
            _option("--batch", type=_number, default=0, metavar="N", help="the batch's number (default: 0)"),
            _option(
                "--group",
                type=_number,
                default=0,
                metavar="N",
                help="batches of one shape in a row; 0: the job's, or 1",
            ),
            _option(
                "--sample",
                default="",
                metavar="NAME",
                help="show which batches of the epoch have the sample of this name",
            ),
            _option("--png", type=Path, metavar="FILE", help="draw the batch: spectrograms, waves, tokens, padding"),
            _option(
                "--wav",
                type=_number,
                default=-1,
                metavar="ROW",
                help="write this row as sound, into the current folder",
            ),
            _JSON,
        ),
    ),
    "run": Command(
        run="loader_server.cli:run_machine",
        about="Run the loader side of one machine: a coordinator for each job, and one worker per core for all of "
        "them. Given endpoints instead of job files, join jobs that are served elsewhere, with workers alone.",
        example="loader-server run job.toml --workers 4",
        keeps_to_processor=True,
        serves=True,
        options=(
            _option(
                "job",
                nargs="+",
                metavar="JOB|ENDPOINT",
                help="the job file, or several; or the endpoints (tcp://…, file:///…) of jobs to join",
            ),
            _option(
                "--workers", type=int, default=0, help="worker processes; 0: the job file's number, or one per core"
            ),
            *_LISTEN,
            _option("--advertise", default="", metavar="HOST", help=_ADVERTISE_HELP),
            *_METRICS,
            _PARENT,
        ),
        joining=(
            *_JOINING,
            _option(
                "--metrics-port",
                type=int,
                default=0,
                help="port of this host's probes; its workers' metrics have the next ones; 0: any free ports",
            ),
        ),
    ),
    "fetch": Command(
        run="loader_server.commands.machine_jobs:fetch_jobs",
        about="Fetch the files that `run ENDPOINT` needs onto this host, without serving; `run` fetches them itself.",
        example="loader-server fetch tcp://loader-a:7400 --keys keys",
        options=(
            _option("job", nargs="+", metavar="ENDPOINT", help="the endpoints of the jobs"),
            _option("--insecure", action="store_true", help="fetch from beyond loopback without keys"),
            _option("--into", type=Path, default=None, help=argparse.SUPPRESS),
            _option("--metrics-port", type=int, default=0, help=argparse.SUPPRESS),
            _PARENT,
            _READY_FD,
            _LAST_ERROR,
        ),
        joining=_JOINING,
    ),
    "add": Command(
        run="loader_server.commands.machine_jobs:add_job",
        about="Serve one more job by the workers of a `loader-server run` on this machine. Returns once it is served.",
        example="loader-server add other.toml --to job.toml",
        options=(
            _JOB,
            _option(
                "--to", type=Path, required=True, metavar="JOB", help="the job file of a job that is served already"
            ),
        ),
    ),
    "end": Command(
        run="loader_server.commands.machine_jobs:end_job",
        about="End a job of a `loader-server run` on this machine; the others get its workers. Ending the last job "
        "ends the run.",
        example="loader-server end other.toml --drain 60",
        options=(
            _JOB,
            _option(
                "--drain",
                type=float,
                default=0.0,
                metavar="S",
                help="let trainers finish their batches and leave, for at most S seconds; Ctrl-C stops waiting "
                "(default: 0)",
            ),
        ),
    ),
    "status": Command(
        run="loader_server.commands.status:run",
        about="Show how a running job is doing: streams, trainers, workers. In a terminal the table stays live until "
        "Ctrl-C.",
        example="loader-server status tcp://127.0.0.1:7400 --json",
        options=(
            _option(
                "endpoint",
                nargs="?",
                default="tcp://127.0.0.1:7400",
                metavar="ENDPOINT|JOB",
                help="a job's endpoint; or, on its machine, its job file, which shows all jobs that are served there",
            ),
            _option("--keys", default="", help="folder with the job's keys"),
            _option("--timeout-seconds", type=float, default=5.0, help="how long to wait for an answer"),
            _option("--once", action="store_true", help="print the table once, even in a terminal"),
            _JSON,
        ),
    ),
    "trace": Command(
        run="loader_server.commands.trace:run",
        about="Show what batches went through, from the want to the step: as a trace of the last seconds for Perfetto "
        "(ui.perfetto.dev) or chrome://tracing, or why one batch was late.",
        example="loader-server trace tcp://127.0.0.1:7400 --seconds 30 > t.json",
        options=(
            _option("endpoint", nargs="?", default="tcp://127.0.0.1:7400", metavar="ENDPOINT", help="a job's endpoint"),
            _option(
                "--seconds",
                type=_seconds_back,
                default=None,
                help="how far back to look (default: 30; with --slowest 60)",
            ),
            _option("--batch", type=_number, metavar="NUMBER", help="the life of this batch, in eight lines"),
            _option("--epoch", type=_number, default=None, help="with --batch: of this epoch; default: the last"),
            _option("--slowest", type=_whole, metavar="N", help="the N batches that were waited for longest"),
            _option("--stream", default="", help="only batches of this stream"),
            _option("--keys", default="", help="folder with the job's keys"),
            _option("--timeout-seconds", type=float, default=5.0, help="how long to wait for a silent process"),
            _JSON,
        ),
    ),
    # For fleets; `run` starts these two commands as well.
    "coordinator": Command(
        run="loader_server.cli:run_coordinator",
        about="Run only the coordinator, which knows who is alive and how far the job is.",
        example="loader-server coordinator job.toml --listen tcp://0.0.0.0:7400",
        keeps_to_processor=True,
        serves=True,
        reports_errors=True,
        options=(
            _JOB,
            _option("--keys", type=Path, metavar="FOLDER", help="folder with its keys instead of the job file's"),
            *_JOB_PROCESS,
        ),
    ),
    "worker": Command(
        run="loader_server.cli:run_worker",
        about="Run one worker: it builds the batches that trainers ask for.",
        example="loader-server worker job.toml --coordinator tcp://loader-1:7400 --listen tcp://0.0.0.0:7410",
        keeps_to_processor=True,
        serves=True,
        reports_errors=True,
        options=(
            _JOB,
            _option("--name", default="", help="the worker's name; default: host and process"),
            _option(
                "--coordinator",
                default="",
                help="the coordinator's endpoint, or its file (file:///…); default: the job file's",
            ),
            _option("--drain-seconds", type=float, default=5.0, help="how long to finish batches after SIGTERM"),
            _option("--shelf", default="", help=argparse.SUPPRESS),
            _option("--nursery-fd", type=int, default=-1, help=argparse.SUPPRESS),
            *_JOB_PROCESS,
        ),
    ),
    "forgive": Command(
        run="loader_server.commands.remembered:forgive",
        about="List the samples that are known to kill the process that decodes them, or let some be used again. "
        "Run it on the coordinator's machine, whether or not the coordinator runs.",
        example="loader-server forgive job.toml --all",
        keeps_to_processor=True,
        options=(
            _JOB,
            _option("identity", nargs="*", metavar="IDENTITY", help="a sample as the list names it; none: list them"),
            _option("--all", action="store_true", help="let all of them be used again"),
            _option("--stream", default="", help="only samples of this stream"),
            _JSON,
        ),
    ),
    "keys": Command(
        run="loader_server.cli:make_key_folder",
        about="Make a folder of keys, for loaders and trainers that talk across machines.",
        example="loader-server keys ./keys",
        options=(_option("folder", type=Path, help="the folder to make"),),
    ),
}


# --- options that a machine passes on to its processes ---


def advertise_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the arguments for a machine's processes: they advertise its host, each with its own port.

    Return none if the options name no host to advertise.
    """
    return ("--advertise", options.advertise) if options.advertise else ()


def metrics_listening(options: argparse.Namespace) -> Listening:
    """Return where metrics are served according to these options; on loopback if they name no address.

    Raise SettingsError if the address or the token is malformed, the token's file cannot be read, or anybody could read
    metrics from another machine: beyond loopback without a token or `--insecure`.
    """
    from shared.metrics.listening import listening_of

    port = getattr(options, "metrics_port", 0)
    return listening_of(options.metrics_listen, port, options.metrics_token, insecure=options.insecure)


def metrics_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the metrics arguments for a machine's processes, each of which has a port of its own.

    Leave out those that the options do not name. Raise SettingsError if the address to listen at or the token is
    malformed, the token cannot be read, or the address lies beyond loopback without a token or `--insecure`; a token
    without an address is not looked at.
    """
    from shared.metrics.listening import bracketed

    listen = ("--metrics-listen", bracketed(metrics_listening(options).host)) if options.metrics_listen else ()
    token = ("--metrics-token", str(options.metrics_token.absolute())) if options.metrics_token is not None else ()
    return (*listen, *token)
