"""Rewrite a graph of f32 so that products take 16-bit operands and values are stored in 16 bits, as `choose_narrowing` says.

What is stored in 16 bits is `narrow` of an f32, and what computes with it reads a `cast` of it: inside a kernel both vanish, and only what
goes through memory is rounded. Inputs and results of the module keep their types. Literals are rounded here.

Factors of a product that is split become their terms of 16 bits (`tc.ops.terms`), one after the other along what is summed.
Source: that operators are safe, sensitive or neutral is from mixed-precision training (Micikevicius et al., 2018), by lists of names; ours
asks records of operators and the loops in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tc.errors import ShapeError, Span
from tc.ir.dtype import DType, f32
from tc.ir.expr import const
from tc.ir.graph import (
    Atom,
    Binding,
    Call,
    Function,
    Operation,
    TensorConst,
    TensorVar,
    atoms_of,
    bodies_of,
    map_bodies,
)
from tc.ir.module import IRModule
from tc.ir.node import replace, substitute
from tc.ir.types import TensorType
from tc.ops.build import full_attrs
from tc.ops.registry import get_op
from tc.ops.terms import FINITE, REST, ROUNDED, join_terms
from tc.passes.graph.narrowing import F32, Narrowing, Precision, Role, choose_narrowing, factors_of
from tc.passes.manager import graph_pass, map_graph_functions


@graph_pass
def narrow_floats(module: IRModule, *, precision: Precision = F32) -> IRModule:
    """Narrow the floats of a module, as far as its precision asks for."""
    if precision.dtype is None:
        return module
    narrowing, literals = choose_narrowing(module, precision), dict[int, TensorConst]()
    return map_graph_functions(module, lambda func: _Rewriter(narrowing, literals).function(func))


@dataclass
class _Rewriter:
    """Rebuilds one function. `narrow`: the 16-bit form of values; `joined`: their terms side by side, by value, terms and axis; nested
    functions see those of the functions around them."""

    narrowing: Narrowing
    literals: dict[int, TensorConst]
    joined: dict[tuple[object, ...], Atom] = field(default_factory=dict)
    narrow: dict[TensorVar, TensorVar] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)

    def function(self, func: Function) -> Function:
        for binding in func.bindings:
            self._rewrite(binding)
        results = tuple(self._wide(result, result.span) for result in func.results)
        if len(self.bindings) == len(func.bindings) and all(map(_is, self.bindings, func.bindings)):
            return func
        return replace(func, bindings=tuple(self.bindings), results=results)

    def _rewrite(self, binding: Binding) -> None:
        role = self.narrowing.role(binding)
        if role is Role.PRODUCT:
            self._product(binding)
        elif role is Role.SPLIT:
            self._split_product(binding)
        elif role is Role.DECODED:
            self._decoded_product(binding)
        elif role is Role.MOVE:
            self._move(binding)
        else:
            self._in_f32(binding)

    # -- values in both forms

    def _bind(self, value: Operation, type_: TensorType, name: str, span: Span | None) -> TensorVar:
        made = TensorVar(name, type_, span=span)
        self.bindings.append(Binding((made,), value, span=span))
        return made

    def _narrowed(self, atom: Atom) -> Atom:
        """A value in 16 bits. One that is stored so is there; any other is rounded once for all who ask."""
        if isinstance(atom, TensorConst):
            return self._literal(atom)
        assert isinstance(atom, TensorVar)
        if atom not in self.narrow:
            self.narrow[atom] = self._rounding(atom)
        return self.narrow[atom]

    def _rounding(self, atom: TensorVar) -> TensorVar:
        call = Call("narrow", (atom,), (("dtype", self.narrowing.dtype),), span=atom.span)
        return self._bind(call, _narrow_type(atom, self.narrowing.dtype), atom.name, atom.span)

    def _literal(self, atom: TensorConst) -> TensorConst:
        known = self.literals.get(id(atom.value))
        if known is None:
            with np.errstate(over="ignore"):
                known = TensorConst(atom.value.astype(self.narrowing.dtype.numpy), atom.name, span=atom.span)
            self.literals[id(atom.value)] = known
        return known

    def _wide(self, atom: Atom, span: Span | None) -> Atom:
        """A value in f32; each reader of one that is stored in 16 bits has a cast of its own, which its kernel takes in."""
        if not isinstance(atom, TensorVar) or atom not in self.narrowing.stored:
            return atom
        low = self.narrow[atom]
        call = Call("cast", (low,), (("dtype", f32),), span=span)
        return self._bind(call, _narrow_type(atom, f32), atom.name, span)

    # -- operations

    def _product(self, binding: Binding) -> None:
        """Factors in 16 bits, and a result that need not be rounded to them; a bias is added in f32."""
        call, (target,) = binding.value, binding.targets
        assert isinstance(call, Call)
        count = len(factors_of(call))
        factors = [self._narrowed(atom) for atom in call.args[:count] if atom is not None]
        others = [None if atom is None else self._wide(atom, binding.span) for atom in call.args[count:]]
        bias = None
        if not _takes(call, [*factors, *others]):
            (bias,), others = others, []
        made = replace(call, args=(*factors, *others))
        result = self._bind(made, _narrow_type(target, self.narrowing.dtype), target.name, binding.span)
        if bias is None and target in self.narrowing.stored:
            self.narrow[target] = result
            return
        widening = Call("cast", (result,), (("dtype", f32),), span=binding.span)
        if bias is None:
            self.bindings.append(Binding((target,), widening, span=binding.span))
            return
        wide = self._bind(widening, _narrow_type(target, f32), target.name, binding.span)
        added = Call("add", (wide, self._per_channel(bias, target, binding.span)), span=binding.span)
        self._define(binding, added)

    def _split_product(self, binding: Binding) -> None:
        """A product of the terms of its factors, whose sums stay f32."""
        call = binding.value
        assert isinstance(call, Call)
        factors = self._terms_of_factors(call)
        others = (None if atom is None else self._wide(atom, binding.span) for atom in call.args[len(factors) :])
        self._define(binding, replace(call, args=(*factors, *others), attrs=tuple({**dict(call.attrs), "dtype": f32}.items())))

    def _terms_of_factors(self, call: Call) -> list[Atom]:
        """The terms of both factors so that each stands beside the one that it is multiplied with; where one is infinite, the product of
        the rounded ones is all there is."""
        lhs, rhs = factors_of(call)
        pairs = [(ROUNDED, ROUNDED)]
        pairs += [(REST, FINITE)] if self._has_rest(lhs) else []
        pairs += [(FINITE, REST)] if self._has_rest(rhs) else []
        axes = get_op(call.op).depth
        assert axes is not None
        return [self._joined(*each) for each in zip((lhs, rhs), zip(*pairs, strict=True), axes, strict=True)]

    def _has_rest(self, atom: Atom) -> bool:
        if isinstance(atom, TensorConst):
            return bool((self._literal(atom).value.astype(np.float32) != atom.value).any())
        return atom not in self.narrowing.stored

    def _joined(self, atom: Atom, terms: tuple[str, ...], axis: int) -> Atom:
        """Terms of a value along an axis, once for all who ask; those of literals are numbers."""
        if len(terms) == 1:
            return self._narrowed(atom)
        dtype, key = self.narrowing.dtype, (id(atom.value) if isinstance(atom, TensorConst) else atom, terms, axis)
        if key not in self.joined:
            if isinstance(atom, TensorConst):
                self.joined[key] = TensorConst(join_terms(atom.value, dtype, axis, terms), atom.name, span=atom.span)
            else:
                known = self.narrow[atom] if atom in self.narrowing.stored else atom
                attrs = (("dtype", dtype), ("axis", axis), ("terms", terms))
                call = Call("join_terms", (known,), attrs, span=atom.span)
                (type_,) = get_op("join_terms").infer_types([known.type], full_attrs(call))  # type: ignore[list-item]
                self.joined[key] = self._bind(call, type_, atom.name, atom.span)
        return self.joined[key]

    def _decoded_product(self, binding: Binding) -> None:
        """Factors rounded to 16 bits and cast back, which kernels take in; what is made of fewer bits is as it is."""
        call = binding.value
        assert isinstance(call, Call)
        rounded = set(filter(self.narrowing.rounds, factors_of(call)))
        known: dict[Atom, Atom] = {}
        for atom in dict.fromkeys(atoms_of(call)):
            if atom in rounded:
                cast = Call("cast", (self._narrowed(atom),), (("dtype", f32),))
                known[atom] = self._bind(cast, _narrow_type(atom, f32), "rounded", binding.span)
            else:
                known[atom] = self._wide(atom, binding.span)
        self._define(binding, _with_operands(call, known))

    def _per_channel(self, bias: Atom, target: TensorVar, span: Span | None) -> Atom:
        """A bias [c] as it is added to [n, c, *space]."""
        assert isinstance(bias.type, TensorType) and isinstance(target.type, TensorType)
        shape = (*bias.type.shape, *[const(1)] * (target.type.rank - 2))
        if isinstance(bias, TensorConst):
            return TensorConst(bias.value.reshape(*bias.value.shape, *[1] * (target.type.rank - 2)), bias.name, span=bias.span)
        return self._bind(Call("reshape", (bias,), (("shape", shape),), span=span), TensorType(shape, f32), "bias", span)

    def _move(self, binding: Binding) -> None:
        call = binding.value
        assert isinstance(call, Call)
        args = tuple(self._narrowed(atom) if _is_f32(atom) else atom for atom in call.args)  # type: ignore[arg-type]
        targets = tuple(self._low_target(target) for target in binding.targets)
        self.bindings.append(replace(binding, targets=targets, value=replace(call, args=args)))

    def _low_target(self, target: TensorVar) -> TensorVar:
        if not _is_f32(target):
            return target
        made = TensorVar(target.name, _narrow_type(target, self.narrowing.dtype), span=target.span)
        self.narrow[target] = made
        return made

    def _in_f32(self, binding: Binding) -> None:
        known = {atom: self._wide(atom, binding.span) for atom in dict.fromkeys(atoms_of(binding.value))}
        changed = {old: new for old, new in known.items() if new is not old}
        value = map_bodies(binding.value, self._body) if bodies_of(binding.value) else binding.value
        if changed:
            value = _with_operands(value, changed)
        self._define(binding, value)

    def _define(self, binding: Binding, value: Operation) -> None:
        """Bind what was computed in f32, and its 16-bit form where that is what is stored."""
        if not any(target in self.narrowing.stored for target in binding.targets):
            self.bindings.append(binding if value is binding.value else replace(binding, value=value))
            return
        wide = tuple(TensorVar(t.name, t.type, span=t.span) if t in self.narrowing.stored else t for t in binding.targets)
        self.bindings.append(replace(binding, targets=wide, value=value))
        for target, made in zip(binding.targets, wide, strict=True):
            if made is not target:
                self.narrow[target] = self._rounding(made)

    def _body(self, func: Function) -> Function:
        return _Rewriter(self.narrowing, self.literals, dict(self.joined), dict(self.narrow)).function(func)


def _is(a: object, b: object) -> bool:
    return a is b


def _is_f32(atom: Atom | None) -> bool:
    return atom is not None and isinstance(atom.type, TensorType) and atom.type.dtype is f32


def _narrow_type(atom: Atom, dtype: DType) -> TensorType:
    assert isinstance(atom.type, TensorType)
    return TensorType(atom.type.shape, dtype)


def _takes(call: Call, args: Sequence[Atom | None]) -> bool:
    """Whether the operator takes operands of these types; one whose bias is of the type of its factors does not take a wide one."""
    if all(arg is None or arg.type.dtype == args[0].type.dtype for arg in args):  # type: ignore[union-attr]
        return True
    try:
        get_op(call.op).infer_types([None if a is None else a.type for a in args], full_attrs(call))  # type: ignore[misc]
    except ShapeError:
        return False
    return True


def _with_operands(value: Operation, known: Mapping[Atom, Atom]) -> Operation:
    """The operation with its own operands replaced, not those of the functions in it."""
    if isinstance(value, TensorVar):
        return known.get(value, value)
    bodies = iter(bodies_of(value))
    renamed = substitute(map_bodies(value, lambda _: _EMPTY), known)  # type: ignore[arg-type]
    return map_bodies(renamed, lambda _: next(bodies))


_EMPTY = Function("empty", (), (), ())
