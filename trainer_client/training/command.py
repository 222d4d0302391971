"""The arguments of `trainer-client train`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.metrics.listening import listening_of
from trainer_client.arguments import (
    add_job,
    add_model,
    at_least,
    command_named,
    port,
    positive,
    refuse_usage,
    whole,
    wrong_usage,
)
from trainer_client.training.runs.model_module import model_module
from trainer_client.training.strategies.choosing.all_reduce import ALL_REDUCES
from trainer_client.training.strategies.choosing.variable_devices import VARIABLES_ON
from trainer_client.training.strategies.options import HEEDED, StrategyOptions
from trainer_client.usage import find_train_problem

if TYPE_CHECKING:
    import argparse

__all__ = ["add_train"]

_TRAIN = """\
Train the model of a module of yours on a running job's stream, from the newest checkpoint on, to a target. One
process trains on one device, unless --strategy says otherwise. Start a run that was killed again, all its processes.

The module says model(), loss, optimizer() and feed_keys (or dataset_pipeline, if the stream is a pipeline), and if you
like eval_metrics() and callbacks(). The folder has checkpoints as FeedCheckpoint writes them: model and place in the
data together. SIGTERM and Ctrl-C save what was trained on. Each limit counts from the model's beginning, or with a plus
from the checkpoint: --epochs +10."""

_TRAIN_EXAMPLES = """\
examples:
  trainer-client train --model trainer_client.demo --feed tcp://127.0.0.1:7400 --checkpoint checkpoints --epochs 6
  trainer-client train --model speech --param units=256 --feed tcp://127.0.0.1:7400 --checkpoint checkpoints \\
      --epochs 75 --max-time 86400 --validate dev --summaries logs --export speech.keras"""


def add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command."""
    texts = ("Train a model on a stream.", _TRAIN, _TRAIN_EXAMPLES)
    command = command_named(commands, "train", _train, texts)
    group = add_model(command)
    for piece in ("loss", "optimizer", "eval-metrics", "callbacks"):
        group.add_argument(f"--{piece}", default="", metavar="[MODULE:]NAME", help="another than the module's")
    group.add_argument(
        "--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), default="float32", help="of layers"
    )
    group.add_argument("--xla", action="store_true", help="compile what replicas compute with XLA, once for each shape")
    group.add_argument(
        "--seed", type=at_least(0), metavar="N", help="the same weights again on a CPU, from the same data"
    )
    add_job(command)
    command.add_argument("--stream", default="train", help="the stream to train on (train)")
    _add_metrics(command)
    _add_strategy(command)
    _add_limits(command)
    _add_saving(command)
    return command


def _add_metrics(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("metrics")
    group.add_argument(
        "--metrics-port", type=port, metavar="PORT", help="serve metrics at this port, on loopback; 0: any free port"
    )
    group.add_argument("--metrics-targets", type=Path, metavar="FOLDER", help="tell Prometheus there where")
    group.add_argument(
        "--metrics-listen", default="", metavar="HOST[:PORT]", help="serve metrics there, such as 0.0.0.0:9100"
    )
    group.add_argument(
        "--metrics-token",
        type=Path,
        metavar="FILE",
        help="file with the token that reads metrics (Authorization: Bearer); needed beyond loopback, or --insecure",
    )
    group.add_argument("--insecure", action="store_true", help="serve metrics beyond loopback without a token")


_STRATEGIES = """\
single: on one device (default); mirrored: on several devices of this process, each with all variables; central: the
same with one copy of the variables; async: central, but each applies its gradients as they come; multi-worker: in
several processes, as TF_CONFIG says, each with all variables; parameter-server: in several processes, of which servers
hold the variables, and workers share a stream in queue mode"""


def _add_strategy(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("where")
    group.add_argument("--strategy", choices=tuple(HEEDED), default="single", help=_STRATEGIES)
    group.add_argument("--replicas", type=whole, metavar="N", help="so many in each process (one for each GPU)")
    group.add_argument(
        "--all-reduce", choices=ALL_REDUCES, help="how gradients are summed; the one used is printed (auto)"
    )
    group.add_argument(
        "--combine", choices=("mean", "sum"), help="gradients of the mean over all rows, or of that times the replicas;"
        " async: gradients times 1/replicas, or as they are (mean)",
    )  # fmt: skip
    group.add_argument("--variables", choices=VARIABLES_ON, help="central, async: where variables lie (auto)")
    group.add_argument(
        "--staleness", type=at_least(0), metavar="N",
        help="parameter-server: refuse gradients if more batches were applied since their variables were pulled (8)",
    )  # fmt: skip
    group.add_argument(
        "--pull-every",
        type=whole,
        metavar="N",
        help="parameter-server: steps from pull to pull; at most staleness + 1 (1)",
    )
    group.add_argument(
        "--server-memory", type=positive, metavar="MIB", help="parameter-server: what each may hold, in MiB (any)"
    )


def _add_limits(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("how far, judged by what")
    group.add_argument("--epochs", metavar="N", help="until so many epochs are done; +N: so many more")
    group.add_argument("--steps", metavar="N", help="until so many steps are done; +N: so many more")
    group.add_argument("--max-time", type=positive, metavar="S", help="for so many seconds at most")
    group.add_argument("--validate", action="append", metavar="STREAM", help="judge by it; may be given several times")
    every = group.add_mutually_exclusive_group()
    every.add_argument("--validate-every", type=whole, metavar="N", help="judge after each so many epochs (1)")
    every.add_argument(
        "--validate-every-steps", type=at_least(1), metavar="N", help="judge after each so many steps instead"
    )
    group.add_argument(
        "--retries", type=at_least(0), default=10, metavar="N", help="tries after gradients that are not finite (10)"
    )


def _add_saving(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("what is written")
    group.add_argument(
        "--save-every-seconds", type=positive, default=600.0, metavar="S", help="also between epochs' ends (600)"
    )
    group.add_argument("--save-every-steps", type=at_least(1), metavar="N", help="also after each so many steps")
    group.add_argument("--keep", type=whole, default=3, metavar="N", help="checkpoints to keep (3)")
    group.add_argument("--log-every", type=at_least(1), default=100, metavar="N", help="steps from line to line (100)")
    group.add_argument("--summaries", type=Path, metavar="FOLDER", help="write the figures for TensorBoard there")
    group.add_argument(
        "--export", type=Path, metavar="PATH", help="the model at the end: a .keras file, or a SavedModel's folder"
    )
    group.add_argument("--term-exit", type=int, choices=(0, 143), default=143, help="exit code after SIGTERM (143)")


def _train(options: argparse.Namespace) -> int:
    refuse_usage(options, find_train_problem(options))
    from trainer_client.training.runs.until import Until
    from trainer_client.training.train import TrainOrder, train

    strategy = StrategyOptions(
        name=options.strategy,
        replicas=options.replicas,
        all_reduce=options.all_reduce,
        combine=options.combine,
        variables=options.variables,
        staleness=options.staleness,
        pull_every=options.pull_every,
        server_memory=options.server_memory,
    )
    with wrong_usage(options):
        strategy.refuse_unheeded()
        until = Until(epochs=options.epochs, steps=options.steps, max_time_s=options.max_time)
        listening_of(options.metrics_listen, 0, options.metrics_token, insecure=options.insecure)
    names = {piece: getattr(options, piece) for piece in ("loss", "optimizer", "eval_metrics", "callbacks")}
    order = TrainOrder(
        module=model_module(options, names),
        endpoint=options.feed,
        stream=options.stream,
        keys=options.keys,
        connect_timeout_s=options.timeout_seconds,
        strategy=strategy,
        judges=tuple(options.validate or ()),
        judge_every=_judging(options),
        export=options.export,
        precision=options.precision,
        seed=options.seed,
        metrics={
            "metrics_port": options.metrics_port,
            "metrics_targets": options.metrics_targets,
            "metrics_listen": options.metrics_listen,
            "metrics_token": options.metrics_token,
            "metrics_insecure": options.insecure,
        },
    )
    train(
        order,
        until=until,
        checkpoints=options.checkpoint,
        keep=options.keep,
        save_every_steps=options.save_every_steps,
        save_every_s=options.save_every_seconds,
        tell_every=options.log_every,
        retries=options.retries,
        xla=options.xla,
        summaries=options.summaries,
    )
    return 0


def _judging(options: argparse.Namespace) -> dict[str, Any]:
    if options.validate_every_steps is not None:
        return {"steps": options.validate_every_steps}
    return {"epochs": options.validate_every or 1}
