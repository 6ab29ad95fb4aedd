"""Faults put into finished programs, one at a time: what a wrong schedule, pass or rule would make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tc.ir.bounds import Facts, bounds
from tc.ir.expr import Buffer, Const, Expr, FloorDiv, Load, Lt, Select, Var, conjuncts, const, logical_and
from tc.ir.lane_exchange import MASKS, is_exchange, mask_of
from tc.ir.launch import is_thread_loop
from tc.ir.loop import Alloc, AsyncStore, AwaitCopies, Barrier, For, If, PrimFunc, Seq, Stmt, Store, WarpCall
from tc.ir.node import Node, children, map_children, replace, substitute, walk
from tc.ir.structural import structural_equal
from tc.ir.uses import buffers_read, variables
from tc.passes.loop.simplify_loops import simplify_statement

Rewrite = Callable[[Node], Node | None]
"""What a node is replaced by, if it is the place of a fault."""

Fault = tuple[str, Node, PrimFunc]
"""What was done, the place as it was, and the program with it."""

ON_CHIP = ("shared", "local")


def faults_of(func: PrimFunc, kinds: Mapping[str, Rewrite] | None = None) -> Iterator[Fault]:
    """All faults of all kinds."""
    for name, make in (KINDS if kinds is None else kinds).items():
        for k, (path, node) in enumerate(_places(func.body, make)):
            yield f"{name} {k}", node, replace(func, body=_at(func.body, path, make))


def _places(body: Stmt, make: Rewrite) -> list[tuple[tuple[int, ...], Node]]:
    """The nodes that a kind of fault is of, with the paths to them from the top: an expression may stand in several places."""
    found: list[tuple[tuple[int, ...], Node]] = []

    def visit(node: Node, path: tuple[int, ...]) -> None:
        if make(node) is not None:
            found.append((path, node))
        for k, child in enumerate(children(node)):
            if not isinstance(child, Buffer):
                visit(child, (*path, k))

    visit(body, ())
    return found


def _at(node: Node, path: tuple[int, ...], make: Rewrite) -> Node:
    if not path:
        changed = make(node)
        assert changed is not None, "a place of this kind of fault"
        return changed
    wanted = iter(range(len(children(node))))
    return map_children(node, lambda child: _at(child, path[1:], make) if next(wanted) == path[0] else child)


def _on_chip(node: Node) -> bool:
    return isinstance(node, (Load, Store)) and node.buffer.scope in ON_CHIP


def drop_barrier(node: Node) -> Node | None:
    return Seq(()) if isinstance(node, Barrier) else None


def barrier_for_some(node: Node) -> Node | None:
    """Only the first threads come by."""
    if not (is_thread_loop(node) and isinstance(node, For) and isinstance(node.body, (Seq, Alloc))):
        return None
    first = next((n for n in walk(node.body) if isinstance(n, Barrier)), None)
    return None if first is None else substitute(node, {first: If(node.var < 1, first)})


def past_the_end(node: Node) -> Node | None:
    """The first index as far again as the buffer goes."""
    if not _on_chip(node):
        return None
    assert isinstance(node, (Load, Store))
    return replace(node, indices=(node.indices[0] + node.buffer.shape[0], *node.indices[1:]))


def one_further(node: Node) -> Node | None:
    """The last index is one more."""
    if not _on_chip(node):
        return None
    assert isinstance(node, (Load, Store))
    return replace(node, indices=(*node.indices[:-1], node.indices[-1] + 1))


def swap_indices(node: Node) -> Node | None:
    if not isinstance(node, Load) or len(node.indices) != 2 or node.indices[0] == node.indices[1]:
        return None
    return replace(node, indices=node.indices[::-1])


def shrink_buffer(node: Node) -> Node | None:
    if not isinstance(node, Alloc) or node.buffer.scope not in ON_CHIP:
        return None
    *outer, last = node.buffer.shape
    assert isinstance(last, Const)
    return substitute(node, {node.buffer: replace(node.buffer, shape=(*outer, const(last.value - 1)))})


def _changed_guard(node: Node, change: Callable[[Expr], Expr]) -> Node | None:
    if not isinstance(node, (If, Select)):
        return None
    parts = conjuncts(node.condition)
    changed = [change(part) for part in parts]
    return None if changed == parts else replace(node, condition=logical_and(*changed))


def _is_bound(part: Expr) -> bool:
    """Whether a condition is one of integers: sizes and indices."""
    return isinstance(part, Lt) and not part.lhs.dtype.is_float


def guard_too_wide(node: Node) -> Node | None:
    return _changed_guard(node, lambda part: part.lhs < part.rhs + 1 if _is_bound(part) else part)


def guard_too_narrow(node: Node) -> Node | None:
    return _changed_guard(node, lambda part: part.lhs + 1 < part.rhs if _is_bound(part) else part)


def drop_guard(node: Node) -> Node | None:
    return node.then_body if isinstance(node, If) and node.else_body is None else None


def fewer_threads(node: Node) -> Node | None:
    if not is_thread_loop(node) or not isinstance(node, For) or not isinstance(node.extent, Const):
        return None
    return replace(node, extent=const(node.extent.value - 1))


def more_threads(node: Node) -> Node | None:
    if not is_thread_loop(node) or not isinstance(node, For) or not isinstance(node.extent, Const):
        return None
    return replace(node, extent=const(node.extent.value + 1))


def drop_store(node: Node) -> Node | None:
    return Seq(()) if isinstance(node, Store) and node.buffer.scope in ON_CHIP else None


def neighbour_stores(node: Node) -> Node | None:
    """Two threads store where one should."""
    if not isinstance(node, Store):
        return None
    threads = {var for index in node.indices for var in variables(index) if var.name in ("tx", "ty")}
    if not threads:
        return None
    pairs: dict[Node, Node] = {var: FloorDiv(var, const(2)) * 2 for var in threads}
    return replace(node, indices=tuple(substitute(index, pairs) for index in node.indices))


def one_iteration_less(node: Node) -> Node | None:
    if not isinstance(node, For) or node.thread or not isinstance(node.extent, Const):
        return None
    return replace(node, extent=const(node.extent.value - 1))


KINDS: dict[str, Rewrite] = {
    "drop barrier": drop_barrier,
    "barrier for some": barrier_for_some,
    "index past the end": past_the_end,
    "index one further": one_further,
    "swap indices": swap_indices,
    "shrink buffer": shrink_buffer,
    "guard too wide": guard_too_wide,
    "guard too narrow": guard_too_narrow,
    "drop guard": drop_guard,
    "fewer threads": fewer_threads,
    "more threads": more_threads,
    "drop store": drop_store,
    "two threads store": neighbour_stores,
    "one iteration less": one_iteration_less,
}


def swap_last_indices(node: Node) -> Node | None:
    """Of what has more than two."""
    if not isinstance(node, (Load, Store)) or len(node.indices) < 3 or node.indices[-1] == node.indices[-2]:
        return None
    return replace(node, indices=(*node.indices[:-2], node.indices[-1], node.indices[-2]))


def one_further_in_memory(node: Node) -> Node | None:
    """The last index of what is not on chip is one more."""
    if not isinstance(node, (Load, Store)) or node.buffer.scope in ON_CHIP or not node.indices:
        return None
    return replace(node, indices=(*node.indices[:-1], node.indices[-1] + 1))


def drop_store_to_memory(node: Node) -> Node | None:
    return Seq(()) if isinstance(node, Store) and node.buffer.scope not in ON_CHIP else None


def another_lane(node: Node) -> Node | None:
    """Elements come from the next mask."""
    if not isinstance(node, WarpCall) or not is_exchange(node.name):
        return None
    mask = mask_of(node.name)
    other = MASKS[(MASKS.index(mask) + 1) % len(MASKS)]
    return replace(node, name=node.name.replace(f"xor{mask}.", f"xor{other}."))


def drop_instruction(node: Node) -> Node | None:
    return Seq(()) if isinstance(node, WarpCall) else None


def drop_wait(node: Node) -> Node | None:
    return Seq(()) if isinstance(node, AwaitCopies) else None


def wait_for_fewer(node: Node) -> Node | None:
    return replace(node, pending=node.pending + 1) if isinstance(node, AwaitCopies) else None


def drop_copy(node: Node) -> Node | None:
    return Seq(()) if isinstance(node, AsyncStore) else None


MORE_KINDS: dict[str, Rewrite] = {
    **KINDS,
    "swap last indices": swap_last_indices,
    "index in memory one further": one_further_in_memory,
    "drop store to memory": drop_store_to_memory,
    "elements of another lane": another_lane,
    "drop instruction of warps": drop_instruction,
    "drop wait": drop_wait,
    "wait for fewer": wait_for_fewer,
    "drop copy": drop_copy,
}
"""Those of what rules make, too: copies in the background, exchanges of lanes, buffers of many dims."""


def why_harmless(what: str, node: Node, func: PrimFunc) -> str | None:
    """The argument that a program means the same with a fault as without; None where there is none.

    Without its guard a statement is run by more threads; that is nothing new where it stores, at a place that is the same for those, what
    is the same for them and what nobody changes meanwhile. And a buffer may lose a column that no access reaches.
    """
    if what.startswith("drop guard") and isinstance(node, If):
        asked = variables(node.condition) & _threads(func)
        body = node.then_body
        if not variables(body) & asked and isinstance(body, Store) and body.buffer not in buffers_read(body):
            return "all threads store the same"
    if what.startswith(("more threads", "fewer threads")) and isinstance(node, For):
        return _why_threads_are_harmless(node, func, 0 if what.startswith("more") else 1)
    if what.startswith("shrink buffer") and isinstance(node, Alloc):
        facts = Facts()
        for loop in (each for each in walk(func.body) if isinstance(each, For)):
            facts = facts.with_range(loop.var, loop.extent)
        accesses = [each for each in walk(func.body) if isinstance(each, (Load, Store)) and each.buffer.name == node.buffer.name]
        last = [bounds(access.indices[-1], facts).hi for access in accesses]
        if all(index is not None and index < node.buffer.shape[-1].value - 1 for index in last):  # type: ignore[attr-defined]
            return "the last column is padding"
    return None


def _why_threads_are_harmless(threads: For, func: PrimFunc, less: int) -> str | None:
    """What the last thread, or one more, does is nothing, or what the first one of the next block does."""
    assert isinstance(threads.extent, Const)
    last = simplify_statement(substitute(threads.body, {threads.var: const(threads.extent.value - less)}), Facts())
    if not any(isinstance(stmt, Store) for stmt in walk(last)):
        return "that thread does nothing"
    for block in (node.var for node in walk(func.body) if isinstance(node, For) and node.thread == "block.x"):
        following = substitute(threads.body, {threads.var: const(0), block: block + 1})
        if not less and structural_equal(simplify_statement(following, Facts()), last):
            return "the first thread of the next block does the same"
    return None


def _threads(func: PrimFunc) -> set[Var]:
    return {node.var for node in walk(func.body) if isinstance(node, For) and is_thread_loop(node)}
