"""Makes sentences of a small grammar: data/train.txt and data/dev.txt, a sentence a line."""

from pathlib import Path

import numpy as np

NOUNS, VERBS = ("cat", "dog", "bird", "fish", "mouse"), ("sees", "likes", "follows", "finds")
ADJECTIVES = ("small", "big", "quick", "old", "red")


def noun_phrase(rng):
    adjectives = rng.choice(ADJECTIVES, rng.integers(0, 3), replace=False)
    return ["the", *adjectives, rng.choice(NOUNS)]


def sentence(rng):
    words = [*noun_phrase(rng), rng.choice(VERBS), *noun_phrase(rng)]
    if rng.random() < 0.3:
        words += ["and", rng.choice(VERBS), *noun_phrase(rng)]
    return " ".join(words)


def main():
    rng = np.random.default_rng(7)
    Path("data").mkdir(exist_ok=True)
    for name, count in (("train", 3000), ("dev", 200)):
        Path(f"data/{name}.txt").write_text("".join(f"{sentence(rng)}\n" for _ in range(count)))
        print(f"data/{name}.txt: {count} sentences")


if __name__ == "__main__":
    main()
