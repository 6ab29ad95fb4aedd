"""Modules that come as IR: what they state of their calls is inferred again, and what cannot be proven is checked when they run.

A front end infers types as it builds; IR that somebody wrote may state any size, and kernels believe what is stated.
"""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ShapeError, located
from tc.ir.arith import Facts
from tc.ir.expr import Const, Expr, equal
from tc.ir.graph import Binding, Call, CallFunction, CallTir, Function, If, map_bodies
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import replace, substitute
from tc.ir.types import DimFact, FunctionType, TensorType, Type
from tc.ops.build import carried_requirements, full_attrs, operand_types
from tc.ops.registry import Requirement, get_op, inference, require


def restate(module: IRModule) -> IRModule:
    """The module with the conditions that its calls need as requirements of the functions they stand in.

    ShapeError for a call whose operands do not fit, or that states another result than it has. The module is verified.
    """
    functions = (_restated(f, f.facts, module) if isinstance(f, Function) else f for f in module.functions)
    return replace(module, functions=tuple(functions))


def _restated(func: Function, facts: Sequence[object], module: IRModule) -> Function:
    old = dict(func.attrs).get("requirements", ())
    assert isinstance(old, tuple), "requirements are pairs of condition and message"
    stated = {pair[0] for pair in old}  # type: ignore[index]
    known = Facts.of(facts)  # type: ignore[arg-type]
    for condition in stated:
        known = known.assume(condition)  # type: ignore[arg-type]
    found: list[Requirement] = []
    bindings = []
    for binding in func.bindings:
        with located(binding.span), inference(known) as requirements:
            _check(binding, module)
        found += requirements
        inner = map_bodies(binding.value, lambda body: _restated(body, (*facts, *body.facts), module))
        bindings.append(binding if inner is binding.value else replace(binding, value=inner))
    more = carried_requirements(r for r in found if r.condition not in stated)
    others = tuple((name, value) for name, value in func.attrs if name != "requirements")
    attrs = (*others, ("requirements", (*old, *more))) if more else func.attrs
    return replace(func, bindings=tuple(bindings), attrs=attrs)


def _check(binding: Binding, module: IRModule) -> None:
    targets = [target.type for target in binding.targets]
    match binding.value:
        case Call(op=op) as call:
            record = get_op(op)
            inferred = record.infer_types([_tensor(t) for t in operand_types(call)], full_attrs(call))
            if len(inferred) < len(targets):
                raise ShapeError(f"{op} has {len(inferred)} results, not {len(targets)}")
            for stated, type_ in zip(targets, inferred, strict=False):
                _require_stated(stated, type_, op, sizes=record.compute is not None)
        case CallTir(callee=callee, args=args, dims=dims) if isinstance(prim := module[callee], PrimFunc):
            own: dict[Expr, Expr] = dict(zip(prim.dims, dims, strict=True))
            types = [*(arg.type for arg in args), *targets]
            for buffer, stated in zip(prim.buffers, types, strict=True):
                wanted = TensorType(tuple(substitute(size, own) for size in buffer.shape), buffer.dtype)
                _require_stated(stated, wanted, f"{callee}: {buffer.name}")
            for fact in prim.facts:
                _require_promised(fact, own[fact.var], callee)
        case CallFunction(callee=callee, args=args) if isinstance(callee.type, FunctionType):
            for k, (arg, param) in enumerate(zip(args, callee.type.params, strict=True)):
                _require_stated(arg.type, param, f"argument {k} of a call", sizes=False)
            for target, result in zip(targets, callee.type.results, strict=True):
                _require_stated(target, result, "the result of a call", sizes=False)
        case If(then_branch=then_branch, else_branch=else_branch):
            for branch in (then_branch, else_branch):
                for target, value in zip(targets, branch.results, strict=True):
                    _require_stated(target, value.type, branch.name, sizes=False)


def _require_promised(fact: DimFact, dim: Expr, callee: str) -> None:
    """State that a dim is what a loop program believes of it."""
    require(dim >= fact.lo, f"{callee}: {fact.var.name} is at least {fact.lo}, but is {dim}")
    if fact.hi is not None:
        require(dim <= fact.hi, f"{callee}: {fact.var.name} is at most {fact.hi}, but is {dim}")
    if fact.multiple_of != 1:
        require(equal(dim % fact.multiple_of, 0), f"{callee}: {fact.var.name} is a multiple of {fact.multiple_of}, but is {dim}")


def _tensor(type_: Type | None) -> TensorType | None:
    if type_ is not None and not isinstance(type_, TensorType):
        raise ShapeError(f"an operand is {type_}, must be a tensor")
    return type_


def _require_stated(stated: Type, type_: Type, what: str, *, sizes: bool = True) -> None:
    """State that a value is what is said of it. Sizes that only the run tells are compared where both are numbers."""
    if not isinstance(stated, TensorType) or not isinstance(type_, TensorType):
        return
    if stated.rank != type_.rank or stated.dtype is not type_.dtype:
        raise ShapeError(f"{what} is stated to be {stated}, but is {type_}")
    for axis, (said, dim) in enumerate(zip(stated.shape, type_.shape, strict=True)):
        if sizes or (isinstance(said, Const) and isinstance(dim, Const)):
            require(equal(said, dim), f"{what}: dim {axis} is stated to be {said}, but is {dim}")
