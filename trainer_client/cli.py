"""The command `trainer-client`: one function a sub-command, each importing what it needs when it runs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.command import add_common_arguments, run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainer_client.runs.model_module import ModelModule

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; ends the process."""
    run_command(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer-client",
        description="Train, evaluate, predict and test with batches that loader servers push.",
        epilog="example: trainer-client train --model speech --feed tcp://127.0.0.1:7400 --checkpoint checkpoints "
        "--epochs 10",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_train, _add_evaluate, _add_predict, _add_load_test):
        add_common_arguments(add(commands), log_level="warning")
    return parser


def _command_named(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    texts: tuple[str, str, str],
) -> argparse.ArgumentParser:
    """A command, with what it is for, in a line and in full, and examples of it."""
    line, full, examples = texts
    raw = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser(name, help=line, description=full, epilog=examples, formatter_class=raw)
    command.set_defaults(run=run)
    return command


# --- train ---

_TRAIN = """\
Train the model of a module of yours on a running job's stream, from the newest checkpoint on, to a target. This process
trains alone, on one device; start it again if it was killed.

The module says model(), loss, optimizer() and feed_keys (or dataset_pipeline, if the stream is a pipeline), and if you
like eval_metrics() and callbacks(). The folder has checkpoints as FeedCheckpoint writes them: model and place in the
data together. SIGTERM and Ctrl-C save what was trained on. Each limit counts from the model's beginning, or with a plus
from the checkpoint: --epochs +10."""

_TRAIN_EXAMPLES = """\
examples:
  trainer-client train --model trainer_client.demo --feed tcp://127.0.0.1:7400 --checkpoint checkpoints --epochs 6
  trainer-client train --model speech --param units=256 --feed tcp://127.0.0.1:7400 --checkpoint checkpoints \\
      --epochs 75 --max-time 86400 --validate dev --summaries logs --export speech.keras"""


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    texts = ("Train a model on a stream.", _TRAIN, _TRAIN_EXAMPLES)
    command = _command_named(commands, "train", _train, texts)
    command.set_defaults(refuse_usage=command.error)
    group = _add_model(command)
    for piece in ("loss", "optimizer", "eval-metrics", "callbacks"):
        group.add_argument(f"--{piece}", default="", metavar="[MODULE:]NAME", help="another than the module's")
    group.add_argument(
        "--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), default="float32", help="of layers"
    )
    group.add_argument("--xla", action="store_true", help="compile the step with XLA, once for each shape")
    group.add_argument("--strategy", choices=("single",), default="single", help="where to train: on one device")
    group.add_argument(
        "--seed", type=_at_least(0), metavar="N", help="the same weights again on a CPU, from the same data"
    )
    _add_job(command)
    command.add_argument("--stream", default="train", help="the stream to train on (train)")
    command.add_argument("--metrics-port", type=int, metavar="PORT", help="serve metrics on loopback; 0: any free port")
    command.add_argument("--metrics-targets", type=Path, metavar="FOLDER", help="tell Prometheus there where")
    _add_limits(command)
    _add_saving(command)
    return command


def _add_limits(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("how far, judged by what")
    group.add_argument("--epochs", metavar="N", help="until so many epochs are done; +N: so many more")
    group.add_argument("--steps", metavar="N", help="until so many steps are done; +N: so many more")
    group.add_argument("--max-time", type=_positive, metavar="S", help="for so many seconds at most")
    group.add_argument("--validate", action="append", metavar="STREAM", help="judge by it; may be given several times")
    group.add_argument(
        "--validate-every", type=_whole, default=1, metavar="N", help="judge after each so many epochs (1)"
    )
    group.add_argument(
        "--retries", type=_at_least(0), default=10, metavar="N", help="tries after gradients that are not finite (10)"
    )


def _add_saving(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("what is written")
    group.add_argument(
        "--save-every-seconds", type=_positive, default=600.0, metavar="S", help="also between epochs' ends (600)"
    )
    group.add_argument("--save-every-steps", type=_at_least(1), metavar="N", help="also after each so many steps")
    group.add_argument("--keep", type=_whole, default=3, metavar="N", help="checkpoints to keep (3)")
    group.add_argument("--log-every", type=_at_least(1), default=100, metavar="N", help="steps from line to line (100)")
    group.add_argument("--summaries", type=Path, metavar="FOLDER", help="write the figures for TensorBoard there")
    group.add_argument(
        "--export", type=Path, metavar="PATH", help="the model at the end: a .keras file, or a SavedModel's folder"
    )
    group.add_argument("--term-exit", type=int, choices=(0, 143), default=143, help="exit code after SIGTERM (143)")


def _train(options: argparse.Namespace) -> int:
    if options.epochs is None and options.steps is None and options.max_time is None:
        options.refuse_usage("one of --epochs, --steps and --max-time is needed, or training would have no end")
    from trainer_client.runs.until import Until  # noqa: PLC0415 - so that --help is quick
    from trainer_client.training.train import TrainOrder, train  # noqa: PLC0415

    names = {piece: getattr(options, piece) for piece in ("loss", "optimizer", "eval_metrics", "callbacks")}
    order = TrainOrder(
        module=_model_module(options, names),
        endpoint=options.feed,
        stream=options.stream,
        keys=options.keys,
        connect_timeout_s=options.timeout_seconds,
        strategy=options.strategy,
        judges=tuple(options.validate or ()),
        judge_every=options.validate_every,
        export=options.export,
        precision=options.precision,
        seed=options.seed,
        metrics_port=options.metrics_port,
        metrics_targets=options.metrics_targets,
    )
    train(
        order,
        until=Until(epochs=options.epochs, steps=options.steps, max_time_s=options.max_time),
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


# --- evaluate ---

_EVALUATE = """\
Judge a model by evaluation streams of a running job: its loss and metrics over all samples, each counting alike.

The model comes from a module of yours, which says model(), loss, eval_metrics() and feed_keys (or dataset_pipeline, if
the stream is a pipeline); its variables come from the newest checkpoint in the folder of FeedCheckpoint. With --follow,
each new checkpoint is evaluated until training ends."""

_EVALUATE_EXAMPLES = """\
examples:
  trainer-client evaluate --model speech --feed tcp://127.0.0.1:7400 --checkpoint checkpoints
  trainer-client evaluate --model speech --param units=256 --feed tcp://127.0.0.1:7400 --checkpoint checkpoints \\
      --stream dev --stream test --follow --max-time 86400 --summaries logs"""


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    texts = ("Judge a model by evaluation streams, once or at each new checkpoint.", _EVALUATE, _EVALUATE_EXAMPLES)
    command = _command_named(commands, "evaluate", _evaluate, texts)
    command.set_defaults(refuse_usage=command.error)
    group = _add_model(command)
    group.add_argument("--loss", default="", metavar="[MODULE:]NAME", help="a loss instead of the module's loss")
    group.add_argument(
        "--eval-metrics", default="", metavar="[MODULE:]NAME", help="metrics instead of the module's eval_metrics"
    )
    _add_job(command)
    command.add_argument("--stream", action="append", help="a stream to judge by; may be given several times (dev)")
    command.add_argument("--follow", action="store_true", help="go on with each new checkpoint until training ends")
    command.add_argument("--max-time", type=_positive, metavar="S", help="with --follow: end after this many seconds")
    command.add_argument("--summaries", type=Path, metavar="FOLDER", help="write the values for TensorBoard there")
    command.add_argument("--json", action="store_true", help="print a JSON object for each stream and checkpoint")
    return command


def _add_model(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = command.add_argument_group("model")
    group.add_argument(
        "--model", required=True, metavar="MODULE[:NAME]", help="your module, and NAME if its model is not called model"
    )
    group.add_argument(
        "--param",
        action="append",
        default=[],
        type=_parameter,
        metavar="NAME=VALUE",
        help="a parameter of the module's functions",
    )
    return group


def _add_job(command: argparse.ArgumentParser) -> None:
    command.add_argument("--feed", required=True, metavar="ENDPOINT", help="the running job's coordinator")
    command.add_argument("--keys", default="", metavar="FOLDER", help="keys of the job")
    command.add_argument(
        "--timeout-seconds", type=_positive, default=60.0, metavar="S", help="how long to wait for the job (60)"
    )
    command.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="folder of FeedCheckpoint")


def _model_module(options: argparse.Namespace, names: dict[str, str]) -> ModelModule:
    from trainer_client.runs.model_module import ModelModule  # noqa: PLC0415 - so that --help is quick

    sys.path.insert(0, "")  # the user's modules are in the current folder
    return ModelModule(options.model, dict(options.param), names)


def _parameter(text: str) -> tuple[str, Any]:
    """A name and its value, which is JSON if it can be read as such, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected name=value, got {text}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _evaluate(options: argparse.Namespace) -> int:
    if options.max_time is not None and not options.follow:
        options.refuse_usage("argument --max-time: expected --follow with it, because without there is no waiting")
    from trainer_client.runs.evaluate import EvaluateOrder, Follow, evaluate  # noqa: PLC0415 - so that --help is quick

    evaluate(
        EvaluateOrder(
            module=_model_module(options, {"loss": options.loss, "eval_metrics": options.eval_metrics}),
            endpoint=options.feed,
            streams=tuple(options.stream or ["dev"]),
            keys=options.keys,
            connect_timeout_s=options.timeout_seconds,
            checkpoints=options.checkpoint,
            follow=Follow(max_time_s=options.max_time or math.inf) if options.follow else None,
            summaries=options.summaries,
            as_json=options.json,
        )
    )
    return 0


# --- predict ---

_PREDICT = """\
Write a model's outputs for each sample of a stream, in the order of the source, together with other trainers.

The stream is for evaluation and in queue mode. Start this command as often as you like, on any machines that share the
output's folder: each trainer predicts what it leases, and others do the work of one that dies. The file is there when
any of them ends well; run the command again to go on with what was left. Without --output, the module's
prediction_processor gets each batch."""

_PREDICT_EXAMPLES = """\
examples:
  trainer-client predict --model speech --feed tcp://127.0.0.1:7400 --checkpoint checkpoints --stream test \\
      --output test.parquet
  trainer-client predict --model speech:small --param units=256 --feed tcp://127.0.0.1:7400 --checkpoint checkpoints \\
      --output dev.jsonl"""


def _add_predict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    texts = ("Write a model's outputs for each sample of a stream.", _PREDICT, _PREDICT_EXAMPLES)
    command = _command_named(commands, "predict", _predict, texts)
    group = _add_model(command)
    group.add_argument(
        "--prediction-processor",
        default="",
        metavar="[MODULE:]NAME",
        help="a function instead of the module's prediction_processor",
    )
    _add_job(command)
    command.add_argument("--stream", default="dev", help="the stream whose samples are predicted (dev)")
    command.add_argument("--output", type=_output, metavar="FILE", help="a file that ends in .jsonl or .parquet")
    command.add_argument("--json", action="store_true", help="print a JSON object at the end")
    return command


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".jsonl", ".parquet"):
        raise argparse.ArgumentTypeError(f"expected a file that ends in .jsonl or .parquet, got {text}")
    return path


def _predict(options: argparse.Namespace) -> int:
    from trainer_client.runs.predicting.predict import PredictOrder, predict  # noqa: PLC0415 - so that --help is quick

    predict(
        PredictOrder(
            module=_model_module(options, {"prediction_processor": options.prediction_processor}),
            endpoint=options.feed,
            stream=options.stream,
            keys=options.keys,
            connect_timeout_s=options.timeout_seconds,
            checkpoints=options.checkpoint,
            output=options.output,
            as_json=options.json,
        )
    )
    return 0


# --- load-test ---

_LOAD_TEST = """\
Read batches with many thin trainers, without TensorFlow, and measure what they waited for.

drain reads as fast as it goes. train simulates the accelerator: each trainer sleeps --step-ms for each batch, and
utilisation is that compute time over all time, the first step excluded. Without --feed the test starts loaders of its
own, on a synthetic job (about 64 rows of 50 tokens a batch). With --feed it takes the places of ranks 0 to N-1 of that
job's stream: never name a job that is training."""

_LOAD_TEST_EXAMPLES = """\
examples:
  trainer-client load-test drain --seconds 10
  trainer-client load-test train --trainers 200 --step-ms 200 --seconds 60 --json
  trainer-client load-test train --trainers 50 --report out --max-wait-p99-ms 20 --min-utilisation 0.9
  trainer-client load-test drain --report new --compare old/report.json"""


def _add_load_test(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    texts = ("Measure how well loaders feed many trainers, without TensorFlow.", _LOAD_TEST, _LOAD_TEST_EXAMPLES)
    command = _command_named(commands, "load-test", _load_test, texts)
    command.add_argument("mode", choices=("drain", "train"), help="as fast as it goes, or with a simulated accelerator")
    _add_load(command)
    _add_loaders(command)
    _add_outcome(command)
    return command


def _add_load(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("load")
    group.add_argument("--trainers", type=_whole, default=1, metavar="N", help="thin trainers, ranks of one world (1)")
    group.add_argument(
        "--step-ms", type=_positive, default=120.0, metavar="MS", help="train: what a step computes (120)"
    )
    group.add_argument("--seconds", type=_positive, default=10.0, metavar="S", help="how long to read (10)")
    group.add_argument("--repeats", type=_whole, default=1, metavar="N", help="how often; figures are medians (1)")
    group.add_argument(
        "--prefetch", type=_whole, default=8, metavar="N", help="batches that a trainer asks for ahead (8)"
    )
    group.add_argument("--processes", type=int, default=0, metavar="N", help="processes for trainers (one a hundred)")
    group.add_argument("--tcp", action="store_true", help="never shared memory, as if on another machine")


def _add_loaders(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("loaders")
    group.add_argument(
        "--feed", default="", metavar="ENDPOINT", help="a running job's coordinator, instead of an own job"
    )
    group.add_argument("--stream", default="train", help="the stream to read (train)")
    group.add_argument("--keys", default="", metavar="FOLDER", help="keys of the job at --feed")
    group.add_argument(
        "--timeout-seconds", type=_positive, default=60.0, metavar="S", help="how long to wait for the job (60)"
    )
    group.add_argument("--workers", type=int, default=0, metavar="N", help="workers of the own job (one a core)")
    group.add_argument("--seed", type=int, default=0, help="seed of the own job (0)")


def _add_outcome(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("outcome")
    group.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    group.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write report.json, report.md and report.html there"
    )
    group.add_argument("--compare", type=Path, metavar="FILE", help="an older report.json to compare with")
    group.add_argument("--max-wait-p99-ms", type=float, metavar="MS", help="fail if more than 1 in 100 waits is longer")
    group.add_argument("--min-utilisation", type=float, metavar="SHARE", help="fail below this share, such as 0.9")
    group.add_argument(
        "--min-batches-per-s", type=float, metavar="N", help="fail below this rate, all trainers together"
    )


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 4096:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 4096, got {text}")
    return number


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got {text}")
        return number

    return whole


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1e6:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number


def _load_test(options: argparse.Namespace) -> int:
    from trainer_client.load_test.command import Asked, load_test  # noqa: PLC0415 - so that --help is quick
    from trainer_client.load_test.report.figures import LoadLimits  # noqa: PLC0415

    limits = LoadLimits(
        max_wait_p99_ms=options.max_wait_p99_ms,
        min_utilisation=options.min_utilisation,
        min_batches_per_s=options.min_batches_per_s,
    )
    return load_test(
        Asked(
            mode=options.mode,
            trainers=options.trainers,
            step_ms=options.step_ms,
            seconds=options.seconds,
            repeats=options.repeats,
            processes=options.processes,
            prefetch=options.prefetch,
            tcp=options.tcp,
            feed=options.feed,
            stream=options.stream,
            keys=options.keys,
            connect_timeout_s=options.timeout_seconds,
            workers=options.workers,
            seed=options.seed,
            limits=limits,
            report=options.report,
            compare=options.compare,
            as_json=options.json,
        )
    )
