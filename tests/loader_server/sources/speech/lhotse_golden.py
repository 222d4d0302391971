"""Cut manifests as Lhotse writes them, and the audio that they are of.

Lhotse needs torch, so its manifests are kept; `python -m tests.loader_server.sources.speech.lhotse_golden` writes them
anew, with how many frames Lhotse itself gives for each cut.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import soundfile

__all__ = ["GOLDEN", "RATE", "write_audio"]

GOLDEN = Path(__file__).parent / "golden"
RATE = 16000


def write_audio(folder: Path) -> dict[str, np.ndarray]:
    """Two recordings of 2 s, one of them with two channels: [frames, channels] each."""
    made = {}
    for name, channels in (("mono.wav", 1), ("call.flac", 2)):
        noise = np.random.default_rng(channels).uniform(-0.5, 0.5, (2 * RATE, channels))
        soundfile.write(folder / name, noise, RATE, subtype="PCM_16")
        made[name] = soundfile.read(folder / name, dtype="float32", always_2d=True)[0]
    return made


def _main() -> None:
    import lhotse  # only whoever writes these needs it
    from lhotse.cut import CutSet, MonoCut

    os.chdir(GOLDEN)
    write_audio(Path())
    mono, call = (lhotse.Recording.from_file(name) for name in ("mono.wav", "call.flac"))
    said = [(0.25, 0.5, "one"), (0.1, 0.2, "naïve"), (1.3, 0.7, None)]
    supervisions = [
        lhotse.SupervisionSegment(f"s{n}", mono.id, start, duration, text=text, speaker="ann", language="en")
        for n, (start, duration, text) in enumerate(said)
    ]
    whole = MonoCut("whole", 0, 2.0, 0, supervisions=supervisions, recording=mono)
    right = MonoCut("right", 0.30001, 0.7777, 1, recording=call)
    part = whole.truncate(offset=0.15, duration=1.2).with_id("part")
    good = [whole, part, right]
    mixed, fast = whole.pad(3.0).with_id("mixed"), whole.perturb_speed(1.1).with_id("fast")
    run = lhotse.Recording("u", [lhotse.AudioSource("command", [0], "cat u.wav")], RATE, 2 * RATE, 2.0)
    bad = [mixed, fast, MonoCut("run", 0, 1, 0, recording=run), call.to_cut(), MonoCut("no", 0, 1, 7, recording=call)]
    CutSet.from_cuts([*good, *bad]).to_file("cuts.jsonl.gz")
    trimmed = list(CutSet.from_cuts([whole]).trim_to_supervisions(keep_overlapping=False))
    frames = {cut.id: cut.load_audio().shape[1] for cut in good}
    supervised = {cut.supervisions[0].id: cut.load_audio().shape[1] for cut in trimmed}
    (GOLDEN / "frames.json").write_text(json.dumps({"cuts": frames, "supervisions": supervised}))
    for name in ("mono.wav", "call.flac"):
        (GOLDEN / name).unlink()


if __name__ == "__main__":
    _main()
