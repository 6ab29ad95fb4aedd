"""What a searched quantization is worth: digits, rendered words and sentences, beside everything in 8 bits by default.

    python -m benchmarks.searched                        all three, two minutes of search each
    python -m benchmarks.searched minilm --budget 10m

Inputs of the table are none of those that calibrate or search. Times are taken in turns, one thread. `kept`: digits that are read rightly,
words (of 20) that are read as in f32, cosine of the embeddings of 200 sentences with those in f32. The last lines: error and time over
those of everything in 8 bits by default, of the point that is chosen by default (*) and of the most accurate that takes no longer than 8
bits, as far as calibration inputs told; f32 is none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import tc
from benchmarks import zoo
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.quantization.evaluate import compare_outputs
from tc.quantization.latency import measure_in_turns

Feed = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]

WORDS = (
    "compiler tensor quantize Hardware speed 2026 kernel matrix vector latency accuracy network calibrate integer scale python "
    "budget pareto search front"
).split()
OTHER_WORDS = (
    "window garden yellow Mountain bridge pencil 12345 doctor summer market orange silver planet engine coffee river stone cloud "
    "letter number"
).split()
MEASURE_SECONDS = 15.0
SAME_TIME = 1.02
"""What the clock does not tell apart."""


@dataclass(frozen=True)
class Subject:
    """A model, inputs to calibrate with, fresh ones, and what is kept of `found` beside what f32 gives."""

    path: Path
    calibration: list[Feed]
    fresh: list[Feed]
    kept: Callable[[list[Outputs], list[Outputs]], float]


def digits() -> Subject:
    images, labels = load_heldout()
    x = as_model_input(images)
    name = onnx.load(MODEL_PATH).graph.input[0].name
    fresh = [{name: x[i : i + 8]} for i in range(64, 360, 8)]

    def kept(_: list[Outputs], found: list[Outputs]) -> float:
        (scores,) = ([each[key] for each in found] for key in found[0])
        return float(np.mean(np.concatenate(scores).argmax(axis=1) == labels[64:]))

    return Subject(MODEL_PATH, [{name: x[i : i + 8]} for i in range(0, 64, 8)], fresh, kept)


def ppocr_rec() -> Subject:
    path = zoo.path("ppocr_rec")
    held = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    characters = ["", *held["character"].splitlines(), " "]

    def kept(expected: list[Outputs], found: list[Outputs]) -> float:
        pairs = zip(expected, found, strict=True)
        return float(sum(_decode(a, characters) == _decode(b, characters) for a, b in pairs))

    return Subject(path, [{"x": draw(word, 1)} for word in OTHER_WORDS], [{"x": draw(word, 0)} for word in WORDS], kept)


def draw(word: str, seed: int) -> np.ndarray:
    """float32[1, 3, 48, 320]: a word in dark letters on light paper, with a little noise, as the model takes it."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), 30)
    width = min(320, int(font.getlength(word)) + 24)
    image = Image.new("RGB", (int(font.getlength(word)) + 24, 48), (245, 245, 240))
    ImageDraw.Draw(image).text((12, 6), word, font=font, fill=(20, 20, 30))
    pixels = np.full((48, 320, 3), 127.5)
    noise = np.random.default_rng([seed, *word.encode()]).normal(0, 6, (48, width, 3))
    pixels[:, :width] = np.clip(np.asarray(image.resize((width, 48))) + noise, 0, 255)
    return ((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32)


def _decode(outputs: Outputs, characters: list[str]) -> str:
    """The likeliest character at each place, repeats and blanks (0) left out."""
    (scores,) = outputs.values()
    places = scores[0].argmax(axis=-1)
    return "".join(characters[p] for i, p in enumerate(places) if p and (i == 0 or p != places[i - 1]))


def minilm() -> Subject:
    def sentences(first: int, count: int) -> list[Feed]:
        return [zoo.random_inputs("minilm", np.random.default_rng([7, first + i])) for i in range(count)]

    def kept(expected: list[Outputs], found: list[Outputs]) -> float:
        pairs = [(a["sentence_embedding"].ravel(), b["sentence_embedding"].ravel()) for a, b in zip(expected, found, strict=True)]
        return float(np.mean([a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs]))

    return Subject(zoo.path("minilm"), sentences(0, 16), sentences(1000, 200), kept)


SUBJECTS = {"digits": digits, "ppocr_rec": ppocr_rec, "minilm": minilm}


def compare(name: str, budget: str) -> None:
    """Quantize one model and print its points on fresh inputs."""
    subject = SUBJECTS[name]()
    found = tc.quantize(subject.path, subject.calibration, budget=budget, threads=1)
    floats = tc.compile(subject.path, threads=1)
    expected = [floats.run(feed) for feed in subject.fresh]
    modules = [tc.compile(point.model, threads=1) for point in found.points]
    times = measure_in_turns([floats, *modules], subject.fresh[0], MEASURE_SECONDS)[1:]
    print(f"{name}: {len(found.trials)} trials; kept in f32: {subject.kept(expected, expected):.4f}")
    errors = []
    for point, module, time in zip(found.points, modules, times, strict=True):
        outputs = [module.run(feed) for feed in subject.fresh]
        errors.append(compare_outputs(expected, outputs)[0])
        mark, kept = "*" if point is found.point else " ", subject.kept(expected, outputs)
        print(f"{mark} error {errors[-1]:8.5f}  kept {kept:8.4f}  time of f32 {time.ratio}  {point.label}", flush=True)
    everywhere = next(i for i, point in enumerate(found.points) if point.strategy == found.trials[1].strategy)
    limit, floating = found.points[everywhere].cost * SAME_TIME, found.trials[0].strategy.choices
    chosen = next(i for i, point in enumerate(found.points) if point is found.point)
    narrow = [i for i, point in enumerate(found.points) if point.cost <= limit and point.strategy.choices != floating]
    as_fast = min(narrow, key=lambda i: found.points[i].quality.loss)
    for what, place in (("default choice", chosen), ("no slower", as_fast)):
        ratio = measure_in_turns([modules[everywhere], modules[place]], subject.fresh[0], MEASURE_SECONDS)[1].ratio
        print(f"{what}: {errors[place] / errors[everywhere]:.2f} of the error and {ratio} of the time of 8 bits everywhere", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.searched", description="Searched quantizations on fresh inputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--budget", default="2m", help="of each search (default 2m)")
    options = parser.parse_args()
    for name in options.names or SUBJECTS:
        if name not in SUBJECTS:
            parser.error(f"no model {name!r}; there are {', '.join(SUBJECTS)}")
        compare(name, options.budget)


if __name__ == "__main__":
    main()
