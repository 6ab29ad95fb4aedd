"""What only decides sizes and branches is computed where it is needed: on the host, beside a program whose kernels run on a device."""

from __future__ import annotations

import math

from tc.ir.graph import (
    Atom,
    Binding,
    Call,
    CallTir,
    Function,
    If,
    Operation,
    ReadDims,
    TensorConst,
    TensorVar,
    atoms_of,
    tir_calls,
)
from tc.ir.loop import PrimFunc, annotation
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import TensorType
from tc.ops.registry import get_op
from tc.passes.graph.dce import remove_dead_code
from tc.passes.manager import graph_pass

ON_HOST = "on_host"
"""The attribute of a PrimFunc that runs on the host of a device."""

SMALL_BYTES = 1024
"""Of a value that the host computes: shapes, indices, conditions. One thread is done with it before a device has begun."""


def is_on_host(func: object) -> bool:
    """Whether a function of a module is a kernel that runs on the host of a device."""
    return isinstance(func, PrimFunc) and bool(annotation(func, ON_HOST))


def is_small(atom: Atom) -> bool:
    """Whether a value has a known size, at most SMALL_BYTES."""
    type_ = atom.type
    if not isinstance(type_, TensorType) or type_.static_shape is None:
        return False
    return type_.dtype.bytes_of(math.prod(type_.static_shape)) <= SMALL_BYTES


@graph_pass
def place_on_host(module: IRModule) -> IRModule:
    """Let the host compute what it reads, where that follows from small inputs, literals and dims: sizes that come from data, conditions.

        s = call_tir(double, n)                       t = call_tir(double_on_host, n)
        m = read_dims(s)                        =>    m = read_dims(t)
        y = call_tir(fill, m)                         y = call_tir(fill, m)

    What the device needs as well is computed by both. Inside the bodies of loops and branches nothing changes. For modules of PrimFuncs,
    with an entry for a device; what reads a value on the host must find it there then (`plan_memory`).
    """
    main = module.main
    maker = {target: binding for binding in main.bindings for target in binding.targets}
    moved: dict[Binding, None] = {}
    for binding in main.bindings:
        for atom in _read_by_host(binding):
            moved.update(dict.fromkeys(_makers(atom, maker, module) or ()))
    if not any(isinstance(binding.value, CallTir) for binding in moved):
        return module
    names = {call.callee: _host_name(call.callee, module) for call in (binding.value for binding in moved) if isinstance(call, CallTir)}
    kernels = (_for_host(func, names[func.name]) for func in module.functions if isinstance(func, PrimFunc) and func.name in names)
    functions = (*(_rewritten(func, moved, names) if func is main else func for func in module.functions), *kernels)
    return _without_unused(remove_dead_code(IRModule(functions, module.entry)))


def _host_name(kernel: str, module: IRModule) -> str:
    """What the kernel is called that does the same on the host."""
    name = f"{kernel}_{ON_HOST}"
    while name in module:
        name += "_"
    return name


def _for_host(func: PrimFunc, name: str) -> PrimFunc:
    return replace(func, name=name, attrs=(*func.attrs, (ON_HOST, True)))


def _read_by_host(binding: Binding) -> tuple[Atom, ...]:
    match binding.value:
        case ReadDims(operand=operand):
            return (operand,)
        case If(condition=condition):
            return (condition,)
    return ()


def _makers(atom: Atom, maker: dict[TensorVar, Binding], module: IRModule) -> list[Binding] | None:
    """The bindings that make a value, each behind those that it needs; None where the host cannot make it."""
    if not is_small(atom):
        return None
    if isinstance(atom, TensorConst) or atom not in maker:  # an input of the function
        return []
    binding = maker[atom]
    if not _is_plain(binding, module):
        return None
    found: list[Binding] = []
    for operand in atoms_of(binding.value):
        before = _makers(operand, maker, module)
        if before is None:
            return None
        found += before
    return [*found, binding]


def _is_plain(binding: Binding, module: IRModule) -> bool:
    """Whether it is a small kernel, or another name for a small value."""
    match binding.value:
        case TensorVar():
            return True
        case CallTir(callee=callee):
            return isinstance(module[callee], PrimFunc) and all(map(is_small, binding.targets))
        case Call(op=op):
            return get_op(op).view
    return False


def _rewritten(func: Function, moved: dict[Binding, None], names: dict[str, str]) -> Function:
    """With the bindings for the host beside those for the device, and what the host reads taken from there."""
    twins: dict[TensorVar, TensorVar] = {}
    bindings: list[Binding] = []
    for binding in func.bindings:
        bindings.append(_reading(binding, twins))
        if binding in moved:
            targets = tuple(TensorVar(target.name, target.type) for target in binding.targets)
            bindings.append(replace(binding, targets=targets, value=_twin(binding, twins, names)))
            twins.update(zip(binding.targets, targets, strict=True))
    return replace(func, bindings=tuple(bindings))


def _twin(binding: Binding, twins: dict[TensorVar, TensorVar], names: dict[str, str]) -> Operation:
    value = binding.value
    if isinstance(value, TensorVar):
        return twins.get(value, value)
    assert isinstance(value, (CallTir, Call))
    args = tuple(twins.get(arg, arg) if isinstance(arg, TensorVar) else arg for arg in value.args)
    return replace(value, args=args, callee=names[value.callee]) if isinstance(value, CallTir) else replace(value, args=args)


def _reading(binding: Binding, twins: dict[TensorVar, TensorVar]) -> Binding:
    match binding.value:
        case ReadDims(operand=TensorVar() as operand) if operand in twins:
            return replace(binding, value=replace(binding.value, operand=twins[operand]))
        case If(condition=TensorVar() as condition) if condition in twins:
            return replace(binding, value=replace(binding.value, condition=twins[condition]))
    return binding


def _without_unused(module: IRModule) -> IRModule:
    """Without the kernels that nobody calls any more."""
    called = {call.callee for func in module.graph_functions for _, call in tir_calls(func)}
    kept = tuple(func for func in module.functions if not isinstance(func, PrimFunc) or func.name in called)
    return IRModule(kept, module.entry)

