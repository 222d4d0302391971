"""Arguments of `trainer-client verify`; the modules that it needs are imported when it runs."""

from __future__ import annotations

import argparse
import re

from trainer_client.arguments import at_least, command_named, endpoint, positive, whole

__all__ = ["add_verify"]

_VERIFY = """\
Print a digest over all batches of an epoch, by number, with the plan, the epoch and the group; and compare it.

It reads any stream of a running job, also while others train on it: it is no trainer, claims no rank, moves no cursor,
asks for two batches at a time, and workers build these only while no trainer's batch waits. The digest is the same
however many workers and trainers there are. With --cut the epoch is read again, cut at random places, each part by a
new reader and another number of ranks. Exit code 5: batches differ."""

_VERIFY_EXAMPLES = """\
examples:
  trainer-client verify tcp://127.0.0.1:7400
  trainer-client verify tcp://127.0.0.1:7400 --epoch 3 --batches 1000 --cut 8 --json
  trainer-client verify tcp://127.0.0.1:7400 --against tcp://10.0.0.9:7400
  trainer-client verify tcp://127.0.0.1:7400 --against 6b6f0e6c5f0c7f1e5d0f4a9f3a1b2c3d"""

#: Cuts if --cut is given without a number.
_USUAL_CUTS = 4


def add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command `verify`, and return its parser."""
    texts = ("Print a digest over an epoch's batches, and compare it.", _VERIFY, _VERIFY_EXAMPLES)
    command = command_named(commands, "verify", _verify, texts)
    command.add_argument("endpoint", type=endpoint, metavar="ENDPOINT", help="the running job's coordinator")
    command.add_argument("--stream", default="train", help="the stream to read (train)")
    command.add_argument("--epoch", type=at_least(0), default=0, metavar="E", help="the first epoch to read (0)")
    command.add_argument("--epochs", type=at_least(1), default=1, metavar="N", help="how many epochs to read (1)")
    command.add_argument("--batches", type=at_least(1), metavar="N", help="the first N batches of each epoch (all)")
    command.add_argument(
        "--group",
        type=whole,
        metavar="G",
        help="refuse a job that reads in another group, with exit code 2 (the job's)",
    )
    command.add_argument(
        "--against",
        type=_digest_or_endpoint,
        metavar="DIGEST|ENDPOINT",
        help="compare with an earlier digest, or batch by batch with another job",
    )
    command.add_argument(
        "--cut", type=at_least(1), nargs="?", const=_USUAL_CUTS, default=0, metavar="N",
        help=f"read again, cut at N random places, and compare batch by batch ({_USUAL_CUTS})",
    )  # fmt: skip
    command.add_argument("--keys", default="", metavar="FOLDER", help="keys of the job, and of the other one")
    command.add_argument(
        "--timeout-seconds", type=positive, default=60.0, metavar="S", help="how long to wait for the job (60)"
    )
    command.add_argument("--json", action="store_true", help="print one line of JSON")
    return command


def _digest_or_endpoint(text: str) -> str:
    """Parse a digest, or another job's endpoint; raise ArgumentTypeError otherwise."""
    if "://" in text:
        return endpoint(text)
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise argparse.ArgumentTypeError(f"expected a digest of 32 hexadecimal digits or an endpoint, got {text}")
    return text


def _verify(options: argparse.Namespace) -> int:
    from trainer_client.verifying.epoch_reading import EpochsOfJob
    from trainer_client.verifying.verify import VerifyOrder, verify

    return verify(
        VerifyOrder(
            source=EpochsOfJob(
                endpoint=options.endpoint,
                stream=options.stream,
                epochs=range(options.epoch, options.epoch + options.epochs),
                group=options.group,
                most=options.batches,
                keys=options.keys,
                connect_timeout_s=options.timeout_seconds,
            ),
            against=options.against or "",
            cuts=options.cut,
            as_json=options.json,
        )
    )
