"""The reference meaning of graphs: run every operator by its numpy reference, and every PrimFunc by the loop interpreter.

Slow and simple; compiled modules are checked against it. Every value is checked against its type, and the conditions over dims that
a module carries are checked as soon as their dims are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.errors import InputError, TcError, VerifyError, located
from tc.interp.loops import run_prim_func
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
    CallTir,
    Function,
    GetItem,
    GlobalRef,
    If,
    Loop,
    ReadDims,
    TensorConst,
    TensorVar,
    Tuple,
    atoms_of,
)
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.registry import PYTHON_FUNCTIONS, Requirement, get_op, inference

Value = Any


@dataclass(frozen=True)
class Observation:
    """One binding that was run: the values of the operands of its operation, its results, and the dims known then."""

    binding: Binding
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    dims: Mapping[Var, int]


Observer = Callable[[Observation], None]
Change = Callable[[np.ndarray], np.ndarray]


def run_function(
    module: IRModule,
    name: str,
    inputs: Sequence[np.ndarray],
    observe: Observer | None = None,
    requirements: Iterable[Requirement] = (),
    dims: Mapping[Var, int] | None = None,
    change: Change | None = None,
) -> list[np.ndarray]:
    """The results of a graph function on arrays. InputError when an array does not fit its parameter, or a requirement fails.

    `dims` are sizes that the shapes of arrays need not tell: of n when a parameter is f32[n // 4]. `observe` is called after
    every binding. `requirements` are conditions over dims beside those that functions carry in their attribute "requirements".
    VerifyError when a value is not of its type. `change` is applied to every result of an operator, to learn what depends on it.
    """
    func = module[name]
    assert isinstance(func, Function), f"{name} is not a graph function"
    return _Frame(module, {}, dict(dims or {}), observe, list(requirements), change).call(func, inputs)


def bind_dims(
    types: Sequence[TensorType],
    shapes: Sequence[tuple[int, ...]],
    names: Sequence[str],
    known: Mapping[Var, int] | None = None,
) -> dict[Var, int]:
    """The dims that shapes imply; InputError naming the parameter that does not fit. `known` are dims bound before."""
    env: dict[Var, int] = {}
    equations: list[tuple[str, int, Expr, int]] = []
    for type_, shape, name in zip(types, shapes, names, strict=True):
        if len(shape) != type_.rank:
            raise InputError(f'input "{name}": rank is {len(shape)}, but must be {type_.rank}', code="TC2003")
        for axis, (dim, size) in enumerate(zip(type_.shape, shape, strict=True)):
            if isinstance(dim, Var) and dim not in env:
                env[dim] = size
            else:
                equations.append((name, axis, dim, size))
    outer = {**(known or {}), **env}
    for name, axis, dim, size in equations:
        expected = evaluate(dim, outer)
        if expected != size:
            raise InputError(f'input "{name}": dim {axis} is {size}, but must be {dim} = {expected}', code="TC2003")
    return env


class _Frame:
    """Values of variables, and of dims, in one function and those around it."""

    def __init__(
        self,
        module: IRModule,
        values: dict[TensorVar, Value],
        dims: dict[Var, int],
        observe: Observer | None,
        requirements: list[Requirement],
        change: Change | None = None,
    ) -> None:
        self.module = module
        self.values = values
        self.dims = dims
        self.observe = observe
        self.change = change
        self.requirements = requirements  # those whose dims are not all known yet

    def inner(self, values: dict[TensorVar, Value] | None = None) -> _Frame:
        """A frame for a nested function: it sees everything, and changes nothing here."""
        seen = dict(self.values) if values is None else values
        return _Frame(self.module, seen, dict(self.dims), self.observe, list(self.requirements), self.change)

    def call(self, func: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        types = [_tensor(param.type) for param in func.params]
        names = [param.name for param in func.params]
        dims = bind_dims(types, [np.shape(x) for x in inputs], names, self.dims)
        frame = self.inner({**self.values, **dict(zip(func.params, inputs, strict=True))})
        frame.dims.update(dims)
        return frame.run(func)

    def run(self, func: Function) -> list[np.ndarray]:
        self.requirements += _carried_requirements(func)
        self._check_requirements()
        for binding in func.bindings:
            with located(binding.span):
                results = self._operation(binding)
                if self.change is not None and isinstance(binding.value, Call):
                    results = [self.change(np.asarray(result)) for result in results]
                if len(results) != len(binding.targets):
                    raise VerifyError(f"{len(results)} results for {len(binding.targets)} targets")
                for target, result in zip(binding.targets, results, strict=True):
                    self._check_type(target, result)
                    self.values[target] = result
            self._check_requirements()
            if self.observe is not None:
                operands = tuple(self.value(atom) for atom in atoms_of(binding.value))
                self.observe(Observation(binding, operands, tuple(results), self.dims))
        return [self.value(result) for result in func.results]

    def _check_type(self, target: TensorVar, result: Value) -> None:
        """Bind the dims that the result's shape tells, and compare the rest."""
        if not isinstance(target.type, TensorType) or not isinstance(result, np.ndarray):
            return
        shape = target.type.shape
        if len(shape) == result.ndim:
            for dim, size in zip(shape, result.shape, strict=True):
                if isinstance(dim, Var):
                    self.dims.setdefault(dim, size)
        if tuple(int(evaluate(dim, self.dims)) for dim in shape) != result.shape:
            raise InputError(f"{target.name} is {list(result.shape)}, but must be {target.type}", code="TC2004")
        if target.type.dtype.numpy != result.dtype:
            raise VerifyError(f"{target.name} is {result.dtype}, but must be {target.type}")

    def _check_requirements(self) -> None:
        for requirement in [r for r in self.requirements if self._is_known(r.condition)]:
            self.requirements.remove(requirement)
            if not evaluate(requirement.condition, self.dims):
                raise InputError(requirement.message, code="TC2004")

    def _is_known(self, condition: Expr) -> bool:
        return all(node in self.dims for node in walk(condition) if isinstance(node, Var))

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
                return self.inner({}).call(func, [self.value(arg) for arg in args])
            case CallTir(callee=name, args=args, dims=dims):
                kernel = self.module[name]
                assert isinstance(kernel, PrimFunc)
                arrays = [np.asarray(self.value(arg)) for arg in args]
                return run_prim_func(kernel, arrays, [int(evaluate(dim, self.dims)) for dim in dims])
            case Tuple(fields=fields):
                fields_now = [self.value(field) for field in fields]
                return fields_now if len(binding.targets) > 1 else [tuple(fields_now)]
            case GetItem(operand=operand, index=index):
                return [self.value(operand)[index]]
            case ReadDims(operand=operand, dims=dims):
                for dim, size in zip(dims, self.value(operand).reshape(-1).tolist(), strict=True):
                    if size < 0:
                        raise InputError(f"{dim} is {size}, but must not be negative", code="TC2004")
                    self.dims[dim] = size
                return []
            case If(condition=condition, then_branch=then_branch, else_branch=else_branch):
                chosen = then_branch if bool(self.value(condition)) else else_branch
                return self.inner().run(chosen)
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
            inner = self.inner()
            for param, given in zip(loop.body.params, [np.asarray(i, np.int64), *carried], strict=True):
                inner._check_type(param, given)
                inner.values[param] = given
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


def _carried_requirements(func: Function) -> list[Requirement]:
    carried = dict(func.attrs).get("requirements", ())
    assert isinstance(carried, tuple), "requirements hold condition and message"
    return [Requirement(*pair) for pair in carried]  # type: ignore[misc]


def _tensor(type_: object) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def _as_argument(value: object, param: TensorVar) -> np.ndarray:
    """The value of a parameter as an array; InputError when it is of another dtype."""
    array = np.asarray(value)
    type_ = _tensor(param.type)
    if array.dtype != type_.dtype.numpy:
        raise InputError(f'input "{param.name}": dtype is {array.dtype}, but must be {type_.dtype}', code="TC2002")
    return array


def run_named(
    module: IRModule, inputs: Mapping[str, np.ndarray], requirements: Iterable[Requirement] = ()
) -> dict[str, np.ndarray]:
    """Run the entry on inputs by name; results by the names of the module's outputs."""
    func = module.main
    arrays = [_as_argument(inputs[param.name], param) for param in func.params]
    results = run_function(module, func.name, arrays, requirements=requirements)
    names = dict(func.attrs).get("output_names") or tuple(f"output{k}" for k in range(len(results)))
    assert isinstance(names, tuple)
    return {str(name): result for name, result in zip(names, results, strict=True)}
