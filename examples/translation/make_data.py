"""Makes numbers in English and in German: data/train.en, data/train.de and so on; SentencePiece models too."""

from pathlib import Path

import numpy as np
import sentencepiece

ENGLISH = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GERMAN = ("", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
GERMAN_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def english(ten, one):
    return f"{ENGLISH_TENS[ten]} {ENGLISH[one]}".strip()


def german(ten, one):
    return GERMAN[one] + ("und" if one else "") + GERMAN_TENS[ten]


def main():
    rng = np.random.default_rng(7)
    Path("data").mkdir(exist_ok=True)
    for name, count in (("train", 3000), ("dev", 200)):
        lists = [[(rng.integers(2, 10), rng.integers(0, 10)) for _ in range(rng.integers(1, 5))] for _ in range(count)]
        for language, spelt in (("en", english), ("de", german)):
            lines = [" ".join(spelt(*number) for number in numbers) for numbers in lists]
            Path(f"data/{name}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        print(f"data/{name}.en, data/{name}.de: {count} lines")
    for language in ("en", "de"):
        sentencepiece.SentencePieceTrainer.train(
            input=f"data/train.{language}", model_prefix=f"data/{language}", model_type="bpe", vocab_size=80,
            pad_id=0, bos_id=1, eos_id=2, unk_id=3, minloglevel=2,
        )  # fmt: skip


if __name__ == "__main__":
    main()
