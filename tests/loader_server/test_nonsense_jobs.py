"""Job files of nonsense: whatever they say, a command ends with a short sentence, never with a traceback or pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loader_server.cli import main

if TYPE_CHECKING:
    from pathlib import Path

#: More than anybody reads.
LONGEST = 1000

NINES = "9" * 20
JOB = '[job]\nname = "j"\n'
STREAM = '[streams.train]\nsource = "lines"\npaths = ["a.txt"]\ntransforms = ["characters"]\nlength = "text"\n'
BUDGET = 'budget = "300 steps"\n'
GOOD = JOB + STREAM + BUDGET


def with_job(line: str) -> str:
    return JOB + line + "\n" + STREAM + BUDGET


def with_stream(line: str) -> str:
    return GOOD + line + "\n"


def instead(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


LONG = "x" * 100_000
DEEP = "[" * 100_000

FILES: dict[str, str | bytes] = {
    # --- no TOML, or not a job ---
    "nothing": "",
    "a NUL": "\0",
    "a NUL in the middle": GOOD + "\0",
    "noise": bytes(range(256)) * 40,
    "brackets": DEEP,
    "closing brackets": "]" * 100_000,
    "braces": "a = " + "{a = " * 50_000,
    "nested arrays": with_job("seed = " + DEEP),
    "nested arrays that close": with_job("seed = " + DEEP + "]" * 100_000),
    "nested arrays of moderate depth": with_job("seed = " + "[" * 400 + "]" * 400),
    "nested tables": "[" + ".".join("a" * 2_000) + "]",
    "a long key": LONG + " = 1",
    "a long line": f'a = "{LONG}"',
    "a long name without value": LONG,
    "many keys": "".join(f"k{n} = 1\n" for n in range(20_000)),
    "many tables": "".join(f"[t{n}]\n" for n in range(20_000)),
    "many streams of nothing": JOB + "".join(f"[streams.s{n}]\n" for n in range(5_000)),
    "many keys in a stream": GOOD + "".join(f"k{n} = 1\n" for n in range(20_000)),
    "only comments": "# nothing\n" * 10_000,
    "a string without end": '[job]\nname = "' + LONG,
    "one key twice": GOOD + "budget = 1\n",
    "one table twice": GOOD + "[job]\n",
    "job as a number": "job = 3\n" + STREAM,
    "job as a long list": f"job = {list(range(50_000))}\n" + STREAM,
    "job as an array of tables": '[[job]]\nname = "j"\n' + STREAM,
    "streams as a list": JOB.replace("[job]", f"streams = {list(range(50_000))}\n[job]"),
    "streams as a string": f'streams = "{LONG}"\n' + JOB,
    "streams as numbers": JOB + "[streams]\n" + "".join(f"s{n} = {n}\n" for n in range(20_000)),
    "an array of streams": JOB + STREAM.replace("[streams.train]", "[[streams]]"),
    "no streams": JOB,
    "a stream without a name": JOB + STREAM.replace("train", '""') + BUDGET,
    "a stream of a long name": JOB + STREAM.replace("train", LONG) + BUDGET,
    "a stream named for its parent": JOB + STREAM.replace("train", '".."') + BUDGET,
    "a stream with a slash": JOB + STREAM.replace("train", '"a/b"') + BUDGET,
    "a date": with_job("seed = 1979-05-27T07:32:00Z"),
    "UTF-16": GOOD.encode("utf-16"),
    "a surrogate": with_job('listen = "\\ud800"'),
    "a control character": with_job('listen = "\x07"'),
    # --- numbers ---
    "an integer of 5 000 digits": with_job("seed = " + "9" * 5_000),
    "a negative integer of 5 000 digits": with_job("seed = -" + "9" * 5_000),
    "a hexadecimal integer of 100 000 digits": with_job("seed = 0x" + "f" * 100_000),
    "an integer of 4 000 digits": with_job("seed = " + "9" * 4_000),
    "a float of 100 000 digits": with_job("heartbeat_timeout = 0." + "9" * 100_000),
    "a seed of 20 nines": with_job(f"seed = {NINES}"),
    "a seed below zero": with_job("seed = -1"),
    "a seed that is true": with_job("seed = true"),
    "a seed that is infinite": with_job("seed = inf"),
    "workers beyond all": with_job(f"workers = {NINES}"),
    "a group of none": with_job("group = -1"),
    "a port that is none": with_job("metrics_port = 65536"),
    "a timeout of 20 nines": with_job(f'heartbeat_timeout = "{NINES} s"'),
    "a timeout of 400 nines": with_job(f'build_timeout = "{"9" * 400} s"'),
    "a timeout of nothing": with_job('heartbeat_timeout = "0 s"'),
    "a timeout that is a number": with_job("heartbeat_timeout = 2.0"),
    "a share that is not a number": with_job("max_bad = nan"),
    "a share of 400 nines": with_job(f'max_bad = "{"9" * 400} %"'),
    "bad samples of 5 000 digits": with_job(f'max_bad = "{"9" * 5_000} samples"'),
    "bytes of 400 nines": with_job(f'queue_bytes = "{"9" * 400} GiB"'),
    "a cache of 400 nines": with_job(f'remote_cache_bytes = "{"9" * 400} GiB"'),
    "features of 400 nines": with_job(f'feature_cache_bytes = "{"9" * 400} GiB"'),
    "shared bytes of 400 nines": with_job(f'share = true\nshare_bytes = "{"9" * 400} GiB"'),
    "a budget of 20 nines": instead("300 steps", f"{NINES} steps"),
    "a budget of 400 nines": instead("300 steps", f"{'9' * 400} steps"),
    "a budget of 5 000 nines": instead("300 steps", f"{'9' * 5_000} steps"),
    "a budget of nothing": instead("300 steps", "0 steps"),
    "a budget in parsecs": instead("300 steps", "300 parsec"),
    "a budget of 100 000 characters": instead("300 steps", LONG),
    "a budget that is a list": instead('"300 steps"', str(list(range(50_000)))),
    "a budget that is a table": instead('"300 steps"', "{ a = 1 }"),
    # --- paths ---
    "state is a file": with_job('state = "a.txt"'),
    "state is below a file": with_job('state = "a.txt/below"'),
    "state has a NUL": with_job('state = "a\\u0000b"'),
    "state is long": with_job(f'state = "{LONG}"'),
    "state is long in parts": with_job(f'state = "{"a/" * 50_000}"'),
    "state is a device": with_job('state = "/dev/null"'),
    "state is in proc": with_job('state = "/proc/nothing"'),
    "a cache is a file": with_job('feature_cache = "a.txt"\nfeature_cache_bytes = "1 GiB"\nmetrics_port = -1'),
    "paths has a NUL": instead('"a.txt"', '"a\\u0000b"'),
    "paths is long": instead('"a.txt"', f'"{LONG}"'),
    "paths is nothing": instead('["a.txt"]', "[]"),
    "paths is an empty name": instead('"a.txt"', '""'),
    "paths is a number": instead('["a.txt"]', "7"),
    "paths is a table": instead('["a.txt"]', '{ a = "a.txt" }'),
    "paths are many that are not there": instead('["a.txt"]', str([f"{n}.txt" for n in range(2_000)])),
    "paths are nested": instead('["a.txt"]', "[" * 300 + "]" * 300),
    "paths is a pattern of brackets": instead('"a.txt"', f'"{"[" * 300}"'),
    "paths is a pattern of braces": instead('"a.txt"', f'"{"{a,b}" * 40}"'),
    "paths is a pattern of stars": instead('"a.txt"', f'"{"*" * 10_000}"'),
    "paths is a device": instead('"a.txt"', '"/dev/zero"'),
    "paths is a socket of the kernel": instead('"a.txt"', '"/proc/self/mem"'),
    "paths of no store": instead('"a.txt"', f'"{"z" * 100}://{LONG}"'),
    "a URL without a host": instead('"a.txt"', '"http://"'),
    "a URL with a port of nonsense": instead('"a.txt"', '"http://127.0.0.1:99999999/a"'),
    # --- names ---
    "a job without a name": STREAM + BUDGET,
    "a job of an empty name": GOOD.replace('"j"', '""'),
    "a job of a long name": GOOD.replace('"j"', f'"{LONG}"'),
    "a job named for its parent": GOOD.replace('"j"', '".."'),
    "a job named by a number": GOOD.replace('"j"', "1"),
    "a source that is not there": instead('"lines"', f'"{LONG}"'),
    "a source that is a number": instead('"lines"', "1"),
    "a source that is a list": instead('"lines"', str(list(range(50_000)))),
    "a source of no module": instead('"lines"', '"no_module:Source"'),
    "a source of a long module": instead('"lines"', f'"{LONG}:Source"'),
    "a source of a module with a NUL": instead('"lines"', '"a\\u0000b:Source"'),
    "a source of many dots": instead('"lines"', f'"{"." * 1000}:Source"'),
    "a source of many packages": instead('"lines"', f'"{"a." * 20_000}a:Source"'),
    "a source that is no source": instead('"lines"', '"json:loads"'),
    "a source of colons": instead('"lines"', f'"{":" * 1000}"'),
    "sources and source": with_stream("sources = [{ source = 'lines' }]"),
    "sources of nothing": instead('source = "lines"\npaths = ["a.txt"]', "sources = [{}]"),
    "sources of numbers": instead('source = "lines"\npaths = ["a.txt"]', f"sources = {list(range(50_000))}"),
    "a transform that is not there": instead('"characters"', f'"{LONG}"'),
    "a transform that is a number": instead('["characters"]', "[1]"),
    "a transform of no module": instead('"characters"', '"no_module:f"'),
    "a transform of a module with a NUL": instead('"characters"', '"a\\u0000b:f"'),
    "a transform that is no function": instead('"characters"', '"json:__name__"'),
    "one transform 100 times": instead('["characters"]', str(["characters"] * 100)),
    "a length that is not there": instead('"text"', f'"{LONG}"'),
    "a length that is a list": instead('length = "text"', f"length = {list(range(50_000))}"),
    "like itself": with_stream('like = "train"'),
    "like another that is not there": with_stream(f'like = "{LONG}"'),
    "like a list": with_stream(f"like = {list(range(50_000))}"),
    "like none of many": GOOD + "".join(f"[streams.s{n}]\n" for n in range(5_000)) + "[streams.z]\nlike = 'zz'\n",
    # --- the planner, and the rest of a stream ---
    "a filter of 100 000 brackets": with_stream(f'filter = "{"(" * 100_000}"'),
    "a filter of 100 000 brackets that close": with_stream(f'filter = "{"(" * 100_000}text{")" * 100_000} > 1"'),
    "a filter of 50 000 conditions": with_stream(f'filter = "{" and ".join(["text > 1"] * 50_000)}"'),
    "a filter of 50 000 terms": with_stream(f'filter = "{" + ".join(["text"] * 50_000)} > 1"'),
    "a filter of 50 000 signs": with_stream(f'filter = "{"-" * 50_000}text > 1"'),
    "a filter of 50 000 nots": with_stream(f'filter = "{"not " * 50_000}text > 1"'),
    "a filter of a long name": with_stream(f'filter = "{LONG} > 1"'),
    "a filter of a long number": with_stream(f'filter = "text > {"9" * 5_000}"'),
    "a filter of a high power": with_stream('filter = "text > 9 ** 9 ** 9 ** 9"'),
    "a filter with a NUL": with_stream('filter = "text > 1\\u0000"'),
    "a filter that divides by zero": with_stream('filter = "text / 0 > 1"'),
    "a filter of nonsense": with_stream('filter = "; import os"'),
    "a filter that calls": with_stream('''filter = "__import__('os').system('x') > 1"'''),
    "a filter of a column that is not there": with_stream('filter = "loudness > 1"'),
    "a max_length of 400 nines": with_stream(f'max_length = "{"9" * 400} steps"'),
    "a max_length for no epoch": with_stream('max_length = { a = "1 steps" }'),
    "a max_length for an epoch of 5 000 digits": with_stream(f'max_length = {{ {"9" * 5_000} = "1 steps" }}'),
    "a lease of a century": with_stream('mode = "queue"\nlease_timeout = "999999 h"'),
    "tries of 20 nines": with_stream(f'mode = "queue"\ntries = {NINES}'),
    "a mode of 100 000 characters": with_stream(f'mode = "{LONG}"'),
    "an unknown setting of 100 000 characters": with_stream(f"{LONG} = 1"),
    "an alphabet of nothing": with_stream('[streams.train.characters]\nalphabet = ""'),
    "an alphabet of a list": with_stream(f"[streams.train.characters]\nalphabet = {list(range(50_000))}"),
    "an alphabet of a NUL": with_stream('[streams.train.characters]\nalphabet = "\\u0000"'),
    "a table of no transform": with_stream("[streams.train.nothing]\na = 1"),
}  # fmt: skip

#: What is odd, and may be taken.
TAKEN = {
    "a filter that divides by zero",
    "one transform 100 times",
    "paths is a pattern of stars",
    "features of 400 nines",
}


def end_of(verb: str, job: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command: the exit code, and what was said on standard error."""
    with pytest.raises(SystemExit) as ended:
        main([verb, str(job)])
    return int(str(ended.value.code)), capsys.readouterr().err


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    return tmp_path / "job.toml"


@pytest.mark.parametrize("name", FILES)
def test_nonsense_ends_with_a_short_sentence(name: str, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = FILES[name]
    job.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    code, said = end_of("index", job, capsys)
    if code == 0:
        code, said = end_of("plan", job, capsys)
    assert code in ((0, 1) if name in TAKEN else (1, 2)), said[:LONGEST]
    assert len(said.encode("utf-8", "replace")) < LONGEST, said[:LONGEST]
    assert "Traceback" not in said
    assert code == 0 or said.startswith("loader-server: ")
    assert said.count("\n") == 1 or code == 0


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("an integer of 5 000 digits", "a number of thousands of digits"),
        ("a NUL in a pattern", "no character NUL in streams.train.paths"),
        ("an integer of 67 bits", "an integer of at most 64 bits for job.seed, got one of 67 bits"),
    ],
)
def test_the_setting_is_named_and_python_gives_no_advice(name, named, tmp_path, capsys):
    files = {
        "a NUL in a pattern": instead('"a.txt"', '"a.txt\\u0000"'),
        "an integer of 67 bits": with_job(f"seed = {NINES}"),
    }
    job = tmp_path / "job.toml"
    job.write_text(files.get(name) or str(FILES[name]))
    with pytest.raises(SystemExit):
        main(["plan", str(job)])
    complained = capsys.readouterr().err
    assert named in complained
    assert "set_int_max_str_digits" not in complained
