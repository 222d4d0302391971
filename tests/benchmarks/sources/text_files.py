"""Lines of text to token ids, by a Hugging Face tokenizer and by a SentencePiece model, and JSON lines that hold such
ids, beside a torch DataLoader; pairs of lines of two files, beside `tf.data`.

Rules: all sides shuffle, use the same model, and leave padded int batches of about 4 096 tokens; each has one worker.
The first peer is a Dataset of lines that takes one apart in `__getitem__`, as most people write it; the second reads
them by the `datasets` library and tokenizes whole batches, as the one by `tf.data` does, which runs in process.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from loader_server.commands.index import index_streams
from loader_server.job_file import JobFile
from tests.benchmarks.sources.row import interleaved, measured, stoker
from tests.support.token_models import train_sentencepiece, train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.benchmarks.sources.row import Pass, Row

__all__ = ["rows"]

_LINES, _WORDS, _BATCH = 20_000, 8_000, 80

_JOB = """
[job]
name = "text"

[streams.train]
source = "lines"
paths = ["corpus.txt"]
transforms = ["{name}"]
{name}.models = {{ text = "{model}" }}
length = "text"
budget = "4096 tokens"
"""

_JSONL_JOB = """
[job]
name = "jsonl"

[streams.train]
source = "jsonl"
paths = ["corpus.jsonl"]
keys = { ids = "int32 [any]" }
length = "ids"
budget = "4096 tokens"
"""

_PARALLEL_JOB = """
[job]
name = "parallel"

[streams.train]
source = "parallel"
paths = { source = "corpus.txt", target = "corpus-2.txt" }
transforms = ["sentencepiece"]
sentencepiece.models = { source = "text.model", target = "text.model" }
length = "target"
budget = "4096 tokens"
"""

#: What makes ids of one text, and of several.
_Encoders = tuple["Callable[[str], list[int]]", "Callable[[list[str]], list[list[int]]]"]


def rows(folder: Path, rounds: int) -> list[Row]:
    """A worker and a trainer, and DataLoaders with a worker."""
    lines = _lines()
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    train_tokenizer(folder / "tokenizer.json", lines[:2000], vocabulary=4000)
    train_sentencepiece(folder / "text.model", lines[:2000], vocab_size=4000)
    return [
        *_beside(folder, "tokenizers", "tokenizer.json", _tokenizer, rounds),
        *_beside(folder, "sentencepiece", "text.model", _sentencepiece, rounds),
        *_json_lines(folder, lines, rounds),
        *_pairs(folder, lines, rounds),
    ]


def _beside(folder: Path, name: str, model: str, encoders: Callable[[Path], _Encoders], rounds: int) -> list[Row]:
    job = folder / f"{name}.toml"
    job.write_text(_JOB.format(name=name, model=model).replace('"text"\n', f'"{name}"\n', 1))
    index_streams(JobFile(job), ["train"], processes=1)
    with stoker(job) as epoch:
        sides = {
            "stoker": epoch,
            "torch DataLoader, Dataset of lines": _by_line(folder, encoders(folder)),
            "torch DataLoader, datasets": _by_batch(folder, encoders(folder)),
        }
        return interleaved(f"lines, {name}", sides, rounds)


def _json_lines(folder: Path, lines: list[str], rounds: int) -> list[Row]:
    encode, _ = _sentencepiece(folder)
    written = [json.dumps({"ids": encode(line), "text": line}) for line in lines]
    (folder / "corpus.jsonl").write_text("\n".join(written) + "\n")
    job = folder / "jsonl.toml"
    job.write_text(_JSONL_JOB)
    index_streams(JobFile(job), ["train"], processes=1)
    with stoker(job) as epoch:
        peer = _passes(lambda: _Lines(written, lambda line: json.loads(line)["ids"]), _padded)
        return interleaved("jsonl", {"stoker": epoch, "torch DataLoader, Dataset of lines": peer}, rounds)


def _pairs(folder: Path, lines: list[str], rounds: int) -> list[Row]:
    (folder / "corpus-2.txt").write_text("\n".join(reversed(lines)) + "\n")
    job = folder / "parallel.toml"
    job.write_text(_PARALLEL_JOB)
    index_streams(JobFile(job), ["train"], processes=1)
    with stoker(job) as epoch:
        peer = functools.partial(_zipped, folder, _sentencepiece(folder)[1])
        return interleaved("parallel", {"stoker": epoch, "tf.data, TextLineDataset": peer}, rounds)


def _zipped(folder: Path, encode: Callable[[list[str]], list[list[int]]]) -> Pass:
    import tensorflow as tf  # a peer that need not be there

    def ids(texts: Any) -> Any:
        rows = encode([text.decode() for text in texts])
        made = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for place, row in enumerate(rows):
            made[place, : len(row)] = row
        return made

    files = (tf.data.TextLineDataset(str(folder / name)) for name in ("corpus.txt", "corpus-2.txt"))
    pairs = tf.data.Dataset.zip(tuple(files)).shuffle(_LINES).batch(_BATCH)
    encoded = pairs.map(lambda *pair: tuple(tf.numpy_function(ids, [texts], tf.int32) for texts in pair))
    return measured(int(source.shape[0]) for source, _ in encoded.prefetch(1))


def _lines() -> list[str]:
    """Words as frequent as in a language, about 20 a line."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(letters[random.geometric(0.15, size) % len(letters)]) for size in random.integers(2, 10, _WORDS)]
    counts = np.maximum(1, random.lognormal(3, 0.5, _LINES)).astype(int)
    return [" ".join(words[place] for place in random.zipf(1.3, count) % _WORDS) for count in counts]


def _tokenizer(folder: Path) -> _Encoders:
    from tokenizers import Tokenizer  # a peer's

    model = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: model.encode(text).ids, lambda texts: [one.ids for one in model.encode_batch(texts)]


def _sentencepiece(folder: Path) -> _Encoders:
    from sentencepiece import SentencePieceProcessor  # a peer's

    model = SentencePieceProcessor(model_file=str(folder / "text.model"))
    return model.encode, functools.partial(model.encode, num_threads=1)


def _by_line(folder: Path, encoders: _Encoders) -> Callable[[], Pass]:
    lines = (folder / "corpus.txt").read_text().splitlines()
    return _passes(lambda: _Lines(lines, encoders[0]), _padded)


def _by_batch(folder: Path, encoders: _Encoders) -> Callable[[], Pass]:
    def found() -> Any:
        import datasets  # a peer that need not be there

        where = {"data_files": str(folder / "corpus.txt"), "cache_dir": str(folder / "cache")}
        return datasets.load_dataset("text", split="train", **where)

    return _passes(found, lambda rows: _padded(encoders[1]([row["text"] for row in rows])))


class _Lines:
    """A Dataset of lines, all in memory."""

    def __init__(self, lines: list[str], encode: Callable[[str], list[int]]) -> None:
        self._lines = lines
        self._encode = encode

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: int) -> list[int]:
        return self._encode(self._lines[place])


def _padded(rows: list[list[int]]) -> Any:
    import torch  # a peer's

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.int32) for row in rows], batch_first=True)


def _passes(dataset: Callable[[], Any], collate: Callable[[Any], Any]) -> Callable[[], Pass]:
    """Each call reads all, by a worker that stays; the first one makes the data set."""
    made: list[Any] = []

    def epoch() -> Pass:
        import torch  # a peer that need not be there

        if not made:
            how = {"shuffle": True, "num_workers": 1, "persistent_workers": True, "collate_fn": collate}
            made.append(torch.utils.data.DataLoader(dataset(), _BATCH, **how))
        return measured(len(batch) for batch in made[0])

    return epoch
