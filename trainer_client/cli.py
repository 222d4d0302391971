"""Command `trainer-client`: one function a sub-command, each importing what it needs when it runs."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shared.commands import add_common_arguments, run_command
from trainer_client.arguments import (
    add_job,
    add_model,
    at_least,
    command_named,
    endpoint,
    find_load_test_problem,
    find_repeated,
    find_unheeded,
    positive,
    rate,
    refuse_usage,
    share,
    whole,
)
from trainer_client.training.command import add_train
from trainer_client.verifying.command import add_verify

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name (None: those of the process), and end the process with its exit code.

    Errors that commands expect are printed and set the code; any other exception passes through.
    """
    run_command(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer-client",
        description="Train, evaluate, predict and test with batches that loader servers push.",
        epilog="example: trainer-client train --model speech --feed tcp://127.0.0.1:7400 --checkpoint checkpoints "
        "--epochs 10",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_train, _add_evaluate, _add_predict, _add_load_test, add_verify):
        add_common_arguments(add(commands), log_level="warning")
    return parser


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
    command = command_named(commands, "evaluate", _evaluate, texts)
    group = add_model(command)
    group.add_argument("--loss", default="", metavar="[MODULE:]NAME", help="a loss instead of the module's loss")
    group.add_argument(
        "--eval-metrics", default="", metavar="[MODULE:]NAME", help="metrics instead of the module's eval_metrics"
    )
    add_job(command)
    command.add_argument("--stream", action="append", help="a stream to judge by; may be given several times (dev)")
    command.add_argument("--follow", action="store_true", help="go on with each new checkpoint until training ends")
    command.add_argument("--max-time", type=positive, metavar="S", help="with --follow: end after this many seconds")
    command.add_argument("--summaries", type=Path, metavar="FOLDER", help="write the values for TensorBoard there")
    command.add_argument("--json", action="store_true", help="print a JSON object for each stream and checkpoint")
    return command


def _evaluate(options: argparse.Namespace) -> int:
    streams = options.stream or ["dev"]
    refuse_usage(options, find_unheeded(options, {"--max-time": "--follow"}) or find_repeated("--stream", streams))
    from trainer_client.training.evaluating.evaluate import EvaluateOrder, evaluate

    return evaluate(
        EvaluateOrder.of(
            options,
            {"loss": options.loss, "eval_metrics": options.eval_metrics},
            streams=tuple(streams),
            checkpoints=options.checkpoint,
            follow_s=(options.max_time or math.inf) if options.follow else None,
            summaries=options.summaries,
            as_json=options.json,
        )
    )


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
    command = command_named(commands, "predict", _predict, texts)
    add_model(command).add_argument(
        "--prediction-processor",
        default="",
        metavar="[MODULE:]NAME",
        help="a function instead of the module's prediction_processor",
    )
    add_job(command)
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
    if options.output is not None and options.prediction_processor:
        refuse_usage(
            options, "argument --prediction-processor: expected no --output with it, as the file gets all outputs"
        )
    from trainer_client.training.predicting.predict import PredictOrder, predict

    predict(
        PredictOrder.of(
            options,
            {"prediction_processor": options.prediction_processor},
            stream=options.stream,
            checkpoints=options.checkpoint,
            output=options.output,
            as_json=options.json,
        )
    )
    return 0


# --- load-test ---

_LOAD_TEST = """\
Read batches with many thin trainers, without TensorFlow, and measure how long they wait for each batch.

The mode drain reads as fast as the loaders deliver. The mode train simulates an accelerator: each trainer sleeps for
--step-ms after each batch, and utilisation is this compute time divided by all time, the first step excluded. Without
--feed the test starts loaders of its own, on a synthetic job (about 64 rows of 50 tokens a batch). With --feed it takes
the places of ranks 0 to N-1 of the running job's stream, and is refused while somebody trains on it."""

_LOAD_TEST_EXAMPLES = """\
examples:
  trainer-client load-test drain --seconds 10
  trainer-client load-test train --trainers 200 --step-ms 200 --seconds 60 --json
  trainer-client load-test train --trainers 50 --report out --max-wait-p99-ms 20 --min-utilisation 0.9
  trainer-client load-test drain --report new --compare old/report.json"""


def _add_load_test(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    texts = ("Measure how well loaders feed many trainers, without TensorFlow.", _LOAD_TEST, _LOAD_TEST_EXAMPLES)
    command = command_named(commands, "load-test", _load_test, texts)
    command.add_argument(
        "mode", choices=("drain", "train"), help="read as fast as possible, or simulate an accelerator"
    )
    _add_load(command)
    _add_loaders(command)
    _add_outcome(command)
    return command


#: Default of --step-ms: the time of a simulated step.
_STEP_MS = 120.0

#: With more threads than this, threads of one Python process wait for each other more than for batches.
_TRAINERS_A_PROCESS = 100


def _add_load(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("load")
    group.add_argument(
        "--trainers", type=whole, default=1, metavar="N", help="run N trainers, the ranks of one world (default: 1)"
    )
    group.add_argument(
        "--step-ms", type=positive, metavar="MS", help="mode train: sleep MS for each batch (default: 120)"
    )
    group.add_argument("--seconds", type=positive, default=10.0, metavar="S", help="read for S seconds (default: 10)")
    group.add_argument(
        "--repeats", type=whole, default=1, metavar="N", help="run the test N times and report medians (default: 1)"
    )
    group.add_argument(
        "--prefetch", type=whole, default=8, metavar="N", help="ask for N batches ahead, in each trainer (default: 8)"
    )
    group.add_argument(
        "--processes",
        type=at_least(1),
        metavar="N",
        help="share trainers among N processes (default: one per 100 trainers)",
    )
    group.add_argument(
        "--tcp", action="store_true", help="use no shared memory, as if the loaders were on another machine"
    )


def _add_loaders(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("loaders")
    group.add_argument(
        "--feed",
        type=endpoint,
        metavar="ENDPOINT",
        help="connect to this coordinator of a running job, instead of starting loaders",
    )
    group.add_argument("--stream", help="read this stream of the job at --feed (default: train)")
    group.add_argument("--keys", default="", metavar="FOLDER", help="authenticate at --feed with the keys in FOLDER")
    group.add_argument(
        "--timeout-seconds", type=positive, default=60.0, metavar="S", help="wait S seconds for the job (default: 60)"
    )
    group.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="start N workers for the test's own job (default: one per core)",
    )
    group.add_argument(
        "--seed", type=at_least(0), metavar="N", help="use this seed for the test's own job (default: 0)"
    )


def _add_outcome(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("outcome")
    group.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    group.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write report.json, report.md and report.html into FOLDER"
    )
    group.add_argument("--compare", type=Path, metavar="FILE", help="compare with this report.json of an older test")
    group.add_argument(
        "--max-wait-p99-ms", type=positive, metavar="MS", help="fail if more than 1 wait in 100 is longer than MS"
    )
    group.add_argument(
        "--min-utilisation",
        type=share,
        metavar="SHARE",
        help="mode train: fail if the utilisation is below SHARE, such as 0.9",
    )
    group.add_argument(
        "--min-batches-per-s",
        type=rate,
        metavar="N",
        help="fail if all trainers together read fewer than N batches a second",
    )


def _load_test(options: argparse.Namespace) -> int:
    refuse_usage(options, find_load_test_problem(options))
    from trainer_client.load_test.command import LoadTestOrder, load_test
    from trainer_client.load_test.report.figures import LoadLimits
    from trainer_client.load_test.thin_trainer import ThinRun

    return load_test(
        LoadTestOrder(
            mode=options.mode,
            run=ThinRun(
                endpoint=options.feed or "",
                stream=options.stream or "train",
                world=options.trainers,
                step_s=(options.step_ms or _STEP_MS) / 1000 if options.mode == "train" else 0.0,
                seconds=options.seconds,
                prefetch=options.prefetch,
                shared_memory=not options.tcp,
                keys=options.keys,
                connect_timeout_s=options.timeout_seconds,
            ),
            repeats=options.repeats,
            processes=options.processes or -(-options.trainers // _TRAINERS_A_PROCESS),
            workers=options.workers or os.cpu_count() or 1,
            seed=options.seed or 0,
            limits=LoadLimits(
                max_wait_p99_ms=options.max_wait_p99_ms,
                min_utilisation=options.min_utilisation,
                min_batches_per_s=options.min_batches_per_s,
            ),
            report=options.report,
            compare=options.compare,
            as_json=options.json,
        )
    )
