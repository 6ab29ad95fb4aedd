"""A made-up tuning problem: tiles of a product on a machine with registers, two caches and cores, its optimum known.

It is shaped like real ones: knobs interact, some points are illegal, most are slow, a few percent are within 2x of the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tc.errors import ScheduleError
from tc.schedule.knobs import Knob, Value

ORDERS = tuple("".join(p) for p in itertools.permutations("mnk"))


@dataclass(frozen=True)
class Product:
    """Sizes of a product; they move the optimum."""

    m: int = 256
    n: int = 512
    k: int = 512


KNOBS = (
    Knob("rows", (1, 2, 4, 6, 8, 12, 14, 16, 24), 4),
    Knob("vectors", (1, 2, 3, 4), 1),
    Knob("depth", (16, 32, 64, 128, 256, 512), 64),
    Knob("panel_m", (16, 32, 48, 64, 96, 128, 256), 64),
    Knob("panel_n", (64, 128, 256, 512), 128),
    Knob("order", ORDERS, "mnk", ordered=False),
    Knob("pack_a", (False, True), False),
    Knob("pack_b", (False, True), True),
    Knob("unroll", (1, 2, 4, 8), 1),
    Knob("grain", (1, 2, 4, 8, 16), 1),
)
NAMES = tuple(knob.name for knob in KNOBS)


@dataclass(frozen=True)
class Tiled:
    """A candidate. Where one panel holds all rows, points that differ in `grain` alone are one program."""

    point: tuple[tuple[str, Value], ...]
    variant: str = ""
    rule: str = "tiles"

    @property
    def key(self) -> str:
        values = dict(self.point)
        if values["panel_m"] == 256:
            values["grain"] = 1
        return repr(tuple(values.values()))


class TileSpace:
    """The points of KNOBS whose register tile has 40 accumulators at most. `made` counts the candidates."""

    def __init__(self, default: Mapping[str, Value] | None = None) -> None:
        self.made = 0
        self._default = self.at(default or {})

    def default(self) -> Tiled:
        return self._default

    def at(self, point: Mapping[str, Value]) -> Tiled:
        self.made += 1
        values = {k.name: point.get(k.name, k.default) for k in KNOBS}
        values = {k.name: values[k.name] if values[k.name] in k.options else k.default for k in KNOBS}
        if values["rows"] * values["vectors"] > 40:
            raise ScheduleError(f"tile: {values['rows']} x {values['vectors']} accumulators")
        return Tiled(tuple(values.items()))

    def sample(self, rng: np.random.Generator) -> Tiled:
        return self.at({k.name: k.options[rng.integers(len(k.options))] for k in KNOBS})

    def at_all(self, points: Sequence[Mapping[str, Value]]) -> list[Tiled | None]:
        return [self._try(point) for point in points]

    def _try(self, point: Mapping[str, Value]) -> Tiled | None:
        try:
            return self.at(point)
        except ScheduleError:
            return None

    def mutation(self, candidate: Tiled, rng: np.random.Generator) -> dict[str, Value]:
        values = dict(candidate.point)
        for _ in range(1 + int(rng.integers(2))):
            knob = KNOBS[rng.integers(len(KNOBS))]
            values[knob.name] = knob.options[rng.integers(len(knob.options))]
        return values

    def crossing(self, first: Tiled, second: Tiled, rng: np.random.Generator) -> dict[str, Value]:
        other = dict(second.point)
        return {name: other[name] if rng.random() < 0.5 else value for name, value in first.point}

    def neighbours(self, candidate: Tiled) -> list[dict[str, Value]]:
        values = dict(candidate.point)
        found = []
        for knob in KNOBS:
            at = knob.options.index(values[knob.name])
            near = (at - 1, at + 1) if knob.ordered else range(len(knob.options))
            found.extend({**values, knob.name: knob.options[i]} for i in near if 0 <= i < len(knob.options) and i != at)
        return found

    def size(self) -> float:
        return float(np.prod([len(knob.options) for knob in KNOBS]))


def _terms(values: Mapping[str, np.ndarray], product: Product) -> dict[str, np.ndarray]:
    """What the cost is made of, also what models see: of a program, not of a knob."""
    rows, vectors, depth = values["rows"], values["vectors"], values["depth"]
    accumulators = rows * vectors
    tiles = np.ceil(product.m / rows) * np.ceil(product.n / (16 * vectors))
    waste = tiles * rows * vectors * 16 / (product.m * product.n)
    loads = (rows / (1 + values["unroll"] * 0.1) + vectors) / accumulators
    spills = np.maximum(accumulators + vectors + 1 - 32, 0) / 32
    l1 = 4 * depth * (16 * vectors + 0.25 * rows) / 32768
    l2 = 4 * depth * np.minimum(values["panel_m"], product.m) / (1 << 20) * (2.0 - values["pack_a"])
    strided = (1 - values["pack_a"]) * (product.k * 4 / 4096) + (1 - values["pack_b"]) * (product.n * 4 / 4096)
    packing = values["pack_a"] * 16 / product.n * 8 + values["pack_b"] * 16 / product.m * 8
    inner = np.where(values["inner"] == 2, 0.0, np.where(values["inner"] == 1, 0.35, 0.6))
    rereads = product.k / depth * 0.02 + product.n / values["panel_n"] * 0.015
    tasks = np.ceil(product.m / values["panel_m"]) / values["grain"]
    idle = np.maximum(np.ceil(tasks / 2) * 2 / np.maximum(tasks, 1e-9) - 1, 0)
    starts = tasks * 0.004
    return {
        "waste": waste, "loads": loads, "spills": spills, "l1": l1, "l2": l2, "strided": strided, "packing": packing,
        "inner": inner, "rereads": rereads, "idle": np.minimum(idle, 3), "starts": starts, "accumulators": accumulators,
        "depth": depth, "rows": rows,
    }  # fmt: skip


def _seconds(t: Mapping[str, np.ndarray], product: Product) -> np.ndarray:
    latency = np.maximum(10 / t["accumulators"], 1)
    issue = np.maximum(latency, 0.5 + t["loads"] * 2) + 6 * t["spills"]
    memory = 0.9 * np.maximum(t["l1"] - 0.8, 0) + 0.7 * np.maximum(t["l2"] - 0.6, 0) + 0.4 * t["strided"]
    per_flop = (issue * t["waste"] + memory + t["inner"] + t["rereads"]) * (1 + t["idle"]) + t["packing"] + t["starts"]
    return per_flop * product.m * product.n * product.k / 6e10


def _columns(points: Sequence[Mapping[str, Value]]) -> dict[str, np.ndarray]:
    columns = {name: np.array([p[name] for p in points]) for name in NAMES if name != "order"}
    columns["inner"] = np.array(["kmn".index(str(p["order"])[2]) for p in points])
    columns["outer"] = np.array(["mnk".index(str(p["order"])[0]) for p in points])
    return {name: np.asarray(column, np.float64) for name, column in columns.items()}


def seconds_of(candidates: Sequence[Tiled], product: Product = Product()) -> np.ndarray:
    return _seconds(_terms(_columns([dict(c.point) for c in candidates]), product), product)


def features_of(candidates: Sequence[Tiled], product: Product = Product()) -> np.ndarray:
    """float32[n, d], logarithms of the terms."""
    terms = _terms(_columns([dict(c.point) for c in candidates]), product)
    return np.log2(np.stack([terms[name] for name in sorted(terms)], axis=1) + 1e-2).astype(np.float32)


@cache
def best_seconds(product: Product = Product()) -> float:
    """Over all legal points, by looking at each."""
    grids = np.meshgrid(
        *[np.arange(3) if k.name == "order" else np.array(k.options, np.float64) for k in KNOBS], indexing="ij"
    )
    columns = {k.name: g.ravel().astype(np.float64) for k, g in zip(KNOBS, grids)}
    columns["inner"] = columns.pop("order")
    legal = columns["rows"] * columns["vectors"] <= 40
    columns = {name: column[legal] for name, column in columns.items()}
    return float(_seconds(_terms(columns, product), product).min())
