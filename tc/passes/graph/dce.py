"""Remove what nobody uses."""

from __future__ import annotations

from tc.ir.expr import Const, Var
from tc.ir.graph import Binding, Call, CallExtern, Function, ReadDims, TensorVar, atoms_of, bodies_of, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import Node, cached_on_node, children, replace
from tc.ir.types import TensorType
from tc.passes.manager import graph_pass, map_graph_functions


@graph_pass
def remove_dead_code(module: IRModule) -> IRModule:
    """Drop bindings without effect whose results, or bound dims, are not used; also inside the bodies of If and Loop."""
    return map_graph_functions(module, lambda func: _clean(func, set(), _NONE))


def _clean(func: Function, live: set[Node], outer: frozenset[Node]) -> Function:
    """`live` collects the tensor variables and dims in use, going backwards; uses inside bodies, and in what the function requires of
    its dims, count. `outer`: the dims that have a value when the function begins."""
    live.update(_vars_in(dict(func.attrs).get("requirements", ())))
    for result in func.results:
        _use(result, live)
    found, known = _found_dims(func, outer)
    kept: list[Binding] = []
    changed = False
    for index, binding in reversed(list(enumerate(func.bindings))):
        if not _is_needed(binding, live) and found[index].isdisjoint(live):
            changed = True
            continue
        cleaned = binding if isinstance(binding.value, Call) else _clean_bodies(binding, live, known[index])
        changed = changed or cleaned is not binding
        live.update(_used(cleaned))
        kept.append(cleaned)
    return replace(func, bindings=tuple(reversed(kept))) if changed else func


def _found_dims(func: Function, outer: frozenset[Node]) -> tuple[list[frozenset[Node]], list[frozenset[Node]]]:
    """For each binding, the dims that get their values from the shapes of its results, and those that have one before it."""
    seen = outer.union(*(_type_dims(param) for param in func.params))
    found: list[frozenset[Node]] = []
    known: list[frozenset[Node]] = []
    for binding in func.bindings:
        known.append(seen)
        dims = _result_dims(binding)
        new = dims - seen if dims else _NONE
        found.append(new)
        read = binding.value.dims if isinstance(binding.value, ReadDims) else ()
        if new or read:  # else the same set is that of the next one, too
            seen = seen.union(new, read)
    return found, known


_NONE: frozenset[Node] = frozenset()


@cached_on_node
def _type_dims(var: TensorVar) -> frozenset[Node]:
    type_ = var.type
    if isinstance(type_, TensorType) and all(type(dim) is Const for dim in type_.shape):
        return _NONE
    return _vars_in(type_)


def _use(atom: Node, live: set[Node]) -> None:
    if isinstance(atom, TensorVar):
        live.add(atom)
        live.update(_type_dims(atom))


def _is_needed(binding: Binding, live: set[Node]) -> bool:
    value = binding.value
    if isinstance(value, CallExtern) and value.effect:
        return True
    if isinstance(value, ReadDims):
        return any(dim in live for dim in value.dims)
    return not live.isdisjoint(binding.targets) or (not isinstance(value, Call) and any(map(_is_needed_inside, bodies_of(value))))


def _is_needed_inside(body: Function) -> bool:
    return any(_is_needed(binding, set()) for binding in body.bindings)


def _clean_bodies(binding: Binding, live: set[Node], known: frozenset[Node]) -> Binding:
    if not bodies_of(binding.value):
        return binding
    return replace(binding, value=map_bodies(binding.value, lambda body: _clean(body, live, known)))


@cached_on_node
def _result_dims(binding: Binding) -> frozenset[Node]:
    return _NONE.union(*map(_type_dims, binding.targets))


@cached_on_node
def _used(binding: Binding) -> frozenset[Node]:
    """What a binding uses beside what its bodies do: variables, their dims, and the dims that its result types and attributes mention."""
    live: set[Node] = set(_result_dims(binding))
    for atom in atoms_of(binding.value):
        _use(atom, live)
    if isinstance(binding.value, Call):  # whose attributes most often are numbers and words
        mentioned = [value for _, value in binding.value.attrs if isinstance(value, (tuple, Node))]
    else:
        mentioned = [getattr(binding.value, name, ()) for name in ("attrs", "dims", "trip_count")]
    return frozenset(live.union(*map(_vars_in, mentioned)))


def _vars_in(value: object) -> frozenset[Node]:
    """The variables in a node, or in tuples, most of which hold names and numbers."""
    found: set[Node] = set()
    stack: list[object] = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, Var):
            found.add(top)
        elif isinstance(top, Node):
            stack += [child for child in children(top) if not isinstance(child, Const)]
        elif isinstance(top, tuple):
            stack += [part for part in top if isinstance(part, (tuple, Node))]
    return frozenset(found) if found else _NONE
