"""`tc demo`: the digit classifier that is part of the package, compiled, run and checked. Needs no file, no network."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.color import Color
from rich.columns import Columns
from rich.console import Console
from rich.style import Style
from rich.text import Text

import tc
from tc.check.relative_error import relative_error
from tc.cli.options import THREADS_HELP
from tc.cli.outcome import Outcome, format_seconds
from tc.cli.reference import run_interpreter
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.errors import CheckError

TIMED_RUNS = 200
TOLERANCE = 1e-4
SHADES = " ░▒▓█"

EPILOG = """\
The model is a small convolutional network, trained on four fifths of the 8x8 digits that scikit-learn ships.
Here it reads the other fifth.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pictures", type=int, default=8, metavar="N", help="how many digits to show (default 8)")
    parser.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)


def execute(args: argparse.Namespace) -> Outcome:
    """Compile the classifier, read the held-out digits, compare with the reference interpreter.

    Raises CheckError if the two differ by more than `TOLERANCE` of the largest probability.
    """
    images, labels = load_heldout()
    pixels = as_model_input(images)
    start = time.perf_counter()
    module = tc.compile(MODEL_PATH, threads=args.threads)
    compile_seconds = time.perf_counter() - start

    probability = module(pixels)
    predicted = probability.argmax(1)
    reference = run_interpreter(MODEL_PATH, {"image": pixels})["probability"]
    error = relative_error(probability, reference)
    if not error <= TOLERANCE:
        raise CheckError(f"demo: the compiled model differs from the reference interpreter by {error:.3g}")

    shown = choose_pictures(predicted, labels, args.pictures)
    data: dict[str, Any] = {
        "model": MODEL_PATH.name,
        "digits": len(labels),
        "accuracy": float((predicted == labels).mean()),
        "compile_seconds": compile_seconds,
        "seconds_per_image": {
            "one by one": median_seconds(lambda: module(pixels[:1])),
            "all at once": median_seconds(lambda: module(pixels)) / len(pixels),
        },
        "reference": {"largest_error": error, "same_predictions": bool((reference.argmax(1) == predicted).all())},
        "fused": fused_groups(module),
        "pictures": [
            {"predicted": int(predicted[i]), "label": int(labels[i]), "probability": float(probability[i].max())}
            for i in shown
        ],
    }
    return Outcome(data, lambda console: show(console, data, images[shown]))


def choose_pictures(predicted: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of the first `count` digits; the last of them is one that was read wrong, where there is one."""
    chosen = np.arange(min(max(count, 0), len(labels)))
    wrong = np.flatnonzero(predicted != labels)
    if len(chosen) and len(wrong) and not np.isin(chosen, wrong).any():
        chosen[-1] = wrong[0]
    return chosen


def median_seconds(call: Callable[[], object]) -> float:
    """The median time of a call, perf_counter."""
    seconds = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def show(console: Console, data: dict[str, Any], images: np.ndarray) -> None:
    pictures = [
        Text("\n").join((draw(image, console.color_system is not None), caption(facts)))
        for image, facts in zip(images, data["pictures"])
    ]
    if pictures:
        console.print(Columns(pictures, padding=(1, 3)))
    console.print("[bold]fused[/bold]")
    for group in data["fused"]:
        console.print(f"  {group}", highlight=False, markup=False)
    times, reference = data["seconds_per_image"], data["reference"]
    same = "the same digits" if reference["same_predictions"] else "other digits"
    console.print(
        f"[bold]compiled[/bold] in {format_seconds(data['compile_seconds'])}\n"
        f"[bold]accuracy[/bold] {data['accuracy']:.2%} of {data['digits']} digits that took no part in training\n"
        f"[bold]time[/bold] per image: {format_seconds(times['one by one'])} one by one, "
        f"{format_seconds(times['all at once'])} all at once\n"
        f"[bold]reference interpreter[/bold]: {same}, largest difference {reference['largest_error']:.1e} "
        "of the largest probability",
        highlight=False,
    )


def caption(facts: dict[str, Any]) -> Text:
    right = facts["predicted"] == facts["label"]
    text = f"{facts['predicted']} ({facts['probability']:.0%})"
    return Text(text if right else f"{text}, is {facts['label']}", style="green" if right else "red")


def draw(image: np.ndarray, in_colour: bool) -> Text:
    """A picture of uint8[h, w] in 0..16, h even: in colour two pixels a character, else two characters a pixel."""
    if not in_colour:
        return Text("\n".join("".join(SHADES[(pixel * 4 + 8) // 16] * 2 for pixel in row) for row in image.astype(int)))
    text = Text()
    for upper, lower in zip(image[::2], image[1::2]):
        for above, below in zip(upper, lower):
            text.append("▀", Style(color=grey(above), bgcolor=grey(below)))
        text.append("\n")
    text.rstrip()
    return text


def grey(pixel: int) -> Color:
    level = min(int(pixel) * 16, 255)
    return Color.from_rgb(level, level, level)


def fused_groups(module: tc.CompiledModule) -> list[str]:
    """One line for each kernel: the model's nodes that it computes."""
    return [" + ".join(kernel.nodes) for kernel in module.report().kernels]
