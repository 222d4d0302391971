"""What a command line may not combine: exit code 2 and a sentence, before anything is connected to."""

from __future__ import annotations

from argparse import Namespace

import pytest

from trainer_client.arguments import find_export_problem, find_load_test_problem, find_unheeded
from trainer_client.cli import main

JOB = ("--model", "levels", "--feed", "tcp://127.0.0.1:1", "--checkpoint", "none")
TRAIN = ("train", *JOB, "--epochs", "3")
SERVERS = (*TRAIN, "--strategy", "parameter-server")
EVERY = ("--validate-every",)
EVALUATE, PREDICT = ("evaluate", *JOB), ("predict", *JOB)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (TRAIN[:-2], "one of --epochs, --steps and --max-time is needed"),
        ((*TRAIN, "--validate-every", "2", "epochs"), "argument --validate-every: expected --validate with it"),
        (
            (*TRAIN, "--validate", "dev", *EVERY, "2", "epochs", *EVERY, "50", "steps"),
            "argument --validate-every: expected epochs or steps, got both",
        ),
        ((*TRAIN, *EVERY, "2", "seconds"), "argument --validate-every: expected epochs or steps after the number, got"),
        ((*TRAIN, "--save-every", "2", "epochs"), "argument --save-every: expected steps or seconds after the number"),
        ((*TRAIN, "--save-every", "steps", "2"), "argument --save-every: expected steps or seconds after the number"),
        ((*TRAIN, "--save-every", "2.5", "steps"), "argument --save-every: expected a number of steps, got 2.5"),
        ((*TRAIN, "--save-every", "2"), "argument --save-every: expected 2 arguments"),
        ((*TRAIN, "--metrics-listen", "127.0.0.1", "here", "there"), "argument --metrics-listen: expected an address"),
        ((*TRAIN, "--metrics-token", "here"), "argument --metrics-token: expected --metrics-listen with it"),
        ((*TRAIN, "--insecure"), "argument --insecure: expected --metrics-listen with it"),
        (
            (*TRAIN, "--metrics-listen", "0.0.0.0:9100"),
            "--metrics-listen: expected a token, or a loopback address such as 127.0.0.1:9100, got 0.0.0.0:9100 w",
        ),
        (
            (*TRAIN, "--metrics-listen", "0.0.0.0:9100", "--metrics-token", "/nowhere/token"),
            "--metrics-token /nowhere/token: expected a token",
        ),
        ((*TRAIN, "--metrics-listen", "127.0.0.1:70000"), "--metrics-listen: expected a host, or a host and a port"),
        ((*TRAIN, "--validate", "dev", "--validate", "dev"), "argument --validate: expected each name once, got dev"),
        ((*TRAIN, "--validate", "train"), "argument --validate: expected a stream for evaluation, got train"),
        ((*TRAIN, "--export", "x.onnx"), "argument --export: expected a file that ends in .keras, or the name of"),
        ((*TRAIN, "--replicas", "2"), "--replicas: expected --replicas with one of the strategies mirrored"),
        ((*TRAIN, "--pull-every", "2"), "--pull-every: expected --pull-every with one of the strategies parameter-s"),
        ((*TRAIN, "--steps", "many"), "Until: expected a number of steps, or \"+\" and how many more, got 'many'"),
        ((*SERVERS, "--epochs", "+3"), "argument --epochs: expected a number that is the same for all workers, got +3"),
        ((*SERVERS, "--steps", "+3"), "argument --steps: expected a number that is the same for all workers, got +3"),
        (
            (*SERVERS, "--validate", "dev", *EVERY, "5", "steps"),
            "argument --validate-every: expected epochs with --strategy parameter-server, got steps",
        ),
        ((*SERVERS, "--pull-every", "10"), "argument --pull-every: expected at most 9, one more than --staleness"),
        ((*SERVERS, "--pull-every", "2", "--staleness", "0"), "argument --pull-every: expected at most 1, one more"),
        ((*TRAIN, "--param", "units=1", "--param", "units=2"), "argument --param: expected each name once, got units"),
        ((*EVALUATE, "--max-time", "5"), "argument --max-time: expected --follow with it"),
        (
            (*EVALUATE, "--stream", "dev", "--stream", "dev"),
            "argument --stream: expected each name once, got dev twice",
        ),
        ((*EVALUATE, "--feed", "localhost:7400"), "argument --feed: expected an endpoint like tcp://127.0.0.1:7400"),
        ((*EVALUATE, "--model", "levels.py"), "argument --model: expected a module as an import names it, without .py"),
        ((*EVALUATE, "--model", "models/levels"), "argument --model: expected a module as an import names it"),
        ((*EVALUATE, "--timeout-seconds", "nan"), "argument --timeout-seconds: expected a number above 0"),
        (
            (*PREDICT, "--output", "x.jsonl", "--prediction-processor", "show"),
            "argument --prediction-processor: expected no --output with it",
        ),
        ((*PREDICT, "--output", "x.csv"), "argument --output: expected a file that ends in .jsonl or .parquet"),
        (("load-test", "drain", "--step-ms", "5"), "argument --step-ms: expected the mode train with it"),
        (("load-test", "drain", "--min-utilisation", "0.5"), "argument --min-utilisation: expected the mode train"),
        (("load-test", "train", "--min-utilisation", "9"), "argument --min-utilisation: expected a share from 0 to 1"),
        (("load-test", "train", "--keys", "keys"), "argument --keys: expected --feed with it"),
        (("load-test", "train", "--stream", "dev"), "argument --stream: expected --feed with it"),
        (("load-test", "train", "--workers", "-1"), "argument --workers: expected a whole number from 1 on"),
        (("load-test", "train", "--feed", "tcp://127.0.0.1:1", "--seed", "3"), "argument --seed: expected no --feed"),
        (("load-test", "train", "--feed", "tcp://127.0.0.1:1", "--workers", "3"), "argument --workers: expected no"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    complained = capsys.readouterr().err
    assert complained.startswith("usage: trainer-client ")
    assert said in " ".join(complained.split())


def test_nought_is_given():
    options = Namespace(staleness=0, pull_every=2)
    assert find_unheeded(options, {"--pull-every": "--staleness"}) == ""
    options = Namespace(mode="train", feed="tcp://127.0.0.1:1", workers=None, seed=0)
    assert find_load_test_problem(options).startswith("argument --seed: expected no --feed")


@pytest.mark.parametrize(
    "path", ["speech.keras", "exported/speech", "speech-2", "models/v1.2", "speech.v3", "..", "a.b/c"]
)
def test_a_file_and_a_folder_of_a_model_are_known_by_their_names(path):
    assert find_export_problem(path) == ""


@pytest.mark.parametrize("path", ["x.onnx", "x.h5", "x.tflite", "out/x.pb", "x.keras.zip", "x.onnx/"])
def test_what_would_become_a_folder_of_a_files_name_is_refused(path):
    assert "is neither" in find_export_problem(path)
