"""Comparing programs up to the names of their variables.

One walk gives every binder the number of its first occurrence; two programs are equal when the walks give the same sequence.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from tc.ir.dtype import DType
from tc.ir.expr import Buffer, Const, Var
from tc.ir.graph import Function, TensorConst, TensorVar
from tc.ir.hints import LoopHints
from tc.ir.loop import Alloc, BlockAxis, For, Let, PrimFunc, Stmt, walk_statements
from tc.ir.module import IRModule
from tc.ir.node import Node, Substitution, field_names, substitute, walk

NodeT = TypeVar("NodeT", bound=Node)
_BINDERS = (Var, Buffer, TensorVar)


def structural_equal(a: Node, b: Node) -> bool:
    """Whether the two are one program: the same trees, binders matched by position, literals compared by their bits."""
    return first_difference(a, b) is None


def first_difference(a: Node, b: Node) -> str | None:
    """Where two programs first differ, in words; None when they do not."""
    left, right = _tokens(a), _tokens(b)
    while True:
        x, y = next(left, None), next(right, None)
        if x != y:
            return f"{_describe(x)} against {_describe(y)}"
        if x is None:
            return None


def _describe(token: Any) -> str:
    return "the end" if token is None else str(token)


def structural_hash(node: Node) -> str:
    """A hash (hex, 40 digits) that equal programs share, in every process. The name of a function itself does not count."""
    words = map(repr, _tokens(node, with_name=False)) if isinstance(node, IRModule) else _words(node)
    return hashlib.sha256(";".join([*words, ""]).encode()).hexdigest()[:40]


def _words(root: Node) -> list[str]:
    """The tokens of one function, without its name, or of a part of it, each as text: in a third of the time, as all kernels are hashed.
    Those of a literal are one word."""
    words: list[str] = []
    numbers: dict[Node, int] = {}
    known: dict[Any, str] = {}  # words of plain values, by their types too, and of literals
    stack: list[Any] = [root]
    while stack:
        item = stack.pop()
        kind: Any = type(item)
        if isinstance(item, tuple):
            words.append(f"('(', {len(item)})")
            stack += item[::-1]
        elif kind is Const:
            word = known.get(item)
            if word is None:
                word = known[item] = f"'Const';{_plain(item.value)!r};{_plain(item.dtype)!r}"
            words.append(word)
        elif kind in _BINDERS:
            number = numbers.get(item)
            if number is None:
                numbers[item] = len(numbers)
                words.append(f"'{kind.__name__}'")
                stack += _below(kind, False)(item)
            else:
                words.append(f"('#', {number})")
        elif kind is LoopHints:
            stack.append(item.items())
        elif isinstance(item, TensorConst) or not isinstance(item, Node):
            if kind is float or isinstance(item, Node):
                words += map(repr, _tokens(item))
                continue
            word = known.get((kind, item))
            if word is None:
                word = known[kind, item] = repr(_plain(item))
            words.append(word)
        else:
            words.append(f"'{kind.__name__}'")
            stack += _below(kind, item is not root or not isinstance(item, (PrimFunc, Function)))(item)
    return words


@functools.cache
def _below(cls: type, named: bool) -> Callable[[Any], tuple[Any, ...]]:
    """What finds the fields of a node of a class that count, last first."""
    names = _fields(cls, named)
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda node: (getattr(node, names[0]),)) if names else (lambda node: ())


def _tokens(root: Node, with_name: bool = True) -> Iterator[Any]:
    """The program as a sequence of plain values, binders numbered by first occurrence; anew in each function of a module."""
    if isinstance(root, IRModule):
        yield "module", root.entry, len(root.functions)
        for func in root.functions:
            yield from _tokens(func)
        return
    numbers: dict[Node, int] = {}
    stack: list[Any] = [root]
    while stack:
        item = stack.pop()
        kind: Any = type(item)
        if isinstance(item, tuple):
            yield "(", len(item)
            stack += item[::-1]
        elif kind is LoopHints:
            stack.append(item.items())
        elif not isinstance(item, Node):
            yield _plain(item)
        elif isinstance(item, TensorConst):
            yield "tensor", item.value.dtype.str, item.value.shape, _array_digest(item.value)
        elif kind in _BINDERS:
            number = numbers.get(item)
            if number is None:
                numbers[item] = len(numbers)
                yield kind.__name__
                stack += [getattr(item, name) for name in _fields(kind, False)]
            else:
                yield "#", number
        else:
            yield kind.__name__
            named = with_name or item is not root or not isinstance(item, (PrimFunc, Function))
            stack += [getattr(item, name) for name in _fields(kind, named)]


@functools.cache
def _fields(cls: type, named: bool) -> tuple[str, ...]:
    """The fields of a class that count, last first."""
    return tuple(name for name in reversed(field_names(cls)) if name != "span" and (named or name != "name"))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "float", struct.pack("<d", value).hex()
    if isinstance(value, DType):
        return "dtype", value.name
    return type(value).__name__, str(value)


def _array_digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"").hexdigest()[:16]


def fresh_binders(node: NodeT, names: Mapping[Node, str] = MappingProxyType({})) -> NodeT:
    """A copy in which every variable and buffer bound inside is a new one. Those bound outside stay. `names`: of new ones that are not
    called as before, by the old ones."""
    renewed: dict[Node, Node] = {}
    for part in walk_statements(node) if isinstance(node, (Stmt, PrimFunc)) else walk(node):
        match part:
            case For(var=var) | Let(var=var) | BlockAxis(var=var):
                renewed.setdefault(var, Var(names.get(var, var.name), var.dtype))
            case Alloc(buffer=buffer):
                renewed.setdefault(buffer, buffer)
            case PrimFunc(params=params):
                for param in params:
                    renewed.setdefault(param, param)
            case Function(params=variables):
                for variable in variables:
                    renewed.setdefault(variable, TensorVar(variable.name, variable.type, span=variable.span))
    for binder in list(renewed):
        if isinstance(binder, Var) and renewed[binder] is binder:
            renewed[binder] = Var(names.get(binder, binder.name), binder.dtype)
    of_variables = Substitution({old: new for old, new in renewed.items() if isinstance(old, Var)})
    for binder in list(renewed):
        if isinstance(binder, Buffer):
            fresh = of_variables(binder)
            renewed[binder] = Buffer(names.get(binder, binder.name), fresh.shape, fresh.dtype, fresh.scope, fresh.strides)
    return substitute(node, renewed)
