"""Inputs that mean something to the model they are for: token ids of its vocabulary, masks, audio, pages of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tc import demo

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class InputSpec:
    """An input as its model declares it. A dim without a name is called "input.axis", as `x.2`."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape with `dims` put in. Raises KeyError for a dim that has no value there."""
        return tuple(dims[dim] if isinstance(dim, str) else dim for dim in self.shape)


Shapes = Mapping[str, tuple[int, ...]]


def make_any(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """Inputs of a model we know nothing about: normal floats, and 0 or 1 for all other types."""
    arrays = {}
    for spec in specs:
        dtype = np.dtype(spec.dtype)
        drawn = rng.standard_normal(shapes[spec.name]) if dtype.kind == "f" else rng.integers(0, 2, shapes[spec.name])
        arrays[spec.name] = np.asarray(drawn).astype(dtype)
    return arrays


def make_images(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """Normalised photographs of a kind: noise at three scales, so that pooling does not average two inputs alike."""
    (spec,) = specs
    n, channels, height, width = shapes[spec.name]
    image = np.zeros((n, channels, height, width))
    for cell in (1, 8, 32):
        rows, columns = -(-height // cell), -(-width // cell)
        coarse = rng.standard_normal((n, channels, rows, columns))
        image += coarse.repeat(cell, axis=2)[:, :, :height].repeat(cell, axis=3)[..., :width]
    return {spec.name: (image / np.sqrt(3)).astype(np.float32)}


def make_digits(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """Handwritten digits that took no part in training."""
    (spec,) = specs
    images, _ = demo.load_heldout()
    return {spec.name: demo.as_model_input(images[rng.integers(len(images), size=shapes[spec.name][0])])}


# The digits as bitmaps of 7 rows and 5 columns; each number is a row, its highest of 5 bits to the left.
DIGIT_ROWS = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)
DIGITS = (np.array(DIGIT_ROWS)[..., None] >> np.arange(4, -1, -1)) & 1 == 1


def make_pages(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """Pictures of text in [-1, 1]: lines of digits of random size and ink on light paper, with a little noise."""
    (spec,) = specs
    n, channels, height, width = shapes[spec.name]
    pages = np.ones((n, channels, height, width))
    for page in pages:
        top = int(rng.integers(2, 6))
        while top + 7 <= height:
            largest = min(6, (height - top) // 7)
            scale = int(rng.integers((largest + 1) // 2, largest + 1))
            _draw_line(rng, page, top, scale)
            top += 7 * scale + int(rng.integers(8, 24))
    pages += 0.05 * rng.standard_normal(pages.shape)
    return {spec.name: pages.clip(-1, 1).astype(np.float32)}


def _draw_line(rng: np.random.Generator, page: np.ndarray, top: int, scale: int) -> None:
    ink = -rng.uniform(0.4, 1.0)
    left = int(rng.integers(0, 12))
    while left + 5 * scale <= page.shape[-1]:
        if rng.random() > 0.15:  # else a space between words
            glyph = DIGITS[rng.integers(10)].repeat(scale, axis=0).repeat(scale, axis=1)
            page[:, top : top + 7 * scale, left : left + 5 * scale][:, glyph] = ink
        left += 6 * scale


def make_audio(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """A chunk of voiced sound and the recurrent state. Shorter than 512 samples is sampled at 8 kHz, else at 16 kHz."""
    arrays = {}
    batch, samples = shapes["input"]
    rate = 16000 if samples >= 512 else 8000
    for spec in specs:
        match spec.name:
            case "input":
                arrays["input"] = _voice(rng, batch, samples, rate)
            case "sr":
                arrays["sr"] = np.array(rate, np.int64)
            case "state":
                arrays["state"] = (0.3 * rng.standard_normal((2, batch, 128))).astype(np.float32)
            case name:
                arrays[name] = (0.3 * rng.standard_normal(shapes[name])).astype(np.float32)
    return arrays


def _voice(rng: np.random.Generator, batch: int, samples: int, rate: int) -> np.ndarray:
    """Ten harmonics of a pitch between 80 and 300 Hz, falling in strength, over quiet noise."""
    seconds = np.arange(samples) / rate
    pitch = rng.uniform(80, 300, (batch, 1, 1))
    harmonic = np.arange(1, 11)[:, None]
    waves = np.sin(2 * np.pi * (pitch * harmonic * seconds + rng.random((batch, 10, 1)))) / harmonic
    return (0.15 * waves.sum(axis=1) + 0.01 * rng.standard_normal((batch, samples))).astype(np.float32)


def make_file_bytes(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """Starts and ends of files for magika: text, or any bytes, padded with 256 where a file is shorter."""
    (spec,) = specs
    n, length = shapes[spec.name]
    rows = np.full((n, length), 256)
    for row in rows:
        half = length // 2
        used = int(rng.integers(1, half + 1))
        low, high = (32, 127) if rng.random() < 0.5 else (0, 256)
        row[:used] = rng.integers(low, high, used)
        row[length - used :] = rng.integers(low, high, used)
    return {spec.name: rows.astype(spec.dtype)}


def make_sentences(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """BERT token ids [CLS] ... [SEP] with padding, a mask that attends to at least one token, segment ids."""
    batch, tokens = shapes["input_ids"]
    lengths = rng.integers(1, tokens + 1, batch)
    mask = np.arange(tokens) < lengths[:, None]
    ids = np.where(mask, rng.integers(1000, 30522, (batch, tokens)), 0)
    ids[:, 0] = 101
    ids[np.arange(batch), lengths - 1] = np.where(lengths > 1, 102, 101)
    segments = (np.arange(tokens) >= lengths[:, None] // 2) & mask
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: array.astype(np.int64) for name, array in arrays.items()}


def make_prompt(rng: np.random.Generator, specs: tuple[InputSpec, ...], shapes: Shapes) -> Arrays:
    """Tokens for the decoder, at the positions that follow its cache, and the cache: keys and values of variance 1."""
    batch, tokens = shapes["input_ids"]
    past = shapes["past_k_0"][2] if "past_k_0" in shapes else 0
    arrays = {
        "input_ids": rng.integers(0, 8000, (batch, tokens), dtype=np.int64),
        "position_ids": np.tile(np.arange(past, past + tokens, dtype=np.int64), (batch, 1)),
    }
    for spec in specs:
        if spec.name.startswith("past_"):
            arrays[spec.name] = rng.standard_normal(shapes[spec.name], dtype=np.float32)
    return arrays
