"""Decide which operators run as one kernel.

Each operator starts as a group of its own. A group grows along immediate post-dominators: when every path from an operator leads
through one later operator, and all operators on the paths may be computed element by element with it, they join. Everything but
the last operator of a group is then invisible outside, so a group has one place in the program: that of its last operator.
Whether what may join does is a knob that measurements may decide.
Source: the post-dominator fusion of TVM (Chen et al., 2018) and Relay; kinds are inferred (`fusion_kind`), not declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tc.ir.arith import Facts, equal_shapes
from tc.ir.dtype import bf16, f16, f32
from tc.ir.expr import Const
from tc.ir.graph import (
    Atom,
    Binding,
    Call,
    CallFunction,
    CallTir,
    Function,
    GlobalRef,
    Loop,
    Operation,
    TensorConst,
    TensorVar,
    atoms_read,
    map_bodies,
)
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import DimFact, FunctionType, TensorType
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import current_facts, get_op, inference
from tc.passes.graph.fusion_kind import (
    MANY,
    Access,
    FusionKind,
    LoopShape,
    infer_loop_shape,
    infer_loop_shape_of_kernel,
)
from tc.passes.graph.joins import MOST_JOINED, appended, is_join, made_here, part_offset, pays
from tc.passes.graph.knobs import knob_of_group
from tc.passes.graph.simplify_splits import part_as_slice
from tc.passes.manager import graph_pass
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules.operands import LEAST_STAGED_COLUMNS, LEAST_STAGED_ROWS
from tc.schedule.rules.spatial import LEAST_PART

WINDOWS = ("conv", "conv_integer", "conv_blocked", "max_pool", "max_pool_with_indices", "avg_pool", "lp_pool")
"""Operators that read windows of an image, which overlap."""

MOST_TERMS = 2048
"""The nodes that the formula of a kernel's element may have. What is read at several places stands in it as often, so that a chain of
operators which do so makes one that doubles with each."""


@graph_pass
def fuse_ops(module: IRModule, *, max_ops: int = 32, enable: bool = True, decide: Decide = take_default) -> IRModule:
    """Move each group of operators that fuse into a primitive function, and call it.

    Every operator call with a loop definition ends up in exactly one primitive function, except groups of views and joins, which need
    no kernel; with `enable` off each is alone. A call of a PrimFunc whose loops say what each element is counts as an operator; any other
    stays a kernel of its own. A kernel
    takes its constants of more than one element as parameters. Groups hold at most `max_ops` operators.
    `decide` says whether two groups that may join do.
    """
    names = _Names({func.name for func in module.functions})
    work = _Work(module, [], names, max_ops if enable else 1, decide)
    functions = [_fuse_function(func, func.facts, work) if isinstance(func, Function) else func for func in module.functions]
    return IRModule((*functions, *work.made), module.entry) if work.made else module


class _Names:
    """Hands out unused names."""

    def __init__(self, used: set[str]) -> None:
        self._used = used

    def fresh(self, base: str) -> str:
        name, count = base, 0
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name


@dataclass(frozen=True)
class _Work:
    """What is fused and how, and the list that primitive functions are added to."""

    module: IRModule
    made: list[Function]
    names: _Names
    max_ops: int
    decide: Decide


@dataclass(eq=False)
class _Node:
    """One binding in the dataflow graph of a function. `index` is its position, `users` the positions that use its results."""

    index: int
    binding: Binding
    shape: LoopShape
    users: list[int] = field(default_factory=list)
    escapes: bool = False
    group: int = -1
    post_dominator: int = -1
    depth: int = 0
    is_in_place: bool = False
    views_param: bool = False


def _fuse_function(func: Function, facts: tuple[DimFact, ...], work: _Work, is_loop: bool = False) -> Function:
    func = _fuse_bodies(func, facts, work)
    nodes = _dataflow(func, facts, work.module)
    in_blocks = appended(func) if is_loop else {}
    for node in nodes:
        node.is_in_place = any(target in in_blocks for target in node.binding.targets) or _joins_products(node, nodes)
        node.views_param = _is_view(node.binding.value) and any(atom in func.params for atom in atoms_read(node.binding.value))
    _set_post_dominators(nodes)
    grouping = _Grouping(nodes, Facts.of(facts), work.max_ops, work.decide)
    grouping.run()
    made_by = made_here(func)
    grouping.compute_where_read(made_by)
    members = grouping.members
    bindings: list[Binding] = []
    for node in nodes:
        group = members.get(node.group, [])
        if node not in group:  # it is computed wherever it is read
            continue
        if not _is_fusable(node) or all(_needs_no_kernel(member, made_by) for member in group):
            bindings.append(node.binding)
        elif node is group[-1]:
            before, own, after = _without_outer_views(group)
            bindings += [*(member.binding for member in before), _outline(own, facts, work), *(member.binding for member in after)]
    return replace(func, bindings=tuple(bindings))


def _without_outer_views(group: list[_Node]) -> tuple[list[_Node], list[_Node], list[_Node]]:
    """Views of what a kernel would read, the kernel, and views of its result: outside they are free, and inside they hide what lies side by
    side behind divisions."""
    inside = {target for node in group for target in node.binding.targets}
    before = [node for node in group if _is_view(node.binding.value) and inside.isdisjoint(atoms_read(node.binding.value))]
    own = [node for node in group if node not in before]
    after: list[_Node] = []
    while len(own) > 1 and _is_view(own[-1].binding.value):
        after.insert(0, own.pop())
    return before, own, after


def _joins_products(node: _Node, nodes: list[_Node]) -> bool:
    """Whether a binding puts the results of contractions one after the other, which nothing else reads: they are made in their places, and
    whatever reads the whole need not choose between them."""
    parts = [other for other in nodes if node.index in other.users] if is_join(node.binding.value) else []
    alone = all(part.shape.kind is FusionKind.CONTRACTION and part.users == [node.index] and not part.escapes for part in parts)
    return len(parts) > 1 and alone and len(parts) == len(list(atoms_read(node.binding.value)))


def _fuse_bodies(func: Function, facts: tuple[DimFact, ...], work: _Work) -> Function:
    """Fuse inside the bodies of If and Loop."""

    def inside(binding: Binding) -> Binding:
        is_loop = isinstance(binding.value, Loop)
        value = map_bodies(binding.value, lambda body: _fuse_function(body, facts, work, is_loop))
        return replace(binding, value=value)

    return replace(func, bindings=tuple(map(inside, func.bindings)))


def _is_fusable(node: _Node) -> bool:
    """Whether a kernel may hold it with others. As a view of memory a reshape is free; inside a kernel, each element would take the
    divisions that tell where it comes from, which cost more than an element stored and loaded where no constant is divided by. With a
    view of a parameter nothing is saved: a kernel that reads it knows the dims of the view alone."""
    match node.binding.value:
        case Call(op=op):
            stays = node.is_in_place or node.views_param or (_is_view(node.binding.value) and node.shape.divides)
            return get_op(op).compute is not None and not stays
        case CallTir():
            return node.shape.kind is not FusionKind.OPAQUE
    return False


def _is_view(value: Operation) -> bool:
    return isinstance(value, Call) and get_op(value.op).view


def _widens_halves(node: _Node) -> bool:
    """Whether a node makes f32 of a tensor of 16-bit floats and does nothing else."""
    call = node.binding.value
    if not (isinstance(call, Call) and call.op == "cast" and call.args[0] is not None):
        return False
    source, made = call.args[0].type, node.binding.targets[0].type
    assert isinstance(source, TensorType) and isinstance(made, TensorType)
    return source.dtype in (bf16, f16) and made.dtype is f32


def _needs_no_kernel(node: _Node, made_by: Mapping[TensorVar, Binding]) -> bool:
    """Whether the binding renames memory or a part of it, or joins what can be made in its place: alone, or with others like it."""
    value = node.binding.value
    if _is_view(value):
        return True
    return part_offset(value) is not None or (is_join(value) and pays(node.binding, made_by))


def _dataflow(func: Function, facts: tuple[DimFact, ...], module: IRModule) -> list[_Node]:
    nodes: list[_Node] = []
    producer: dict[TensorVar, _Node] = {}
    shapes: dict[object, LoopShape] = {}
    with inference(Facts.of(facts)):
        for index, binding in enumerate(func.bindings):
            same = _alike(binding)
            if same not in shapes:
                shapes[same] = _loop_shape(binding, module)
            node = _Node(index, binding, shapes[same])
            for atom in atoms_read(binding.value):
                source = producer.get(atom) if isinstance(atom, TensorVar) else None
                if source is not None:
                    source.users.append(index)
            producer.update(dict.fromkeys(binding.targets, node))
            nodes.append(node)
    for result in func.results:
        if isinstance(result, TensorVar) and result in producer:
            producer[result].escapes = True
    return nodes


def _alike(binding: Binding) -> object:
    """All that the loop shape of an operator's call follows from, beside facts; the binding itself where that is not of tensors alone."""
    call = binding.value
    if not isinstance(call, Call):
        return binding
    shapes: list[object] = []
    for type_ in (*operand_types(call), *(target.type for target in binding.targets)):
        if not (type_ is None or isinstance(type_, TensorType)):
            return binding
        shapes.append(type_ and (type_.shape, type_.dtype))
    return call.op, len(binding.targets), tuple(shapes), tuple([(name, type(value), value) for name, value in call.attrs])


def _loop_shape(binding: Binding, module: IRModule) -> LoopShape:
    call = binding.value
    if isinstance(call, CallTir):
        kernel = module[call.callee]
        assert isinstance(kernel, PrimFunc), "the callee of a CallTir is a PrimFunc"
        return infer_loop_shape_of_kernel(kernel, [arg.type for arg in call.args], call.dims, current_facts())  # type: ignore[misc]
    return _loop_shape_of_call(binding) if isinstance(call, Call) else LoopShape(FusionKind.OPAQUE, ())


def _loop_shape_of_call(binding: Binding) -> LoopShape:
    call = binding.value
    assert isinstance(call, Call)
    op = get_op(call.op)
    results = [target.type for target in binding.targets]
    return infer_loop_shape(op, operand_types(call), op.attrs(call.attrs), results)  # type: ignore[arg-type]


_EXIT = -1


def _set_post_dominators(nodes: list[_Node]) -> None:
    """Immediate post-dominators: the nearest node through which all uses go; _EXIT when results leave the function."""
    for node in reversed(nodes):
        if node.escapes or not node.users:
            node.post_dominator, node.depth = _EXIT, 1
            continue
        common = node.users[0]
        for user in node.users[1:]:
            common = _common_post_dominator(nodes, common, user)
        node.post_dominator = common
        node.depth = 1 if common == _EXIT else nodes[common].depth + 1


def _common_post_dominator(nodes: list[_Node], a: int, b: int) -> int:
    while a != b:
        if a == _EXIT or b == _EXIT:
            return _EXIT
        if nodes[a].depth >= nodes[b].depth:
            a = nodes[a].post_dominator
        else:
            b = nodes[b].post_dominator
    return a


class _Grouping:
    """Joins nodes into groups; the state is each node's `group` (the smallest index of its members)."""

    def __init__(self, nodes: list[_Node], facts: Facts, max_ops: int, decide: Decide) -> None:
        self.nodes = nodes
        self.facts = facts
        self.max_ops = max_ops
        self.decide = decide
        self.members = {node.index: [node] for node in nodes}
        for node in nodes:
            node.group = node.index

    def run(self) -> None:
        """Epilogues first, so that they end up with the heavy operator before them; then elementwise chains and prologues."""
        for node in reversed(self.nodes):
            if _is_fusable(node) and node.shape.kind in (FusionKind.REDUCTION, FusionKind.CONTRACTION):
                self._grow(node, self._is_epilogue)
        for node in self.nodes:
            if _is_fusable(node) and node.shape.kind is FusionKind.ELEMENTWISE and not self._anchors(node):
                self._grow(node, self._is_consumer)

    def compute_where_read(self, made_by: Mapping[TensorVar, Binding]) -> None:
        """Compute in each group that reads it what only makes small integers wider, and each part of what is split: fewer bytes are
        stored and read.

        It is the last of its group, and reads of it what then becomes the last, or alone; and every reader must be able to do so.
        """
        for node in reversed(self.nodes):
            own = self.members[node.group]
            hidden = {target for member in own[:-2] for target in member.binding.targets}
            is_last = own[-1] is node and hidden.isdisjoint(atoms_read(node.binding.value))
            if self.max_ops > 1 and node.users and not node.escapes and is_last and (_widens(node) or _is_split(node)):
                self._hand_out(node, own, made_by)

    def _hand_out(self, node: _Node, own: list[_Node], made_by: Mapping[TensorVar, Binding]) -> None:
        readers = [self.nodes[user] for user in dict.fromkeys(node.users)]
        read = [[target for target in node.binding.targets if target in atoms_read(reader.binding.value)] for reader in readers]
        if any(len(targets) > 1 for targets in read) or (_is_split(node) and any(map(_is_kept_apart, readers))):
            return
        if any(reader not in self.members[reader.group] for reader in readers):  # copies of it are what reads now
            return
        before = [reader.binding for reader in readers]
        targets = [target for (target,) in read]
        copies = [_copied(node, target, -1 - k) for k, target in enumerate(targets)]
        if all(self._takes_copy(*each, made_by) for each in zip(copies, targets, readers, strict=True)):
            for copy, reader in zip(copies, readers, strict=True):
                copy.group = reader.group
                self.members[reader.group].insert(0, copy)
            own.remove(node)
            return
        for reader, binding in zip(readers, before, strict=True):
            reader.binding = binding

    def _takes_copy(self, copy: _Node, copied: TensorVar, reader: _Node, made_by: Mapping[TensorVar, Binding]) -> bool:
        """Whether a reader can compute its operand itself; it then reads the copy."""
        group = self.members[reader.group]
        if not _is_fusable(reader) or len(group) >= self.max_ops or all(_needs_no_kernel(member, made_by) for member in group):
            return False
        reader.binding = _with_operand(reader.binding, copied, copy.binding.targets[0])
        self.members[copy.group] = [copy]
        can_join = self._is_consumer(copy, reader, [reader])
        del self.members[copy.group]
        return can_join

    def _grow(self, node: _Node, may_join: object) -> None:
        """Join `node` with its post-dominator, then with that one's, as long as everything between may join.

        What makes halves wider joins with what reads it only: nobody should store the wide ones.
        """
        last, waiting = node, list[_Node]()
        while last.post_dominator != _EXIT:
            sink = self.nodes[last.post_dominator]
            path = [*waiting, *self._between(last, sink)]
            if all(member.group == node.group for member in path):  # joined by what comes before `node`
                last = sink
                continue
            if not all(may_join(node, member, path) for member in path):  # type: ignore[operator]
                return
            waiting = path if _widens_halves(sink) and not sink.escapes else []
            if not waiting and not self._join([node, *path]):
                return
            last = sink

    def _between(self, node: _Node, sink: _Node) -> list[_Node]:
        """Everything on the paths from `node` (exclusive) to `sink` (inclusive)."""
        found = {sink.index}
        stack = [user for user in node.users if user != sink.index]
        while stack:
            index = stack.pop()
            if index not in found:
                found.add(index)
                stack.extend(user for user in self.nodes[index].users if user != sink.index)
        return [self.nodes[index] for index in sorted(found)]

    def _is_epilogue(self, anchor: _Node, member: _Node, path: list[_Node]) -> bool:
        """Whether `member` maps the anchor's result element by element, without changing its shape."""
        if not _is_fusable(member) or member.shape.kind is not FusionKind.ELEMENTWISE:
            return False
        if self._anchors(member):
            return False
        inside = {target for node in (*self.members[anchor.group], *path) for target in node.binding.targets}
        call = member.binding.value
        assert isinstance(call, (Call, CallTir))
        for arg, access in zip(call.args, member.shape.accesses, strict=True):
            if arg in inside and access not in (Access.IDENTITY, None):
                return False
        return self._same_shape(anchor, member)

    def _is_consumer(self, node: _Node, member: _Node, path: list[_Node]) -> bool:
        """Whether an elementwise `node` can be computed inside `member`: another elementwise one, or a reduction's input."""
        if not _is_fusable(member) or self._anchors(node):  # epilogues of an anchor have been decided already
            return False
        sink = path[-1]
        if member is not sink:
            return member.shape.kind is FusionKind.ELEMENTWISE and not self._anchors(member)
        anchors = self._anchors(sink)
        if sink.shape.kind is FusionKind.REDUCTION:
            return anchors == [sink] and not (_is_window(sink) and any(map(_leaves_blocks, (*self.members[node.group], *path[:-1]))))
        if sink.shape.kind is FusionKind.CONTRACTION:
            return anchors == [sink] and self._is_prologue(node, path)
        if sink.shape.kind is not FusionKind.ELEMENTWISE:
            return False
        return not anchors or self._reads_epilogue_input_only(node, path)

    def _is_prologue(self, node: _Node, path: list[_Node]) -> bool:
        """Whether an operand of a contraction is better made a tile at a time, where it is used, than all of it before.

        It is where it is gathered, or larger than what it is made of, and so many products share what is copied of it that the copy
        is cheap. A widened right operand need not be shared: fewer bytes are read.
        """
        sink = path[-1]
        members = list(dict.fromkeys([*self.members[node.group], *path[:-1]]))
        made = [target for member in members for target in member.binding.targets]
        call = sink.binding.value
        assert isinstance(call, (Call, CallTir))
        read = [(arg, reuse) for arg, reuse in zip(call.args, sink.shape.reuses, strict=True) if arg is not None and arg in made]
        operand, reuse = read[0]
        if len(read) != 1 or reuse is None:
            return False
        is_wider = _size_bytes(operand) > sum(map(_size_bytes, self._inputs_of(members, made)))
        if reuse.is_rhs:
            return is_wider or (reuse.times >= LEAST_STAGED_ROWS and any(member.shape.gathers for member in members))
        return reuse.times >= LEAST_STAGED_COLUMNS and (is_wider or any(member.shape.gathers for member in members))

    def _inputs_of(self, members: list[_Node], made: list[TensorVar]) -> list[Atom]:
        """What a group reads from outside."""
        args = (arg for member in members for arg in member.binding.value.args)  # type: ignore[union-attr]
        return [arg for arg in dict.fromkeys(args) if arg is not None and arg not in made]

    def _reads_epilogue_input_only(self, node: _Node, path: list[_Node]) -> bool:
        """Whether what joins an epilogue has the epilogue's shape all the way, so that it runs inside the anchor's tile."""
        sink = path[-1]
        joining = [*self.members[node.group], *path[:-1]]
        return all(self._same_shape(sink, member) for member in joining) and all(
            access in (Access.IDENTITY, Access.BROADCAST, None) for member in joining for access in member.shape.accesses
        )

    def _anchors(self, node: _Node) -> list[_Node]:
        return [member for member in self.members[node.group] if member.shape.kind is not FusionKind.ELEMENTWISE]

    def _same_shape(self, a: _Node, b: _Node) -> bool:
        lhs, rhs = a.binding.targets[0].type, b.binding.targets[0].type
        assert isinstance(lhs, TensorType) and isinstance(rhs, TensorType)
        return len(a.binding.targets) == 1 and equal_shapes(lhs.shape, rhs.shape, self.facts) is True

    def _join(self, nodes: list[_Node]) -> bool:
        """Make the groups of the nodes one, unless it would be too large, or hold two anchors, or is slower."""
        groups = sorted({node.group for node in nodes})
        merged = sorted((member for group in groups for member in self.members[group]), key=lambda n: n.index)
        anchors = [member for member in merged if member.shape.kind is not FusionKind.ELEMENTWISE]
        if len(merged) > self.max_ops or len(anchors) > 1 or _joined_parts(merged) > MOST_JOINED or _is_too_long(merged):
            return False
        if _gathers_from_all(merged, anchors) or self._loses_checks(merged):
            return False
        if not self._pays(merged):
            return False
        for group in groups:
            del self.members[group]
        for member in merged:
            member.group = merged[0].index
        self.members[merged[0].index] = merged
        return True

    def _loses_checks(self, merged: list[_Node]) -> bool:
        """Whether indices would not be looked at, as nobody reads what they lead to: an operator looks at all of its own."""
        if not any(node.shape.checks for node in merged):
            return False
        checked = set[TensorVar]()
        for node in merged:
            call = node.binding.value
            assert isinstance(call, (Call, CallTir))
            places = [place for place, arg in enumerate(call.args) if arg in checked]
            if not _is_view(call) and not all(node.shape.reads_all(k, self.facts) for k in places):
                return True
            if places or node.shape.checks:
                checked.update(node.binding.targets)
        return False

    def _pays(self, merged: list[_Node]) -> bool:
        """Whether measurements have shown nothing else."""
        if self.decide is take_default:  # what a knob is known by takes a while to find
            return True
        calls = [node.binding.value for node in merged]
        return bool(self.decide(knob_of_group(calls, "fuse_ops", (True, False), True)))  # type: ignore[arg-type]


def _joined_parts(merged: list[_Node]) -> int:
    """The operands of all concatenations that a kernel would do in one."""
    calls = (node.binding.value for node in merged)
    return sum(len(call.args) for call in calls if isinstance(call, Call) and call.op == "concat")


def _is_too_long(merged: list[_Node]) -> bool:
    """Whether the formula of a kernel's element, in which what makes single elements stands wherever it is read, has more nodes than any
    should have, and than that of one operator alone."""
    most, made = max(MOST_TERMS, *(node.shape.terms for node in merged)), dict[TensorVar, int]()
    for node in merged:
        shape, call = node.shape, node.binding.value
        assert isinstance(call, (Call, CallTir))
        read = zip(call.args, shape.times, strict=True)
        terms = shape.terms + sum(times * made[arg] for arg, times in read if isinstance(arg, TensorVar) and arg in made)
        if terms > most:
            return True
        if shape.kind is FusionKind.ELEMENTWISE:
            made.update(dict.fromkeys(node.binding.targets, terms))
    return False


def _widens(node: _Node) -> bool:
    """Whether an operation makes each element of a tensor of small integers a wider one."""
    call = node.binding.value
    if not isinstance(call, Call) or node.shape.kind is not FusionKind.ELEMENTWISE or len(node.binding.targets) != 1:
        return False
    read = [arg for arg, access in zip(call.args, node.shape.accesses, strict=True) if access is Access.IDENTITY and arg is not None]
    if len(read) != 1 or not isinstance(read[0], TensorVar):
        return False
    source, target = read[0].type, node.binding.targets[0].type
    assert isinstance(source, TensorType) and isinstance(target, TensorType)
    return source.dtype.is_int and source.dtype.bits <= 16 and target.dtype.bits > source.dtype.bits


def _is_window(node: _Node) -> bool:
    """Whether an operation reads windows of an image, which overlap."""
    call = node.binding.value
    return isinstance(call, Call) and call.op in WINDOWS


def _leaves_blocks(node: _Node) -> bool:
    """Whether an operation puts blocks of channels in order: a row of the image is then read across them, once rather than for each tap."""
    return isinstance(node.binding.value, Call) and node.binding.value.op in ("block", "unblock")


def _gathers_from_all(merged: list[_Node], anchors: list[_Node]) -> bool:
    """Whether elements are gathered from several tensors, of which each chooses one by its place: in a sum, or in rows too short to be
    copied part by part, a vector gathers from all of them."""
    joins = [node for node in merged if isinstance(node.binding.value, Call) and node.binding.value.op == "concat"]
    return any(node.shape.gathers for node in merged) and any(anchors or _has_short_parts(node.binding) for node in joins)


def _has_short_parts(binding: Binding) -> bool:
    """Whether rows of a concatenation are so short that its parts are not copied each by itself."""
    call, type_ = binding.value, binding.targets[0].type
    assert isinstance(call, Call) and isinstance(type_, TensorType)
    row = type_.shape[full_attrs(call).axis % type_.rank :]
    known = prod(int(dim.value) if isinstance(dim, Const) else MANY for dim in row)
    return known * type_.dtype.size_bytes < LEAST_PART * len(call.args)


def _is_split(node: _Node) -> bool:
    """Whether an operation cuts a tensor into parts, and is no view of them."""
    call = node.binding.value
    return isinstance(call, Call) and call.op == "split" and node.shape.kind is FusionKind.ELEMENTWISE


def _is_kept_apart(reader: _Node) -> bool:
    """Whether what reads a part of a tensor reads it more than once, or in no order: it is better made before."""
    return reader.shape.kind is not FusionKind.ELEMENTWISE or reader.shape.gathers


def _copied(node: _Node, target: TensorVar, group: int) -> _Node:
    """The operation that makes one of a node's results, with a result of its own, in another group."""
    binding, shape = node.binding, node.shape
    if _is_split(node):
        binding = part_as_slice(binding, target)
        shape = _loop_shape_of_call(binding)
    binding = replace(binding, targets=(TensorVar(target.name, target.type, span=target.span),))
    return _Node(node.index, binding, shape, group=group)


def _with_operand(binding: Binding, old: TensorVar, new: TensorVar) -> Binding:
    call = binding.value
    assert isinstance(call, (Call, CallTir))
    return replace(binding, value=replace(call, args=tuple(new if arg is old else arg for arg in call.args)))


def _size_bytes(atom: Atom) -> int:
    """The bytes of a tensor, unknown dims counted as many elements."""
    type_ = atom.type
    assert isinstance(type_, TensorType)
    return type_.dtype.size_bytes * prod(int(dim.value) if isinstance(dim, Const) else MANY for dim in type_.shape)


def _data_places(call: Call | CallTir) -> tuple[int, ...]:
    """The places of operands whose numbers decide nothing about the code."""
    if not isinstance(call, Call) or (places := get_op(call.op).data) is None:
        return ()
    return places(call.args, full_attrs(call))


def _outline(group: list[_Node], facts: tuple[DimFact, ...], work: _Work) -> Binding:
    """A primitive function of the group's bindings, and the binding that calls it."""
    last = group[-1].binding
    targets = last.targets
    inside = {target for node in group for target in node.binding.targets}
    calls = [node.binding.value for node in group if isinstance(node.binding.value, (Call, CallTir))]
    data = {call: _data_places(call) for call in calls}
    literals = {arg for call in calls for place, arg in enumerate(call.args) if place not in data[call]}
    params: dict[tuple[Atom, int | None], TensorVar] = {}  # data by its place, too: two numbers may be the same one by chance

    def localize(arg: Atom | None, place: int | None) -> Atom | None:
        if arg is None or arg in inside:
            return arg
        if isinstance(arg, TensorConst) and arg.value.size == 1 and (place is None or arg in literals):
            return arg
        return params.setdefault((arg, place), TensorVar(getattr(arg, "name", "") or "c", arg.type))

    bindings, ops = [], []
    for node, call in zip(group, calls, strict=True):
        args = tuple(localize(arg, place if place in data[call] else None) for place, arg in enumerate(call.args))
        bindings.append(replace(node.binding, value=replace(call, args=args)))
        ops.append(call.op.rpartition("::")[2] if isinstance(call, Call) else call.callee)
    name = work.names.fresh("_".join(ops)[:48])
    own = {target: TensorVar(target.name, target.type) for target in targets}
    bindings[-1] = replace(bindings[-1], targets=tuple(own.values()))
    func = Function(
        name, tuple(params.values()), tuple(bindings), tuple(own.values()), facts, (("primitive", True),), span=last.span
    )
    work.made.append(func)
    callee = GlobalRef(name, FunctionType(tuple(p.type for p in params.values()), tuple(t.type for t in targets)))
    return Binding(targets, CallFunction(callee, tuple(arg for arg, _ in params), span=last.span), span=last.span)
