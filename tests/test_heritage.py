"""Every ability of the five systems that Stoker carries on is shown by a test, or is named here as still to come.

Rules: a test names its row with `@pytest.mark.heritage("D4")` and its fault with `@pytest.mark.fault(7)`. A row stands
in the marks or in LATER, never in both, so LATER only shrinks; it says which area of the code will bring the row.
"""

from __future__ import annotations

import ast
from collections import defaultdict
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
    "L1": "role from the environment",
    "L2": "hosts as lists or strings, defaults for one machine",
    "L3": "the master counts as a worker",
    "L4": "questions about the role",
    "L5": "the last worker evaluates",
    "L6": "shards before shuffling",
    "L7": "checkpoints, logs and summaries by the chief",
    "L8": "only the master logs",
    "L9": "evaluation that follows checkpoints",
    "L10": "stop after a time, load once at the start",
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
}

#: Rows that no test shows yet: the area that brings them later.
LATER = {
    "D3": "later: roles",
    "D5": "later: queue mode",
    "D7": "later: training loop",
    "D9": "later: queue mode",
    "D10": "later: training loop",
    "D11": "later: callbacks",
    "D12": "later: training loop",
    "E1": "later: queue mode",
    "E2": "later: queue mode",
    "E3": "later: queue mode",
    "E4": "later: queue mode",
    "E5": "later: trainer commands",
    "E6": "later: training loop",
    "E7": "later: training loop",
    "E8": "later: evaluator",
    "E9": "later: queue mode",
    "E10": "later: sources and entry points",
    "E11": "later: training loop",
    "E12": "later: trainer commands",
    "E14": "later: strategies",
    "E15": "later: strategies",
    "E16": "later: training loop",
    "L1": "later: roles",
    "L2": "later: roles",
    "L3": "later: roles",
    "L4": "later: roles",
    "L5": "later: roles",
    "L6": "later: the planner",
    "L7": "later: training loop",
    "L8": "later: roles",
    "L9": "later: evaluator",
    "R1": "later: pipeline",
    "R2": "later: pipeline",
    "R3": "later: pipeline",
    "R4": "later: pipeline",
    "T1": "later: strategies",
    "T2": "later: strategies",
    "T3": "later: strategies",
    "T4": "later: strategies",
    "T5": "later: strategies",
    "T6": "later: strategies",
    "T7": "later: strategies",
    "T8": "later: strategies",
    "T9": "later: strategies",
    "T10": "later: metrics of the data path",
    "T11": "later: metrics of the data path",
    "T12": "later: load test",
}

FAULTS = range(1, 33)

#: Faults that no test shows yet, and why.
FAULTS_LATER = {
    12: "later: queue mode",
    27: "later: a clock that jumps, under the whole system",
}


def marks(name):
    """Where each row or fault is marked: {value: [file, …]}."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{name}":
                found[ast.literal_eval(node.args[0])].append(f"{path.relative_to(TESTS)}:{node.lineno}")
    return found


@pytest.mark.parametrize(
    ("name", "known", "later"), [("heritage", ROWS, LATER), ("fault", FAULTS, FAULTS_LATER)], ids=["rows", "faults"]
)
def test_every_row_is_shown_by_a_test_or_named_as_to_come(name, known, later):
    shown = marks(name)
    assert set(shown) <= set(known), f"unknown: {[(row, shown[row]) for row in shown if row not in known]}"
    assert set(later) <= set(known)
    both = {row: shown[row] for row in later if row in shown}
    assert not both, f"shown by a test now, so take them out of the list of later ones: {both}"
    neither = [row for row in known if row not in shown and row not in later]
    assert not neither, f"neither shown by a test nor named as to come: {neither}"
    assert all(area.startswith("later: ") for area in later.values())


def test_all_rows_are_there():
    counts = {letter: sum(row[0] == letter for row in ROWS) for letter in "DELRT"}
    assert counts == {"D": 16, "E": 18, "L": 10, "R": 13, "T": 12}
