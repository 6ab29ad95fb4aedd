"""Immutable IR nodes and the generic walks over them.

Walking reads the dataclass fields: a child is a field that is a `Node`, or a `Node` inside a tuple (nested tuples too).
A new node class therefore needs no code here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import wraps
from operator import attrgetter, is_not
from typing import Any, ClassVar, TypeVar

from tc.errors import Span

NodeT = TypeVar("NodeT", bound="Node")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, eq=False)
class Node:
    """An immutable piece of IR. `==` is identity; `structural_equal` compares programs up to the names of binders."""

    is_binder: ClassVar[bool] = False
    """Whether programs refer to the node itself, as to a variable: equal ones are not the same."""


@dataclass(frozen=True, eq=False)
class Located(Node):
    """A node that remembers where the user wrote it. `span` is never part of a comparison."""

    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def field_names(cls: type) -> tuple[str, ...]:
    """Names of the fields of a node class that carry meaning (not where it comes from, as `span`), in order."""
    names = _FIELD_NAMES.get(cls)
    if names is None:
        names = tuple(f.name for f in fields(cls) if f.compare)
        _FIELD_NAMES[cls] = names
    return names


_LOCATED_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def _located_field_names(cls: type) -> tuple[str, ...]:
    """Names of all fields of a node class, `span` too."""
    names = _LOCATED_FIELD_NAMES.get(cls)
    if names is None:
        names = _LOCATED_FIELD_NAMES[cls] = tuple(f.name for f in fields(cls))
    return names


_PLAIN = frozenset(
    ("str", "int", "bool", "int | None", "DType", "LoopKind", "AxisKind", "Annotations", "LoopHints", "Value", "np.ndarray")
)
"""Annotations of fields that hold no nodes, as they are written; any other field is looked into."""

_CHILD_FIELDS: dict[type, tuple[str, ...]] = {}


def _child_fields(cls: type) -> tuple[str, ...]:
    """Names of the fields of a node class that may hold nodes, in order."""
    names = _CHILD_FIELDS.get(cls)
    if names is None:
        plain = {f.name for f in fields(cls) if f.type in _PLAIN}
        names = _CHILD_FIELDS[cls] = tuple(name for name in field_names(cls) if name not in plain)
    return names


_NODES = frozenset(("Expr", "Var", "Stmt", "Buffer"))
"""Annotations of fields that surely hold one node each."""
_TUPLES = frozenset(f"tuple[{name}, ...]" for name in (*_NODES, "BlockAxis"))
"""Those of fields that hold nodes side by side."""

_CHILDREN: dict[type, Callable[[Any], tuple[Node, ...]]] = {}


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below `node`, in field order."""
    cls = type(node)
    get = _CHILDREN.get(cls)
    if get is None:
        get = _CHILDREN[cls] = _children_of(cls)
    return get(node)


def _children_of(cls: type) -> Callable[[Any], tuple[Node, ...]]:
    """What finds the children of the nodes of a class: fast for expressions and statements, of which there are many."""
    names = _child_fields(cls)
    types = {f.name: f.type for f in fields(cls)}
    if not names:
        return lambda node: ()
    *first, last = names
    get: Callable[[Any], Any] = attrgetter(*names)
    if all(types[name] in _NODES for name in names):
        return get if first else lambda node: (get(node),)
    if all(types[name] in _NODES for name in first) and types[last] in _TUPLES:
        return (lambda node: (*(found := get(node))[:-1], *found[-1])) if first else get
    kinds = [(name, types[name] in _NODES, types[name] in _TUPLES) for name in names]

    def found(node: Any) -> tuple[Node, ...]:
        known, nodes = node.__dict__, []
        for name, is_node, is_tuple in kinds:
            value = known[name]
            if is_node:
                nodes.append(value)
            elif is_tuple:
                nodes += value
            elif isinstance(value, Node):
                nodes.append(value)
            elif isinstance(value, tuple):
                nodes += _nodes_in(value)
        return tuple(nodes)

    return found


def _nodes_in(values: tuple[Any, ...]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from _nodes_in(value)


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything below it, parents first. A node shared by two parents is met twice."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        get = _CHILDREN.get(type(top))
        below = children(top) if get is None else get(top)
        if below:
            stack += below[::-1]


def replace(node: NodeT, **changes: Any) -> NodeT:
    """`node` with some fields changed; the same object when nothing differs."""
    known = node.__dict__
    for name, value in changes.items():
        if known[name] is not value:
            return _changed(node, changes)
    return node


def _changed(node: NodeT, changes: dict[str, Any]) -> NodeT:
    cls = type(node)
    known = node.__dict__
    if not isinstance(node, Located):
        return cls(*[changes[name] if name in changes else known[name] for name in field_names(cls)])
    changed = object.__new__(cls)  # all that the constructor of a frozen dataclass would do, in a third of the time
    values = changed.__dict__
    for name in _located_field_names(cls):
        values[name] = known[name]
    values.update(changes)
    return changed


def map_children(node: NodeT, visit: Callable[[Node], Node]) -> NodeT:
    """`node` with each direct child replaced by `visit(child)`; the same object when no child changed."""
    known = node.__dict__
    changes: dict[str, Any] = {}
    for name in _child_fields(type(node)):
        value = known[name]
        if isinstance(value, Node):
            new: Any = visit(value)
        elif isinstance(value, tuple) and value:
            new = _map_tuple(value, visit)
        else:
            continue
        if new is not value:
            changes[name] = new
    return _changed(node, changes) if changes else node


def _map_tuple(values: tuple[Any, ...], visit: Callable[[Node], Node]) -> tuple[Any, ...]:
    result = tuple(
        [visit(value) if isinstance(value, Node) else _map_tuple(value, visit) if isinstance(value, tuple) else value for value in values]
    )
    return result if any(map(is_not, result, values)) else values


def transform(node: NodeT, rewrite: Callable[[Node], Node | None], inside: Callable[[Node], bool] | None = None) -> NodeT:
    """Rewrite bottom-up: children first, then `rewrite(node)`; None keeps the node. Nodes of which `inside` is false are kept whole.

    What is inside a binder, as the shape of a buffer, stays: a rewritten buffer would be another one than that of the statements
    around `node`. A subtree shared by several parents is rewritten once (by identity), and stays shared. Returns the same object when
    nothing changed.
    """
    return _Rewriting(rewrite, inside).visit(node)  # type: ignore[return-value]


class _Rewriting:
    """One `transform`. A class, as below: a function that calls itself from inside another one is part of a cycle, and it and all
    the nodes that it knows would stay until Python looks for cycles."""

    __slots__ = ("done", "inside", "rewrite")

    def __init__(self, rewrite: Callable[[Node], Node | None], inside: Callable[[Node], bool] | None) -> None:
        self.rewrite = rewrite
        self.inside = inside
        self.done: dict[Node, Node] = {}

    def visit(self, node: Node) -> Node:
        found = self.done.get(node)
        if found is not None:
            return found
        if self.inside is not None and not self.inside(node):
            return node
        rebuilt = node if node.is_binder else map_children(node, self.visit)
        result = self.rewrite(rebuilt)
        final = self.done[node] = rebuilt if result is None else result
        return final


def substitute(node: NodeT, mapping: dict[Any, Any]) -> NodeT:
    """Replace nodes that are keys of `mapping` (by identity: variables, buffers, blocks) by their values.

    The replacement itself is not searched again. Binders are replaced too when they are keys.
    """
    return Substitution(mapping)(node) if mapping else node


class Substitution:
    """`substitute` of many nodes by one mapping. What is shared by several of them stays shared."""

    __slots__ = ("_done", "_mapping", "_wanted")

    def __init__(self, mapping: dict[Any, Any]) -> None:
        self._mapping = mapping
        self._done: dict[Node, Node] = dict(mapping)
        self._wanted = frozenset(mapping) if all(key.is_binder for key in mapping) else None

    def __call__(self, node: NodeT) -> NodeT:
        return self._visit(node) if self._mapping else node  # type: ignore[return-value]

    def and_also(self, mapping: dict[Any, Any]) -> Substitution:
        """That of more nodes."""
        return Substitution({**self._mapping, **mapping})

    def _visit(self, node: Node) -> Node:
        found = self._done.get(node)
        if found is not None:
            return found
        if not _child_fields(type(node)) or (self._wanted is not None and self._wanted.isdisjoint(binders(node))):
            return node
        result = self._done[node] = map_children(node, self._visit)
        return result


def cached_on_node(compute: Callable[[NodeT], ResultT]) -> Callable[[NodeT], ResultT]:
    """Remember what a function of one node returned as long as the node lives.

    For facts that a node gets from those of its children. A result must not hold the node, which would then live on, and must not
    be changed.
    """
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def look_up(node: NodeT) -> ResultT:
        known = node.__dict__
        if key in known:
            return known[key]  # type: ignore[no-any-return]
        result = known[key] = compute(node)
        return result

    return look_up


def binders(node: Node) -> frozenset[Node]:
    """The variables and buffers that occur at or below a node."""
    known: frozenset[Node] | None = node.__dict__.get("tc.ir.node.binders")
    if known is not None:
        return known
    below = children(node)
    if node.is_binder:  # which must not hold itself
        return frozenset((node,)).union(*map(binders, below)) if below else frozenset((node,))
    found = _NO_NODES.union(*map(binders, below)) if len(below) > 1 else binders(below[0]) if below else _NO_NODES
    node.__dict__["tc.ir.node.binders"] = found
    return found


_NO_NODES: frozenset[Node] = frozenset()


def cached_by_identity(maxsize: int) -> Callable[[Callable[[NodeT], ResultT]], Callable[[NodeT], ResultT]]:
    """Remember what a function of one node returned for the last `maxsize` nodes or so, told apart by identity.

    For analyses that are asked about the same tree again and again: nodes never change. Results must not be changed either.
    """

    def decorate(compute: Callable[[NodeT], ResultT]) -> Callable[[NodeT], ResultT]:
        known: dict[int, tuple[NodeT, ResultT]] = {}  # holds the node too: its id is its own as long as it lives

        @wraps(compute)
        def look_up(node: NodeT) -> ResultT:
            found = known.get(id(node))
            if found is not None:
                return found[1]
            result = compute(node)
            if len(known) >= maxsize:
                known.clear()
            known[id(node)] = (node, result)
            return result

        return look_up

    return decorate
