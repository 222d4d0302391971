"""The job file: units, unknown keys, `like`, and the wording of every refusal."""

from __future__ import annotations

import dataclasses

import pytest

from shared.errors import SettingsError
from shared.settings.job import JobSettings, StreamSettings, parse_job

JOB = """
[job]
name = "digits"
heartbeat_timeout = "500 ms"
queue_bytes = "1.5 MiB"

[streams.train]
source = "manifest"
length = "audio"
budget = "60 s"
[streams.train.logmel]
rate = 16000
bands = 80

[streams.dev]
like = "train"
paths = ["dev.csv"]
[streams.dev.logmel]
bands = 40
"""


def refused(toml):
    with pytest.raises(SettingsError) as caught:
        parse_job(toml, "job.toml")
    return str(caught.value)


def job_with(line):
    return f'[job]\nname = "x"\n{line}\n[streams.train]\n'


def test_a_job_file():
    job = parse_job(JOB, "job.toml")
    assert job.settings == JobSettings(name="digits", heartbeat_timeout=0.5, queue_bytes=1_572_864)
    assert (job.settings.heartbeat_timeout_s, job.settings.build_timeout_s) == (0.5, job.settings.build_timeout)
    assert job.settings.listen == "tcp://127.0.0.1:7400"
    assert list(job.streams) == ["train", "dev"]


def test_like_merges_key_by_key_and_means_evaluation():
    train, dev = parse_job(JOB, "job.toml").streams.values()
    assert "evaluation" not in train
    assert dev == {
        "evaluation": True,
        "like": "train",
        "source": "manifest",
        "length": "audio",
        "budget": "60 s",
        "paths": ["dev.csv"],
        "logmel": {"rate": 16000, "bands": 40},
    }
    assert train["logmel"] == {"rate": 16000, "bands": 80}


def test_like_may_say_that_it_is_not_for_evaluation():
    said = '[streams.a]\nsource = "x"\n[streams.b]\nlike = "a"\nevaluation = false\n'
    assert parse_job('[job]\nname = "x"\n' + said, "job.toml").streams["b"]["evaluation"] is False
    model = '[streams.a]\nevaluation = false\n[streams.b]\nlike = "a"\n'
    assert parse_job('[job]\nname = "x"\n' + model, "job.toml").streams["b"]["evaluation"] is False


def test_an_evaluation_takes_no_part_of_the_data_from_the_stream_that_it_is_like():
    model = '[job]\nname = "x"\n[streams.a]\nepoch_parts = 4\nbudget = "1 s"\n[streams.b]\nlike = "a"\n'
    dev = parse_job(model, "here").streams["b"]
    assert dev == {"evaluation": True, "like": "a", "budget": "1 s"}
    for own in ("evaluation = false", "epoch_parts = 4"):
        assert parse_job(model + own, "here").streams["b"]["epoch_parts"] == 4


def test_rows_take_the_place_of_a_budget_and_its_limits_and_a_budget_that_of_rows():
    model = (
        '[job]\nname = "x"\n[streams.a]\nbudget = "1 s"\nmax_rows = 8\nlimits = { text = "9 tokens" }\n[streams.b]\n'
    )
    dev = {"evaluation": True, "like": "a"}
    assert parse_job(model + 'like = "a"\nrows = 8', "here").streams["b"] == dev | {"rows": 8}
    kept = {"max_rows": 8, "limits": {"text": "9 tokens"}}
    assert parse_job(model + 'like = "a"\nbudget = "2 s"', "here").streams["b"] == dev | {"budget": "2 s"} | kept
    model = '[job]\nname = "x"\n[streams.a]\nrows = 8\nlength = "x"\n[streams.b]\nlike = "a"\nbudget = "1 s"'
    assert parse_job(model, "here").streams["b"] == dev | {"length": "x", "budget": "1 s"}


def test_an_evaluation_takes_the_last_stage_of_the_curriculum_of_the_stream_that_it_is_like():
    curriculum = 'max_length = { 0 = "4 s", 10 = "16 s", 9 = "8 s" }\n'
    model = f'[job]\nname = "x"\n[streams.a]\n{curriculum}[streams.b]\nlike = "a"\n'
    assert parse_job(model, "here").streams["b"]["max_length"] == "16 s"
    assert parse_job(model + 'max_length = "1 s"', "here").streams["b"]["max_length"] == "1 s"
    assert len(parse_job(model + "evaluation = false", "here").streams["b"]["max_length"]) == 3
    wrong = '[job]\nname = "x"\n[streams.a]\nmax_length = { two = "4 s" }\n[streams.b]\nlike = "a"\n'
    assert parse_job(wrong, "here").streams["b"]["max_length"] == {"two": "4 s"}, "to be refused with its reason"


def test_of_transforms_that_a_stream_leaves_out_it_takes_over_no_tables():
    model = (
        '[job]\nname = "x"\n[streams.a]\ntransforms = ["my:loud", "noise", "logmel"]\n[streams.a.logmel]\nrate = 8000\n'
        '[streams.a.loud]\nby = 3\n[streams.a.noise]\nlevel = 2\n[streams.b]\nlike = "a"\n'
    )
    every = {"logmel": {"rate": 8000}, "loud": {"by": 3}, "noise": {"level": 2}}

    def tables_of_b(own):
        return {key: value for key, value in parse_job(model + own, "here").streams["b"].items() if key in every}

    assert tables_of_b("") == every
    assert tables_of_b('transforms = ["logmel"]') == {"logmel": {"rate": 8000}}
    own = 'transforms = ["logmel"]\n[streams.b.noise]\nlevel = 5'
    assert tables_of_b(own)["noise"] == {"level": 5}, "to be refused, since it does nothing"
    assert parse_job(model + "transforms = 5", "here").streams["b"]["transforms"] == 5


@pytest.mark.parametrize("model", ['"tarin"', '"b"', '""', "5", "[1]", '"c"'])
def test_like_names_a_stream_that_is_like_no_other(model):
    said = refused(f'[job]\nname="x"\n[streams.a]\n[streams.b]\nlike = {model}\n[streams.c]\nlike = "a"\n')
    assert 'job.toml, [streams.b], like: expected the name of a stream that is not like another ("a"), got ' in said
    assert said.endswith("Name one of these.")


@pytest.mark.heritage("E17")
@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[job", "job.toml: expected a TOML file, got "),
        ("[jbo]\n", 'expected the tables [job] and [streams.<name>], perhaps "job", got [jbo]. Rename it.'),
        ('[job]\nname="x"\n', "expected at least one table [streams.<name>], got none. Add [streams.train]."),
        ("streams = 5\n", "expected at least one table [streams.<name>], got 5."),
        ("[streams]\ntrain = 1\n", "expected at least one table [streams.<name>], got {'train': 1}."),
        ("job = 5\n[streams.a]\n", "expected the table [job], got job = 5."),
        ('job = "name"\n[streams.a]\n', "expected the table [job], got job = 'name'."),
        ("[streams.a]\n", "job.toml, [job]: expected \"name\" (the job's name, in metrics, logs and checkpoints), "),
        ("[streams.a]\n", "got no such setting. Add name = … there."),
        ('[job]\nname="x"\n[streams."a b"]\n', "expected a stream's name of up to 100 letters, digits"),
        ('[job]\nname="../x"\n[streams.a]\n', "job.toml, [job], name: expected up to 100 letters, digits, dots"),
    ],
)  # fmt: skip
def test_what_is_no_job_file(toml, said):
    assert said in refused(toml)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "sede = 3",
            'job.toml, [job]: expected a known setting, perhaps "seed", got "sede". Known here: accept_graphs, ',
        ),
        ("zzz = 3", 'expected a known setting, got "zzz"'),
        ("seed = -1", "job.toml, [job], seed: expected an integer of at least 0, got -1. It means: the number that"),
        ("seed = true", "expected an integer of at least 0, got True"),
        ("seed = 1.0", "expected an integer of at least 0, got 1.0"),
        ("group = 5000", "expected an integer from 0 to 4096, got 5000"),
        ('listen = ""', "expected a string, got ''"),
        ("listen = 7400", "expected a string, got 7400"),
        ("heartbeat_timeout = 2", 'expected an amount with its unit, "<number> us" or "<number> ms" or "<number> s"'),
        ('heartbeat_timeout = "2 sec"', "got '2 sec'"),
        ('heartbeat_timeout = "0 s"', 'expected a duration from "10 ms" to "1 h", got \'0 s\''),
        ('heartbeat_timeout = "2 h"', 'expected a duration from "10 ms" to "1 h"'),
        ('queue_bytes = "1 Mib"', "perhaps \"MiB\", got '1 Mib'"),
        ('queue_bytes = "-1 MiB"', "expected an amount with its unit"),
    ],
)
def test_what_is_no_setting(line, said):
    assert said in refused(job_with(line))


@pytest.mark.parametrize("kind", [JobSettings, StreamSettings])
def test_every_setting_has_a_help_text_and_a_default_that_it_would_take(kind):
    for field in dataclasses.fields(kind):
        assert field.metadata["help"], field.name
        if isinstance(field.default, bool | int) and field.name not in (
            "largest_sample",
            "queue_bytes",
            "remote_cache_bytes",
            "feature_cache_bytes",
            "share_bytes",
            "bundle_bytes",
        ):
            assert field.metadata["parse"](field.default) == field.default
