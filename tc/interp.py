"""The reference meaning of graphs: run every operator by its numpy reference.

Slow and simple; compiled modules are checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tc.errors import InputError, TcError, located
from tc.ir.arith import Facts, evaluate
from tc.ir.expr import Expr, Var
from tc.ir.graph import (
    Atom,
    Attrs,
    AttrValue,
    Binding,
    Call,
    CallExtern,
    CallFunction,
    Function,
    GetItem,
    GlobalRef,
    If,
    Loop,
    ReadDims,
    TensorConst,
    TensorVar,
    Tuple,
)
from tc.ir.module import IRModule
from tc.ir.types import TensorType
from tc.ops.registry import PYTHON_FUNCTIONS, get_op, inference

Value = Any
Observer = Callable[[Binding, Sequence[Value]], None]


def run_function(
    module: IRModule, name: str, inputs: Sequence[np.ndarray], observe: Observer | None = None
) -> list[np.ndarray]:
    """The results of a graph function on arrays. InputError when an array does not fit its parameter.

    `observe` is called with every binding and its values.
    """
    func = module[name]
    assert isinstance(func, Function), f"{name} is not a graph function"
    return _Frame(module, {}, {}, observe).call(func, inputs)


def bind_dims(types: Sequence[TensorType], shapes: Sequence[tuple[int, ...]], names: Sequence[str]) -> dict[Var, int]:
    """The dims that shapes imply; InputError naming the parameter that does not fit."""
    env: dict[Var, int] = {}
    equations: list[tuple[str, int, Expr, int]] = []
    for type_, shape, name in zip(types, shapes, names, strict=True):
        if len(shape) != type_.rank:
            raise InputError(f'input "{name}": rank is {len(shape)}, but must be {type_.rank}')
        for axis, (dim, size) in enumerate(zip(type_.shape, shape, strict=True)):
            if isinstance(dim, Var) and dim not in env:
                env[dim] = size
            else:
                equations.append((name, axis, dim, size))
    for name, axis, dim, size in equations:
        expected = evaluate(dim, env)
        if expected != size:
            raise InputError(f'input "{name}": dim {axis} is {size}, but must be {dim} = {expected}')
    return env


class _Frame:
    """Values of variables, and of dims, in one function and those around it."""

    def __init__(
        self, module: IRModule, values: dict[TensorVar, Value], dims: dict[Var, int], observe: Observer | None
    ) -> None:
        self.module = module
        self.values = values
        self.dims = dims
        self.observe = observe

    def call(self, func: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        types = [_tensor(param.type) for param in func.params]
        dims = bind_dims(types, [np.shape(x) for x in inputs], [param.name for param in func.params])
        values = {**self.values, **dict(zip(func.params, inputs, strict=True))}
        inner = _Frame(self.module, values, {**self.dims, **dims}, self.observe)
        return inner.run(func)

    def run(self, func: Function) -> list[np.ndarray]:
        for binding in func.bindings:
            with located(binding.span):
                results = self._operation(binding)
            if len(results) != len(binding.targets) and binding.targets:
                raise TcError(f"{len(results)} results for {len(binding.targets)} targets")
            for target, result in zip(binding.targets, results, strict=False):
                self._bind_result_dims(target, result)
                self.values[target] = result
            if self.observe is not None:
                self.observe(binding, results)
        return [self.value(result) for result in func.results]

    def _bind_result_dims(self, target: TensorVar, result: Value) -> None:
        if isinstance(target.type, TensorType) and isinstance(result, np.ndarray):
            for dim, size in zip(target.type.shape, result.shape, strict=True):
                if isinstance(dim, Var):
                    self.dims.setdefault(dim, size)

    def value(self, atom: Atom | None) -> Value:
        match atom:
            case None:
                return None
            case TensorConst(value=value):
                return value
            case GlobalRef():
                return atom
        return self.values[atom]

    def _operation(self, binding: Binding) -> Sequence[Value]:
        value = binding.value
        match value:
            case TensorVar() | TensorConst() | GlobalRef():
                return [self.value(value)]
            case Call(op=op, args=args):
                return self._operator(op, [self.value(arg) for arg in args], value.attrs)
            case CallExtern(symbol=symbol, args=args, attrs=attrs) if symbol.startswith("py:"):
                literal = Attrs(tuple((key, self._literal(item)) for key, item in attrs))
                return PYTHON_FUNCTIONS[symbol[3:]]([self.value(arg) for arg in args], literal)
            case CallFunction(callee=callee, args=args):
                target = self.value(callee)
                func = self.module[target.name]
                assert isinstance(func, Function)
                return _Frame(self.module, {}, dict(self.dims), self.observe).call(func, [self.value(a) for a in args])
            case Tuple(fields=fields):
                fields_now = [self.value(field) for field in fields]
                return fields_now if len(binding.targets) > 1 else [tuple(fields_now)]
            case GetItem(operand=operand, index=index):
                return [self.value(operand)[index]]
            case ReadDims(operand=operand, dims=dims):
                self.dims.update(zip(dims, (int(n) for n in self.value(operand).reshape(-1)), strict=True))
                return []
            case If(condition=condition, then_branch=then_branch, else_branch=else_branch):
                chosen = then_branch if bool(self.value(condition)) else else_branch
                return _Frame(self.module, dict(self.values), dict(self.dims), self.observe).run(chosen)
            case Loop():
                return self._loop(value, len(binding.targets))
        raise TcError(f"the interpreter does not run {type(value).__name__}")

    def _operator(self, name: str, arrays: list[Any], attrs: tuple[tuple[str, AttrValue], ...]) -> Sequence[np.ndarray]:
        op = get_op(name)
        literal = Attrs(tuple((key, self._literal(value)) for key, value in op.attrs(attrs).items()))
        with inference(Facts()), np.errstate(all="ignore"):
            return op.run_reference(arrays, literal)

    def _literal(self, value: AttrValue) -> AttrValue:
        if isinstance(value, tuple):
            return tuple(map(self._literal, value))
        return int(evaluate(value, self.dims)) if isinstance(value, Expr) else value

    def _loop(self, loop: Loop, num_targets: int) -> list[np.ndarray]:
        carried = [self.value(atom) for atom in loop.init]
        limit = None if loop.trip_count is None else int(evaluate(loop.trip_count, self.dims))
        going = bool(self.value(loop.condition))
        scanned: list[list[np.ndarray]] = [[] for _ in range(num_targets - len(carried))]
        i = 0
        while going and (limit is None or i < limit):
            inner = _Frame(self.module, dict(self.values), dict(self.dims), self.observe)
            inner.values.update(zip(loop.body.params, [np.asarray(i, np.int64), *carried], strict=True))
            condition, *others = inner.run(loop.body)
            carried, rows = others[: len(carried)], others[len(carried) :]
            for stack, row in zip(scanned, rows, strict=True):
                stack.append(row)
            going = bool(condition)
            i += 1
        return [*carried, *(self._stacked(loop, k, stack) for k, stack in enumerate(scanned))]

    def _stacked(self, loop: Loop, k: int, rows: list[np.ndarray]) -> np.ndarray:
        if rows:
            return np.stack(rows)
        result = loop.body.results[1 + len(loop.init) + k]
        type_ = _tensor(result.type)
        shape = tuple(int(evaluate(dim, self.dims)) for dim in type_.shape)
        return np.zeros((0, *shape), type_.dtype.numpy)


def _tensor(type_: object) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def run_named(module: IRModule, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the entry on inputs by name; results by the names of the module's outputs."""
    func = module.main
    results = run_function(module, func.name, [np.asarray(inputs[param.name]) for param in func.params])
    names = dict(func.attrs).get("output_names") or tuple(f"output{k}" for k in range(len(results)))
    assert isinstance(names, tuple)
    return {str(name): result for name, result in zip(names, results, strict=True)}
