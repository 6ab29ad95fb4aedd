"""Which operations of a graph of f32 have operands or results of 16 bits, for `narrow_floats`; nothing is rewritten here.

An operator that sums products (`OpDef.factors`) takes factors of 16 bits and sums in f32. Every other operator that computes does so in
f32; its result is stored in 16 bits where that saves traffic: where products read it, or where it is made of what is stored so. Operators
that only move or choose elements run on 16 bits. What no product leads to or reads stays as it is: positions, masks, shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from tc.cost.typical import typical
from tc.ir.arith import Facts, prove
from tc.ir.dtype import DType, bf16, f32
from tc.ir.expr import BinaryExpr, Cast, Const, Expr, MathCall, Max, equal
from tc.ir.graph import Atom, Binding, Call, Function, TensorConst, TensorVar, all_bindings, atoms_of
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.ir.types import TensorType, product
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import get_op, inference, is_scoped
from tc.te import Stage, placeholder, stages_of

LEAST_SHARE = 8
"""A result that is so many times smaller than what it is made of saves nothing by being stored in 16 bits."""

LEAST_ELEMENTS = 256
"""Nor does one with fewer elements."""

LEAST_TERMS = 3
"""Sums of fewer products are no work for instructions that add several at once."""

LEAST_TABLE_BYTES = 64 << 10
"""A literal of so many bytes that is only read by place, such as a table of words, is stored in 16 bits."""


@dataclass(frozen=True)
class Precision:
    """What floats of f32 become: `dtype`, or themselves where it is None. `kept`: places in `calls_of` of operations that stay f32, and
    why they do. `split`: those of them that are products of sums of two terms of `dtype` instead."""

    dtype: DType | None = None
    kept: tuple[tuple[int, str], ...] = ()
    split: tuple[int, ...] = ()


F32 = Precision()


class Role(Enum):
    """What an operation does with its operands of f32."""

    PRODUCT = "sums products of 16-bit operands in f32"
    DECODED = "the same, with weights of fewer bits as they are"
    SPLIT = "sums products of operands that are sums of two 16-bit terms, in f32"
    MOVE = "moves elements of 16 bits"
    STORE = "computes in f32 and stores 16 bits"
    KEEP = "f32"


@dataclass(frozen=True)
class NodePrecision:
    """How one operation is computed: `computed` names the dtype of its operands, `stored` that of its result; `why` it stays f32."""

    nodes: tuple[str, ...]
    op: str
    computed: str
    stored: str
    why: str = ""

    @property
    def said(self) -> str:
        """In words, without the nodes."""
        how = self.computed if self.computed == self.stored else f"{self.computed}, stored as {self.stored}"
        return f"{how} ({self.why})" if self.why else how


@dataclass
class Narrowing:
    """The roles of the calls of a module, the values that are stored in 16 bits, and the factors that are made of weights of fewer bits."""

    dtype: DType
    decoded: set[Atom] = field(default_factory=set)
    roles: dict[Binding, Role] = field(default_factory=dict)
    stored: set[TensorVar] = field(default_factory=set)
    why: dict[Binding, str] = field(default_factory=dict)

    def role(self, binding: Binding) -> Role:
        return self.roles.get(binding, Role.KEEP)

    def rounds(self, factor: Atom) -> bool:
        """Whether products that have a role round this factor."""
        return factor not in self.decoded

    def describe(self, module: IRModule) -> tuple[NodePrecision, ...]:
        """Every operation on floats of f32, in order."""
        return tuple(self._described(binding) for binding in calls_of(module) if is_of_floats(binding))

    def _described(self, binding: Binding) -> NodePrecision:
        assert isinstance(binding.value, Call)
        role, narrow = self.role(binding), self.dtype.name
        computed = narrow if role in (Role.PRODUCT, Role.DECODED, Role.MOVE) else "f32"
        if role is Role.SPLIT:
            computed = f"{narrow}x3"
        is_stored = any(target in self.stored for target in binding.targets)
        nodes = () if binding.span is None else binding.span.nodes
        return NodePrecision(nodes, binding.value.op, computed, narrow if is_stored else "f32", self.why.get(binding, ""))


def calls_of(module: IRModule) -> list[Binding]:
    """The calls of operators in all graph functions, those nested in others included; their places in this list name them."""
    return [binding for func in module.graph_functions for binding in all_bindings(func) if isinstance(binding.value, Call)]


def is_of_floats(binding: Binding) -> bool:
    """Whether an operation reads or makes a tensor of f32."""
    return any(map(_is_f32, (*binding.targets, *atoms_of(binding.value))))


def _is_f32(atom: Atom | None) -> bool:
    return atom is not None and isinstance(atom.type, TensorType) and atom.type.dtype is f32


def _is_integer_literal(atom: Atom) -> bool:
    return isinstance(atom, TensorConst) and isinstance(atom.type, TensorType) and atom.type.dtype.is_int


def choose_narrowing(module: IRModule, precision: Precision) -> Narrowing:
    """What is narrowed; `precision` asks for it."""
    assert precision.dtype is not None, "f32 narrows nothing"
    found, kept = Narrowing(precision.dtype), dict(precision.kept)
    calls = calls_of(module)
    found.why = {binding: kept[place] for place, binding in enumerate(calls) if place in kept}
    found.roles = {calls[place]: Role.SPLIT for place in precision.split if place in kept and can_split(calls[place])}
    for func in module.graph_functions:
        with inference(Facts.of(func.facts)):
            _Chooser(func, found).run()
    return found


class _Chooser:
    """Of one function and those nested in it. `wanted`: values that products of 16-bit operands read, as they are or moved; `angles`: that
    functions with a period are made of, back to the products that make them; `extreme`: that literals beyond the largest number of 16 bits
    are part of, such as scores under a mask of the least f32."""

    def __init__(self, func: Function, found: Narrowing) -> None:
        self.found = found
        self.facts = Facts.of(func.facts)
        self.bindings = list(all_bindings(func))
        self.results = {*func.results, *(r for b in self.bindings for body in _bodies(b) for r in body.results)}
        self.makers = {target: binding for binding in self.bindings for target in binding.targets}
        self.wanted: set[Atom] = set()
        self.movers: set[Binding] = set()
        self.angles: set[Atom] = set()
        self.extreme: set[Atom] = set()

    def run(self) -> None:
        for binding in self.bindings:
            if isinstance(binding.value, Call) and self._is_extreme(binding):
                self.extreme.update(binding.targets)
        for binding in reversed(self.bindings):
            self._choose_operands(binding)
        for binding in self.bindings:
            self._choose_result(binding)

    def _is_extreme(self, binding: Binding) -> bool:
        if factors_of(binding.value):  # type: ignore[arg-type]  # sums of products; weights are looked at where these are chosen
            return False
        return any(atom in self.extreme or _loses(atom, self.found.dtype) for atom in atoms_of(binding.value)) and not _reduces(binding)

    def _choose_operands(self, binding: Binding) -> None:
        call = binding.value
        if not isinstance(call, Call) or binding in self.found.why or not is_of_floats(binding):
            return
        factors = factors_of(call)
        if factors:
            if not any(map(_is_f32, factors)) or not all(_is_f32(factor) or _is_integer_literal(factor) for factor in factors):
                return
            reason = next((why for factor in factors if (why := _loses(factor, self.found.dtype))), None)
            if reason is None and any(factor in self.extreme for factor in factors):
                reason = f"a factor may be as large as a literal that is no number in {self.found.dtype}"
            decoded = [factor for factor in factors if not _is_f32(factor) or self._is_decoded(factor)]
            if reason is None and decoded and self.found.dtype is not bf16:  # there are no instructions for them
                reason = "its weights have fewer bits already"
            if reason is None and any(target in self.angles for target in binding.targets):
                reason = "angles: a sine or cosine is made of what is left of them after whole turns"
            if reason is None and terms_of(binding) < LEAST_TERMS:
                reason = "sums of a term or two, which are no faster in 16 bits"
            if reason is not None:
                self.found.why[binding] = reason
                return
            self.found.roles[binding] = Role.DECODED if decoded else Role.PRODUCT
            self.found.decoded.update(decoded)
            self.wanted.update(factor for factor in factors if factor not in decoded)
            return
        if get_op(call.op).periodic or any(target in self.angles for target in binding.targets):
            self.angles.update(atom for atom in call.args if atom is not None and _is_f32(atom))
        if moves_only(binding):
            self.movers.add(binding)
            if any(target in self.wanted for target in binding.targets):
                self.wanted.update(atom for atom in call.args if atom is not None and _is_f32(atom))

    def _choose_result(self, binding: Binding) -> None:
        call = binding.value
        if not isinstance(call, Call) or binding in self.found.why or not is_of_floats(binding):
            return
        if self.found.role(binding) in (Role.PRODUCT, Role.DECODED):
            self._store(binding.targets)
        elif binding in self.movers and self._is_moved_narrow(call, binding.targets):
            self.found.roles[binding] = Role.MOVE
            self.found.stored.update(target for target in binding.targets if _is_f32(target))
        elif get_op(call.op).compute is not None or any(target in self.wanted for target in binding.targets):
            worth = [t for t in binding.targets if _is_f32(t) and t not in self.angles and self._saves(call, t)]
            if self._store(worth):
                self.found.roles[binding] = Role.STORE

    def _is_decoded(self, atom: Atom) -> bool:
        """Whether a value is made of literals of fewer bits, moved or not: products read these as they are."""
        binding = self.makers.get(atom) if isinstance(atom, TensorVar) else None
        if binding is None or not isinstance(binding.value, Call):
            return False
        args = [arg for arg in binding.value.args if arg is not None]
        literals = [arg.value.nbytes for arg in args if isinstance(arg, TensorConst)]
        if 0 < len(literals) == len(args):
            return sum(literals) < 2 * self._count(atom)
        return len(args) == 1 and moves_only(binding) and self._is_decoded(args[0])

    def _store(self, targets: Iterable[TensorVar]) -> bool:
        stored = [target for target in targets if target not in self.results and target not in self.extreme]
        self.found.stored.update(stored)
        return bool(stored)

    def _is_moved_narrow(self, call: Call, targets: Iterable[TensorVar]) -> bool:
        """Whether what a call moves has 16 bits already, or is a large literal; other operands must lose nothing but bits."""
        data = [atom for atom in call.args if atom is not None and _is_f32(atom)]
        if any(_loses(atom, self.found.dtype) for atom in data) or not (self.extreme | self.angles).isdisjoint(targets):
            return False
        if any(target in self.results for target in targets) and not all(atom in self.found.stored for atom in data):
            return False  # nothing is saved
        return any(atom in self.found.stored or (isinstance(atom, TensorConst) and atom.value.nbytes >= LEAST_TABLE_BYTES) for atom in data)

    def _saves(self, call: Call, target: TensorVar) -> bool:
        if target in self.wanted:
            return True
        size, read = self._count(target), [(atom, self._count(atom)) for atom in call.args if atom is not None and _is_f32(atom)]
        if size <= LEAST_ELEMENTS or any(count > LEAST_SHARE * size for _, count in read):
            return False
        return any(atom in self.found.stored and LEAST_SHARE * count >= size for atom, count in read)

    def _count(self, atom: Atom) -> int:
        assert isinstance(atom.type, TensorType)
        return typical(product(atom.type.shape), self.facts)


def _bodies(binding: Binding) -> Collection[Function]:
    from_loop = getattr(binding.value, "body", None)
    branches = (getattr(binding.value, name, None) for name in ("then_branch", "else_branch"))
    return [body for body in (from_loop, *branches) if body is not None]


def factors_of(call: Call) -> tuple[Atom, ...]:
    """The operands whose products a call sums; none where it does no such thing."""
    count = get_op(call.op).factors
    args = call.args if count < 0 else call.args[:count]
    return tuple(arg for arg in args if arg is not None)


def can_split(binding: Binding) -> bool:
    """Whether an operation can be one product of operands that hold the terms of its factors, joined along what is summed."""
    call = binding.value
    assert isinstance(call, Call)
    depth, factors = get_op(call.op).depth, factors_of(call)
    if depth is None or not all(map(_is_f32, factors)):
        return False
    if any(isinstance(atom, TensorConst) and not np.isfinite(atom.value).all() for atom in factors):
        return False
    lhs, rhs = (factor.type.shape for factor in factors)  # type: ignore[union-attr]
    return min(len(lhs), len(rhs)) > 1 and prove(equal(lhs[depth[0]], rhs[depth[1]])) is True


def depth_of(call: Call) -> Expr:
    """How long the axis is along which terms of factors are joined."""
    axes = get_op(call.op).depth
    assert axes is not None and isinstance(factors_of(call)[0].type, TensorType)
    return factors_of(call)[0].type.shape[axes[0]]  # type: ignore[union-attr]


def terms_of(binding: Binding) -> int:
    """How many products are added up for an element of the result; many where the number is not known."""
    call = binding.value
    assert isinstance(call, Call)
    operands = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(operand_types(call))]
    made = get_op(call.op).compute_tensors(operands, full_attrs(call), [t.type for t in binding.targets])  # type: ignore[misc]
    extents = [product(stage.reduce_extents) for stage in stages_of(made) if stage.reduce_extents]
    known = [int(extent.value) for extent in extents if isinstance(extent, Const)]
    return max(known) if len(known) == len(extents) > 0 else LEAST_TERMS


def _loses(atom: Atom, dtype: DType) -> str | None:
    """Why a literal cannot be stored in 16 bits: a number would become infinite, or most of them are so small that digits are lost."""
    if not isinstance(atom, TensorConst) or not atom.value.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.max(np.abs(atom.value), initial=0.0, where=np.isfinite(atom.value))
        if not np.isfinite(np.asarray(largest).astype(dtype.numpy).astype(np.float32)):
            return f"a literal of {largest:.6g} is no number in {dtype}"
        mean = np.linalg.norm(atom.value / largest if largest else atom.value) / np.sqrt(atom.value.size) * largest
    is_small = 0 < mean < float(ml_dtypes.finfo(dtype.numpy).smallest_normal) / 2
    return f"a literal of numbers near {mean:.6g} loses digits in {dtype}" if is_small else None


def moves_only(binding: Binding) -> bool:
    """Whether each element of the results is an element of an operand: no float is computed."""
    call = binding.value
    assert isinstance(call, Call)
    op = get_op(call.op)
    if op.compute is None or is_scoped(op.name) or not any(map(_is_f32, binding.targets)) or not any(map(_is_f32, call.args)):
        return False
    return _computes_no_float(*_form(binding))


def _reduces(binding: Binding) -> bool:
    """Whether elements of the results are made of many elements of an operand; where nobody knows, they are."""
    call = binding.value
    assert isinstance(call, Call)
    op = get_op(call.op)
    return op.compute is None or is_scoped(op.name) or _has_reductions(*_form(binding))


def _form(binding: Binding) -> tuple[str, tuple, tuple, tuple]:
    """What the loops of a call depend on."""
    call = binding.value
    assert isinstance(call, Call)
    types = tuple(None if t is None else (t.shape, t.dtype) for t in operand_types(call))
    results = tuple((t.type.shape, t.type.dtype) for t in binding.targets if isinstance(t.type, TensorType))
    return call.op, types, call.attrs, results


def _stages(name: str, types: tuple, attrs: tuple, results: tuple) -> list[Stage]:
    op = get_op(name)
    operands = [None if t is None else placeholder(t[0], t[1], f"x{k}") for k, t in enumerate(types)]
    return stages_of(op.compute_tensors(operands, op.attrs(attrs), [TensorType(shape, dtype) for shape, dtype in results]))


@lru_cache(maxsize=4096)
def _has_reductions(*form: Any) -> bool:
    return any(stage.reduce_axes for stage in _stages(*form))


@lru_cache(maxsize=4096)
def _computes_no_float(*form: Any) -> bool:
    for stage in _stages(*form):
        if not stage.is_independent:
            return False
        if stage.reduce_axes and ("monoid", "max") not in stage.annotations:
            return False
        chooses = (Max,) if stage.reduce_axes else ()
        if any(_is_arithmetic(node) and not isinstance(node, chooses) for value in stage.values for node in walk(value)):
            return False
    return True


def _is_arithmetic(node: object) -> bool:
    if isinstance(node, (BinaryExpr, MathCall, Cast)):
        return node.dtype.is_float
    return isinstance(node, Const) and node.dtype.is_float and node.value != 0 and abs(node.value) != float("inf")


