"""Give every value of a graph function a place in memory, and turn the function into an execution plan.

A *storage* is one piece of memory; a view shares the storage of its operand. Storages of results are the caller's output
buffers, storages of a size that depends on data are allocated when that size is known, all others live in one arena, where those
that are never alive together overlap, and a kernel's result takes over the memory of an operand that dies there, if the kernel's
loops allow it. The function is walked twice in the same order: first to learn when each storage
is alive, then, when all offsets are known, to write down the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from tc.errors import LoweringError, Span, UnsupportedError, located
from tc.ir.access import access_checks
from tc.ir.arith import Facts, prove
from tc.ir.dtype import bool_, i64
from tc.ir.expr import Const, Expr, Var, const, equal, floormod, mul
from tc.ir.graph import (
    Atom,
    Binding,
    Call,
    CallExtern,
    CallTir,
    Function,
    If,
    Loop,
    ReadDims,
    TensorConst,
    TensorVar,
    tensor_type_of,
)
from tc.ir.loop import PrimFunc, in_place_inputs
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.ir.plan import (
    Allocate,
    BindDims,
    Branch,
    CallOut,
    Check,
    Copy,
    Exchange,
    ExecutionPlan,
    Extend,
    Launch,
    PlanStep,
    Repeat,
    Slot,
    SlotPlace,
    StoreIndex,
    allocated_blocks,
)
from tc.ir.types import TensorType
from tc.ops.registry import Requirement, get_op
from tc.passes.graph.assign_storage import ALIGNMENT, StorageRegion, assign_offsets, region_of_type
from tc.passes.graph.found_sizes import changing_sizes
from tc.passes.graph.joins import (
    appended,
    is_aligned,
    is_join,
    made_here,
    operands_of,
    part_offset,
    parts_of,
    view_root,
)
from tc.passes.graph.place_on_host import is_on_host, is_small
from tc.passes.graph.storages import NOT_YET, PossibleReuse, Storage, StorageView, have_same_size, is_whole


def plan_memory(module: IRModule, requirements: Iterable[Requirement] = (), is_for_device: bool = False) -> ExecutionPlan:
    """The execution plan of the module's entry. Every operator call left in it is a view or runs its reference.

    `requirements` are conditions over dims, found by type inference. They are checked before anything runs, or as soon as all
    their dims are known; those that a function carries (attribute "requirements"), when it is entered. `is_for_device`: kernels run on a
    device, but for those of `place_on_host`; the host reads small inputs where the caller has them.
    """
    func = module.main
    checks = [*(Check(r.condition, r.message, r.assumed) for r in requirements), *_carried_checks(func)]
    planner = _Planner(module, func, is_for_device, list({(c.condition, c.message): c for c in checks}.values()))
    planner.measure(func)
    planner.take_over()
    arena_bytes = assign_offsets(planner.regions(), Facts.of(func.facts))
    steps = planner.emit(func)
    allocated_blocks(steps)
    facts = tuple(fact for fact in func.facts if fact.var in planner.bound_dims)
    names = _output_names(func)
    outputs = tuple(TensorVar(name, result.type, span=func.span) for name, result in zip(names, func.results, strict=True))
    return ExecutionPlan(
        func.name,
        func.params,
        outputs,
        tuple(planner.constants),
        facts,
        arena_bytes,
        planner.num_dynamic,
        steps,
        tuple(planner.output_slots),
        planner.host_bytes,
        tuple(sorted(planner.host_inputs)),
        span=func.span,
    )


def _output_names(func: Function) -> list[str]:
    """What the results are called; those that the function does not name like their variables, each with a name of its own."""
    names = dict(func.attrs).get("output_names")
    if isinstance(names, tuple):
        return list(map(str, names))
    wanted = [result.name if isinstance(result, TensorVar) else f"output{k}" for k, result in enumerate(func.results)]
    found: list[str] = []
    for base in wanted:
        name, count = base, 0
        while name in found or (count and name in wanted):
            count += 1
            name = f"{base}_{count}"
        found.append(name)
    return found


class _Planner:
    """Walks the function; holds where each value is and, while measuring, the current time."""

    def __init__(self, module: IRModule, func: Function, is_for_device: bool, checks: list[Check]) -> None:
        self.module = module
        self.is_for_device = is_for_device
        self.host_bytes = 0
        self.host_inputs: set[int] = set()
        self.checks = checks
        self.pending: list[Check] = []  # checks that wait for dims to be known
        self.known_dims: set[Expr] = set()
        self.views: dict[Atom, StorageView] = {}
        self.constants: dict[TensorConst, int] = {}
        self.storages: list[Storage] = []
        self.num_dynamic = 0
        self.output_slots: list[Slot] = []
        self.time = 0
        self.bound_dims = {v for p in func.params for v in walk(p.type) if isinstance(v, Var)}
        self.wanted: dict[TensorVar, StorageView] = {}  # values that are to be made in a given place
        self.measuring = True
        self.reuses: list[PossibleReuse] = []
        # Made in the first walk, found again in the second:
        self._indices: dict[Loop, Var] = {}
        self._conditions: dict[Loop, TensorVar] = {}
        self._rows: dict[TensorVar, StorageView] = {}
        self._holders: dict[tuple[Atom, int], TensorVar] = {}
        self._sizes: dict[Var, TensorVar] = {}
        self._appended: dict[TensorVar, StorageView] = {}  # to values in dynamic blocks, which they extend
        self._owned: dict[int, Storage] = {}
        for index, param in enumerate(func.params):
            self.views[param] = StorageView(Storage(SlotPlace.INPUT, index, param.type))  # type: ignore[arg-type]
        self._want_outputs(func)

    # -- storages

    def _want_outputs(self, func: Function) -> None:
        """Let values that are results be made in the output buffers, where nothing speaks against it."""
        made = made_here(func)
        for index, result in enumerate(func.results):
            if isinstance(result, TensorVar) and result in made and self._is_input_sized(result.type):
                root = view_root(result, made)
                if root is not None and root not in self.wanted and self._fits(root, result):
                    self.wanted[root] = StorageView(Storage(SlotPlace.OUTPUT, index, root.type))  # type: ignore[arg-type]

    def _is_input_sized(self, type_: object) -> bool:
        return all(v in self.bound_dims for v in walk(type_) if isinstance(v, Var))  # type: ignore[arg-type]

    def _fits(self, root: TensorVar, whole: TensorVar) -> bool:
        """Whether a value has the size that it is to have in `whole` as soon as it is made: where that says nothing of its dims, it is
        checked only afterwards."""
        known = {v for v in walk(whole.type) if isinstance(v, Var)} | self.bound_dims
        return all(v in known for v in walk(root.type) if isinstance(v, Var))

    def _want_parts(self, func: Function) -> None:
        """Let operands of joins be made in their places in the results."""
        for root, part in parts_of(func).items():
            place = self.views.get(part.whole) or self.wanted.get(part.whole)
            if place is None and self._is_input_sized(part.whole.type):
                place = self.wanted[part.whole] = StorageView(self._new_storage(tensor_type_of(part.whole), NOT_YET))
            if place is not None and root not in self.wanted and self._fits(root, part.whole):
                self.wanted[root] = StorageView(place.storage, place.offset + part.offset)

    def _new_storage(self, type_: TensorType, start: int | None = None) -> Storage:
        start = self.time if start is None else start
        if self._is_input_sized(type_):
            storage = Storage(SlotPlace.ARENA, 0, type_, start)
        else:
            storage = Storage(SlotPlace.DYNAMIC, self.num_dynamic, type_, start)
            self.num_dynamic += 1
        self.storages.append(storage)
        return storage

    def regions(self) -> list[StorageRegion]:
        """The arena regions, from the lifetimes that `measure` found."""
        found = []
        for storage in self.storages:
            if storage.place is SlotPlace.ARENA and storage.taken is None:
                assert storage.type is not None
                storage.region = region_of_type(storage.type, storage.start, storage.end)
                found.append(storage.region)
        return found

    def _define(self, target: TensorVar) -> StorageView:
        """The place of a value that is made now."""
        view = self.views.get(target)
        if view is None:
            view = self.wanted.get(target) or StorageView(self._new_storage(tensor_type_of(target)))
            self.views[target] = view
        self._touch(view)
        return view

    def _use(self, atom: Atom) -> StorageView:
        if isinstance(atom, TensorConst):
            index = self.constants.setdefault(atom, len(self.constants))
            return StorageView(Storage(SlotPlace.CONSTANT, index, atom.type))
        view = self.views[atom]
        self._touch(view)
        return view

    def _touch(self, view: StorageView) -> None:
        if self.measuring:
            view.storage.start = min(view.storage.start, self.time)
            view.storage.end = max(view.storage.end, self.time)

    def _slot(self, atom: Atom, view: StorageView) -> Slot:
        storage = view.storage
        offset = view.offset
        region = storage.root.region
        if storage.place is SlotPlace.ARENA and region is not None:
            offset = region.offset + offset
        return Slot(storage.place, storage.index, tensor_type_of(atom), offset)

    def _used_slot(self, atom: Atom) -> Slot:
        return self._slot(atom, self._use(atom))

    def _defined_slot(self, target: TensorVar) -> Slot:
        return self._slot(target, self._define(target))

    # -- the host of a device

    def _host_slot(self, atom: Atom) -> Slot:
        """Where the host finds a value that it needs."""
        view = self._use(atom)
        place = view.storage.place
        if place is SlotPlace.INPUT:
            self.host_inputs.add(view.storage.index)
        place = {SlotPlace.INPUT: SlotPlace.HOST_INPUT, SlotPlace.CONSTANT: SlotPlace.HOST_CONSTANT}.get(place, place)
        return Slot(place, view.storage.index, tensor_type_of(atom), view.offset)

    def _made_on_host(self, target: TensorVar) -> Slot:
        """The place of a value that the host makes: its own for the whole program, as there is little of it."""
        if target not in self.views:
            self.views[target] = StorageView(Storage(SlotPlace.HOST, 0, tensor_type_of(target)), const(self.host_bytes))
            size = tensor_type_of(target).size_bytes
            assert isinstance(size, Const), "the host makes what is small"
            self.host_bytes += -(-int(size.value) // ALIGNMENT) * ALIGNMENT
        return self._host_slot(target)

    def _read_slot(self, atom: Atom) -> Slot:
        """The slot of a value that the program itself looks at."""
        place = self._use(atom).storage.place
        reads_input = self.is_for_device and place is SlotPlace.INPUT and is_small(atom)
        return self._host_slot(atom) if reads_input or place is SlotPlace.HOST else self._used_slot(atom)

    # -- the two walks

    def measure(self, func: Function) -> None:
        """Learn the lifetimes of all storages."""
        self.measuring, self.time = True, 0
        self._walk_function(func)

    def take_over(self) -> None:
        """Let results take the memory of operands that are not needed any more, where the kernel allows it."""
        for reuse in self.reuses:
            result = reuse.result.storage
            roots = [view.storage.root for view in reuse.operands]
            if result.place is not SlotPlace.ARENA or result.start != reuse.time or not is_whole(reuse.result):
                continue
            for k in reuse.allowed:
                operand = roots[k]
                dies = operand.place is SlotPlace.ARENA and operand.end == reuse.time and roots.count(operand) == 1
                if dies and is_whole(reuse.operands[k]) and have_same_size(operand, result):
                    result.taken = operand
                    operand.end = max(operand.end, result.end)
                    break

    def emit(self, func: Function) -> tuple[PlanStep, ...]:
        """The steps, all offsets being known."""
        self.measuring, self.time = False, 0
        return tuple(self._walk_function(func))

    def _walk_function(self, func: Function) -> list[PlanStep]:
        self.known_dims, self.pending = set(self.bound_dims), list(self.checks)
        steps = self._walk_bindings(func)
        self.time += 1
        self.output_slots = []
        for index, result in enumerate(func.results):
            slot = self._used_slot(result)
            if slot.place is SlotPlace.DYNAMIC or (slot.place is SlotPlace.OUTPUT and slot.index == index):
                self.output_slots.append(slot)
                continue
            if self._is_input_sized(slot.type):
                target = Slot(SlotPlace.OUTPUT, index, slot.type)
            else:  # a view, of a shape from data, of memory that is not ours to give: the caller cannot make its buffer beforehand
                target = self._owned_slot(index, slot.type)
                steps.append(Allocate(target.index, slot.type.size_bytes))
            self.output_slots.append(target)
            steps.append(Copy(slot, target, slot.type.size_bytes))
        return steps

    def _owned_slot(self, index: int, type_: TensorType) -> Slot:
        """A dynamic block for output number `index`, the same in both walks."""
        storage = self._owned.get(index)
        if storage is None:
            storage = self._owned[index] = self._new_storage(type_)
        return Slot(storage.place, storage.index, type_)

    def _walk_bindings(self, func: Function) -> list[PlanStep]:
        """The steps of a function's bindings, each check as soon as its dims are known."""
        if self.measuring:
            self._want_parts(func)
        steps = self._ready_checks()
        for binding in func.bindings:
            steps.extend(self._walk_binding(binding))
            new = _dims_bound_by(binding) - self.known_dims
            if new:
                self.known_dims |= new
                steps.extend(self._ready_checks())
        return steps

    def _walk_nested(self, func: Function) -> list[PlanStep]:
        """As `_walk_bindings`, with the checks that the function itself carries."""
        outer = list(self.pending)
        self.pending.extend(_carried_checks(func))
        steps = self._walk_bindings(func)
        self.pending = [check for check in self.pending if check in outer]
        return steps

    def _ready_checks(self) -> list[PlanStep]:
        ready = [c for c in self.pending if all(v in self.known_dims for v in walk(c.condition) if isinstance(v, Var))]
        self.pending = [check for check in self.pending if check not in ready]
        return list(ready)

    def _messages(self, callee: str, origins: tuple[Span | None, ...]) -> tuple[str, ...]:
        """What to tell when an index in a kernel is out of range, each with the node that asks."""
        checks = access_checks(self.module[callee])  # type: ignore[arg-type]
        return tuple(f"{origins[min(check.origin, len(origins) - 1)] or callee}: {check.message}" for check in checks)

    def _walk_binding(self, binding: Binding) -> list[PlanStep]:
        self.time += 1
        with located(binding.span):
            return self._walk_value(binding)

    def _walk_value(self, binding: Binding) -> list[PlanStep]:
        value, targets, span = binding.value, binding.targets, binding.span
        match value:
            case TensorVar() | TensorConst():
                self.views[targets[0]] = self._use(value)
                return []
            case CallTir(callee=callee, args=args, dims=dims, origins=origins) if is_on_host(self.module[callee]):
                slots = (*map(self._host_slot, args), *map(self._made_on_host, targets))
                return [Launch(callee, slots, dims, self._messages(callee, origins or (span,)), on_host=True, span=span)]
            case CallTir(callee=callee, args=args, dims=dims, origins=origins):
                used = tuple(map(self._used_slot, args))
                made = tuple(map(self._defined_slot, targets))
                if self.measuring:
                    self._note_reuse(callee, args, targets)
                checks = self._messages(callee, origins or (span,))
                return [*self._allocations(targets), Launch(callee, (*used, *made), dims, checks, span=span)]
            case Call(op=op, args=args) if get_op(op).view:
                source = self._use(args[0])  # type: ignore[arg-type]
                self.views[targets[0]] = source
                return []
            case Call(args=args) if (offset := part_offset(value)) is not None:
                source = self._use(args[0])  # type: ignore[arg-type]
                self.views[targets[0]] = StorageView(source.storage, source.offset + offset)
                return []
            case Call() if is_join(value):
                return self._walk_join(binding)
            case Call(op=op, args=args, attrs=attrs):
                arrays = tuple(None if arg is None else self._used_slot(arg) for arg in args)
                made = tuple(map(self._defined_slot, targets))
                found = self._found_dims(targets)
                record = get_op(op)
                if record.imported_as is not None:
                    symbol, attrs = f"import:{record.imported_as}", tuple(record.attrs(attrs).items())
                else:
                    symbol = f"op:{op}"
                return [*self._allocations(targets), CallOut(symbol, arrays, made, (), attrs, found, span=span)]
            case CallExtern(symbol=symbol, args=args, dims=dims, attrs=attrs):
                used = tuple(map(self._used_slot, args))
                made = tuple(map(self._defined_slot, targets))
                found = self._found_dims(targets)
                return [*self._allocations(targets), CallOut(symbol, used, made, dims, attrs, found, span=span)]
            case ReadDims(operand=operand, dims=dims):
                return [BindDims(self._read_slot(operand), dims, span=span)]
            case If():
                return self._walk_if(value, targets)
            case Loop():
                return self._walk_loop(value, targets)
        raise LoweringError(f"no execution step for {type(value).__name__}")

    def _walk_join(self, binding: Binding) -> list[PlanStep]:
        """Copies of the operands that were not made in their places."""
        (target,) = binding.targets
        if target in self._appended:
            return self._walk_append(binding, self._appended[target])
        place = self._define(target)
        steps = self._allocations((target,))
        for operand, offset in operands_of(binding):
            steps.extend(self._copy(operand, operand, StorageView(place.storage, place.offset + offset)))
        return steps

    def _walk_append(self, binding: Binding, place: StorageView) -> list[PlanStep]:
        """What a join adds to a carried value, behind it."""
        (target,), ((first, _), *others) = binding.targets, operands_of(binding)
        self._use(first)
        self.views[target] = place
        size, kept = tensor_type_of(target).size_bytes, tensor_type_of(first).size_bytes
        steps: list[PlanStep] = [Extend(place.storage.index, size, kept)]
        for operand, offset in others:
            steps.extend(self._copy(operand, operand, StorageView(place.storage, offset)))
        return steps

    def _note_reuse(self, callee: str, args: tuple[Atom, ...], targets: tuple[TensorVar, ...]) -> None:
        kernel = self.module[callee]
        allowed = in_place_inputs(kernel) if isinstance(kernel, PrimFunc) else ()
        if allowed:
            operands = tuple(map(self._use, args))
            self.reuses.append(PossibleReuse(self.time, operands, allowed, self.views[targets[0]]))

    def _allocations(self, targets: Iterable[TensorVar]) -> list[PlanStep]:
        """Allocations of dynamic blocks, each by the value it belongs to: one that is made in the place of another (a row of a stack,
        the result of an If) finds it allocated, and one whose size a call out finds is made by that call."""
        return [
            Allocate(self.views[target].storage.index, tensor_type_of(target).size_bytes)
            for target in targets
            if self.views[target].storage.place is SlotPlace.DYNAMIC and target not in self.wanted and not self._found_dims((target,))
        ]

    def _found_dims(self, targets: Iterable[TensorVar]) -> tuple[Var, ...]:
        """The dims of these values that only what makes them can tell."""
        found = (v for target in targets for v in walk(target.type) if isinstance(v, Var))
        return tuple(v for v in dict.fromkeys(found) if v not in self.known_dims)

    def _walk_if(self, value: If, targets: tuple[TensorVar, ...]) -> list[PlanStep]:
        condition = self._read_slot(value.condition)
        for target in targets:
            self._define(target)
        found = self._found_dims(targets)
        branches = [self._walk_branch(branch, targets, found) for branch in (value.then_branch, value.else_branch)]
        for target in targets:
            self._use(target)
        sizes = [BindDims(self._size_slot(dim), (dim,)) for dim in found]
        return [*self._allocations(targets), Branch(condition, tuple(branches[0]), tuple(branches[1]), span=value.span), *sizes]

    def _walk_branch(self, branch: Function, targets: tuple[TensorVar, ...], found: tuple[Var, ...]) -> list[PlanStep]:
        """The steps of a branch, its results made in, or copied to, the places of the `If`'s targets; `found`: the dims of these that the
        branch alone knows."""
        made = made_here(branch)
        for result, target in zip(branch.results, targets, strict=True):
            root = view_root(result, made) if isinstance(result, TensorVar) and result in made else None
            if root is not None and not self._found_dims((target,)) and self._fits(root, target):
                self.wanted.setdefault(root, self.views[target])
        steps = self._walk_nested(branch)
        self.time += 1
        ends = [[tensor_type_of(value).shape for value in pair] for pair in zip(targets, branch.results, strict=True)]
        sized: dict[Expr, Expr] = {dim: size for shapes in ends for dim, size in zip(*shapes, strict=True)}
        steps.extend(StoreIndex(self._size_slot(dim), sized[dim]) for dim in found)
        for result, target in zip(branch.results, targets, strict=True):
            if self._found_dims((target,)):
                steps.append(Allocate(self.views[target].storage.index, tensor_type_of(result).size_bytes))
            steps.extend(self._copy(result, target, self.views[target]))
        return steps

    def _copy(self, source: Atom, target: Atom, place: StorageView) -> list[PlanStep]:
        here = self._use(source)
        if here.storage is place.storage and here.offset is place.offset:
            return []
        return [Copy(self._slot(source, here), self._slot(target, place), tensor_type_of(source).size_bytes)]

    def _walk_loop(self, loop: Loop, targets: tuple[TensorVar, ...]) -> list[PlanStep]:
        """Carried values keep one place for the whole loop; each iteration's new values are copied there at its end, but for blocks
        whose sizes change, which exchange."""
        body = loop.body
        index_param, *carried_params = body.params
        num_carried = len(carried_params)
        if len(targets) > num_carried and loop.trip_count is None:
            raise UnsupportedError("a loop that stacks results needs a known number of iterations", code="TC1018")
        steps: list[PlanStep] = []
        for target in targets:
            self._define(target)
        steps.extend(self._allocations(targets))
        sizes, changing = changing_sizes(loop, targets, self.known_dims)
        steps.extend(StoreIndex(self._size_slot(size.inside), size.first) for size in sizes)
        for k, (init, target, param) in enumerate(zip(loop.init, targets, carried_params, strict=False)):
            self.views[param] = self.views[target]
            if k in changing:
                steps.append(Allocate(self.views[target].storage.index, tensor_type_of(init).size_bytes))
            steps.extend(self._copy(init, target, self.views[target]))
        condition = self._loop_condition(loop, steps)
        index = self._loop_index(loop)
        body_steps: list[PlanStep] = [BindDims(self._size_slot(size.inside), (size.inside,)) for size in sizes]
        self.known_dims |= {size.inside for size in sizes}
        self.views.setdefault(index_param, StorageView(self._new_storage(TensorType((), i64))))
        if self._is_used(index_param, body):
            body_steps.append(StoreIndex(self._slot(index_param, self.views[index_param]), index))
        entered = self.time
        for k, result in enumerate(body.results[1 + num_carried :]):
            self._want_scanned(result, targets[num_carried + k], index, body)
        self._appended |= {result: self.views[targets[k]] for result, k in appended(body).items() if k in changing}
        body_steps.extend(self._walk_nested(body))
        self.time += 1
        body_steps.extend(self._end_of_iteration(loop, targets, carried_params, condition, index, changing, entered))
        body_steps.extend(StoreIndex(self._size_slot(size.inside), size.following) for size in sizes)
        self._extend_captured(body, entered)
        for target in targets:
            self._use(target)
        slot = None if condition is None else self._slot(condition, self.views[condition])
        found = [BindDims(self._size_slot(size.inside), (size.after,)) for size in sizes]
        return [*steps, Repeat(index, loop.trip_count, slot, tuple(body_steps), span=loop.span), *found]

    def _size_slot(self, dim: Var) -> Slot:
        """Where the size of a carried value is from iteration to iteration."""
        holder = self._sizes.setdefault(dim, TensorVar("size", TensorType((), i64)))
        return self._slot(holder, self._define(holder))

    def _loop_index(self, loop: Loop) -> Var:
        """The iteration number, the same variable in both walks."""
        return self._indices.setdefault(loop, Var("iteration", i64))

    def _loop_condition(self, loop: Loop, steps: list[PlanStep]) -> TensorVar | None:
        """The variable that holds the condition from iteration to iteration; None when it is always true."""
        if _is_true(loop.condition) and _is_true(loop.body.results[0]):
            return None
        if len(loop.body.results) > len(loop.body.params):
            raise UnsupportedError("a loop that stacks results must run a known number of iterations", code="TC1018")
        holder = self._conditions.setdefault(loop, TensorVar("condition", TensorType((), bool_)))
        place = self._define(holder)
        steps.extend(self._copy(loop.condition, holder, place))
        return holder

    def _want_scanned(self, result: Atom, target: TensorVar, index: Var, body: Function) -> None:
        """Let a value that is stacked be made in its row of the stack, where all rows begin as kernels may ask of what they write."""
        made = made_here(body)
        if isinstance(result, TensorVar) and result in made and is_aligned(tensor_type_of(result).size_bytes):
            root = view_root(result, made)
            if root is not None and self._fits(root, target):
                self.wanted.setdefault(root, self._row(target, tensor_type_of(result), index))

    def _row(self, target: TensorVar, row: TensorType, index: Var) -> StorageView:
        whole = self.views[target]
        if row.dtype.per_byte > 1 and prove(equal(floormod(row.num_elements, row.dtype.per_byte), 0)) is not True:
            raise UnsupportedError(f"a loop that stacks {row}, of which one may begin within a byte; cast it before", code="TC1018")
        return self._rows.setdefault(target, StorageView(whole.storage, whole.offset + mul(index, row.size_bytes)))

    def _end_of_iteration(
        self,
        loop: Loop,
        targets: tuple[TensorVar, ...],
        carried_params: list[TensorVar],
        condition: TensorVar | None,
        index: Var,
        changing: Set[int],
        entered: int,
    ) -> list[PlanStep]:
        next_condition, *others = loop.body.results
        carried, scanned = others[: len(carried_params)], others[len(carried_params) :]
        steps: list[PlanStep] = []
        for result, target in zip(scanned, targets[len(carried) :], strict=True):
            steps.extend(self._copy(result, result, self._row(target, tensor_type_of(result), index)))
        if condition is not None:  # while blocks are where their values are
            steps.extend(self._copy(next_condition, condition, self._define(condition)))
        exchanges: dict[Storage, PlanStep] = {}
        for k in sorted(changing):
            here, place = self._use(carried[k]), self.views[targets[k]].storage
            if here.storage is place and is_whole(here):
                continue
            block = here.storage
            if block.place is not SlotPlace.DYNAMIC or block.start <= entered or not is_whole(here) or block in exchanges:
                block = self._copied(carried[k], k, steps)
            assert place.place is SlotPlace.DYNAMIC, "a value of changing size has a block of its own"
            exchanges[block] = Exchange(place.index, block.index)
        fixed = [(source, target) for k, (source, target) in enumerate(zip(carried, targets, strict=False)) if k not in changing]
        steps.extend(self._copy_in_parallel([source for source, _ in fixed], tuple(target for _, target in fixed)))
        return [*steps, *exchanges.values()]

    def _copied(self, source: Atom, k: int, steps: list[PlanStep]) -> Storage:
        """A dynamic block of its own with a copy of `source`, the next value of the carried one number `k`."""
        type_ = tensor_type_of(source)
        holder = self._holders.setdefault((source, ~k), TensorVar("held", type_))
        if holder not in self.views:
            self.views[holder] = StorageView(Storage(SlotPlace.DYNAMIC, self.num_dynamic, type_, self.time))
            self.num_dynamic += 1
        block = self.views[holder].storage
        steps.append(Allocate(block.index, type_.size_bytes))
        steps.extend(self._copy(source, holder, self.views[holder]))
        return block

    def _copy_in_parallel(self, sources: list[Atom], targets: tuple[TensorVar, ...]) -> list[PlanStep]:
        """Copy all sources to the targets' places as if at once: a source that is another target's place goes first elsewhere."""
        places = [self.views[target] for target in targets[: len(sources)]]
        before: list[PlanStep] = []
        after: list[PlanStep] = []
        for k, (source, place) in enumerate(zip(sources, places, strict=True)):
            here = self._use(source)
            if any(here.storage is other.storage for j, other in enumerate(places) if j != k):
                holder = self._holders.setdefault((source, k), TensorVar("held", source.type))
                held = self._define(holder)
                before.extend(self._allocations([holder]))
                before.extend(self._copy(source, holder, held))
                after.extend(self._copy(holder, targets[k], place))
            else:
                after.extend(self._copy(source, targets[k], place))
        return before + after

    def _extend_captured(self, body: Function, entered: int) -> None:
        """What the body uses from outside must survive until the last iteration."""
        if not self.measuring:
            return
        for view in self.views.values():
            if view.storage.start < entered <= view.storage.end:
                view.storage.end = max(view.storage.end, self.time)

    def _is_used(self, var: TensorVar, body: Function) -> bool:
        return any(node is var for part in (*body.bindings, *body.results) for node in walk(part))


def _carried_checks(func: Function) -> list[Check]:
    """The checks in a function's attribute "requirements": (condition, message), and True for those that are assumed."""
    carried = dict(func.attrs).get("requirements", ())
    assert isinstance(carried, tuple), "requirements hold condition and message"
    return [Check(*pair) for pair in carried]  # type: ignore[misc]


def _dims_bound_by(binding: Binding) -> set[Expr]:
    """The dims that have a value when the binding has run."""
    if isinstance(binding.value, ReadDims):
        return set(binding.value.dims)
    return {v for target in binding.targets for v in walk(target.type) if isinstance(v, Var)}


def _is_true(atom: Atom) -> bool:
    return isinstance(atom, TensorConst) and atom.value.size == 1 and bool(atom.value.reshape(()))
