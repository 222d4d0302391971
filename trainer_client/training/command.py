"""Arguments of `trainer-client train`; what the command needs is imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.metrics.listening import listening_of
from trainer_client.arguments import (
    USUAL_STALENESS,
    Interval,
    add_job,
    add_model,
    at_least,
    command_named,
    find_train_problem,
    positive,
    refuse_usage,
    whole,
    wrong_usage,
)
from trainer_client.training.checkpoints.initial_values import InitialValues
from trainer_client.training.runs.until import LoopSettings, Until
from trainer_client.training.strategies.options import ALL_REDUCES, HEEDED, VARIABLES_ON, StrategyOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["add_train"]

_TRAIN = """\
Train the model of a module of yours on a running job's stream, from the newest checkpoint on, to a target. One
process trains on one device, unless --strategy says otherwise. Start a run that was killed again, all its processes.

The module says model(), loss, optimizer() and feed_keys (or dataset_pipeline, if the stream is a pipeline), and if you
like eval_metrics() and callbacks(). The folder has checkpoints as FeedCheckpoint writes them: model and place in the
data together. SIGTERM and Ctrl-C save what was trained on. Each limit counts from the model's beginning, or with a plus
from the checkpoint: --epochs +10.

`train --strategy NAME --help` adds the options of that strategy."""

_TRAIN_EXAMPLES = """\
examples:
  trainer-client train --model trainer_client.demo --feed tcp://127.0.0.1:7400 --checkpoint checkpoints --epochs 6
  trainer-client train --model speech --param units=256 --feed tcp://127.0.0.1:7400 --checkpoint checkpoints \\
      --epochs 75 --max-time 86400 --validate dev --summaries logs --export speech.keras
  trainer-client train --model speech --feed tcp://127.0.0.1:7400 --checkpoint checkpoints --epochs 75 \\
      --strategy mirrored --replicas 2 --save-every 500 steps"""


def add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add `train` with all of its options, which runs `_train`, to these commands, and return its parser."""
    command = command_named(commands, "train", _train, ("Train a model on a stream.", _TRAIN, _TRAIN_EXAMPLES))
    _add_module(command)
    add_job(command).add_argument("--stream", default="train", help="train on this stream of the job (default: train)")
    _add_limits(command)
    _add_validation(command)
    _add_saving(command)
    _add_reports(command)
    _add_strategy(command)
    return command


def _add_module(command: argparse.ArgumentParser) -> None:
    group = add_model(command)
    group.add_argument(
        "--precision",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
        default="float32",
        help="set the dtype policy of the model's layers (default: float32)",
    )
    group.add_argument("--xla", action="store_true", help="compile each replica's step with XLA, once for each shape")
    group.add_argument(
        "--seed", type=at_least(0), metavar="N", help="seed Keras, to get the same weights again on a CPU"
    )
    group.add_argument(
        "--retries",
        type=at_least(0),
        default=10,
        metavar="N",
        help="retry a batch whose gradients are not finite up to N times, then stop (default: 10)",
    )


def _add_limits(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "how far", "The limit that is reached first ends the run; at least one is needed."
    )
    group.add_argument("--epochs", metavar="N", help="stop after epoch N; +N: after N more epochs")
    group.add_argument("--steps", metavar="N", help="stop after step N; +N: after N more steps")
    group.add_argument("--max-time", type=positive, metavar="S", help="stop after S seconds of training")


def _add_validation(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("validation")
    group.add_argument(
        "--validate",
        action="append",
        metavar="STREAM",
        help="evaluate the model on this stream while it trains; may be given several times",
    )
    group.add_argument(
        "--validate-every",
        action=Interval,
        units={"epochs": whole, "steps": at_least(1)},
        help="evaluate after every N epochs or steps (default: each epoch)",
    )


def _add_saving(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("checkpoints and exports")
    group.add_argument(
        "--save-every",
        action=Interval,
        units={"steps": at_least(1), "seconds": positive},
        default={"seconds": 600.0},
        help="save after every N steps or seconds too, not only after each epoch; may be given for each unit "
        "(default: 600 seconds)",
    )
    group.add_argument("--keep", type=whole, default=3, metavar="N", help="keep the newest N checkpoints (default: 3)")
    group.add_argument(
        "--initial",
        nargs="+",
        metavar=("PATH", "PART"),
        help="begin with the variables in PATH, a folder of checkpoints, one of these or a .keras file, if the run has "
        "no checkpoint yet; with PARTs: with these layers alone, such as encoder or block_*",
    )
    group.add_argument(
        "--export",
        type=Path,
        metavar="PATH",
        help="write the trained model to PATH at the end: a .keras file, or the folder of a SavedModel",
    )


def _add_reports(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("progress and metrics")
    group.add_argument(
        "--log-every",
        type=at_least(1),
        default=100,
        metavar="N",
        help="print a line of progress after every N steps (default: 100)",
    )
    group.add_argument("--summaries", type=Path, metavar="FOLDER", help="write summaries for TensorBoard to FOLDER")
    group.add_argument(
        "--metrics-listen",
        action=_Listen,
        help="serve Prometheus metrics at this address, such as 127.0.0.1:9100, without a port at any free one; and "
        "announce it to Prometheus by a file in FOLDER, if one is named",
    )
    group.add_argument(
        "--metrics-token",
        type=Path,
        metavar="FILE",
        help="serve metrics only to readers that send the token in FILE (Authorization: Bearer); beyond loopback this "
        "or --insecure is needed",
    )
    group.add_argument("--insecure", action="store_true", help="serve metrics beyond loopback without a token")


class _Listen(argparse.Action):
    """The `--metrics-listen HOST[:PORT] [FOLDER]` action: an address, and where to announce it."""

    #: What the help shows behind the option.
    shown_arguments = "HOST[:PORT] [FOLDER]"

    def __init__(self, option_strings: Sequence[str], dest: str, **how: Any) -> None:
        super().__init__(option_strings, dest, nargs="+", default=("", None), **how)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Keep the pair of address and folder, None without one; raise ArgumentError for more than these."""
        if len(values) > 2:
            raise argparse.ArgumentError(self, f"expected an address and a folder at most, got {' '.join(values)}")
        address, *folder = values
        setattr(namespace, self.dest, (address, Path(folder[0]) if folder else None))


_STRATEGIES = """\
train in this way. single: on one device (default). mirrored: on several devices of this process, each with a copy of
all variables. central: on several devices that share one copy of the variables. async: like central, but each device
applies its gradients at once. multi-worker: in several processes, as TF_CONFIG says, each with a copy of all
variables. parameter-server: in several processes, of which servers hold the variables and workers share a stream in
queue mode"""

#: The options that only some strategies use; the help shows those of the strategy that is named before --help.
_STRATEGY_OPTIONS: dict[str, dict[str, Any]] = {
    "replicas": {
        "type": whole,
        "metavar": "N",
        "help": "train N replicas in each process (default: one for each GPU)",
    },
    "all_reduce": {
        "choices": ALL_REDUCES,
        "help": "sum gradients by this all-reduce; the one that is used is printed (default: auto)",
    },
    "combine": {
        "choices": ("mean", "sum"),
        "help": "apply the gradients of the mean over all rows, or that mean times the number of replicas; with async: "
        "each gradient divided by the number of replicas, or as it is (default: mean)",
    },
    "variables": {"choices": VARIABLES_ON, "help": "keep the variables on these devices (default: auto)"},
    "staleness": {
        "type": at_least(0),
        "metavar": "N",
        "help": "refuse gradients if more than N batches were applied since their variables were pulled "
        f"(default: {USUAL_STALENESS})",
    },
    "pull_every": {
        "type": whole,
        "metavar": "N",
        "help": "pull the variables before every Nth step only; at most staleness + 1 (default: 1)",
    },
    "server_memory": {
        "type": positive,
        "metavar": "MIB",
        "help": "refuse a model of which a server would hold more than this many MiB (default: no limit)",
    },
}


class _ChooseStrategy(argparse.Action):
    """The `--strategy NAME` action: a `--help` after it shows the options that this strategy uses."""

    #: The options of all strategies; set once they are added, which is after this one.
    own: Sequence[argparse.Action] = ()

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        # Arguments are taken in order, so a `--help` that comes later prints the texts that are set here.
        for action in self.own:
            is_heeded = action.dest in HEEDED[values]
            action.help = _STRATEGY_OPTIONS[action.dest]["help"] if is_heeded else argparse.SUPPRESS


def _add_strategy(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("strategy")
    choice = group.add_argument(
        "--strategy", action=_ChooseStrategy, choices=tuple(HEEDED), default="single", help=_STRATEGIES
    )
    assert isinstance(choice, _ChooseStrategy)
    choice.own = [
        group.add_argument(f"--{name.replace('_', '-')}", **{**how, "help": argparse.SUPPRESS})
        for name, how in _STRATEGY_OPTIONS.items()
    ]


def _train(options: argparse.Namespace) -> int:
    refuse_usage(options, find_train_problem(options))
    from trainer_client.training.train import TrainOrder, train

    strategy = StrategyOptions(name=options.strategy, **{name: getattr(options, name) for name in _STRATEGY_OPTIONS})
    initial = None
    with wrong_usage(options):
        if options.initial:
            path, *parts = options.initial
            initial = InitialValues(path, parts=parts)
        strategy.refuse_unheeded()
        until = Until(epochs=options.epochs, steps=options.steps, max_time_s=options.max_time)
        address, targets = options.metrics_listen
        listening_of(address, 0, options.metrics_token, insecure=options.insecure)
    train(
        TrainOrder.of(
            options,
            {},
            stream=options.stream,
            strategy=strategy,
            loop=LoopSettings(
                until=until,
                checkpoints=options.checkpoint,
                keep=options.keep,
                save_every_steps=options.save_every.get("steps"),
                save_every_s=options.save_every["seconds"],
                tell_every=options.log_every,
                retries=options.retries,
                xla=options.xla,
                summaries=options.summaries,
                initial=initial,
            ),
            judges=tuple(options.validate or ()),
            judge_every=options.validate_every or {"epochs": 1},
            export=options.export,
            precision=options.precision,
            seed=options.seed,
            metrics={
                "metrics_targets": targets,
                "metrics_listen": address,
                "metrics_token": options.metrics_token,
                "metrics_insecure": options.insecure,
            },
        )
    )
    return 0
