"""A scheduled PrimFunc as numbers: its loops, its stores, and how much of each buffer is touched while loops run.

A loop of one iteration is no loop here. Every access knows, for each of its loops from the inside out, how many elements and how
many cache lines are touched while that loop and those inside of it run once. Scratch memory counts as it will be allocated: as
large as one iteration of the innermost loop around all its accesses needs.
Source: the touched memory of each loop level, from which the features of Chen et al., "Learning to Optimize Tensor Programs" (2018)
are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tc.cost.forms import NOTHING, UNKNOWN_SIZE, Forms, IndexForm, positive_share
from tc.ir.expr import (
    Add,
    BinaryExpr,
    Buffer,
    Cast,
    CompareExpr,
    Const,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Load,
    Lt,
    MathCall,
    Max,
    Min,
    Mul,
    Narrow,
    Not,
    Select,
    Sub,
    Var,
    conjuncts,
)
from tc.ir.hints import NO_HINTS
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import (
    Alloc,
    Block,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
)
from tc.ir.node import children
from tc.ir.uses import reads_memory

KINDS = ("multiply-add", "multiply", "add", "extremum", "divide", "compare", "convert", "root", "function", "integer")
"""Kinds of operations on values. A multiply-add is one operation."""

_KIND_OF: dict[type, int] = {Mul: 1, Add: 2, Sub: 2, Min: 3, Max: 3, Div: 4, FloorDiv: 4, FloorMod: 4, Select: 5, Not: 5}
_KIND_OF |= {Cast: 6, Narrow: 6}
_CHEAP_CALLS = frozenset(
    "fma floor ceil round trunc abs sign isnan isinf float_bits float_of_bits round_tf32 bit_not bit_and bit_or bit_xor "
    "shift_left shift_right".split()
)


class NestLoop:
    """A loop of at least two iterations (or of none). `depth` counts the loops around it.

    `body_lines`: cache lines of each region that one iteration touches. `ahead_bytes`: how far ahead something is fetched.
    """

    __slots__ = ("ahead_bytes", "body_lines", "depth", "extent", "grain", "is_partitioned", "is_transposed", "is_tree", "kind", "number")

    def __init__(self, number: int, extent: float, depth: int, kind: LoopKind, source: For | None = None) -> None:
        self.number, self.extent, self.depth, self.kind = number, extent, depth, kind
        self.body_lines: dict[Region, float] = {}
        hints = NO_HINTS if source is None else source.hints
        self.grain, self.is_partitioned, self.is_tree, self.is_transposed = hints.grain, hints.partition, hints.tree, hints.transpose
        self.ahead_bytes = 0 if hints.prefetch is None else hints.prefetch.ahead_bytes


class Region:
    """A buffer. `common` is how many loops are around all accesses of a scratch buffer; a parameter has no such loops."""

    __slots__ = ("common", "element_bytes", "is_param", "is_register", "is_result", "shape", "strides")

    def __init__(self, buffer: Buffer, shape: list[float], strides: list[float], is_param: bool, is_result: bool) -> None:
        self.shape, self.strides = shape, strides
        self.element_bytes = float(buffer.dtype.size_bytes)
        self.is_param, self.is_result = is_param, is_result
        self.is_register = buffer.scope == "register"
        self.common = 0

    @property
    def size_bytes(self) -> float:
        size = self.element_bytes
        for extent in self.shape:
            size *= extent
        return size


class MemoryAccess:
    """A load or a store inside `loops`.

    elements[k], lines[k]: what is touched while loops k, k + 1, ... run, for k up to len(loops), where nothing runs.
    steps: bytes by which the address moves, by the number of the loop. share: the part of iterations that perform it.
    ranges: the difference between the largest and the smallest index of each dimension.
    """

    __slots__ = ("elements", "is_irregular", "is_store", "lines", "loops", "moves", "ranges", "region", "share", "steps")

    def __init__(self, region: Region, is_store: bool, loops: Sequence[NestLoop], indices: Sequence[IndexForm]) -> None:
        self.region, self.is_store, self.loops = region, is_store, loops
        self.share = 1.0
        self.is_irregular = any(form.irregular for form in indices)
        self.moves: dict[int, list[tuple[int, float]]] = {}
        for dim, form in enumerate(indices):
            for loop, step in form.steps.items():
                self.moves.setdefault(loop, []).append((dim, step))
        self.ranges = [min(form.high - form.low, max(size - 1, 0.0)) for form, size in zip(indices, region.shape, strict=True)]
        self.elements: list[float] = []
        self.lines: list[float] = []
        self.steps: dict[int, float] = {}

    def moves_with(self, loop: NestLoop) -> bool:
        """Whether the address depends on the loop."""
        return loop.number in self.moves


class Guard:
    """A comparison that must hold: `slack` > 0."""

    __slots__ = ("is_partitioned", "slack")

    def __init__(self, slack: IndexForm, is_partitioned: bool) -> None:
        self.slack, self.is_partitioned = slack, is_partitioned

    @property
    def share(self) -> float:
        """The part of all iterations in which it holds."""
        return positive_share(self.slack)


class Statement:
    """One store and the loops around it.

    share: the part of all iterations in which it runs. domain: how many iterations its block asks for, waste and repetition
    left out. operations: how many of each of KINDS one iteration does. checks: selections of loads that must not all be done.
    """

    __slots__ = ("accesses", "checks", "domain", "guards", "is_float", "is_reduction", "loops", "operations", "order", "share", "target")

    def __init__(self, loops: Sequence[NestLoop], order: int) -> None:
        self.loops, self.order = loops, order
        self.share = self.domain = 1.0
        self.checks = 0
        self.operations = [0.0] * len(KINDS)
        self.accesses: list[MemoryAccess] = []
        self.target: MemoryAccess | None = None
        self.guards: tuple[Guard, ...] = ()
        self.is_reduction = self.is_float = False

    @property
    def iterations(self) -> float:
        """How often it runs."""
        total = self.share
        for loop in self.loops:
            total *= loop.extent
        return total

    @property
    def useful(self) -> float:
        """How often it has to run."""
        return min(self.domain, self.iterations)


class Nest:
    """The program as numbers."""

    def __init__(self, func: PrimFunc, dims: Mapping[str, int], line_bytes: int) -> None:
        builder = _Builder(func, dims)
        self.statements = builder.statements
        self.regions = builder.regions
        self.root = builder.root
        self.loops = builder.loops
        self.accesses = {region: builder.accesses.get(region, []) for region in self.regions.values()}
        for region, accesses in self.accesses.items():
            if not region.is_param:
                _compact(region, accesses)
        for statement in self.statements:
            for access in statement.accesses:
                measure(access, line_bytes)
        self._collect_lines()

    def _collect_lines(self) -> None:
        """What one iteration of each loop touches: of each region, as much as the access that touches most."""
        root = self.root.body_lines
        for statement in self.statements:
            for access in statement.accesses:
                region, lines = access.region, access.lines
                if region.is_register:
                    continue
                if lines[0] > root.get(region, 0.0):
                    root[region] = lines[0]
                for depth, loop in enumerate(access.loops, start=1):
                    body = loop.body_lines
                    if lines[depth] > body.get(region, 0.0):
                        body[region] = lines[depth]


class _Builder:
    """One walk over the statements."""

    def __init__(self, func: PrimFunc, dims: Mapping[str, int]) -> None:
        self.forms = Forms({var: dims[var.name] for var in func.dims if var.name in dims})
        self.statements: list[Statement] = []
        self.loops: list[NestLoop] = []
        self.regions: dict[Buffer, Region] = {}
        self.accesses: dict[Region, list[MemoryAccess]] = {}  # not in the regions, that they know by themselves
        self.root = NestLoop(-1, 1.0, 0, LoopKind.SERIAL)
        self.path: tuple[NestLoop, ...] = ()
        self.share, self.domain = 1.0, math.inf
        self.guards: tuple[Guard, ...] = ()
        self.questions: dict[Expr, Expr] = {}  # conditions that are asked once, by the variables that stand for them
        for buffer in func.buffers:
            self._region(buffer, is_param=True, is_result=False)
        for buffer in func.outputs:
            self.regions[buffer].is_result = True
        self.visit(func.body)

    def _region(self, buffer: Buffer, is_param: bool = False, is_result: bool = False) -> Region:
        region = self.regions.get(buffer)
        if region is None:
            size = self.forms.size
            shape = [size(dim) for dim in buffer.shape]
            strides = row_major(shape) if buffer.strides is None else [size(stride) for stride in buffer.strides]
            region = self.regions[buffer] = Region(buffer, shape, strides, is_param, is_result)
        return region

    def visit(self, stmt: Stmt) -> None:
        """Walk a statement."""
        if isinstance(stmt, For):
            self._for(stmt)
        elif isinstance(stmt, Block):
            self._block(stmt)
        elif isinstance(stmt, Seq):
            for inner in stmt.stmts:
                self.visit(inner)
        elif isinstance(stmt, Store):
            self._store(stmt)
        elif isinstance(stmt, Alloc):
            self._region(stmt.buffer)
            self.visit(stmt.body)
        elif isinstance(stmt, If):
            self._if(stmt)
        elif isinstance(stmt, Let) and stmt.var.dtype.is_bool and not reads_memory(stmt.value):
            self.questions[stmt.var] = stmt.value
            self.visit(stmt.body)
        elif isinstance(stmt, Let):
            self._value(stmt.value)
            self.forms.bind(stmt.var, self.forms.of(stmt.value))
            self.visit(stmt.body)
        elif isinstance(stmt, While):
            self._loop(Var("while"), UNKNOWN_SIZE, LoopKind.SERIAL, stmt.body, None)
        elif isinstance(stmt, IntrinsicCall):
            self._intrinsic(stmt)

    def _for(self, stmt: For) -> None:
        extent = self.forms.size(stmt.extent)
        if extent == 1.0:
            self.forms.bind(stmt.var, NOTHING)
            self.visit(stmt.body)
        else:
            self._loop(stmt.var, extent, stmt.kind, stmt.body, stmt)

    def _loop(self, var: Var, extent: float, kind: LoopKind, body: Stmt, source: For | None) -> None:
        number = self.forms.add_loop(var, max(extent, 1.0))
        path = self.path
        loop = NestLoop(number, extent, len(path), kind, source)
        self.loops.append(loop)
        self.path = (*path, loop)
        self.visit(body)
        self.path = path

    def _block(self, stmt: Block) -> None:
        forms = self.forms
        outer = self.share, self.guards, self.domain
        self._assume(stmt.where)
        domain = 1.0 if math.isinf(self.domain) else self.domain
        for axis in stmt.axes:
            extent = forms.size(axis.extent)
            domain *= extent
            forms.bind(axis.var, forms.of(axis.value).within(0.0, max(extent - 1, 0.0)))
        self.domain = domain
        self.visit(stmt.body)
        self.share, self.guards, self.domain = outer

    def _assume(self, condition: Expr) -> None:
        """Inside, `condition` holds."""
        condition = self.questions.get(condition, condition)
        if type(condition) is Const:
            self.share *= bool(condition.value)
            return
        guards = []
        for part in conjuncts(condition):
            if isinstance(part, (Lt, Le)):
                slack = self.forms.slack(part)
                if slack.low > 0:
                    continue
                loops = [loop for loop in self.path if loop.number in slack.steps]
                guards.append(Guard(slack, any(loop.is_partitioned for loop in loops)))
            self.share *= self.forms.share(part)
        self.guards = (*self.guards, *guards)

    def _if(self, stmt: If) -> None:
        outer = self.share, self.guards
        self._assume(stmt.condition)
        inside = self.share
        if inside > 0:
            self.visit(stmt.then_body)
        self.share, self.guards = outer
        if stmt.else_body is not None and inside < self.share:
            self.share -= inside
            self.visit(stmt.else_body)
            self.share, self.guards = outer

    def _intrinsic(self, stmt: IntrinsicCall) -> None:
        """An intrinsic stands for its loops; one that is not in the table touches its operands."""
        known = INTRINSICS.get(stmt.name)
        if known is not None:
            self.visit(known.expand(stmt.operands))
        else:
            statement = self._statement()
            for operand in stmt.operands:
                self._count(operand, statement)

    def _statement(self) -> Statement:
        statement = Statement(self.path, len(self.statements))
        statement.share, statement.guards = self.share, self.guards
        statement.domain = self.domain
        self.statements.append(statement)
        return statement

    def _value(self, value: Expr) -> None:
        """A value that is computed for later use: a statement that stores nothing."""
        if not isinstance(value, Var | Const):
            self._count(value, self._statement())

    def _store(self, stmt: Store) -> None:
        statement = self._statement()
        target = self._access(stmt.buffer, stmt.indices, statement, is_store=True)
        statement.target = target
        self._count(stmt.value, statement)
        statement.is_float = stmt.buffer.dtype.is_float
        for index in stmt.indices:
            if self.forms.of(index).irregular:
                self._count(index, statement)

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...], statement: Statement, is_store: bool) -> MemoryAccess:
        region = self._region(buffer)
        of = self.forms.of
        forms = [of(index) for index in indices]
        for dim, form in enumerate(forms):
            if form.irregular:
                forms[dim] = self._spread(form, region.shape[dim])
        access = MemoryAccess(region, is_store, self.path, forms)
        self.accesses.setdefault(region, []).append(access)
        statement.accesses.append(access)
        return access

    def _spread(self, form: IndexForm, size: float) -> IndexForm:
        """Places that memory decides, taken to be spread evenly over a dimension."""
        total = 1.0
        for loop in form.steps:
            total *= self.forms.extents[loop]
        step = size / max(total, 1.0)
        steps = {}
        for loop in sorted(form.steps, reverse=True):
            steps[loop] = step
            step *= self.forms.extents[loop]
        return IndexForm(steps, 0.0, max(size - 1, 0.0), irregular=True)

    def _count(self, value: Expr, statement: Statement) -> None:
        """Operations and loads of a value. Parts that occur twice count once, and parts that do not change from one iteration to the
        next count as often as they change."""
        _Operations(self, statement).visit(value)
        operations = statement.operations
        fused = min(operations[1], operations[2])
        operations[0] += fused
        operations[1] -= fused
        operations[2] -= fused

    def load(self, load: Load, statement: Statement) -> MemoryAccess:
        """Note a load of the statement."""
        access = self._access(load.buffer, load.indices, statement, is_store=False)
        target = statement.target
        if target is not None and access.region is target.region and access.moves == target.moves:
            statement.is_reduction = True
        return access


class _Operations:
    """Counts the operations of one value. Sets of loops are bits by depth."""

    __slots__ = ("all_bits", "bits", "builder", "parts", "seen", "share", "statement")

    def __init__(self, builder: _Builder, statement: Statement) -> None:
        self.builder, self.statement = builder, statement
        self.seen: dict[Expr, int] = {}
        self.bits = {loop.number: 1 << loop.depth for loop in statement.loops}
        self.all_bits = (1 << len(statement.loops)) - 1
        self.parts: dict[int, float] = {}
        self.share = 1.0

    def visit(self, node: Expr) -> int:
        """Count what is in `node` and was not met before; the loops that its value depends on."""
        found = self.seen.get(node)
        if found is None:
            found = self.seen[node] = self._visit(node)
        return found

    def _visit(self, node: Expr) -> int:
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, (Const, Var)):
            return self._loops(self.builder.forms.of(node).steps)
        if isinstance(node, BinaryExpr):
            bits, place = self.visit(node.lhs) | self.visit(node.rhs), _KIND_OF[type(node)] if node.dtype.is_float else 9
        elif isinstance(node, CompareExpr):
            bits, place = self.visit(node.lhs) | self.visit(node.rhs), 5
        elif isinstance(node, Select):
            bits, place = self._select(node), 5
        else:
            bits, place = 0, _call_kind(node.name) if isinstance(node, MathCall) else _KIND_OF.get(type(node), 9)
            for child in children(node):
                if isinstance(child, Expr):
                    bits |= self.visit(child)
        self.statement.operations[place] += self._part(bits)
        return bits

    def _select(self, node: Select) -> int:
        self.statement.checks += isinstance(node.true_value, Load) or isinstance(node.false_value, Load)
        bits, outer = self.visit(node.condition), self.share
        share = self.builder.forms.share(node.condition)
        for value, part in ((node.true_value, share), (node.false_value, 1 - share)):
            self.share = outer * part
            bits |= self.visit(value)
        self.share = outer
        return bits

    def _load(self, node: Load) -> int:
        access = self.builder.load(node, self.statement)
        access.share = self.share
        target = self.statement.target
        if target is not None and access.region is target.region:
            return self.all_bits  # what was stored before
        bits = self._loops(access.moves)
        if access.is_irregular:
            for index in node.indices:
                bits |= self.visit(index)
        return bits

    def _loops(self, numbers: Iterable[int]) -> int:
        bits = 0
        for number in numbers:
            bits |= self.bits.get(number, 0)
        return bits

    def _part(self, bits: int) -> float:
        """How often per iteration something is computed that depends on these loops: not anew in the loops inside of the innermost
        of them, nor in other copies of an unrolled loop. Lanes of a vector count as if they differed."""
        if bits == self.all_bits:
            return 1.0
        part = self.parts.get(bits)
        if part is None:
            part = 1.0
            for loop in self.statement.loops:
                bit = 1 << loop.depth
                if not bits & bit and loop.kind is not LoopKind.VECTORIZED and (bit > bits or loop.kind is LoopKind.UNROLLED):
                    part /= max(loop.extent, 1.0)
            self.parts[bits] = part
        return part


def _call_kind(name: str) -> int:
    if name in ("sqrt", "rsqrt"):
        return 7
    return 9 if name in _CHEAP_CALLS else 8


def row_major(shape: Sequence[float]) -> list[float]:
    """Strides of a compact buffer, in elements."""
    strides = [1.0] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return strides


def _compact(region: Region, accesses: Sequence[MemoryAccess]) -> None:
    """Shrink a scratch buffer to what one iteration of the innermost loop around all its accesses touches."""
    if not accesses:
        return
    first = accesses[0].loops
    common = len(first)
    for access in accesses[1:]:
        common = min(common, len(access.loops))
        while common and access.loops[common - 1] is not first[common - 1]:
            common -= 1
    shape = [1.0] * len(region.shape)
    for access in accesses:
        for dim, span in enumerate(_spans(access, common)):
            shape[dim] = max(shape[dim], span + 1)
    region.common, region.shape = common, shape
    region.strides = row_major(shape)


def _spans(access: MemoryAccess, outer: int) -> list[float]:
    """How far apart the indices of each dimension get while the loops from `outer` on run."""
    spans = [0.0] * len(access.ranges)
    for loop in access.loops[outer:]:
        for dim, step in access.moves.get(loop.number, ()):
            spans[dim] += abs(step) * max(loop.extent - 1, 0.0)
    return [min(span, most) for span, most in zip(spans, access.ranges, strict=True)]


def measure(access: MemoryAccess, line_bytes: int) -> None:
    """Fill in what the access touches at each level, and how far its address moves.

    An index is a sum of steps, added here from the innermost loop out. The values so far, and their copies one step further, lie on
    the grid of the greatest common divisor of all steps; there are no more of them than iterations, and no more than the grid has
    places between the first and the last. Source of both bounds: counting the sums a * i + b * j.
    """
    region, loops, ranges = access.region, access.loops, access.ranges
    strides, size = region.strides, region.element_bytes
    rank, depth = len(ranges), len(loops)
    last = rank - 1
    counts, spans, grids = [1.0] * rank, [0.0] * rank, [0.0] * rank
    outer = 0 if region.is_param else region.common
    flat = 0.0  # elements between the first and the last that is touched
    product = elements = lines = iterations = 1.0
    access.elements, access.lines = all_elements, all_lines = [1.0] * (depth + 1), [1.0] * (depth + 1)
    for k in range(depth - 1, -1, -1):
        loop = loops[k]
        moves = access.moves.get(loop.number) if k >= outer else None
        if moves is not None:
            extent, distance = max(loop.extent, 1.0), 0.0
            for dim, step in moves:
                distance += step * strides[dim]
                step = abs(step)
                count, span = counts[dim], spans[dim]
                reach = min(span + step * (extent - 1), ranges[dim])
                grid = _common_step(grids[dim], step)
                if reach < span + step * (extent - 1):  # a remainder, or cut short: values fall between those before
                    grid = min(grid, 1.0)
                found = max(min(count * extent, (reach + 1e-6) // max(grid, 1.0) + 1.0), count)
                product *= found / count
                flat += (reach - span) * strides[dim]
                counts[dim], spans[dim], grids[dim] = found, reach, grid
            iterations *= extent
            elements = min(product, iterations)
            along = min(counts[last], ((spans[last] * strides[last] + 1) * size - 1) // line_bytes + 1)
            lines = min(elements / counts[last] * along, ((flat + 1) * size - 1) // line_bytes + 1)
            lines = max(lines, all_lines[k + 1])
            access.steps[loop.number] = distance * size
        all_elements[k], all_lines[k] = elements, lines


def _common_step(first: float, second: float) -> float:
    """The greatest common divisor; of fractions, the smaller one."""
    if not first or not second:
        return first or second
    if first % 1 or second % 1:
        return min(first, second)
    a, b = int(first), int(second)
    while b:
        a, b = b, a % b
    return float(a)
