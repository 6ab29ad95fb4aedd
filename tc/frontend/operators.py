"""Operators that a user defines: registered under "domain::Name", called from graphs, and from ONNX files in that domain.

    def swish(x, *, beta=1.0):
        return te.compute(x.shape, lambda *i: x[i] / (1.0 + te.call("exp", -beta * x[i])), "swish")

    tc.op("my.dom::Swish", swish)

The signature is the declaration: positional parameters are operands (`=None` for one that may be absent, `*xs` for any number),
keyword-only ones attributes with their defaults. What the tensor expression says decides how the operator fuses, as for the operators of
`tc`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tc.errors import InputError, ShapeError, TcError, UserError
from tc.interp import run_prim_func
from tc.ir.arith import Facts, prove
from tc.ir.dtype import DType, from_numpy, i64
from tc.ir.expr import (
    Buffer,
    Const,
    Expr,
    FloorDiv,
    MathCall,
    Select,
    Var,
    as_expr,
    cast,
    ceildiv,
    const,
    equal,
    logical_and,
    logical_not,
)
from tc.ir.graph import Attrs, AttrValue
from tc.ir.node import Node, map_children, replace, substitute, walk
from tc.ir.types import TensorType, tensor_type
from tc.ir.uses import variables
from tc.ops.registry import (
    REQUIRED,
    BlockedForm,
    Form,
    OpDef,
    current_facts,
    inference,
    register_scoped,
    require,
    unregister_scoped,
)
from tc.te import Read, Stage, Tensor, checked, create_prim_func, placeholder, reads, stages_of, tensors_read

Function = Callable[..., Any]
_RESERVED = frozenset(("name", "names", "op", "self", "span"))  # of the calls that build graphs


def op(name: str, compute: Function | None = None, *, infer: Function | None = None, reference: Function | None = None) -> None:
    """Register the operator `name`, "domain::Name", for this process; `remove_op` takes it back.

    compute(*operands, **attributes): the results as tensor expressions (`tc.te`), a tensor or a tuple of them.
    infer: the type rule, of the same parameters: types in, types out. By default results have the types that the tensor expressions
        have; where both say something, they must agree.
    reference: the same in numpy, of the same parameters. By default the interpreter runs the tensor expressions. Without `compute` the
        operator runs in Python, on `reference`, and needs `infer`. It gets arrays of its own, may run in several threads at once, and
        must depend on nothing but its arguments. Files of modules hold it by the name that it can be imported by.

    A read of a tensor that is not proved to be inside is checked when it runs. Raises UserError for a name that is taken or is none, and
    for functions that do not fit each other.
    """
    _check_name(name)
    if compute is None and (infer is None or reference is None):
        raise UserError(f"{name}: an operator has a tensor expression, or a type rule and a reference")
    definition = compute if compute is not None else reference
    assert definition is not None, "one of them is there"
    signature = _Signature.of(name, definition)
    for what, function in (("type rule", infer), ("reference", reference)):
        if function is not None:
            signature.check_same(what, function)
    made = _Definition(name, signature, compute, infer, reference)
    register_scoped(
        OpDef(
            name,
            made.infer_types,
            made.run,
            None if compute is None else made.tensors,
            dict(signature.attributes),
            blocked=None if compute is None else made.blocked,
            is_interpreted=reference is None,
            imported_as=None if compute is not None else importable_name(definition),
            samples=lambda rng: iter(()),
        )
    )


def remove_op(name: str) -> None:
    """Take an operator back that `op` registered; modules that were compiled with it go on as they are. UserError if there is none."""
    unregister_scoped(name)


def importable_name(function: Function) -> str | None:
    """ "module:function", if importing that gives this very function in another process; None for lambdas, closures and scripts."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or "<" in path or module not in sys.modules:
        return None
    found: object = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is function else None


def _check_name(name: object) -> None:
    domain, mark, op_type = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not mark or not domain or not op_type.isidentifier() or any(c.isspace() or c in "'\"\\" for c in domain):
        raise UserError(f'op: {name!r} is not the name of an operator, such as "my.domain::MyOp"')
    if domain == "ai.onnx" or domain.startswith("ai.onnx."):
        raise UserError(f"op: the domain of {name!r} is ONNX's own; use one of yours")


@dataclass(frozen=True)
class _Signature:
    """What an operator takes: names of the operands, the first `required` of which must be there; whether more may follow; attributes."""

    name: str
    operands: tuple[str, ...]
    required: int
    is_variadic: bool
    attributes: tuple[tuple[str, AttrValue], ...]

    @classmethod
    def of(cls, name: str, function: Function) -> _Signature:
        """Read off a function. UserError for parameters that are neither operands nor attributes."""
        operands: list[str] = []
        required, is_variadic = 0, False
        attributes: list[tuple[str, AttrValue]] = []
        for parameter in _parameters(name, function):
            default, kind = parameter.default, parameter.kind
            if kind is parameter.KEYWORD_ONLY:
                if parameter.name in _RESERVED:
                    raise UserError(f"{name}: no attribute can be called {parameter.name!r}")
                is_required = default is parameter.empty
                attributes.append((parameter.name, REQUIRED if is_required else plain_attribute(name, parameter.name, default)))
            elif kind is parameter.VAR_POSITIONAL:
                is_variadic = True
            elif kind is parameter.VAR_KEYWORD:
                raise UserError(f"{name}: attributes are named one by one, **{parameter.name} is not")
            elif default is parameter.empty:
                operands.append(parameter.name)
                required += 1
            elif default is None:
                operands.append(parameter.name)
            else:
                raise UserError(
                    f"{name}: {parameter.name}={default!r} is neither an operand, whose default is None, nor an attribute, after a *"
                )
        return cls(name, tuple(operands), required, is_variadic, tuple(attributes))

    def check_same(self, what: str, function: Function) -> None:
        """UserError unless a function can be called with these operands and attributes."""
        try:
            inspect.signature(function).bind(*self.operands, **dict(self.attributes))
        except TypeError as error:
            raise UserError(f"{self.name}: the {what} does not take what the operator takes: {error}") from None
        except ValueError:  # no signature to be had, as of functions in C
            return

    def arguments(self, given: Sequence[Any]) -> list[Any]:
        """The operands, None for those that are left out at the end. ShapeError when there are too few or too many."""
        for k, operand in enumerate(self.operands[: self.required]):
            if k >= len(given) or given[k] is None:
                raise ShapeError(f"{self.name}: the operand {operand} is required")
        if len(given) > len(self.operands) and not self.is_variadic:
            raise ShapeError(f"{self.name}: takes {len(self.operands)} operands, found {len(given)}")
        return [*given, *[None] * (len(self.operands) - len(given))]

    def attrs(self, attrs: Attrs) -> dict[str, Any]:
        """The attributes, of the types of their defaults. ShapeError for one of another type."""
        defaults = dict(self.attributes)
        return {name: _like_default(f"{self.name}: attribute {name!r}", value, defaults[name]) for name, value in attrs.items()}


def _parameters(name: str, function: Function) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: what it takes cannot be read off {function!r}: {error}") from None


def plain_attribute(name: str, key: str, value: object) -> AttrValue:
    """A value that a graph may hold: lists as tuples, numpy's numbers as Python's. UserError for anything else."""
    match value:
        case list() | tuple():
            return tuple(plain_attribute(name, key, item) for item in value)
        case np.bool_() | np.integer() | np.floating():
            return value.item()
        case None | bool() | int() | float() | str() | DType() | Expr():
            return value
    raise UserError(f"{name}: attribute {key!r} is a {type(value).__name__}, must be a number, a string, a dtype or a list of them")


def _like_default(what: str, value: AttrValue, default: AttrValue) -> AttrValue:
    match default:
        case bool():
            fits = isinstance(value, bool) or value in (0, 1)
            value = bool(value) if fits else value
        case int():
            fits = isinstance(value, (int, Expr)) and not isinstance(value, bool)
        case float():
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
            value = float(value) if fits else value  # type: ignore[arg-type]
        case tuple():
            fits = isinstance(value, tuple)
            if isinstance(value, tuple) and len({type(item) for item in default}) == 1:
                value = tuple(_like_default(f"{what}: element {k}", item, default[0]) for k, item in enumerate(value))
        case str() | DType():
            fits = isinstance(value, type(default))
        case _:
            fits = True
    if not fits:
        raise ShapeError(f"{what} is {value!r}, must be like {default!r}")
    return value


_OF_INTEGERS = frozenset(
    "abs sign floor ceil round trunc isnan isinf fmod pow bit_not bit_and bit_or bit_xor shift_left shift_right float_of_bits".split()
)
"""The functions of `te.call` that integers have too."""


def _dims_of(operands: Sequence[Tensor | TensorType | None], attrs: Attrs) -> frozenset[Node]:
    """The dims that operands and attributes are made of."""
    sizes = (variables(dim) for operand in operands if operand is not None for dim in operand.shape)
    return frozenset[Node]().union(*sizes, *map(_dims_in, attrs.values()))


def _dims_in(value: AttrValue) -> frozenset[Node]:
    """The dims that an attribute is made of."""
    if isinstance(value, tuple):
        return frozenset[Node]().union(*map(_dims_in, value))
    return frozenset(variables(value)) if isinstance(value, Expr) else frozenset()


@dataclass(frozen=True)
class _Definition:
    """The functions of a user, as those of an `OpDef`: errors name the operator, and what they return is looked at."""

    name: str
    signature: _Signature
    compute: Function | None
    infer: Function | None
    reference: Function | None

    def infer_types(self, types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
        """What the type rule says, which is what the tensor expressions are."""
        types = self.signature.arguments(types)
        stated = None if self.infer is None else self._stated(types, attrs)
        if self.compute is None:
            assert stated is not None, "an operator without loops has a type rule"
            return self._with_sizes(stated)
        operands = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
        found = tuple(TensorType(tensor.shape, tensor.dtype) for tensor in self.tensors(operands, attrs, ()))
        if stated is not None:
            self._require_same(stated, found)
        return self._with_sizes(found if stated is None else stated)

    def _with_sizes(self, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The types of results, each dim of which is required to be no less than 0."""
        for type_ in types:
            for axis, dim in enumerate(type_.shape):
                if not isinstance(dim, Var):
                    require(dim >= 0, f"{self.name}: dim {axis} of the result is {dim}, which must not be negative")
        return types

    def _stated(self, types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
        """What the type rule says. A dim of its own, which is found when the reference runs, is another one in each call."""
        made = self._call("type rule", self.infer, types, attrs)
        results = made if isinstance(made, tuple) else (made,)
        if not results or not all(isinstance(result, TensorType) for result in results):
            raise ShapeError(f"{self.name}: the type rule gives {made!r}, must give a TensorType, or a tuple of them")
        known = _dims_of(types, attrs)
        found = (var for result in results for dim in result.shape for var in variables(as_expr(dim)))
        own = {var: Var(var.name, var.dtype) for var in found if var not in known}
        return tuple(tensor_type([substitute(as_expr(dim), own) for dim in result.shape], result.dtype) for result in results)

    def _require_same(self, stated: tuple[TensorType, ...], found: tuple[TensorType, ...]) -> None:
        if len(stated) != len(found):
            raise ShapeError(f"{self.name}: the type rule gives {len(stated)} results, the tensor expression {len(found)}")
        for said, type_ in zip(stated, found, strict=True):
            message = f"{self.name}: the type rule gives {said}, the tensor expression {type_}"
            if said.dtype is not type_.dtype or said.rank != type_.rank:
                raise ShapeError(message)
            for a, b in zip(said.shape, type_.shape, strict=True):
                require(equal(a, b), message)

    def tensors(self, operands: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
        """The results as tensor expressions, each read of which is proved to be inside of what it reads, or checked."""
        made = self._call("tensor expression", self.compute, self.signature.arguments(operands), attrs)
        results = made if isinstance(made, tuple) else (made,)
        if not results or not all(isinstance(result, Tensor) for result in results):
            raise ShapeError(f"{self.name}: the tensor expression gives {made!r}, must give a tensor of tc.te, or a tuple of them")
        if any(not stage.is_independent for stage in stages_of(results)):
            raise ShapeError(f"{self.name}: te.raw and te.scan are not for operators: nothing could check what they read and write")
        self._check_leaves(results, [operand for operand in operands if operand is not None], attrs)
        return with_checked_reads(self.name, results, current_facts())

    def _check_leaves(self, results: tuple[Tensor, ...], operands: Sequence[Tensor], attrs: Attrs) -> None:
        """Expressions are made of operands, and of dims of these and of attributes; functions of floats are of floats."""
        dims = _dims_of(operands, attrs)
        own, seen, left = {tensor.buffer for tensor in operands}, set[Stage](), list(results)
        while left:
            tensor = left.pop()
            stage = tensor.stage
            if tensor.buffer in own or stage in seen:  # what made an operand is not the user's
                continue
            if stage is None:
                raise ShapeError(f"{self.name}: {tensor.buffer.name} is no operand, and nothing computes it")
            seen.add(stage)
            left += tensors_read(stage)
            axes = dims.union(stage.axes, stage.reduce_axes)
            for expr in (*tensor.shape, *stage.reduce_extents, *stage.init, *stage.values):
                if strange := variables(expr) - (axes if expr in stage.values else dims):
                    names = ", ".join(sorted(var.name for var in strange))
                    raise ShapeError(f"{self.name}: {stage.name} depends on {names}, neither an axis of it nor a dim of an operand")
            for node in chain.from_iterable(map(walk, stage.values)):
                if isinstance(node, MathCall) and node.args and node.name not in _OF_INTEGERS and not node.args[0].dtype.is_float:
                    raise ShapeError(f"{self.name}: {node.name} is of floats, not of {node.args[0].dtype}")

    def blocked(self, types: Sequence[TensorType | None], attrs: Attrs, block: int) -> BlockedForm | None:
        """The layout rule: the operator itself, if it is one function of scalars at every place, with the channels in blocks as without."""
        given = [type_ for type_ in types if type_ is not None]
        if not given or len(given) < len(types) or any(not _same_dims(type_.shape, given[0].shape) for type_ in given):
            return None
        shape = given[0].shape
        if len(shape) < 3:
            return None
        in_blocks = (shape[0], ceildiv(shape[1], block), *shape[2:], const(block))
        markers = [Var(f"x{k}", type_.dtype) for k, type_ in enumerate(given)]
        plain, cut = (self._scalar_function(markers, dims, attrs) for dims in (shape, in_blocks))
        return BlockedForm(self.name, tuple(attrs.items()), (Form.CHANNELS,) * len(types)) if plain is not None and plain is cut else None

    def _scalar_function(self, operands: Sequence[Var], shape: tuple[Expr, ...], attrs: Attrs) -> Expr | None:
        """The one result at any place, in terms of the operands there, all of `shape`; None if it depends on the place or on others."""
        given = [placeholder(shape, operand.dtype, operand.name) for operand in operands]
        try:
            (type_, *more) = self.infer_types([TensorType(shape, operand.dtype) for operand in operands], attrs)
            (result, *_) = self.tensors(given, attrs, ())
        except TcError:  # tensors of such a rank are not for it
            return None
        if more or not _same_dims(type_.shape, shape):
            return None
        values: dict[Buffer, Expr] = {tensor.buffer: operand for tensor, operand in zip(given, operands, strict=True)}
        for stage in stages_of((result,)):
            if stage.reduce_axes or len(stage.buffers) > 1 or not _same_dims(stage.buffers[0].shape, shape):
                return None
            found = reads(stage)
            if any(read.indices != stage.axes for read in found):
                return None
            values[stage.buffers[0]] = substitute(stage.values[0], {read: values[read.tensor.buffer] for read in found})
            if variables(values[stage.buffers[0]]) & set(stage.axes):
                return None
        return values[result.buffer]

    def run(self, arrays: Sequence[np.ndarray | None], attrs: Attrs) -> tuple[np.ndarray, ...]:
        """The results on arrays: the user's function, or the tensor expressions interpreted."""
        given = self.signature.arguments(arrays)
        if self.reference is None:
            operands = [None if a is None else placeholder(a.shape, from_numpy(a.dtype), f"x{k}") for k, a in enumerate(given)]
            func = create_prim_func("op", [x for x in operands if x is not None], self.tensors(operands, attrs, ()))
            return tuple(run_prim_func(func, [a for a in given if a is not None]))
        made = self._call("reference", self.reference, given, attrs, InputError)
        results = tuple(np.asarray(result) for result in (made if isinstance(made, (tuple, list)) else (made,)))
        with inference(Facts()):
            types = self.infer_types([None if a is None else tensor_type(a.shape, from_numpy(a.dtype)) for a in given], attrs)
        if len(types) != len(results) or not all(map(_is_of, results, types)):
            found, wanted = ", ".join(map(_said, results)), ", ".join(map(str, types))
            raise InputError(f"{self.name}: the reference gives {found}, must give {wanted}")
        return results

    def _call(self, what: str, function: Function | None, operands: Sequence[Any], attrs: Attrs, error: type[TcError] = ShapeError) -> Any:
        """Call a user's function. What it raises becomes an error that names the operator and what it was given."""
        assert function is not None
        try:
            return function(*operands, **self.signature.attrs(attrs))
        except TcError as wrong:
            if self.name in wrong.message:
                raise
            raise type(wrong)(f"{self.name}: {wrong.message}", wrong.span, code=wrong.code) from wrong
        except Exception as wrong:
            given = ", ".join(map(_said, operands))
            raise error(f"{self.name}: the {what} failed on ({given}): {type(wrong).__name__}: {wrong}") from wrong


def _same_dims(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _is_of(array: np.ndarray, type_: TensorType) -> bool:
    """Whether an array has a type; any size for a dim that only data tell."""
    fits = all(not isinstance(dim, Const) or int(dim) == size for size, dim in zip(array.shape, type_.shape, strict=False))
    return array.dtype == type_.dtype.numpy and array.ndim == type_.rank and fits


def _said(operand: object) -> str:
    match operand:
        case np.ndarray():
            return f"{operand.dtype}{list(operand.shape)}"
        case Tensor():
            return str(TensorType(operand.shape, operand.dtype))
    return str(operand)


def with_checked_reads(name: str, results: Sequence[Tensor], facts: Facts) -> tuple[Tensor, ...]:
    """The same tensors, in which every read that is not proved to be inside of its tensor is checked when it runs."""
    changed: dict[Stage, Stage] = {}
    for stage in stages_of(results):
        known = facts
        for axis, extent in zip((*stage.axes, *stage.reduce_axes), (*stage.buffers[0].shape, *stage.reduce_extents), strict=True):
            known = known.with_range(axis, extent)
        checker = _Checker(name, changed)
        values = tuple(checker.checked(value, known) for value in stage.values)
        if any(new is not old for new, old in zip(values, stage.values, strict=True)):
            changed[stage] = replace(stage, values=values)
    return tuple(_retargeted(tensor, changed) for tensor in results)


def _retargeted(tensor: Tensor, changed: dict[Stage, Stage]) -> Tensor:
    stage = None if tensor.stage is None else changed.get(tensor.stage)
    return tensor if stage is None else Tensor(tensor.buffer, stage)


def _is_below(place: Expr, dim: Expr) -> Expr:
    """place < dim, for a quotient without a division."""
    match place:
        case FloorDiv(lhs=value, rhs=Const(value=times)) if times > 0:
            return value < dim * int(times)
    return place < dim


class _Checker:
    """One walk over the values of a stage; `changed` are the stages before it that have been made anew."""

    def __init__(self, name: str, changed: dict[Stage, Stage]) -> None:
        self.name = name
        self.changed = changed
        self.tensors: dict[Tensor, Tensor] = {}
        self.done: dict[tuple[int, int], Node] = {}
        self.kept: list[object] = []  # keeps ids alive while they are keys

    def checked(self, node: Any, facts: Facts) -> Any:
        """`node`, where `facts` hold, with checks."""
        key = (id(node), id(facts))
        if key not in self.done:
            self.done[key] = self._checked(node, facts)
            self.kept += [node, facts]
        return self.done[key]

    def _checked(self, node: Node, facts: Facts) -> Node:
        match node:
            case Select(condition=condition, true_value=yes, false_value=no):
                made = self.checked(condition, facts)
                first, second = self.checked(yes, facts.assume(condition)), self.checked(no, facts.assume(logical_not(condition)))
                same = made is condition and first is yes and second is no
                return node if same else Select(made, first, second)
            case Read(tensor=tensor, indices=indices):
                return self._read(node, tensor, indices, facts)
        return map_children(node, lambda child: self.checked(child, facts))

    def _read(self, read: Read, tensor: Tensor, indices: tuple[Expr, ...], facts: Facts) -> Expr:
        places = tuple(self._index(index, facts) for index in indices)
        source = self.tensors.setdefault(tensor, _retargeted(tensor, self.changed))
        same = source is tensor and all(a is b for a, b in zip(places, indices, strict=True))
        value: Expr = read if same else Read(source, places)
        for axis, (place, dim) in enumerate(zip(places, tensor.shape, strict=True)):
            if prove(logical_and(place >= 0, _is_below(place, dim)), facts) is not True:
                value = checked(value, place, dim, f"{self.name}: index {{index}} is out of range for axis {axis} of size {{size}}")
        return value

    def _index(self, index: Expr, facts: Facts) -> Expr:
        made: Expr = self.checked(index, facts)
        if not made.dtype.is_int:
            raise ShapeError(f"{self.name}: the index {made!r} is of {made.dtype}, must be an integer")
        return made if made.dtype is i64 else cast(made, i64)
