"""Graph to loops: each primitive function becomes a PrimFunc. The only file that knows both levels well.

A primitive function is a graph function with the attribute `primitive`: what `fuse_ops` decided to run as one kernel. It is a flat
list of calls of operators and PrimFuncs without control flow. Its loops are the tensor expressions of what it calls, read one through the
other; equal kernels (up to names) are kept once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tc.errors import LoweringError, Span, located
from tc.ir.arith import Facts, atoms_of_polynomial, bounds
from tc.ir.dtype import i64
from tc.ir.expr import Checked, Expr, Var, const
from tc.ir.graph import (
    Atom,
    Attrs,
    Binding,
    Call,
    CallFunction,
    CallTir,
    Function,
    GlobalRef,
    TensorConst,
    TensorVar,
    all_bindings,
    tensor_type_of,
    tir_calls,
)
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import Node, cached_on_node, children, replace, substitute, transform, walk
from tc.ir.structural import structural_hash
from tc.ir.types import DimFact, TensorType
from tc.ops.registry import current_facts, get_op, inference
from tc.passes.loop.drop_unread import drop_unread
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.manager import graph_pass
from tc.passes.raise_loops import NotRaised, raise_prim_func
from tc.te import Tensor, compute, create_prim_func, origin, placeholder


def is_primitive(func: Function) -> bool:
    """Whether the function is to become one kernel."""
    return bool(Attrs(func.attrs).get("primitive"))


def primitive_calls(module: IRModule) -> Iterator[tuple[Binding, Function]]:
    """The bindings of a fused module that call primitive functions, and the functions."""
    for binding in all_bindings(module.main):
        if isinstance(binding.value, CallFunction) and isinstance(binding.value.callee, GlobalRef):
            inner = module[binding.value.callee.name]
            assert isinstance(inner, Function)
            yield binding, inner


def nodes_by_result(module: IRModule) -> dict[TensorVar, tuple[str, ...]]:
    """For each result of a primitive function, the model's nodes inside the function that made it."""
    found: dict[TensorVar, tuple[str, ...]] = {}
    for binding, inner in primitive_calls(module):
        nodes = tuple(dict.fromkeys(node for b in inner.bindings if b.span is not None for node in b.span.nodes))
        found.update(dict.fromkeys(binding.targets, nodes))
    return found


@graph_pass
def lower_primitives(module: IRModule) -> IRModule:
    """Replace every primitive function by its PrimFunc, and every call of it by a CallTir. Equal kernels are merged.

    PrimFuncs that only primitive functions called are gone: they are part of the kernels.
    """
    lowered: dict[str, PrimFunc] = {}
    dims_of: dict[str, tuple[Expr, ...]] = {}
    origins_of: dict[str, tuple[Span | None, ...]] = {}
    by_hash: dict[str, PrimFunc] = {}
    by_graph: dict[str, PrimFunc] = {}  # the same, by what they were lowered from
    for func in module.graph_functions:
        if is_primitive(func):
            plain, opaque = hide_dim_formulas(func)
            source = structural_hash(plain)
            if source not in by_graph:
                prim = lower_function(plain, module)
                by_graph[source] = by_hash.setdefault(structural_hash(prim), prim)
            prim = lowered[func.name] = by_graph[source]
            dims_of[func.name] = tuple(substitute(dim, opaque) for dim in free_dims(plain))
            origins_of[func.name] = tuple(binding.span for binding in func.bindings) if _has_checks(prim) else ()
    if not lowered:
        return module

    def call_kernel(node: Node) -> Node | None:
        match node:
            case Binding(targets=targets, value=CallFunction(callee=GlobalRef(name=name), args=args) as call):
                if name not in lowered:
                    return None
                types = tuple(tensor_type_of(target) for target in targets)
                dims = dims_of[name]  # a primitive function speaks of its caller's dims by the same variables
                made = CallTir(lowered[name].name, args, dims, types, origins=origins_of[name], span=call.span)
                return replace(node, value=made)
        return None

    kept = [func for func in module.functions if not (isinstance(func, Function) and func.name in lowered)]
    called = {call.callee for func in kept if isinstance(func, Function) for _, call in tir_calls(func)}
    absorbed = {call.callee for func in module.graph_functions if is_primitive(func) for _, call in tir_calls(func)} - called
    kept = [func for func in kept if func.name not in absorbed]
    rewritten = [transform(func, call_kernel) if isinstance(func, Function) else func for func in kept]
    return IRModule((*rewritten, *by_hash.values()), module.entry)


def _has_checks(func: PrimFunc) -> bool:
    return _with_checks(func.body)


@cached_on_node
def _with_checks(node: Node) -> bool:
    return isinstance(node, Checked) or any(map(_with_checks, children(node)))


def dims_of_types(types: Sequence[TensorType]) -> tuple[Var, ...]:
    """The symbolic dims in the types, in order of appearance."""
    found = (node for type_ in types for dim in type_.shape for node in walk(dim) if isinstance(node, Var))
    return tuple(dict.fromkeys(found))


def free_dims(func: Function) -> tuple[Var, ...]:
    """The symbolic dims that a function without nested functions mentions, in order of appearance."""
    found: dict[Var, None] = dict.fromkeys(dims_of_types([tensor_type_of(param) for param in func.params]))
    for binding in func.bindings:
        if isinstance(binding.value, (Call, CallTir)):
            given = binding.value.dims if isinstance(binding.value, CallTir) else tuple(value for _, value in binding.value.attrs)
            found.update(dict.fromkeys(_vars_in(given)))
        found.update(dict.fromkeys(dims_of_types([tensor_type_of(target) for target in binding.targets])))
    return tuple(found)


def _vars_in(value: object) -> list[Var]:
    if isinstance(value, Expr):
        return [node for node in walk(value) if isinstance(node, Var)]
    if isinstance(value, tuple):
        return [var for item in value for var in _vars_in(item)]
    return []


def hide_dim_formulas(func: Function) -> tuple[Function, dict[Node, Node]]:
    """Replace every dim that is not a polynomial, such as (w + 1) // 2, by a variable of its own.

    A kernel need not know how its caller computes a size: without the formula it serves more callers, and questions about its
    indices stay simple. A part of a dim is replaced by itself only where it is known not to be negative, as whole dims are.
    Returns the function and what each new variable stands for.
    """
    facts = Facts.of(func.facts)
    types = [tensor_type_of(atom) for atom in (*func.params, *(t for b in func.bindings for t in b.targets))]
    formulas: dict[Node, Node] = {}
    promises = list(func.facts)
    dims = list(dict.fromkeys(dim for type_ in types for dim in type_.shape))
    for dim in dims:
        parts = [atom for atom in atoms_of_polynomial(dim) if not isinstance(atom, Var)]
        are_sizes = all(part in dims or _is_nonnegative(part, facts) for part in parts)
        for part in parts if are_sizes else [dim]:
            if part not in formulas:
                var = Var(f"d{len(formulas)}", i64)
                formulas[part] = var
                known = bounds(part, facts)
                promises.append(DimFact(var, max(known.lo or 0, 0), known.hi))
    if not formulas:
        return func, {}
    hidden = replace(substitute(func, formulas), facts=tuple(promises))
    return hidden, {var: atom for atom, var in formulas.items()}


def _is_nonnegative(expr: Expr, facts: Facts) -> bool:
    low = bounds(expr, facts).lo
    return low is not None and low >= 0


def lower_function(func: Function, module: IRModule) -> PrimFunc:
    """The unscheduled PrimFunc of a primitive function of `module`. Its scalars are `free_dims(func)`; one-element constants become
    literals.

    Raises LoweringError for what has no loops, naming the node.
    """
    facts = Facts.of(func.facts)
    tensors: dict[TensorVar, Tensor] = {}
    inputs = []
    for param in func.params:
        type_ = tensor_type_of(param)
        tensors[param] = placeholder(type_.shape, type_.dtype, param.name)
        inputs.append(tensors[param])
    with inference(facts):
        for number, binding in enumerate(func.bindings):
            with located(binding.span), origin(number):
                results = _lower_binding(binding, tensors, module)
            tensors.update(zip(binding.targets, results, strict=True))
    outputs = [tensors[result] for result in func.results if isinstance(result, TensorVar)]
    assert len(outputs) == len(func.results), "results of a primitive function are variables"
    dims = free_dims(func)
    facts_of_dims = tuple(fact for fact in func.facts if fact.var in dims)
    prim = create_prim_func(func.name, inputs, outputs, dims, facts_of_dims, compose=True)
    return drop_unread(simplify_loops(prim))


def _lower_binding(binding: Binding, tensors: dict[TensorVar, Tensor], module: IRModule) -> tuple[Tensor, ...]:
    call = binding.value
    if isinstance(call, CallTir):
        return _lower_kernel(call, [_operand(arg, tensors) for arg in call.args], module)
    if not isinstance(call, Call):
        raise LoweringError(f"a primitive function may hold operator calls only, found {type(call).__name__}")
    op = get_op(call.op)
    if op.compute is None:
        raise LoweringError(f"{call.op} has no loop definition")
    operands = [None if arg is None else _operand(arg, tensors) for arg in call.args]
    types = [tensor_type_of(target) for target in binding.targets]
    return op.compute_tensors(operands, op.attrs(call.attrs), types)


def _lower_kernel(call: CallTir, operands: Sequence[Tensor], module: IRModule) -> tuple[Tensor, ...]:
    kernel = module[call.callee]
    assert isinstance(kernel, PrimFunc), "the callee of a CallTir is a PrimFunc"
    try:
        return raise_prim_func(kernel, operands, call.dims, current_facts())
    except NotRaised as why:
        raise LoweringError(f"{call.callee} cannot be part of another kernel: {why}") from None


def _operand(atom: Atom, tensors: dict[TensorVar, Tensor]) -> Tensor:
    match atom:
        case TensorVar():
            return tensors[atom]
        case TensorConst(value=value) if value.size == 1:
            literal = const(value.reshape(()).item(), atom.type.dtype)
            return compute(atom.type.shape, lambda *axes: literal, "literal")
    raise LoweringError(f"a primitive function takes its large constants as parameters, found {atom!r}")
