"""Every ability of the five systems that Stoker carries on is shown by a test, or is named here as still to come.

Rules: a test names its row with `@pytest.mark.heritage("D4")` and its fault with `@pytest.mark.fault(7)`. A row stands
in the marks or in LATER, never in both, so LATER only shrinks; it says which area of the code will bring the row.

An ability counts when a user could do it today through the public API or a command, and its test does just that. A
fault counts when real processes went through it: of its tests one at least lies where those run. Others may show what
a part of the code does about it, and bear the mark as well. `python -m tests.faults.matrix` runs the faults' tests.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

#: Our own words for each row. D: a training coordinator. E: an elastic worker. L: task identity. R: a data set
#: pipeline. T: towers and a data flow.
ROWS = {
    "D1": "work, not yet, end and refusal are four different answers",
    "D2": "remote answers with bounded retries, and a clear error after the last",
    "D3": "who is chief",
    "D4": "an epoch as open, running and done work, readable",
    "D5": "a report of unknown work is counted, not fatal",
    "D6": "work sizes follow from ranks and groups",
    "D7": "target epochs, absolute or so many more",
    "D8": "resume from a position",
    "D9": "the next epoch opens while stragglers finish",
    "D10": "validation every n epochs",
    "D11": "early stop",
    "D12": "epoch loss over all trainers, with times",
    "D13": "stop, with or without waiting for work",
    "D14": "shortest first",
    "D15": "batch numbers are unique, none counts twice",
    "D16": "several manifests, relative paths, too short audio",
    "D17": "done and next in one call, at least one piece of work, evaluation alone",
    "E1": "kinds of work",
    "E2": "ranges of work that move from to-do to done",
    "E3": "failed work is tried again, then given up visibly",
    "E4": "work that takes too long is taken back",
    "E5": "train, train and evaluate, evaluate, predict",
    "E6": "a batch is retried so often, then a clear stop",
    "E7": "loss in the log every n steps",
    "E8": "evaluation between training, of one model version",
    "E9": "records are acknowledged exactly",
    "E10": "a user's data set function and readers",
    "E11": "callbacks, and a model exported at the end",
    "E12": "predictions go somewhere",
    "E13": "how long each phase takes",
    "E14": "parameter servers",
    "E15": "all-reduce that re-forms when members change",
    "E16": "several steps between model pulls",
    "E17": "what is missing is named",
    "E18": "workers and trainers join and leave at any time",
    "E19": "one module names model, loss, metrics and data, with parameters",
    "E20": "tables larger than one server, sparse gradients",
    "E21": "workers pull only the rows of their batch from an embedding table",
    "E22": "the learning rate goes to the servers with each push",
    "E23": "a failed piece reports why, with counters",
    "E24": "evaluation outputs gathered centrally, every worker evaluates between its training",
    "L1": "role from the environment",
    "L2": "hosts as lists or strings, defaults for one machine",
    "L3": "the master counts as a worker",
    "L4": "questions about the role",
    "L5": "the last worker evaluates",
    "L6": "shards before shuffling",
    "L7": "checkpoints, logs and summaries by the chief",
    "L8": "only the master logs",
    "L9": "evaluation that follows checkpoints",
    "L10": "stop after a time",
    "L11": "the role makes a server and a device function",
    "L12": "a checkpoint loaded once at the start of a run",
    "R1": "a pipeline function for both sides",
    "R2": "what its context offers",
    "R3": "elements are dicts with lengths",
    "R4": "the default pipeline",
    "R5": "every consumer gets as many batches",
    "R6": "buckets with a budget",
    "R7": "classic batching",
    "R8": "time spent waiting for data",
    "R9": "a producer's error reaches the trainer",
    "R10": "public data sets, fixed shapes, chunked streams",
    "R11": "weighted sampling from several sources",
    "R12": "laplace, sub-epochs, tags, complete fraction",
    "R13": "preprocessing in other processes",
    "R14": "several evaluation sets, one stream's settings over another's",
    "R15": "the same pipeline on one sample without loaders, features on the device",
    "T1": "strategies",
    "T2": "where variables live",
    "T3": "ways to reduce gradients",
    "T4": "hierarchical needs eight devices",
    "T5": "the fallback that is named is the one taken",
    "T6": "towers with different gradients",
    "T7": "variables start equal",
    "T8": "asynchronous gradients are scaled",
    "T9": "a call for each tower",
    "T10": "data over ZeroMQ from other processes, latency shown",
    "T11": "a queue before the model, and staging",
    "T12": "a speed test of the data flow alone",
    "T13": "variables go to the least loaded tower, or to the CPU",
    "T14": "all variables are synchronised, and again when asked",
    "T15": "variables copied from the first tower again on demand",
}

#: Rows that no test shows yet: the area that brings them later.
LATER: dict[str, str] = {}

#: Our own words for each fault.
FAULTS = {
    1: "a worker killed before it read anything",
    2: "a worker killed while it sends, or writes into a slot",
    3: "a worker killed after it sent",
    4: "a worker stopped with the head of the line and half of the slots, then let go on",
    5: "a transform that holds the interpreter while the network still answers",
    6: "a worker that is a hundred times slower",
    7: "a transform that raises; a file that one machine cannot read",
    8: "a sample that kills the process which decodes it",
    9: "a worker that sends a wrong digest, shape or dtype",
    10: "shared memory that cannot be had, or is full",
    11: "a coordinator killed while ranks train in step",
    12: "a coordinator killed while batches are leased",
    13: "a journal that is torn, or has a flipped bit",
    14: "a full disk under the journal",
    15: "two coordinators on one journal",
    16: "a coordinator that stalls for half a minute",
    17: "a trainer killed in a step",
    18: "a trainer that stops reading",
    19: "one rank claimed twice, an old name come back, ranks at different cursors",
    20: "a world that grows or shrinks between checkpoints",
    21: "a worker and a trainer cut off from each other only",
    22: "acknowledgements lost on one way",
    23: "traffic from before a cut that arrives after it",
    24: "frames that come twice, out of order, late",
    25: "random, oversized and cut frames on every socket",
    26: "a key that is unknown, has the wrong role, or is revoked while connected",
    27: "a wall clock that is moved by an hour",
    28: "a protocol version that is one off",
    29: "a data file that changes in mid-epoch",
    30: "half of the workers told to end",
    31: "a disk that is slow, then fails, then is back",
    32: "a trainer that forks or crashes with shared memory open",
    33: "a transform that raises SystemExit or another BaseException",
    34: "a decoding, a transform or a read that never ends",
    35: "a healthy worker killed while index, manifest or memory is in a bad way",
    36: "a convicted sample that was mended, or has another number now",
    37: "the answer to an earlier attach that comes after a later one",
    38: "over a thousand strangers' connections on every port",
    39: "a worker with a nonsense endpoint, or of another job",
    40: "a worker's address that another job's worker took over",
    41: "a thousand workers that come and go in one run",
    42: "a client that asks for far too much and reads nothing",
    43: "a connection reset on one side only",
    44: "a child left behind by a transform whose worker is killed",
    45: "every sample fails",
    46: "a full disk under the quarantine log",
    47: "two workers of one name",
    48: "a coordinator restarted between two incarnations of a rank",
    49: "a checkpoint with a flipped bit, or cut short",
    50: "more epoch parts, ranks or groups than batches",
    51: "a signal at any instruction of taking and handing out a batch",
    52: "an answer that would be too large to send",
    53: "a sample that runs out of memory or descriptors, or claims more than memory holds",
    54: "files that a data file refers to, changed, cut or gone",
    55: "a file overwritten by one of equal size whose time is put back",
    56: "a journal that is unlinked, replaced or cut while it is in use",
    57: "a nursery that is killed or stopped",
    58: "a client that floods the coordinator, or reads none of its answers",
    59: "arguments out of a message's bounds, from any public call",
    60: "thirty superseded feeds that nobody closed, then good trainers",
    61: "a trainer, evaluator or load test pointed at a stream that somebody trains on",
    62: "the OOM killer",
    63: "a worker that starts before its network, or changes its address",
    64: "a worker that has everything but its data",
    65: "SIGTERM at any instant, under an init or as PID 1",
    66: "a read-only state folder, no HOME, no /tmp, another user's keys",
    67: "a coordinator that comes back at another address",
    68: "all loaders restarted one by one under load",
    69: "two evaluations of different models, or two evaluators of one, at once",
    70: "NaN and infinite values in samples",
    71: "the same file named twice, directly or by a link",
}

#: Faults that no test with real processes shows yet, and what will.
FAULTS_LATER = {}

#: Tests that lie here run real processes.
REAL = ("end_to_end/", "faults/", "trainer_client/tf/test_with_loaders.py")


@cache
def marks(name, tests=TESTS):
    """Where each row or fault is marked: {value: [file:line, …]}."""
    found = defaultdict(list)
    for path in sorted(tests.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text, str(path))) if f".{name}" in text else ():
            if _is_mark(node, name):
                found[ast.literal_eval(node.args[0])].append(f"{path.relative_to(tests)}:{node.lineno}")
    return found


def _is_mark(node, name):
    is_call_of_it = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    return is_call_of_it and ast.unparse(node.func) == f"pytest.mark.{name}"


@pytest.mark.parametrize(
    ("name", "known", "later", "places"),
    [("heritage", ROWS, LATER, ("",)), ("fault", FAULTS, FAULTS_LATER, REAL)],
    ids=["rows", "faults"],
)
def test_every_row_is_shown_by_a_test_or_named_as_to_come(name, known, later, places):
    marked = marks(name)
    assert set(marked) <= set(known), f"unknown: {[(row, marked[row]) for row in marked if row not in known]}"
    shown = {row: files for row, files in marked.items() if any(file.startswith(places) for file in files)}
    assert set(later) <= set(known)
    both = {row: shown[row] for row in later if row in shown}
    assert not both, f"shown by a test now, so take them out of the list of later ones: {both}"
    neither = [row for row in known if row not in shown and row not in later]
    assert not neither, f"neither shown by a test nor named as to come: {neither}"
    assert all(area.startswith("later: ") for area in later.values())


def test_all_rows_are_there():
    assert list(FAULTS) == list(range(1, 72))
    counts = {letter: sum(row[0] == letter for row in ROWS) for letter in "DELRT"}
    assert counts == {"D": 17, "E": 24, "L": 12, "R": 15, "T": 15}


def test_the_command_prints_each_row_with_its_tests_or_what_is_to_come(capsys, monkeypatch):
    from tests.heritage import main  # it imports this module

    later = "T99"
    monkeypatch.setitem(ROWS, later, "what nobody has shown")
    monkeypatch.setitem(LATER, later, "later: tests")
    assert main(["--rows", f"D15,{later},D4", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert list(told["shown"]) == ["D4", "D15"]
    assert told["later"] == {later: LATER[later]}
    test = "tests/end_to_end/test_queue.py::test_feeds_share_epochs_each_batch_comes_once_and_the_end_is_told"
    assert test in told["shown"]["D15"]
    assert lines[:2] == [f"D15  {ROWS['D15']}", f"     {told['shown']['D15'][0]}"]
    assert lines[-1] == "2 of 3 are shown by tests, 1 are to come"
    assert main(["--rows", "Z1"]) == 1


def test_every_test_that_the_command_names_is_there():
    from tests.heritage import shown

    for test in {test for tests in shown().values() for test in tests}:
        file, *names = test.split("::")
        text = (TESTS.parent / file).read_text("utf-8")
        assert all(f"def {name}(" in text or f"class {name}" in text for name in names), test
