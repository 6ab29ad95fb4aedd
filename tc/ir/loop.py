"""The loop IR: loops over buffers, with `Block`s that say what is computed, apart from the order it is computed in.

Before scheduling a PrimFunc is a sequence of loop nests, each around one `Block`. A block's body speaks only of the block's own
axes; the surrounding loops give the axes their values. That separation is what lets a schedule split, reorder and
move loops and still know which iterations are independent. Source: TensorIR (Feng et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Union

from tc.ir.expr import TRUE, Buffer, Expr, Load, Var
from tc.ir.hints import NO_HINTS, LoopHints
from tc.ir.node import Located, Node, children
from tc.ir.types import DimFact

AnnotationValue = Union[int, float, str, bool, tuple[int, ...]]
Annotations = tuple[tuple[str, AnnotationValue], ...]


class LoopKind(Enum):
    """How the iterations of a loop are carried out. SERIAL and UNROLLED: in order, the latter by code of its own for each iteration. The
    others require that they are independent."""

    SERIAL = "range"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    BOUND = "bound"


class AxisKind(Enum):
    """SPATIAL: iterations write different elements. REDUCTION: iterations update the same elements. ORDERED: must run in order."""

    SPATIAL = "spatial"
    REDUCTION = "reduction"
    ORDERED = "ordered"


class Stmt(Located):
    """Something that runs."""


def is_statement(node: Node) -> bool:
    """For a `transform` of statements alone."""
    return isinstance(node, Stmt)


def walk_statements(node: Node) -> Iterator[Node]:
    """`walk` of statements, and of axes of blocks, without what is inside of expressions and buffers."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        if not isinstance(top, (Store, IntrinsicCall, WarpCall)):
            stack += [child for child in children(top)[::-1] if not isinstance(child, (Expr, Buffer))]


@dataclass(frozen=True, eq=False)
class For(Stmt):
    """Run `body` for `var` = 0, 1, ..., `extent` - 1; not at all when `extent` <= 0.

    `thread` names the axis ("block.x|y|z", "thread.x|y|z") of a BOUND loop: its iterations are independent, they are carried out by the
    thread blocks or the threads of a GPU, and the loop ends when all of them have (fork and join). So a program means the same as with
    the loop in order. An outermost nest of bound loops, with all that is in it, is a *launch*; what is outside of launches is host code.
    The bound loops of one axis in a launch share the hardware's axis: as many threads as the largest extent needs are started, and of
    those a loop of fewer iterations uses the first. The *finished form*, which `distribute_threads` makes, has one nest of thread loops
    in a launch, as its only content but for `Alloc`s of scope "shared"; in it each thread runs the whole body, meeting the others at
    `Barrier`s.
    `hints` guide passes and emitters.
    """

    var: Var
    extent: Expr
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL
    thread: str = ""
    hints: LoopHints = NO_HINTS


@dataclass(frozen=True, eq=False)
class BlockAxis(Node):
    """`var` takes the value `value` (an expression of the surrounding loops), always in [0, extent)."""

    var: Var
    extent: Expr
    kind: AxisKind
    value: Expr


@dataclass(frozen=True, eq=False)
class Block(Stmt):
    """One unit of computation: `body` for one point of the axes' space, if `where` holds (over the surrounding loops).

    For a reduction, `init` (over the spatial axes) runs before the first update of each point: at the first iteration of every
    reduction axis (all of them 0). It also runs for a point of which no iteration runs: a reduction over no terms is the identity (see
    `start_empty_reductions`). Every point of the axes' space is visited exactly once, except that points may be repeated
    when a block without reduction axes is recomputed. `name` is unique in the PrimFunc.
    """

    name: str
    axes: tuple[BlockAxis, ...]
    body: Stmt
    init: Stmt | None = None
    where: Expr = TRUE
    annotations: Annotations = ()


@dataclass(frozen=True, eq=False)
class Seq(Stmt):
    """One after the other. Empty means: do nothing."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, eq=False)
class If(Stmt):
    """`then_body` when `condition` holds, else `else_body` (if any)."""

    condition: Expr
    then_body: Stmt
    else_body: Stmt | None = None


@dataclass(frozen=True, eq=False)
class While(Stmt):
    """Run `body` as long as `condition`, evaluated before each iteration, holds."""

    condition: Expr
    body: Stmt


@dataclass(frozen=True, eq=False)
class Let(Stmt):
    """`var` stands for the value that `value` has now, inside `body`."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, eq=False)
class Store(Stmt):
    """buffer[indices] = value; one index per dimension, in range or the program is wrong."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, eq=False)
class AsyncStore(Store):
    """A store whose value is on its way: a copy that goes on while the thread does something else.

    In the finished form of a launch each thread gathers the copies that it began since its last `CommitCopies` in a group; `AwaitCopies`
    waits for groups, oldest first. From then on the thread itself sees the elements, others see them behind a barrier after that. Until
    then no thread touches them. A machine without such copies, and a launch whose loops fork and join, store at once.
    """


@dataclass(frozen=True, eq=False)
class CommitCopies(Stmt):
    """What this thread began to copy since it came by here last is a group, perhaps an empty one. All threads of a block come by alike."""


@dataclass(frozen=True, eq=False)
class AwaitCopies(Stmt):
    """The thread waits until at most the last `pending` of its groups of copies are on their way."""

    pending: int = 0


@dataclass(frozen=True, eq=False)
class Alloc(Stmt):
    """`buffer` exists inside `body`; its contents are undefined at first.

    In a launch, one allocated inside of thread loops is the thread's own (scope "local"). One allocated outside of them is the thread
    block's: of scope "shared", all its threads see it; of scope "local", each element is only ever touched by one thread, in whose own
    memory it is kept. No other block sees it. An allocation outside of launches is a workspace in global memory.
    """

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, eq=False)
class Barrier(Stmt):
    """Every thread of the block waits here until all have arrived; what they wrote to shared and global memory before is seen by all after.

    It stands in the finished form of a launch alone, where all threads of a block reach the same barriers in the same order. Between two
    of them no thread touches an element that another one writes.
    """


@dataclass(frozen=True, eq=False)
class IntrinsicCall(Stmt):
    """A target intrinsic put there by `tensorize`: `name` of the intrinsic table, on regions of buffers.

    Each operand is a `Load` that names the first element of the region it touches, or a scalar expression.
    """

    name: str
    operands: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class WarpCall(Stmt):
    """A target intrinsic that the lanes of a warp, 32 threads that follow each other along x, carry out together.

    Where lanes only exchange elements (see `lane_exchange`), a warp may have several shorter rows of threads. It
    stands in launches, where all lanes of a warp reach it. Each names by `operands` what it has of each: of a fragment the first of its
    registers, which follow each other in a buffer that is its own; of a matrix in shared memory a row of 16 bytes
    whose place `ldmatrix_of` gives for its number. What is done is the intrinsic's pattern, on the elements that the lanes then hold, or
    name. The last operand is what it makes; all others are only read.
    """

    name: str
    operands: tuple[Load, ...]


@dataclass(frozen=True, eq=False)
class PrimFunc(Located):
    """A loop-level function in destination-passing style.

    `params` are buffers (inputs, then the `num_outputs` outputs) followed by the scalar variables for symbolic dims. Buffers
    do not overlap, except that the first output may be the same memory as one of the inputs whose numbers `attrs` lists, as
    ("in_place", (0, 2)).
    ("numerics", "strict") says that every float operation is to be rounded by itself, in the order written.
    `facts` are promises about the dims. Calling convention of compiled code: one pointer per buffer, then one i64 per scalar.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    body: Stmt
    num_outputs: int = 1
    facts: tuple[DimFact, ...] = ()
    attrs: Annotations = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(param for param in self.params if isinstance(param, Buffer))

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        buffers = self.buffers
        return buffers[: len(buffers) - self.num_outputs]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        buffers = self.buffers
        return buffers[len(buffers) - self.num_outputs :]

    @property
    def dims(self) -> tuple[Var, ...]:
        return tuple(param for param in self.params if isinstance(param, Var))


WITH_BODY = frozenset((For, Alloc, Let, While))
"""Statements around one other."""
_WITHOUT_STATEMENTS = frozenset((Store, IntrinsicCall, WarpCall))


def inner_statements(stmt: Node) -> tuple[Stmt, ...]:
    """The statements directly below one, in order."""
    cls = type(stmt)
    if cls in WITH_BODY:
        return (stmt.body,)  # type: ignore[attr-defined]  # one look in a set, for every statement there is
    if cls is Seq:
        return stmt.stmts  # type: ignore[attr-defined,no-any-return]
    if cls in _WITHOUT_STATEMENTS:
        return ()
    return tuple(child for child in children(stmt) if isinstance(child, Stmt))


def seq(*stmts: Stmt) -> Stmt:
    """The statements one after the other, flattened; a single one is itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def store(target: Expr, value: Expr) -> Store:
    """`store(A[i, j], value)`."""
    assert isinstance(target, Load), "the target of a store is an element of a buffer"
    return Store(target.buffer, target.indices, value)


def annotation(node: Block | PrimFunc, name: str, default: AnnotationValue | None = None) -> AnnotationValue | None:
    """The annotation called `name`, or `default`."""
    items = node.attrs if isinstance(node, PrimFunc) else node.annotations
    return next((value for key, value in items if key == name), default)


def is_strict(func: PrimFunc) -> bool:
    """Whether every float operation of a function is to be rounded by itself, in the order written."""
    return annotation(func, "numerics") == "strict"


def in_place_inputs(func: PrimFunc) -> tuple[int, ...]:
    """The inputs that may be the same memory as the first output."""
    found = annotation(func, "in_place", ())
    return found if isinstance(found, tuple) else ()


def row_padding_of(buffer: Buffer) -> str:
    """The attribute of a PrimFunc that says by how many elements rows of a scratch buffer are to be longer once it is compact."""
    return f"pad_rows:{buffer.name}"
