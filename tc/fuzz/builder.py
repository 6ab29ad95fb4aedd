"""A model under construction: every node is run as it is added, so that shapes and values are always known.

Rows of the operator tables draw their operands from a `Builder` and `emit` nodes. A node that no oracle runs, on which the oracles
disagree, whose result depends on roundings, or that leaves the range where floats are meaningful raises `Rejected`, and the builder goes
back to where it was before the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from tc.fuzz.evaluate import EvaluationStep, Failed, Unstable, has_onnxruntime, is_float, step

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I8, I16, I32, I64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
U8, U16, U32, U64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
BOOL = np.dtype(np.bool_)
FLOATS = (F32, F16, F64, BF16)
INTEGERS = (I64, I32, I8, I16, U8, U16, U32, U64)
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, BOOL)
_WEIGHTS = {F32: 10.0, I64: 4.0, I32: 3.0, BOOL: 2.0, F16: 2.0, F64: 2.0, BF16: 0.3}
_TYPE_NAMES = {
    "float": F32, "float16": F16, "double": F64, "bfloat16": BF16, "bool": BOOL, "int8": I8, "int16": I16, "int32": I32,
    "int64": I64, "uint8": U8, "uint16": U16, "uint32": U32, "uint64": U64,
}  # fmt: skip
LEARNING, MICROSOFT = "ai.onnx.ml", "com.microsoft"
DOMAINS = {LEARNING: 3, MICROSOFT: 1}  # with the version that rows are written for
REFERENCE_SINCE = 18  # the reference evaluator takes many operators of older opsets for those of today


class Rejected(Exception):
    """A row's draw came to nothing; the model stays as it was."""


@dataclass(frozen=True)
class Style:
    """What one model is like. Probabilities are in [0, 1]."""

    opset: int
    nodes: int
    p_symbolic: float = 0.5  # that a dim of an input is a symbol
    p_zero: float = 0.0  # that a dim is 0
    p_one: float = 0.2
    p_runtime: float = 0.4  # that a shape, an axis, an index is known at run time only
    p_initializer: float = 0.3  # that fresh data is a constant of the model
    p_special: float = 0.0  # that fresh floats hold NaN, infinities and -0.0, and integers their extremes
    dtypes: tuple[np.dtype, ...] = ALL
    both: bool = True  # only nodes that both oracles run
    symbols: int = 4  # how many symbols at most
    check_indices: bool = False  # index operands are inputs of the model, to be spoilt later
    most_elements: int = 6000  # of a result
    scale: float = 1.0  # tensors have about so many times the elements that are enough to find wrong numbers


@dataclass(frozen=True, eq=False)
class Held:
    """A value of the model, by name, with what it is when the model runs on the drawn inputs."""

    name: str
    array: np.ndarray
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype


@dataclass(frozen=True, eq=False)
class Input:
    """An input of the model. `kind`: "data" and "weights" may hold other numbers, "fixed" may not, "index" is in range and to be spoilt."""

    name: str
    array: np.ndarray
    shape: tuple[int | str | None, ...]
    kind: str


@dataclass
class Shared:
    """What a builder and those of its bodies have in common."""

    inputs: list[Input] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    names: int = 0


class Builder:
    """Draws operands and adds nodes. `depth` counts the bodies around it."""

    def __init__(self, rng: np.random.Generator, style: Style, parent: Builder | None = None) -> None:
        self.rng = rng
        self.style = style
        self.parent = parent
        self.depth = parent.depth + 1 if parent else 0
        self.shared = parent.shared if parent else Shared()
        self.nodes: list[onnx.NodeProto] = []
        self.pool: list[Held] = list(parent.pool) if parent else []
        self.root: Builder = parent.root if parent else self
        opsets = [helper.make_opsetid("", style.opset)]
        self.opsets = opsets
        self.ir_version = max(
            4, helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        )  # before 4, constants are inputs

    def imports(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
        """The opsets of the nodes' domains, ONNX's own first."""
        used = {node.domain for node in nodes}
        return [*self.opsets, *(helper.make_opsetid(name, version) for name, version in DOMAINS.items() if name in used)]

    # chance

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def choose(self, options: Sequence[Any]) -> Any:
        """One of `options`; Rejected when there is none."""
        if not len(options):
            raise Rejected("nothing to choose from")
        return options[int(self.rng.integers(len(options)))]

    def recent(self, known: Sequence[Held]) -> Held:
        """One of the values, later ones more often."""
        return known[int(len(known) * self.rng.random() ** 0.6)]

    def integer(self, lo: int, hi: int) -> int:
        """From lo to hi, both included."""
        return int(self.rng.integers(lo, hi + 1))

    def log_uniform(self, lo: int, hi: int) -> int:
        """From lo to hi, as likely below as above their geometric mean."""
        return round(math.exp(self.rng.uniform(math.log(lo), math.log(hi))))

    def extent(self, lo: int, hi: int) -> int:
        """From lo to hi; in a model of a larger scale, to as many times more as two dims that large take."""
        return self.integer(lo, hi) if self.style.scale <= 1 else self.log_uniform(lo, round(hi * math.sqrt(self.style.scale)))

    def extent_of(self, options: Sequence[int]) -> int:
        """One of `options`; in a model of a larger scale, so many times a power of two that two dims so large have that scale."""
        times = self.log_uniform(1, round(math.sqrt(self.style.scale))) if self.style.scale > 1 else 1
        return int(self.choose(options)) << (times.bit_length() - 1)

    def axis(self, rank: int, *, negative: bool = True) -> int:
        """An axis of a tensor of `rank`, at times counted from the end."""
        if rank == 0:
            raise Rejected("a scalar has no axis")
        found = self.integer(0, rank - 1)
        return found - rank if negative and self.chance(0.35) else found

    def axes(self, rank: int, at_least: int = 0) -> list[int]:
        """Distinct axes in any order."""
        if rank < at_least:
            raise Rejected("too few axes")
        count = self.integer(at_least, rank)
        negative = self.chance(0.3)
        return [int(a) - (rank if negative else 0) for a in self.rng.permutation(rank)[:count]]

    def dim(self) -> int:
        """A size: now and then 0 or 1, else small, else odd."""
        r = self.rng.random()
        if r < self.style.p_zero:
            return 0
        if r < self.style.p_zero + self.style.p_one:
            return 1
        if self.style.scale > 1:
            return self.log_uniform(2, 512)
        if r < 0.9:
            return self.integer(2, 6)
        return int(self.choose((7, 8, 9, 11, 15, 16, 17, 19, 32, 33)))

    def shape(self, rank: int | None = None, most: int = 1500) -> tuple[int, ...]:
        """A random shape of at most `most` elements."""
        rank = self.integer(0, 4) if rank is None else rank
        return self._scaled([self.dim() for _ in range(rank)], most)

    def _scaled(self, dims: list[int], most: int) -> tuple[int, ...]:
        """`dims`, halved until they have at most `most` elements, in a model of a larger scale so many times as many, and not far less."""
        scale = self.style.scale
        while dims and scale > 1 and 0 < np.prod(dims, dtype=np.int64) < most * scale / 16:
            at = self.integer(0, len(dims) - 1)
            dims[at] = 2 * dims[at] + self.integer(0, 1)
        while np.prod(dims, dtype=np.int64) > most * scale:
            at = int(np.argmax(dims))
            dims[at] = max(1, dims[at] // 2)
        return tuple(dims)

    def dtype(self, options: Iterable[np.dtype] = ALL) -> np.dtype:
        """One of `options` that the style has, float32 more often than others."""
        known = [d for d in options if d in self.style.dtypes] or list(options)
        if not known:
            raise Rejected("no dtype")
        weights = np.array([_WEIGHTS.get(d, 0.7) for d in known])
        return known[int(self.rng.choice(len(known), p=weights / weights.sum()))]

    # what the operator takes

    def since(self, version: int) -> bool:
        return self.style.opset >= version

    def types(self, op: str, parameter: str = "T", within: Iterable[np.dtype] = ALL) -> tuple[np.dtype, ...]:
        """The element types that the operator's schema allows for a type parameter, in this model's opset."""
        try:
            schema = onnx.defs.get_schema(op, self.style.opset, "")
        except onnx.defs.SchemaError as error:
            raise Rejected(f"no {op} in opset {self.style.opset}") from error
        for constraint in schema.type_constraints:
            if constraint.type_param_str == parameter:
                names = {t[len("tensor(") : -1] for t in constraint.allowed_type_strs if t.startswith("tensor(")}
                return tuple(d for d in within if any(_TYPE_NAMES.get(n) == d for n in names))
        raise Rejected(f"{op} has no type parameter {parameter}")

    # values

    def new_name(self, prefix: str) -> str:
        self.shared.names += 1
        return f"{prefix}{self.shared.names}"

    def numbers(self, dtype: np.dtype, shape: Sequence[int], *, special: bool | None = None) -> np.ndarray:
        """Random data: quarters for floats, so that sums are exact; small integers. `special`: with infinities and extremes."""
        shape = tuple(shape)
        special = self.chance(self.style.p_special) if special is None else special
        if dtype == BOOL:
            return self.rng.random(shape) < 0.5
        if is_float(np.empty(0, dtype)):
            array = (self.rng.integers(-12, 13, shape) / 4).astype(dtype)
            extremes = np.array([np.nan, np.inf, -np.inf, -0.0, 0.5, 1e4]).astype(dtype)
        else:
            info = np.iinfo(dtype)
            array = self.rng.integers(max(info.min, -5), 7, shape).astype(dtype)
            extremes = np.array([info.min, info.max, 0, 1], dtype)
        if special:
            where = self.rng.random(shape) < 0.3
            array = np.where(where, self.rng.choice(extremes, shape), array).astype(dtype)
        return np.asarray(array)

    def weights(self, dtype: np.dtype, shape: Sequence[int]) -> Held:
        """Fresh finite numbers whose dims are known, whether they are a constant or not."""
        return self.fresh(self.numbers(dtype, shape, special=False), "weights", self.style.p_initializer)

    def data(self, dtype: np.dtype, shape: Sequence[int]) -> Held:
        """Fresh numbers, as an input or an initializer."""
        return self.fresh(self.numbers(dtype, shape), "data", self.style.p_initializer)

    def fresh(self, array: np.ndarray, kind: str, p_constant: float) -> Held:
        """`array` as a value of the model: a constant with probability `p_constant`, else an input."""
        array = np.asarray(array)
        exotic = array.dtype.kind not in "fiub"  # numpy users cannot feed it: made by a Cast
        if self.chance(p_constant):
            return self.constant(array)
        if exotic:
            inner = self.input(array.astype(np.float32), kind)
            return self.emit("Cast", [inner], to=helper.np_dtype_to_tensor_dtype(array.dtype))[0]
        return self.input(array, kind)

    def constant(self, array: np.ndarray) -> Held:
        """An initializer, or a Constant node."""
        array = np.asarray(array)
        if self.chance(0.3) or self.depth:
            name = self.new_name("k")
            return self.emit("Constant", [], value=numpy_helper.from_array(array, name))[0]
        name = self.new_name("w")
        self.shared.initializers.append(numpy_helper.from_array(array, name))
        return self._hold(name, array, constant=True, pool=self.root)

    def input(self, array: np.ndarray, kind: str = "data") -> Held:
        """An input of the model, some of whose dims are symbols."""
        name = self.new_name("x")
        steers = (
            kind == "fixed" and array.ndim < 2 and not self.chance(0.03)
        )  # of unknown length, it would leave ranks unknown
        shape = tuple(int(n) if steers else self._declare(int(n)) for n in array.shape)
        self.shared.inputs.append(Input(name, array, shape, kind))
        return self._hold(name, array, pool=self.root)

    def _declare(self, size: int) -> int | str | None:
        """How a dim is written down: a number, a symbol of that size, or nothing."""
        if not self.chance(self.style.p_symbolic):
            return size
        if self.chance(0.05):
            return None
        known = [name for name, n in self.shared.symbols.items() if n == size]
        if known and (self.chance(0.7) or len(self.shared.symbols) >= self.style.symbols):
            return str(self.choose(known))
        if len(self.shared.symbols) >= self.style.symbols:
            return size
        name = "nmstuvpqrd"[len(self.shared.symbols) % 10] + ("" if len(self.shared.symbols) < 10 else "2")
        self.shared.symbols[name] = size
        return name

    def _hold(self, name: str, array: np.ndarray, *, constant: bool = False, pool: Builder | None = None) -> Held:
        held = Held(name, array, constant)
        self.shared.values[name] = array
        for builder in {id(b): b for b in (self, pool or self)}.values():
            builder.pool.append(held)
        return held

    def pick(
        self,
        dtypes: Iterable[np.dtype] = ALL,
        *,
        rank: int | None = None,
        ranks: tuple[int, int] = (0, 5),
        where: Callable[[Held], bool] = lambda held: True,
        p_fresh: float = 0.15,
    ) -> Held:
        """A value of the model of one of the dtypes, later ones more often; fresh data where there is none."""
        dtypes = tuple(dtypes)
        lo, hi = (rank, rank) if rank is not None else ranks
        if not self.chance(p_fresh):
            known = [h for h in self.pool if h.dtype in dtypes and lo <= h.rank <= hi and where(h)]
            if known:
                return self.recent(known)
        for _ in range(4):
            found = Held("", self.numbers(self.dtype(dtypes), self.shape(self.integer(lo, hi))))
            if where(found):
                return self.fresh(found.array, "data", self.style.p_initializer)
        raise Rejected("no such value")

    def partner(self, held: Held, dtype: np.dtype | None = None, *, grow: bool = True) -> Held:
        """A value that broadcasts with `held`; with `grow`, the result may be larger than `held`."""
        dtype = dtype or held.dtype

        def fits(other: Held) -> bool:
            if other.dtype != dtype:
                return False
            try:
                together = np.broadcast_shapes(held.shape, other.shape)
            except ValueError:
                return False
            return np.prod(together) <= self.style.most_elements and (grow or together == held.shape)

        known = [h for h in self.pool if fits(h)]
        if known and self.chance(0.65):
            return self.recent(known)
        dims = [n if self.chance(0.7) else 1 for n in held.shape][
            self.integer(0, held.rank) if self.chance(0.3) else 0 :
        ]
        if grow:
            dims = [self.dim() if n == 1 and self.chance(0.4) else n for n in dims]
            if self.chance(0.1) and len(dims) == held.rank < 5:
                dims = [self.dim(), *dims]
        if np.prod(np.broadcast_shapes(held.shape, tuple(dims))) > self.style.most_elements:
            dims = list(held.shape)
        return self.data(dtype, dims)

    def finite(self, held: Held) -> Held:
        """`held`, if it has no NaN and no infinity: what they do to their neighbours in a window is not said anywhere."""
        if is_float(held.array) and not np.isfinite(held.array.astype(np.float64)).all():
            raise Rejected("not finite")
        return held

    def reshaped(self, dtypes: Iterable[np.dtype], shape: Sequence[int]) -> Held:
        """A value of exactly this shape: one there is, one reshaped to it, or fresh data."""
        dtypes, shape = tuple(dtypes), tuple(shape)
        same = [h for h in self.pool if h.dtype in dtypes and h.shape == shape]
        if same and self.chance(0.5):
            return self.choose(same)
        size = int(np.prod(shape, dtype=np.int64))
        movable = [h for h in self.pool if h.dtype in dtypes and h.array.size == size]
        if movable and self.chance(0.5):
            return (
                self.emit("Reshape", [self.choose(movable), self.parameter(shape)])[0]
                if 0 not in shape
                else self.choose(same)
            )
        return self.data(self.dtype(dtypes), shape)

    def image(self, dtypes: Iterable[np.dtype], rank: int, most: int = 1500) -> Held:
        """A value of shape (batch, channels, spatial dims ...), of `rank`."""
        dtypes = tuple(dtypes)
        known = [h for h in self.pool if h.dtype in dtypes and h.rank == rank and h.array.size <= 3000 * self.style.scale]
        if known and self.chance(0.7):
            return self.recent(known)
        dims = [
            self.choose((1, 1, 2, 3)),
            self.choose((1, 2, 3, 4, 5, 6, 8, 16, 17)),
            *(self.choose((1, 3, 4, 5, 6, 7, 8, 9, 12)) for _ in range(rank - 2)),
        ]
        if self.chance(self.style.p_zero):
            dims[self.integer(0, rank - 1)] = 0
        if self.style.scale > 1:
            dims[1:] = [self.log_uniform(1, 256), *(self.log_uniform(5, 128) for _ in dims[2:])]
        if rank == 4 and self.chance(0.3):
            dims[3] = dims[2]
        return self.data(self.dtype(dtypes), self._scaled(dims, most))

    def parameter(
        self, values: Any, dtype: np.dtype = I64, *, kind: str = "fixed", p_runtime: float | None = None
    ) -> Held:
        """An operand that steers an operator: a constant, an input, or, for int64, computed from shapes."""
        array = np.asarray(values, dtype)
        p_runtime = self.style.p_runtime if p_runtime is None else p_runtime
        if kind == "index" and self.style.check_indices:
            return self.input(array, kind)
        if not self.chance(p_runtime):
            return self.fresh(array, kind, 1.0)
        if dtype == I64 and array.ndim == 1 and 0 < array.size <= 6 and self.chance(0.7):
            return self.from_shapes(array)
        return self.fresh(array, kind, 0.0)

    def from_shapes(self, array: np.ndarray) -> Held:
        """An int64 vector whose elements are read from shapes of values where one fits."""
        parts = []
        for element in array:
            known = [(h, a) for h in self.pool[-12:] for a, n in enumerate(h.shape) if n == element and not h.constant]
            if not known:
                parts.append(self.constant(np.array([element], I64)))
                continue
            held, axis = self.choose(known)
            size = self.emit("Shape", [held])[0]
            parts.append(self.emit("Gather", [size, self.constant(np.array([axis], I64))], axis=0)[0])
        if len(parts) == 1:
            return parts[0]
        return self.emit("Concat", parts, axis=0)[0]

    def in_range(self, dtypes: Iterable[np.dtype], lo: float, hi: float, **options: Any) -> Held:
        """A value whose numbers are in [lo, hi]: one there is, or one squeezed in by Clip-like arithmetic."""

        def fits(held: Held) -> bool:
            numbers = held.array.astype(np.float64)
            return bool(np.isfinite(numbers).all() and (numbers >= lo).all() and (numbers <= hi).all())

        held = self.pick(
            dtypes, where=lambda h: h.array.size == 0 or bool(np.isfinite(h.array.astype(np.float64)).all()), **options
        )
        if fits(held):
            return held
        bounds = [self.constant(np.array(max(min(v, 1e4), -1e4), held.dtype)) for v in (lo, hi)]
        if not self.since(12) and held.dtype not in FLOATS:
            raise Rejected("no Max and Min for it yet")
        return self.emit("Min", [self.emit("Max", [held, bounds[0]])[0], bounds[1]])[0]

    # nodes

    def emit(self, op: str, inputs: Sequence[Held | None], outputs: int = 1, **attrs: Any) -> list[Held]:
        """Add a node and run it; returns its results. An absent input is None."""
        names = [h.name if h is not None else "" for h in inputs]
        while names and not names[-1]:
            names.pop()
        return self.add(helper.make_node(op, names, [self.new_name("v") for _ in range(outputs)], **attrs))

    def add(self, node: onnx.NodeProto) -> list[Held]:
        """Add a finished node; results that are no tensors get no `Held` in the pool."""
        shared = self.shared
        by_both = self._native(node) and node.domain != MICROSOFT
        try:
            done = self.evaluate(node, by_both)
        except (Failed, Unstable) as error:
            raise Rejected(f"{node.op_type}: {error}") from error
        if (
            self.style.both
            and by_both
            and has_onnxruntime()
            and not (done.by_reference and done.by_onnxruntime)
        ):
            raise Rejected(f"{node.op_type}: only one oracle runs it: {done.missing}")
        if not done.by_onnxruntime and not node.domain and self.style.opset < REFERENCE_SINCE and has_onnxruntime():
            raise Rejected(f"{node.op_type}: the reference evaluator knows no old opsets")
        held = []
        for name, value, error in zip([n for n in node.output if n], done.outputs, done.errors):
            if value is None:
                raise Rejected(f"{node.op_type}: gives nothing")
            self._check(node.op_type, value, error)
            shared.errors[name] = error
            if isinstance(value, np.ndarray):
                held.append(self._hold(name, value, constant=node.op_type == "Constant"))
            else:
                shared.values[name] = value
                held.append(Held(name, np.empty(0)))
        self.nodes.append(node)
        return held

    def evaluate(self, node: onnx.NodeProto, both: bool) -> EvaluationStep:
        """The node's results by the oracles, and how far off another implementation may be. Raises Failed and Unstable."""
        return step(node, self.shared.values, self.shared.errors, self.imports([node]), self.ir_version, both=both)

    def _native(self, node: onnx.NodeProto) -> bool:
        known = (self.shared.values.get(name) for name in node.input)
        return all(not isinstance(v, np.ndarray) or v.dtype.kind in "fiub" for v in known)

    def _check(self, op: str, value: Any, error: float) -> None:
        if isinstance(value, list):
            return
        if value.size > self.style.most_elements:
            raise Rejected(f"{op}: {value.size} elements")
        if not is_float(value):
            return
        numbers = value.astype(np.float64)
        if self.style.p_special == 0 and not np.isfinite(numbers).all():
            raise Rejected(f"{op}: not finite")
        largest = float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
        if largest > (500 if value.dtype == F16 else 1e6):
            raise Rejected(f"{op}: too large")
        if error > max(0.02 * largest, 0.02) and error > 0.1 * largest:
            raise Rejected(f"{op}: roundings reach {error}")

    def state(self) -> tuple[int, ...]:
        """What `restore` takes to undo everything since."""
        s = self.shared
        return len(self.nodes), len(self.pool), len(s.inputs), len(s.initializers), len(s.symbols), len(self.root.pool)

    def restore(self, state: tuple[int, ...]) -> None:
        """Forget what was added since `state` was taken."""
        nodes, pool, inputs, initializers, symbols, root_pool = state
        del self.nodes[nodes:], self.pool[pool:], self.shared.inputs[inputs:], self.shared.initializers[initializers:]
        if self.root is not self:
            del self.root.pool[root_pool:]
        for name in list(self.shared.symbols)[symbols:]:
            del self.shared.symbols[name]
