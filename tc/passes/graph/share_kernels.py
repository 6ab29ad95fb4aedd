"""Kernels that differ in literals alone are one kernel, which reads from tensors what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from tc.ir.dtype import DType, f32, i8, i16, u8, u16
from tc.ir.expr import Add, Buffer, Cast, Const, Expr, Load, MathCall, Mul, Select, Sub, const, is_const
from tc.ir.graph import Atom, CallTir, Function, TensorConst, tir_calls
from tc.ir.loop import PrimFunc, Stmt
from tc.ir.module import IRModule
from tc.ir.node import Node, cached_on_node, children, map_children, replace, transform
from tc.ir.structural import structural_hash
from tc.ir.uses import buffers_read
from tc.passes.manager import graph_pass

Literals = tuple[Const, ...]
"""Those of a kernel that may be read instead, in order of appearance."""

READ_INSTEAD = (f32, u8, i8, u16, i16)
"""Types whose literals may be read instead; those of indices and of sums of integers say what a loop is."""

_ARITHMETIC = (Add, Sub, Mul)


@graph_pass
def share_kernels(module: IRModule) -> IRModule:
    """Make one kernel of those that are equal but for literals which are added, subtracted, multiplied by or chosen: scales and zero
    points of a quantized network's layers. What differs is read from a tensor of its type, which each call is given.

        y = call_tir(by_7, x)                         y = call_tir(by, x, [7])
        z = call_tir(by_9, y)                   =>    z = call_tir(by, y, [9])

    Every operation is the same as before, so every bit of a result is. A literal that is divided by, or compared with, stays: what it is
    decides how that is computed; bounds of what is quantized do not. What kernels compute of one number that each call is given, such
    as the bounds that a zero point makes, is computed here (`with_numbers_computed`). For modules of PrimFuncs.
    """
    module = with_numbers_computed(module)
    called = {call.callee for func in module.graph_functions for _, call in tir_calls(func)}
    alike: dict[object, list[PrimFunc]] = defaultdict(list)
    for func in module.prim_funcs:
        if func.name in called:
            alike[_outline(func)].append(func)
    groups: dict[str, list[tuple[PrimFunc, Literals]]] = defaultdict(list)
    for func in chain(*(funcs for funcs in alike.values() if len(funcs) > 1)):
        if literals := literals_to_read(func):
            groups[structural_hash(_read_instead(func, range(len(literals)), literals))].append((func, literals))
    shared: dict[str, tuple[PrimFunc, tuple[TensorConst, ...]]] = {}
    for group in groups.values():
        if len(group) > 1:
            shared |= _shared(group)
    if not shared:
        return module

    def call_shared(node: Node) -> Node | None:
        if not isinstance(node, CallTir) or node.callee not in shared:
            return None
        func, tensors = shared[node.callee]
        return replace(node, callee=func.name, args=(*node.args, *tensors))

    kept: dict[str, PrimFunc] = {}
    for func in module.prim_funcs:
        found = shared[func.name][0] if func.name in shared else func
        kept[found.name] = found
    functions = (transform(func, call_shared) for func in module.functions if isinstance(func, Function))
    return IRModule((*functions, *kept.values()), module.entry)


def _outline(func: PrimFunc) -> object:
    """What kernels have in common that differ in literals alone, as far as that is seen at once."""
    return tuple((buffer.dtype, tuple(dim if isinstance(dim, Const) else None for dim in buffer.shape)) for buffer in func.buffers)


def _shared(group: Sequence[tuple[PrimFunc, Literals]]) -> Iterator[tuple[str, tuple[PrimFunc, tuple[TensorConst, ...]]]]:
    """For each kernel of a group, by its name: the one in the place of all, and the tensors that a call in its place gives."""
    first, literals = group[0]
    columns = [tuple(given[place] for _, given in group) for place in range(len(literals))]
    different = {column: None for column in columns if len(set(column)) > 1}  # equal ones are read from one place
    by_type: dict[DType, list[tuple[Const, ...]]] = defaultdict(list)
    for column in different:
        by_type[column[0].dtype].append(column)
    places = [by_type[c[0].dtype].index(c) if c in different else None for c in columns]
    func = _read_instead(first, places, literals)
    for number, (member, _) in enumerate(group):
        rows = [np.array([c[number].value for c in by_type[dtype]], dtype.numpy) for dtype in READ_INSTEAD if dtype in by_type]
        yield member.name, (func, tuple(TensorConst(row, "literals") for row in rows))


def literals_to_read(func: PrimFunc) -> Literals:
    """The literals of a kernel that may be read instead, in order of appearance."""
    found: list[Const] = []

    def note(literal: Const) -> Expr:
        found.append(literal)
        return literal

    _visit_literals(func, note)
    return tuple(found)


def _read_instead(func: PrimFunc, places: Sequence[int | None], literals: Literals) -> PrimFunc:
    """The kernel with literals read from the given places of additional inputs; None leaves one as it is."""
    sizes = dict.fromkeys(READ_INSTEAD, 0)
    for place, literal in zip(places, literals, strict=True):
        if place is not None:
            sizes[literal.dtype] = max(sizes[literal.dtype], place + 1)
    buffers = {dtype: Buffer("literals", (const(size),), dtype) for dtype, size in sizes.items() if size}
    remaining = iter(places)

    def read(literal: Const) -> Expr:
        place = next(remaining)
        return literal if place is None else Load(buffers[literal.dtype], (const(place),))

    body = _visit_literals(func, read)
    return replace(func, params=(*func.inputs, *buffers.values(), *func.outputs, *func.dims), body=body)


def _visit_literals(func: PrimFunc, visit: Callable[[Const], Expr]) -> Stmt:
    """The body with each literal that may be read instead replaced; in one order for functions that are alike."""

    def within(node: Node, may_read: bool, types: Sequence[DType]) -> Node:
        if isinstance(node, Buffer) or not _holds_literals(node):
            return node
        match node:
            case Const(dtype=dtype):
                return visit(node) if may_read and dtype in types else node
            case Select(condition=condition):
                return map_children(node, lambda child: within(child, child is not condition, types))
            case Load():
                may_read, types = False, (f32,)  # integers say where it is
            case MathCall(name="bounded_quotient", args=(_, _, _, low, high)):
                return map_children(node, lambda child: within(child, child is low or child is high, types))
            case Expr():
                may_read = _only_passes_on(node, may_read)
            case _:
                may_read = False
        return map_children(node, lambda child: within(child, may_read, types))

    body = within(func.body, False, READ_INSTEAD)
    assert isinstance(body, Stmt)
    return body


def _only_passes_on(node: Expr, may_read: bool) -> bool:
    """Whether what an operand is does not decide how an expression is computed."""
    return isinstance(node, _ARITHMETIC) or (may_read and isinstance(node, Cast))


@cached_on_node
def _holds_literals(node: Node) -> bool:
    """Whether some literal of the types that may be read is at or below a node."""
    return node.dtype in READ_INSTEAD if isinstance(node, Const) else any(map(_holds_literals, children(node)))


# -- numbers of calls


def with_numbers_computed(module: IRModule) -> IRModule:
    """Let kernels that are given single numbers, all of them literals, read what they compute of them alone: as a literal where all
    calls agree, and else from a tensor of f32, so that nothing is converted and subtracted for each vector.

        f(x, z): ... (f32(x[i]) - f32(z)) ...          =>    f(x, numbers): ... (f32(x[i]) - numbers[0]) ...
    """
    calls: dict[str, list[CallTir]] = defaultdict(list)
    for func in module.graph_functions:
        for _, call in tir_calls(func):
            calls[call.callee].append(call)
    made = {func.name: _computed(func, calls[func.name]) for func in module.prim_funcs if func.name in calls}
    changed = {name: found for name, found in made.items() if found is not None}
    if not changed:
        return module
    args_of = {call: args for name, (_, given) in changed.items() for call, args in zip(calls[name], given, strict=True)}

    def give(node: Node) -> Node | None:
        return replace(node, args=args_of[node]) if isinstance(node, CallTir) and node in args_of else None

    functions = [changed[func.name][0] if func.name in changed else func for func in module.functions]
    return IRModule(tuple(transform(func, give) if isinstance(func, Function) else func for func in functions), module.entry)


def _computed(func: PrimFunc, calls: Sequence[CallTir]) -> tuple[PrimFunc, list[tuple[Atom, ...]]] | None:
    """The kernel that reads computed numbers, and what each call gives it; None where there are none."""
    single = {}
    for place, buffer in enumerate(func.inputs):
        given = [call.args[place] for call in calls]
        values = [arg.value.reshape(()) for arg in given if isinstance(arg, TensorConst) and arg.value.size == 1]
        if buffer.dtype in READ_INSTEAD and len(values) == len(calls) and _is_single(buffer):
            single[buffer] = values
    found: dict[Node, None] = dict.fromkeys(_made_of(func.body, frozenset(single))) if single else {}
    if not found:
        return None
    columns = {expr: tuple([_literal(expr, {b: values[k] for b, values in single.items()}) for k in range(len(calls))]) for expr in found}
    different = list(dict.fromkeys(column for column in columns.values() if len(set(column)) > 1))
    numbers = Buffer("numbers", (const(len(different)),), f32)

    def read_instead(node: Node) -> Node | None:
        column = columns.get(node)
        if column is None:
            return None
        return Load(numbers, (const(different.index(column)),)) if column in different else column[0]

    body = transform(func.body, read_instead)
    assert isinstance(body, Stmt)
    read = buffers_read(body)
    kept = [place for place, buffer in enumerate(func.inputs) if buffer not in single or buffer in read]
    more = [TensorConst(np.array([column[k].value for column in different], np.float32), "numbers") for k in range(len(calls))]
    inputs = [*(func.inputs[place] for place in kept), *([numbers] if different else [])]
    pairs = zip(calls, more, strict=True)
    given_now = [(*(call.args[place] for place in kept), *([tensor] if different else [])) for call, tensor in pairs]
    return replace(func, params=(*inputs, *func.outputs, *func.dims), body=body), given_now


def _is_single(buffer: Buffer) -> bool:
    return all(is_const(dim, 1) for dim in buffer.shape)


def _made_of(stmt: Stmt, single: frozenset[Buffer]) -> Iterator[Expr]:
    """The largest expressions of f32 that are made of single numbers and literals alone."""
    stack: list[Node] = [stmt]
    while stack:
        node = stack.pop()
        if isinstance(node, Expr) and node.dtype is f32 and _is_made_of(node, single) and not isinstance(node, Const):
            yield node
        else:
            stack += children(node)


def _is_made_of(expr: Node, single: frozenset[Buffer]) -> bool:
    match expr:
        case Const():
            return True
        case Load(buffer=buffer):
            return buffer in single
        case Cast() | Add() | Sub() | Mul():
            return all(_is_made_of(child, single) for child in children(expr))
    return False


def _literal(expr: Node, values: Mapping[Buffer, np.ndarray]) -> Const:
    """What an expression of f32 is where buffers hold these numbers."""
    with np.errstate(all="ignore"):  # as where it is computed
        return const(_value_of(expr, values).item(), f32)


def _value_of(expr: Node, values: Mapping[Buffer, np.ndarray]) -> np.ndarray:
    """The same of any type, rounded as it is where it is computed."""
    match expr:
        case Const(value=value, dtype=dtype):
            return np.asarray(value, dtype.numpy)
        case Load(buffer=buffer):
            return values[buffer]
        case Cast(operand=operand, dtype=dtype):
            return _value_of(operand, values).astype(dtype.numpy)
        case Add(lhs=lhs, rhs=rhs):
            return np.asarray(_value_of(lhs, values) + _value_of(rhs, values))
        case Sub(lhs=lhs, rhs=rhs):
            return np.asarray(_value_of(lhs, values) - _value_of(rhs, values))
        case Mul(lhs=lhs, rhs=rhs):
            return np.asarray(_value_of(lhs, values) * _value_of(rhs, values))
    raise AssertionError(f"{expr} is none of these")
