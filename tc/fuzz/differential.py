"""`tc` against the oracles on one model: a verdict in words.

A result is wrong when it differs from both oracles where they agree, or from the only one that runs. It is refused when `tc` raises on what
both oracles run. A process that dies is seen from outside (`tc.fuzz.process`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tc.compiler import compile_model
from tc.errors import InputError, InternalError, TcError
from tc.fuzz.builder import Input
from tc.fuzz.evaluate import Failed, Feeds, ValueTrace, disagreement, run_onnxruntime, spread, trace
from tc.fuzz.generate import Case, live_names, operators, without_dead_nodes
from tc.precision.request import checked_precision

Tell = Callable[[str, int, int], None]
ROUNDINGS = {"bf16": 2.0**-8, "bf16x3": 2.0**-16, "f16": 2.0**-11, "mixed": 2.0**-8}  # the relative error of storing a float, by precision
FAILURES = ("wrong", "crash", "timeout", "internal", "refused", "unchecked")


@dataclass(frozen=True)
class Verdict:
    """What came of one model. `kind`: "ok", "undecided" (no oracle, or they disagree), or one of FAILURES:
    "internal" is a refusal in words that are not `tc`'s own, "unchecked" a bad index that went through. `run` says on which inputs,
    `oracles` how many of them ran it."""

    kind: str
    text: str = ""
    run: int = 0
    oracles: int = 2

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES

    @property
    def signature(self) -> str:
        """The same for failures that look alike: names and numbers are left out."""
        text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)", "#", self.text.split("\n")[0])
        text = re.sub(r"^[\w ,]*?: (?=\w+:)", "", text) if self.kind != "wrong" else text
        return self.kind + ": " + re.sub(r"[\w%.]*\d[\w.]*", "#", text)[:100]


@dataclass(frozen=True)
class How:
    """How a model is compiled: words of `tc.compile`. What precisions below f32 are calibrated on are the first inputs. UserError for a
    precision that there is not."""

    threads: int = 1
    numerics: str = "default"
    target: str = "native"
    precision: str = "f32"

    def __post_init__(self) -> None:
        checked_precision(self.precision, {"x": np.zeros(1, np.float32)})

    @property
    def rounding(self) -> float:
        """The relative error that storing a float may make, beside that of its own dtype."""
        return ROUNDINGS.get(self.precision.partition(":")[0], 0.0)

    def options(self, first: Feeds) -> dict[str, Any]:
        """The keywords for `tc.compile`."""
        return {**vars(self), "calibration": [first] if self.rounding else None}


USUAL = How()


@dataclass(frozen=True)
class Run:
    """Inputs to run a model on. `spoilt`: an index among them is out of range, and both oracles are to notice."""

    feeds: Feeds
    spoilt: bool = False


@dataclass(frozen=True)
class Expected:
    """What the oracles give on one run: for each output the values of those that run, and how far apart correct answers may be."""

    names: list[str] = field(default_factory=list)
    values: list[list[Any]] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    oracles: int = 0


def expect(model: onnx.ModelProto, feeds: Feeds, rounding: float = 0.0) -> Expected:
    """Ask both oracles, `rounding` being the relative error that storing a float may make. An output on which they disagree, or which
    depends on roundings, has an infinite bound. Where neither runs the whole model but some one runs each node, that is the answer."""
    names = [o.name for o in model.graph.output]
    steps = trace(model, feeds)
    try:
        theirs: list[Any] | None = run_onnxruntime(model, feeds)
    except Failed:
        theirs = None
    known = not steps.problem and (steps.by_reference or theirs is None) and all(n in steps.values for n in names)
    mine = [steps.values[n] for n in names] if known else None
    bounds = [_bound(steps, name, value) for name, value in zip(names, theirs or mine or names)]
    if mine is not None and theirs is not None:
        bounds = [b if not disagreement(m, t, b) else float("inf") for m, t, b in zip(mine, theirs, bounds)]
    if rounding and not steps.problem:
        try:
            wider = spread(model, {n: steps.values[n] for n in names}, feeds, rounding)
        except Failed:  # what is no model of other roundings has no bound
            wider = dict.fromkeys(names, float("inf"))
        bounds = [bound if bound == float("inf") else max(bound, wider[name]) for name, bound in zip(names, bounds)]
    found = [v for v in (theirs, mine) if v is not None]
    return Expected(names, [list(values) for values in zip(*found)], bounds, len(found))


def _bound(steps: ValueTrace, name: str, value: Any) -> float:
    if name in steps.errors:
        return 4 * steps.errors[name]
    if name in steps.values:  # an input or a constant that is an output too
        return 0.0
    largest = (
        np.abs(value.astype(np.float64)).max(initial=0.0)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        else 0.0
    )
    return 1e-4 * float(largest)


def judge(
    model: onnx.ModelProto,
    runs: Sequence[Run],
    how: How = USUAL,
    *,
    tell: Tell = lambda stage, run, oracles: None,
) -> Verdict:
    """Compile the model once, `how` it says, for a target that is here, and run it on everything; the first failure, or "ok". `tell`
    hears who works, "oracles" or "tc", on which run, and how many oracles took its inputs."""
    tell("oracles", 0, 0)
    expected = [Expected() if run.spoilt else expect(model, run.feeds, how.rounding) for run in runs]
    bare = without_dead_nodes(model, _empty(expected[0]))  # bad indices may go by where no number depends on what they choose
    expected = [expect(bare, _nearer(run.feeds), how.rounding) if run.spoilt else known for run, known in zip(runs, expected)]
    tell("tc", 0, expected[0].oracles)
    try:
        module = compile_model(model, **how.options(runs[0].feeds))
    except Exception as error:
        return _refusal(model, error, expected[0], 0)
    if not expected[0].oracles:
        return Verdict("undecided", "no oracle runs it")
    for index, (run, wanted) in enumerate(zip(runs, expected)):
        if index and not _fits_declaration(model, wanted):
            continue
        tell("tc", index, wanted.oracles)
        verdict = _judge_run(model, module, run, wanted, index)
        if verdict is not None:
            return verdict
    if any(b != float("inf") for b in expected[0].bounds):
        return Verdict("ok")
    return Verdict("undecided", "the oracles disagree")


def _empty(expected: Expected) -> set[str]:
    """The results that have no elements."""
    return {name for name, values in zip(expected.names, expected.values) if values and not np.size(values[0])}


def _fits_declaration(model: onnx.ModelProto, wanted: Expected) -> bool:
    """Whether the results have the ranks that the model states: what Squeeze leaves may change with the dims."""
    stated = {o.name: len(o.type.tensor_type.shape.dim) for o in model.graph.output}
    return all(value.ndim == stated[name] for name, values in zip(wanted.names, wanted.values) for value in values)


def _nearer(feeds: Feeds) -> Feeds:
    """The same with integers of at most a million: the reference evaluator wraps an index in steps of the axis' size, one by one."""
    far = [name for name, value in feeds.items() if value.dtype.kind == "i" and value.dtype.itemsize >= 4]
    return {**feeds, **{name: np.asarray(np.clip(feeds[name], -(10**6), 10**6)) for name in far}}


def _judge_run(model: onnx.ModelProto, module: Any, run: Run, wanted: Expected, index: int) -> Verdict | None:
    feeds = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in run.feeds.items()}
    try:
        found = module.run(feeds)
    except Exception as error:
        if index and wanted.oracles < 2:
            return None  # not valid with these dims
        return None if run.spoilt else _refusal(model, error, wanted, index)
    if run.spoilt:
        return Verdict("unchecked", "a bad index went through", index) if wanted.oracles == 0 else None
    for name, value in feeds.items():
        if isinstance(value, np.ndarray) and value.tobytes() != run.feeds[name].tobytes():
            return Verdict("wrong", "an input was written to", index)
    if index and wanted.oracles < 2:
        return None
    again, has_loop = module.run(feeds), bool(operators(model.graph)["Loop"])
    for name, values, bound in zip(wanted.names, wanted.values, wanted.bounds):
        if isinstance(found[name], np.ndarray) and found[name].tobytes() != again[name].tobytes():
            return Verdict("wrong", "another result when called again", index, wanted.oracles)
        if bound == float("inf"):
            continue
        if wanted.oracles < 2 and has_loop and all(_are_empty(found[name], value) for value in values):
            continue  # what no iteration made has no sizes: onnxruntime makes all of them 0
        texts = [disagreement(found[name], value, bound) for value in values]
        if all(texts):
            return Verdict("wrong", f"{name}: {texts[0]}", index, wanted.oracles)
    return None


def _are_empty(found: Any, expected: Any) -> bool:
    return all(isinstance(v, np.ndarray) and not v.size for v in (found, expected)) and found.ndim == expected.ndim


def _refusal(model: onnx.ModelProto, error: Exception, wanted: Expected, index: int) -> Verdict:
    text = f"{type(error).__name__}: {error.said if isinstance(error, InternalError) else error}"  # not where its reproducer is
    if wanted.oracles < 2 and type(error) is not InternalError:  # which nobody else need have an opinion of
        few = "one oracle runs what tc does not" if wanted.oracles else "no oracle runs it, nor does tc"
        return Verdict("undecided", f"{few}: {text}", index)
    return Verdict(
        "refused" if (isinstance(error, TcError) and type(error) not in (InputError, InternalError)) or index else "internal",
        text,
        index,
    )


def runs_of(case: Case) -> list[Run]:
    """The drawn inputs; other data; other sizes for the symbols; and, where results depend on indices, one out of range."""
    rng = np.random.default_rng(case.seed)
    runs = [Run(case.feeds), Run({i.name: _other_data(i, rng) for i in case.inputs})]
    symbols = {dim for i in case.inputs for dim in i.shape if isinstance(dim, str)}
    for _ in range(2 if symbols else 0):
        sizes = {name: int(rng.choice([0, 1, 1, 2, 3, 4, 7, 16])) for name in sorted(symbols)}
        runs.append(Run({i.name: _other_shape(i, sizes, rng) for i in case.inputs}))
    live = live_names(case.model.graph)
    dead = {name for node in case.model.graph.node if not live & set(node.output) for name in node.input}
    for spoilt in [i for i in case.inputs if i.kind == "index" and i.array.size and i.name in live - dead]:
        for far in (False, True):
            runs.append(Run({**case.feeds, spoilt.name: _spoil(spoilt.array, far, rng)}, spoilt=True))
    return runs


def _other_data(i: Input, rng: np.random.Generator) -> np.ndarray:
    return (
        np.asarray(rng.permutation(i.array.reshape(-1)).reshape(i.array.shape))
        if i.kind in ("data", "weights")
        else i.array
    )


def _other_shape(i: Input, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = [sizes[dim] if isinstance(dim, str) else n for dim, n in zip(i.shape, i.array.shape)]
    if i.array.size == 0:
        return np.ones(shape, i.array.dtype)
    return np.resize(_other_data(i, rng), shape)


def _spoil(array: np.ndarray, far: bool, rng: np.random.Generator) -> np.ndarray:
    bad = array.copy()
    info = np.iinfo(array.dtype)
    near = [500, -500] if not far else [10**9, -(10**9), info.max, info.min]
    bad.reshape(-1)[rng.integers(bad.size)] = rng.choice(near)
    return bad
