"""Arguments of `trainer-client verify`; the modules that it needs are imported when it runs."""

from __future__ import annotations

import argparse
import re

from trainer_client.arguments import at_least, command_named, endpoint, positive, whole

__all__ = ["add_verify"]

_VERIFY = """\
Print a digest over all batches of an epoch in order, with the plan, the epoch and the group, and compare it.

The command reads any stream of a running job, even while others train on it: it claims no rank and moves no cursor, and
workers build its batches, two at a time, only while no trainer waits for one. The digest is the same for any number of
workers and trainers. With --cut the epoch is read a second time, cut at random places, and each part by a new reader
with another number of ranks. Exit code 5: batches differ."""

_VERIFY_EXAMPLES = """\
examples:
  trainer-client verify tcp://127.0.0.1:7400
  trainer-client verify tcp://127.0.0.1:7400 --epoch 3 --batches 1000 --cut 8 --json
  trainer-client verify tcp://127.0.0.1:7400 --against tcp://10.0.0.9:7400
  trainer-client verify tcp://127.0.0.1:7400 --against 6b6f0e6c5f0c7f1e5d0f4a9f3a1b2c3d"""

#: Cuts if --cut is given without a number.
_USUAL_CUTS = 4


def add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add `verify` with all of its options, which runs `_verify`, to these commands, and return its parser."""
    texts = ("Print a digest over an epoch's batches, and compare it.", _VERIFY, _VERIFY_EXAMPLES)
    command = command_named(commands, "verify", _verify, texts)
    command.add_argument(
        "endpoint", type=endpoint, metavar="ENDPOINT", help="connect to this coordinator of a running job"
    )
    command.add_argument("--stream", default="train", help="read this stream (default: train)")
    command.add_argument("--epoch", type=at_least(0), default=0, metavar="E", help="begin with epoch E (default: 0)")
    command.add_argument("--epochs", type=at_least(1), default=1, metavar="N", help="read N epochs (default: 1)")
    command.add_argument(
        "--batches", type=at_least(1), metavar="N", help="read only the first N batches of each epoch (default: all)"
    )
    command.add_argument(
        "--group",
        type=whole,
        metavar="G",
        help="refuse a job whose group is not G, with exit code 2 (default: take the job's group)",
    )
    command.add_argument(
        "--against",
        type=_digest_or_endpoint,
        metavar="DIGEST|ENDPOINT",
        help="compare with this digest, or batch by batch with the job at this endpoint",
    )
    command.add_argument(
        "--cut", type=at_least(1), nargs="?", const=_USUAL_CUTS, default=0, metavar="N",
        help=f"read again, cut at N random places, and compare batch by batch (N is {_USUAL_CUTS} if left out)",
    )  # fmt: skip
    command.add_argument(
        "--keys", default="", metavar="FOLDER", help="authenticate with the keys in FOLDER, at both jobs"
    )
    command.add_argument(
        "--timeout-seconds", type=positive, default=60.0, metavar="S", help="wait S seconds for the job (default: 60)"
    )
    command.add_argument("--json", action="store_true", help="print one line of JSON")
    return command


def _digest_or_endpoint(text: str) -> str:
    """Return a digest, 32 digits from 0 to f, or an endpoint as it is; raise ArgumentTypeError for anything else."""
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
