"""Whether quantized graphs are computed as they say: node by node, end to end, and to the same bits on every kind of CPU.

    python -m benchmarks.qdq_checks digits_qdq resnet50_qdq     all twins of the zoo without names; exit code 1 where a bar is missed

Node by node, `tc` gets the 8-bit tensors that onnxruntime (optimisations off) made, each quantization of the graph is computed from
them, and its elements are compared; the first samples are. End to end, errors are taken against the same graph in double precision,
over all samples, and are compared with those of onnxruntime as it is run and without optimisations, as ratios with their standard
errors: a single rounding that turns out otherwise changes all that follows in a network of random weights, so that one sample says
nothing. A row names the worst quantizations, so that a defect has a place.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import tc
from benchmarks import zoo
from benchmarks.inputs import Arrays
from benchmarks.qdq_reference import run_in_double
from benchmarks.report import describe_machine, load_rows, replace_file
from tc.measure.runtimes import ort_session
from tc.target import Target

MOST_DIFFERING, MOST_QUANTA, MOST_ERROR = 1e-3, 1, 1.05
"""Of integer elements; quanta of any element; of onnxruntime's error end to end, of either kind."""

SURE, LEAST_ERROR = 2.0, 1e-6
"""So many standard errors a ratio is above the bar where it is missed, and so large a difference of errors counts."""

PLACED = 2
"""So many of the samples are compared node by node."""

DOTS = ("avx512vnni", "avxvnni", "avx512bf16", "avx512fp16", "amx-")
"""How the features begin that multiply and sum narrow numbers in one instruction."""

FLOAT_REDUCTIONS = (
    "Softmax",
    "LayerNormalization",
    "InstanceNormalization",
    "GlobalAveragePool",
    "AveragePool",
    "Reduce",
)
"""How operators begin whose floats are summed: their order may differ from one target to another, never between numbers of threads."""

MADE = "_made"


@dataclass(frozen=True)
class Place:
    """One quantization: its elements, how many of them differ from onnxruntime's, and by how many quanta at most."""

    name: str
    elements: int
    differing: int
    quanta: int

    @property
    def share(self) -> float:
        return self.differing / max(self.elements, 1)


@dataclass(frozen=True)
class Beside:
    """The error of another runtime, relative (RMS, over all samples), and the error of `tc` over it, with the standard error of that."""

    error: float
    ratio: float
    spread: float


@dataclass(frozen=True)
class Check:
    """What was found of one model, over so many samples. `error`: of `tc`, relative (RMS, over all of them); `ort`, `ort_plain`:
    onnxruntime as people run it, and without optimisations. `bits`: targets and numbers of threads, by the results that they share."""

    model: str
    elements: int
    differing: int
    quanta: int
    worst: tuple[Place, ...]
    samples: int
    error: float
    ort: Beside
    ort_plain: Beside
    bits: tuple[tuple[str, ...], ...]
    float_sums: bool
    problems: tuple[str, ...] = field(default=())


# -- node by node


def is_maker(node: onnx.NodeProto) -> bool:
    """Whether the integers that a node makes come of rounding."""
    return node.op_type.startswith(("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm"))


def values_of(model: onnx.ModelProto, names: Sequence[str], arrays: Arrays) -> Arrays:
    """What onnxruntime without optimisations has in the values `names`, which are outputs or not."""
    import onnxruntime

    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    there = {value.name for value in asked.graph.output}
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asked.onnx"
        onnx.save(asked, path)
        session = ort_session(path, 1, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    return dict(zip(names, session.run(list(names), dict(arrays)), strict=True))


def cut(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, Arrays, Arrays]:
    """`model` with every quantized tensor an input, and what makes it an output; those inputs, and what the outputs should be."""
    makers = [node for node in model.graph.node if is_maker(node)]
    names = [name for node in makers for name in node.output]
    results = [value.name for value in model.graph.output if value.name not in names]
    values = values_of(model, [*names, *results], arrays)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for node in graph.node:
        if is_maker(node):
            node.output[:] = [f"{name}{MADE}" for name in node.output]
    inputs = dict(arrays) | {name: values[name] for name in names}
    outputs = {f"{name}{MADE}": values[name] for name in names} | {name: values[name] for name in results}
    for declared, tensors in ((graph.input, inputs), (graph.output, outputs)):
        del declared[:]
        for name, array in tensors.items():
            declared.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            )
    graph.ClearField("value_info")
    return made, inputs, outputs


def check_places(model: onnx.ModelProto, samples: Sequence[Arrays], target: Target) -> list[Place]:
    """Every quantization of `model`, computed by `tc` from what onnxruntime has before it. All samples are of the same shapes."""
    module = None
    found: dict[str, Place] = {}
    for arrays in samples:
        made, inputs, expected = cut(model, arrays)
        module = module or tc.compile(made, target, threads=1)
        results = module.run({info.name: inputs[info.name] for info in module.inputs})
        for name, array in expected.items():
            if array.dtype.kind in "iu":
                place = compare_integers(name.removesuffix(MADE), results[name], array)
                before = found.get(place.name, Place(place.name, 0, 0, 0))
                counts = before.elements + place.elements, before.differing + place.differing
                found[place.name] = Place(place.name, *counts, max(before.quanta, place.quanta))
    return list(found.values())


def compare_integers(name: str, mine: np.ndarray, other: np.ndarray) -> Place:
    assert (mine.shape, mine.dtype) == (other.shape, other.dtype), (
        f"{name}: {mine.dtype}{mine.shape}, not {other.dtype}{other.shape}"
    )
    apart = np.abs(mine.astype(np.int64) - other)
    return Place(name, apart.size, int(np.count_nonzero(apart)), int(apart.max(initial=0)))


# -- end to end


def relative_l2(found: Sequence[Sequence[np.ndarray]], exact: Sequence[Sequence[np.ndarray]]) -> float:
    """The length of all differences over that of the exact results, of the worst output over all samples."""
    errors = [0.0]
    for mine, wanted in zip(zip(*found, strict=True), zip(*exact, strict=True), strict=True):
        apart, whole = (
            np.concatenate([a.ravel() for a in arrays])
            for arrays in ([m - w for m, w in zip(mine, wanted, strict=True)], wanted)
        )
        errors.append(float(np.linalg.norm(apart) / max(np.linalg.norm(whole), 1e-30)))
    return max(errors)


def squared_errors(found: Sequence[Sequence[np.ndarray]], exact: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """f64[samples]: the squares of all differences, those of each output over the squares of that output in all samples."""
    sizes = [max(sum(_squares(a) for a in arrays), 1e-60) for arrays in zip(*exact, strict=True)]
    return np.array(
        [
            sum(_squares(m - w) / size for m, w, size in zip(mine, wanted, sizes, strict=True))
            for mine, wanted in zip(found, exact, strict=True)
        ]
    )


def _squares(array: np.ndarray) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def beside(mine: np.ndarray, theirs: np.ndarray) -> Beside:
    """The errors of all samples beside those of another runtime; the spread is inf where too few samples tell anything.
    Source: "The Jackknife Estimate of Variance" (Efron and Stein, 1981)."""
    count, ratio = len(mine), _ratio(mine.sum(), theirs.sum())
    without = np.array([_ratio(np.delete(mine, k).sum(), np.delete(theirs, k).sum()) for k in range(count)])
    is_known = count > 1 and np.isfinite(without).all()
    spread = float(np.sqrt((count - 1) / count * np.square(without - without.mean()).sum())) if is_known else np.inf
    return Beside(float(np.sqrt(theirs.sum())), ratio, 0.0 if ratio == np.inf else spread)


def _ratio(mine: float, theirs: float) -> float:
    return float(np.sqrt(mine / theirs)) if theirs else (np.inf if mine else 1.0)


def check_errors(path: Path, model: onnx.ModelProto, samples: Sequence[Arrays], target: Target) -> tuple[np.ndarray, ...]:
    """Squared errors of all samples against the graph in double precision: of `tc`, of onnxruntime, and without optimisations."""
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    exact = [run_in_double(model, arrays) for arrays in samples]
    module = tc.compile(path, target, threads=1)
    runs = [[list(module.run(dict(arrays)).values()) for arrays in samples]]
    for level in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL):
        session = ort_session(path, 1, level)
        runs.append([session.run(None, dict(arrays)) for arrays in samples])
    return tuple(squared_errors(run, exact) for run in runs)


# -- bits


def targets(native: Target) -> dict[str, Target]:
    """Kinds of CPU that this one can stand for, by name: itself, itself without dots of narrow numbers, and what has AVX2 alone."""
    plain = replace(native, features=tuple(f for f in native.features if not f.startswith(DOTS)))
    return {"native": native, "without dots": plain, "x86-64-v3": Target.parse("x86-64-v3")}


def check_bits(path: Path, arrays: Arrays, kinds: Mapping[str, Target]) -> tuple[tuple[str, ...], ...]:
    """The targets and numbers of threads, grouped by the bits of their results."""
    groups: dict[bytes, list[str]] = {}
    for name, target in kinds.items():
        for threads in (1, 2):
            results = tc.compile(path, replace(target, cores=max(target.cores, threads)), threads=threads).run(
                dict(arrays)
            )
            groups.setdefault(b"".join(array.tobytes() for array in results.values()), []).append(f"{name}/{threads}")
    return tuple(map(tuple, groups.values()))


# -- all of it


def check(name: str, path: Path, samples: Sequence[Arrays], target: Target) -> Check:
    """Everything about one model, on inputs of one shape."""
    model = onnx.load(path)
    places = check_places(model, samples[:PLACED], target)
    worst = tuple(sorted((p for p in places if p.differing), key=lambda p: (p.quanta, p.share), reverse=True)[:5])
    elements, differing = sum(p.elements for p in places), sum(p.differing for p in places)
    quanta = max((p.quanta for p in places), default=0)
    mine, ort, plain = check_errors(path, model, samples, target)
    errors = float(np.sqrt(mine.sum())), beside(mine, ort), beside(mine, plain)
    kinds = targets(target)
    bits = check_bits(path, samples[0], kinds)
    float_sums = any(node.op_type.startswith(FLOAT_REDUCTIONS) for node in model.graph.node)
    found = Check(name, elements, differing, quanta, worst, len(samples), *errors, bits, float_sums)
    return replace(found, problems=tuple(problems(found, tuple(kinds))))


def problems(found: Check, kinds: Sequence[str]) -> list[str]:
    """The bars that are missed, in words."""
    missed = []
    if found.differing > MOST_DIFFERING * found.elements:
        missed.append(f"{found.differing / found.elements:.3%} of the integers differ")
    if found.quanta > MOST_QUANTA:
        missed.append(f"an integer differs by {found.quanta} quanta")
    for name, other in (("onnxruntime's", found.ort), ("onnxruntime's without optimisations", found.ort_plain)):
        if other.ratio - SURE * other.spread > MOST_ERROR and found.error - other.error > LEAST_ERROR:
            missed.append(f"error {found.error:.2e}, {other.ratio:.2f} ± {other.spread:.2f} times {name}")
    if len(found.bits) > 1 and not found.float_sums:
        missed.append("bits depend on the target or the threads")
    if any(
        {f"{kind}/1", f"{kind}/2"} & set(group) in ({f"{kind}/1"}, {f"{kind}/2"})
        for kind in kinds
        for group in found.bits
    ):
        missed.append("bits depend on the number of threads")
    return missed


def as_lines(found: Check) -> list[str]:
    bits = " | ".join(" ".join(group) for group in found.bits)
    lines = [
        f"{found.model}: {found.differing} of {found.elements} integers differ ({found.differing / max(found.elements, 1):.4%}), by "
        f"{found.quanta} at most; same bits: {bits}",
        f"    error over {found.samples} samples {found.error:.3e}; {found.ort.ratio:.3f} ± {found.ort.spread:.3f} times onnxruntime's "
        f"{found.ort.error:.3e}, {found.ort_plain.ratio:.3f} ± {found.ort_plain.spread:.3f} times the {found.ort_plain.error:.3e} without "
        f"optimisations",
    ]
    lines += [f"    {p.name}: {p.differing} of {p.elements} ({p.share:.3%}), by {p.quanta}" for p in found.worst]
    return lines + [f"    MISSED: {text}" for text in found.problems]


# -- the table

TABLE, FORMAT = Path(__file__).parent / "QDQ_CHECKS.json", 1
"""The rows that `--store` keeps, one for each model and processor; the page beside it shows them."""


def store(found: Sequence[Check], table: Path = TABLE) -> None:
    """Put rows of here and now in place of the older ones of these models, and write the page."""
    stamp = describe_machine()
    rows = load_rows(table, FORMAT) if table.exists() else []
    new = [{**asdict(each), **stamp} for each in found]
    keys = {(row["model"], row["cpu"]) for row in new}
    rows = sorted((row for row in [*rows, *new] if row in new or (row["model"], row["cpu"]) not in keys), key=lambda row: row["model"])
    replace_file(table, json.dumps({"format": FORMAT, "rows": rows}, indent=1) + "\n")
    replace_file(table.with_suffix(".md"), as_page(rows))


PAGE = """# Quantized networks, node by node

`python -m benchmarks.qdq_checks NAME --store` keeps these rows. Integers are those of every quantization, each made of what onnxruntime
without optimisations had before it. Errors are against the graph in double precision, as ratios with their standard errors: below 1 `tc`
is nearer to it. Averages and sums of few bytes by the scale of the result lie halfway between two integers as often as not: which of them
it is depends on the roundings of f32, in every runtime.

"""

COLUMNS = ("network", "integers that differ", "quanta", "the worst quantization", "error", "over onnxruntime's", "over that as it stands")


def as_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a page of Markdown."""
    table = [[*COLUMNS, "missed", "where"], ["---"] * (len(COLUMNS) + 2), *map(_as_cells, rows)]
    return PAGE + "".join(f"| {' | '.join(cells)} |\n" for cells in table)


def _as_cells(row: Mapping[str, Any]) -> list[str]:
    worst = max(row["worst"], key=lambda p: p["differing"] / max(p["elements"], 1), default=None)
    return [
        row["model"],
        f"{row['differing']} of {row['elements']}, {row['differing'] / max(row['elements'], 1):.4%}",
        str(row["quanta"]),
        f"{worst['name']}: {worst['differing'] / worst['elements']:.3%}" if worst else "-",
        f"{row['error']:.2e}, {row['samples']} samples",
        *(f"{row[other]['ratio']:.3f} ± {row[other]['spread']:.3f}" for other in ("ort", "ort_plain")),
        "; ".join(row["problems"]) or "-",
        f"{row['cpu']}, {row['date']}, {row['commit']}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qdq_checks", description="Check quantized models.")
    parser.add_argument(
        "models", nargs="*", metavar="NAME", help="of the zoo, or ONNX files (default: all quantized ones)"
    )
    parser.add_argument("--samples", type=int, default=8, help="inputs for each model, as the zoo draws them from seed 0 (default: 8)")
    parser.add_argument("--target", default="native")
    parser.add_argument("--store", action="store_true", help=f"keep what was found in {TABLE.name}, and the page beside it")
    parser.add_argument("--json", type=Path, help="write what was found there as well")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    found = []
    for name in options.models or [name for name in zoo.names() if zoo.ENTRIES[name].twin]:
        path = zoo.path(name) if name in zoo.names() else Path(name)
        found.append(
            check(
                name, path, [zoo.random_inputs(name, rng) for _ in range(options.samples)], Target.parse(options.target)
            )
        )
        print("\n".join(as_lines(found[-1])), flush=True)
    if options.store:
        store(found)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return int(any(each.problems for each in found))


if __name__ == "__main__":
    sys.exit(main())
