"""Turn large scratch buffers of a PrimFunc into parameters, so that the memory planner finds room for them."""

from __future__ import annotations

from tc.ir.arith import Facts, simplify
from tc.ir.bounds import bounds
from tc.ir.expr import Buffer, Const, Expr, Load, Var, call, const
from tc.ir.launch import has_launch
from tc.ir.loop import Alloc, For, LoopKind, PrimFunc, Seq, Stmt, Store, inner_statements, seq
from tc.ir.node import Node, replace, transform
from tc.ir.types import product
from tc.ir.uses import reads_memory, variables
from tc.passes.manager import loop_pass

MAX_STACK_BYTES = 16 << 10


@loop_pass
def lift_workspace(func: PrimFunc, *, max_stack_bytes: int = MAX_STACK_BYTES, threads: int = 0) -> PrimFunc:
    """Make every scratch buffer that does not fit the stack an additional output: memory that the caller provides.

    A buffer fits when its size is constant and at most `max_stack_bytes`. Buffers inside a parallel loop belong to one iteration
    each; such a buffer that does not fit gets more dimensions: the extents of the parallel loops around it, or, with `threads`, one
    for the threads that run them, of which there are at most so many. Without `threads`, a loop as long as data or another loop says
    runs its iterations one after the other then: the caller cannot know how many there are. A
    vectorized loop does so in any case: its lanes would share the buffer.
    The lifted buffers follow the outputs and count as outputs. What launches allocate stays there if its size is known to have a bound;
    else each block or thread gets a part of a lifted one. What is around a launch never fits.
    """
    lifted: dict[Buffer, tuple[Buffer, tuple[Expr, ...]]] = {}
    kept: list[Alloc] = []
    serial: set[For] = set()
    dims, facts = set(func.dims), Facts.of(func.facts)

    def visit(stmt: Node, parallel: tuple[For, ...], lanes: tuple[For, ...] = (), in_launch: tuple[For, ...] = ()) -> None:
        if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL:
            parallel = (*parallel, stmt)
        if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
            lanes = (*lanes, stmt)
        if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
            in_launch = (*in_launch, stmt)
        if isinstance(stmt, Alloc) and in_launch:  # it is its block's or its thread's own
            if not all(_is_bounded(dim, facts) for dim in stmt.buffer.shape) and _is_known_outside(stmt.buffer, in_launch, dims):
                lifted[stmt.buffer] = _lifted_buffer(stmt.buffer, in_launch, 0)
        elif isinstance(stmt, Alloc):
            if _fits_stack(stmt.buffer, max_stack_bytes) and not has_launch(stmt.body):
                kept.append(stmt)
            else:
                even = [loop for loop in parallel if variables(loop.extent) <= dims and not reads_memory(loop.extent)]
                serial.update(() if threads else set(parallel) - set(even), lanes)
                lifted[stmt.buffer] = _lifted_buffer(stmt.buffer, parallel if threads else tuple(even), threads)
        for child in inner_statements(stmt):
            visit(child, parallel, lanes, in_launch)

    visit(func.body, ())
    if not lifted and all(alloc.buffer.scope != "global" for alloc in kept):
        return func
    on_stack = {
        alloc.buffer: replace(alloc.buffer, scope="local") for alloc in kept if alloc.buffer.scope == "global"
    }

    def rewrite(node: Node) -> Node | None:
        match node:
            case Seq(stmts=stmts) if any(isinstance(inner, Seq) for inner in stmts):
                return seq(*stmts)
            case Alloc(buffer=buffer, body=body) if buffer in lifted:
                return body
            case Alloc(buffer=buffer, body=body) if buffer in on_stack:
                return replace(node, buffer=on_stack[buffer])
            case Load(buffer=buffer) | Store(buffer=buffer) if buffer in on_stack:
                return replace(node, buffer=on_stack[buffer])
            case Load(buffer=buffer, indices=indices) | Store(buffer=buffer, indices=indices) if buffer in lifted:
                new, prefix = lifted[buffer]
                return replace(node, buffer=new, indices=(*prefix, *indices))
        return None

    body = transform(_one_by_one(func.body, {loop.var for loop in serial}), rewrite)
    buffers = [new for new, _ in lifted.values()]
    params = (*func.buffers, *buffers, *func.dims)
    return replace(func, params=params, body=body, num_outputs=func.num_outputs + len(buffers))


def _one_by_one(stmt: Stmt, loops: set[Var]) -> Stmt:
    """A statement whose loops over these variables run in order."""

    def rewrite(node: Node) -> Node | None:
        return replace(node, kind=LoopKind.SERIAL) if isinstance(node, For) and node.var in loops else None

    return transform(stmt, rewrite) if loops else stmt


def _is_bounded(dim: Expr, facts: Facts) -> bool:
    return bounds(simplify(dim, facts), facts).hi is not None


def _is_known_outside(buffer: Buffer, loops: tuple[For, ...], dims: set[Var]) -> bool:
    """Whether so many buffers as the loops have iterations can be allocated around them."""
    sizes = (*buffer.shape, *(loop.extent for loop in loops))
    return all(variables(size) <= dims and not reads_memory(size) for size in sizes)


def _fits_stack(buffer: Buffer, max_stack_bytes: int) -> bool:
    size = product(buffer.shape) * buffer.dtype.size_bytes
    return isinstance(size, Const) and (buffer.scope == "register" or size.value <= max_stack_bytes)


def _lifted_buffer(buffer: Buffer, parallel: tuple[For, ...], threads: int) -> tuple[Buffer, tuple[Expr, ...]]:
    """The parameter that takes the place of `buffer`, and the leading indices that its accesses get."""
    if parallel and threads:
        return Buffer(buffer.name, (const(threads), *buffer.shape), buffer.dtype), (call("thread_index"),)
    if not parallel and not buffer.shape:
        return Buffer(buffer.name, (const(1),), buffer.dtype), (const(0),)
    extents = tuple(loop.extent for loop in parallel)
    return Buffer(buffer.name, (*extents, *buffer.shape), buffer.dtype), tuple(loop.var for loop in parallel)
