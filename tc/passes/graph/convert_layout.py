"""Choose which tensors [n, c, *space] have their channels cut into blocks of one vector, and rewrite the graph so.

Every operator with a layout rule (`OpDef.blocked`) may run in either form; every other one takes and gives plain tensors. The choice
is the cheapest one under an estimate of seconds: what each operator takes in each form, and the copies between forms. With two
forms it is a minimum cut, found exactly. Literals are converted here; other copies become `block` and `unblock` calls, which
fuse like any elementwise operator. How good the estimates are, and how wide a block is, measurements may decide.
Source: the NCHWc layouts and the layout search of "Optimizing CNN Model Inference on CPUs" (Liu et al., 2019); their
search is over block sizes by dynamic programming, ours over forms.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tc.cost.rates import USUAL_TARGET, kernel_rates
from tc.cost.typical import typical
from tc.ir.arith import Facts
from tc.ir.dtype import DType, bf16, f32, i8, i16, u8
from tc.ir.expr import Const, is_const
from tc.ir.graph import (
    Atom,
    Binding,
    Call,
    Function,
    TensorConst,
    TensorVar,
    all_bindings,
    atoms_of,
    atoms_read,
    map_bodies,
)
from tc.ir.intrinsic import INTRINSICS
from tc.ir.module import IRModule
from tc.ir.node import cached_on_node, replace
from tc.ir.types import TensorType
from tc.ir.x86_intrinsics import dot_name
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import BlockedForm, Form, get_op, inference
from tc.ops.window import inputs_of_group
from tc.ops.winograd import has_fitting_window
from tc.passes.graph.knobs import knob_of_function
from tc.passes.graph.min_cut import minimum_cut
from tc.passes.graph.run_on_blocks import Rewriter, maps_elements
from tc.passes.graph.tile_layout import (
    multiplies_on_tiles,
    multiplies_pixels,
    pays_on_tiles,
    row_form,
    rows_pay,
    seconds_of_rows,
    seconds_on_tiles,
    widths_for_tiles,
)
from tc.passes.manager import graph_pass, map_graph_functions
from tc.schedule.knobs import Decide, decide_number, take_default
from tc.schedule.rules.operands import LONGEST_CHAIN, LONGEST_CHAIN_ON_TILES
from tc.target import MOST_SHUFFLED_STRIDE, DeviceFacts, Target
from tc.target.machine import machine_of


@dataclass(frozen=True)
class Rates:
    """What operators are taken to reach on a core.

    In FLOP/s, padded channels and pixels included: convolutions on blocks, and plain ones. In bytes/s: `moves`, by operators that only
    move data, and `copies` between forms, which are transpositions. A copy takes `copy_seconds` beside. `only_halves`: blocks are of
    elements of 16 bits alone, and of convolutions of one group or as many as there are channels. `bytes_blocked`: convolutions of bytes on
    blocks; 0 where no instruction adds their products. `as_words`: those are of bytes widened to i16. `plain_bytes`: convolutions of bytes
    that are products of windows. `halves_blocked`: those of bf16 on blocks, in pairs; 0 where no instruction adds these faster than f32.
    `tiles`: the target whose tile registers multiply bytes and halves on blocks, if it has any.
    """

    blocked: float
    blocked_depthwise: float
    plain: float
    plain_pointwise: float
    plain_depthwise: float
    moves: float
    copies: float
    copy_seconds: float = 0.0
    only_halves: bool = False
    bytes_blocked: float = 0.0
    plain_bytes: float = 0.0
    halves_blocked: float = 0.0
    as_words: bool = False
    tiles: Target | None = None

    @staticmethod
    def on(target: Target) -> Rates:
        """Those of a target: parts of what full register tiles reach, and of tensors that the second-level cache holds, of which a vector
        that is part of a cache line takes as long as a line."""
        if target.device is not None:
            return Rates.on_device(target.device)
        reached = kernel_rates(target)
        part = min(1.0, target.vector_bits / 8 / target.cache_line_bytes)
        full, moves = reached.flops_per_second, part * reached.l2_bytes_per_second
        has_bytes, has_words = _has_dot(target, u8, i8), _has_dot(target, i16, i16)
        dots = machine_of(target).i8_dots_per_fma if has_bytes or has_words else 0.0
        rates = Rates(full, 0.5 * full, 0.4 * full, 0.86 * full, 0.5 * full, moves, 0.6 * moves)
        tiles = target if multiplies_on_tiles(target) and has_bytes else None
        halves = machine_of(target).bf16_dots_per_fma if _has_dot(target, bf16, bf16) else 0.0
        rates = dataclasses.replace(rates, halves_blocked=max(halves, 1.0) * full if halves > 1.0 or tiles else 0.0, tiles=tiles)
        plain_bytes = PLAIN_BYTES * max(dots, 1.0) * full
        return dataclasses.replace(rates, bytes_blocked=dots * full, plain_bytes=plain_bytes, as_words=not has_bytes)

    @staticmethod
    def on_device(device: DeviceFacts) -> Rates:
        """Those of a device: of its matrix instructions, which want channels side by side; images with channels apart are copied to shared
        memory element by element."""
        full, vectors, moves = 0.5 * device.tensor_flops_per_s("f16"), 0.5 * device.f32_flops_per_s, 0.8 * device.memory_bytes_per_s
        plain = 0.5 * vectors if full else vectors
        return Rates(full or vectors, vectors, plain, max(0.5 * full, vectors), 0.5 * vectors, moves, 0.5 * moves, LAUNCH_SECONDS, True)


def _has_dot(target: Target, lhs: DType, rhs: DType) -> bool:
    """Whether vectors of a target have an instruction that adds products of these types."""
    known = INTRINSICS.get(dot_name(target.vector_bits, lhs, rhs))
    return known is not None and known.is_there(target.features)


CALIBRATED = ("plain_pointwise", "plain", "copies", "plain_depthwise")
"""Rates that a measurement may correct, each to CALIBRATION per cent of the above."""

CALIBRATION = (100, 50, 200, 25)

DEVICE_BLOCK = 32
"""Channels of a block on a device: what a stage of a product takes, four copies of 16 bytes."""

WIDE_BLOCK = 64
"""On a device whose copies of boxes feed its matrix instructions: a row of 128 bytes."""

MOST_PADDED = 1.25
"""How many times the work on narrow blocks that on wide ones may be, channels that fill blocks up included."""

LAUNCH_SECONDS = 3e-6
"""Of one more kernel on a device."""

PLAIN_BYTES = 0.2
"""What products of windows reach of the rate of dot products of bytes, these windows being copied."""

WINDOWS = 8
"""Times that copying a byte of a window of channels takes as long as moving one in a transposition: runs of few bytes are copied."""

PAIR = 2
"""Products of bf16 that an instruction on vectors adds up at once."""

IN_A_COPY = 0.5
"""The part of its time that it takes to interleave phases as they are: where they come from blocks, the copy does it on the way."""

MERGED = 1.25
"""How much longer products of merged groups, most of which are with zeros, are taken to last than estimated. Measured on an Emerald Rapids:
of blocks that do and do not hold the groups, and are estimated alike, the latter take 1.1 to 1.3 times as long."""

PADDED = 0.25
"""Of the time that elements past the channels would take: how much longer the kernel of a convolution lasts that maps them."""

CONVOLUTIONS = ("conv", "conv_integer")

WINOGRAD_SPEEDUP = 2.0
"""Of Winograd's method for 3x3 windows over direct sums, of f32."""

BLOCK_VECTORS = (1, 2)
"""Vectors that a block may have."""

POINTWISE_TILE = 4
"""Vectors of pixels that a tile of a plain pointwise convolution takes; the last tile may be mostly empty."""

STRIDED, FAR, SYMBOLIC = 0.35, 0.1, 0.5
"""What is left of the rate of plain depthwise convolutions where neighbours in the result are a few elements apart in the image, where
they are so far apart that they are gathered, and where the image's size is symbolic."""

DENSE_WINDOWS, STRIDED_WINDOWS, LEAST_OF_ROWS = 2.25, 0.87, 0.6
"""How much faster plain convolutions of f32 in one group are than others, where rows of the result fill vectors; what is left of that
where neighbours are apart in the image, and for rows of less than a vector. On Zen 4 that is nine tenths of the rate on blocks."""


@graph_pass
def convert_layout(
    module: IRModule, *, block: int = 16, target: Target = USUAL_TARGET, decide: Decide = take_default, exact: bool = False
) -> IRModule:
    """Run convolutions, and what lies between them, on channels cut into blocks of `block`; `exact`: products are added one by one.

    `decide` says for each graph function how far the estimates hold, and whether blocks are twice as wide. On devices blocks have
    DEVICE_BLOCK channels, or WIDE_BLOCK: a tensor of one block has its channels last.
    """

    def width(func: Function) -> int:
        return block if target.device is None else _width_on(target.device, func)

    rates = Rates.on(target)
    if exact:
        rates = dataclasses.replace(rates, halves_blocked=0.0)
    return map_graph_functions(module, lambda func: _convert(func, *_decide(func, width(func), rates, decide)))


def _width_on(device: DeviceFacts, func: Function) -> int:
    """Channels of a block: as many as a row of a box has where a device multiplies what boxes bring and most channels fill these."""
    if not (device.has("wgmma") and device.has("tma")):
        return DEVICE_BLOCK
    wide, narrow = (sum(_padded_work(binding, width) for binding in all_bindings(func)) for width in (WIDE_BLOCK, DEVICE_BLOCK))
    return WIDE_BLOCK if wide <= MOST_PADDED * narrow else DEVICE_BLOCK


def _padded_work(binding: Binding, block: int) -> float:
    """Products of a dense convolution whose channels fill blocks; an image of a few channels stays as it is."""
    call, result = binding.value, binding.targets[0].type if binding.targets else None
    weights = call.args[1] if isinstance(call, Call) and call.op in CONVOLUTIONS else None
    if weights is None or not isinstance(weights.type, TensorType) or not isinstance(result, TensorType):
        return 0.0
    outputs, inputs, *taps = (typical(dim, Facts()) for dim in weights.type.shape)
    padded = [count if count < DEVICE_BLOCK // 2 else -(-count // block) * block for count in (outputs, inputs)]
    return float(math.prod((*padded, *taps, *(typical(dim, Facts()) for dim in result.shape[2:]))))


def _decide(func: Function, block: int, rates: Rates, decide: Decide) -> tuple[int, Rates]:
    """The width of blocks in a graph function, and the estimates."""
    if decide is take_default or not _has_convolutions(func):  # what a knob is known by takes a while to find
        return block, rates

    def ask(name: str, options: tuple[int, ...]) -> int:
        return decide_number(decide, knob_of_function(func, f"convert_layout/{name}", options, options[0]))

    believed = {name: getattr(rates, name) * ask(f"rate of {name}, %", CALIBRATION) / 100 for name in CALIBRATED}
    vectors = ask("vectors of a block", BLOCK_VECTORS)
    return vectors * block, dataclasses.replace(rates, **believed)


def _has_convolutions(func: Function) -> bool:
    return any(map(_is_convolution, all_bindings(func)))


def _is_convolution(binding: Binding) -> bool:
    return isinstance(binding.value, Call) and binding.value.op in CONVOLUTIONS


def layout_seconds(func: Function, target: Target) -> float:
    """The estimated time of a graph function on CPUs, in the layouts that would be chosen; infinite for one without convolutions."""
    block, rates = target.lanes(32), Rates.on(target)
    return _best_plan(func, _forms(func, func.bindings, block, rates), block, rates).seconds


def _best_plan(func: Function, forms: dict[Binding, BlockedForm], block: int, rates: Rates) -> _Plan:
    """The cheapest of the plans with blocks of one width, the narrowest of several; `forms`: those with blocks of `block`."""
    best = _Plan(block, {}, math.inf)
    of_widths = {width: forms if width == block else _forms(func, forms, width, rates) for width in _widths(forms, block, rates)}
    of_widths = {width: forms for width, forms in of_widths.items() if any(form.op == "conv_blocked" for form in forms.values())}
    costs = {width: _costs(func, forms, width, rates) for width, forms in of_widths.items()}
    for width in sorted(costs, key=lambda width: _least_seconds(costs[width])):
        if _least_seconds(costs[width]) > best.seconds:
            break
        chosen, seconds = _cheapest(costs[width])
        if (seconds, width) < (best.seconds, best.block) or not best.forms:
            best = _Plan(width, {binding: form for binding, form in of_widths[width].items() if binding in chosen}, seconds)
    return best


def _convert(func: Function, block: int, rates: Rates) -> Function:
    func = _convert_bodies(func, block, rates)
    best = _best_plan(func, _around_convolutions(_forms(func, func.bindings, block, rates)), block, rates)
    return Rewriter(func, best.forms, best.block).run() if best.forms else func


@dataclass(frozen=True)
class _Plan:
    """Blocks of so many channels, the bindings that run on them, and the estimated time of a function that way."""

    block: int
    forms: dict[Binding, BlockedForm]
    seconds: float


def _around_convolutions(forms: dict[Binding, BlockedForm]) -> dict[Binding, BlockedForm]:
    """Of forms those that tensors of blocks may connect with a convolution's: nothing else is faster on blocks."""
    around: defaultdict[object, list[Binding]] = defaultdict(list)
    for binding, form in forms.items():
        for atom in _in_blocks(binding, form):
            around[atom].append(binding)
    open_ = list(filter(_is_convolution, forms))
    found = set(open_)
    while open_:
        binding = open_.pop()
        new = [other for atom in _in_blocks(binding, forms[binding]) for other in around.pop(atom, ()) if other not in found]
        found.update(new)
        open_ += new
    return {binding: form for binding, form in forms.items() if binding in found}


def _in_blocks(binding: Binding, form: BlockedForm) -> list[Atom | None]:
    """What a binding reads and makes in blocks of channels."""
    call = binding.value
    assert isinstance(call, Call)
    return [*binding.targets, *(arg for arg, taken in zip(call.args, form.operands, strict=False) if taken is Form.CHANNELS)]


def _forms(func: Function, bindings: Iterable[Binding], block: int, rates: Rates) -> dict[Binding, BlockedForm]:
    """How bindings of a function run on blocks of a width, those that may."""
    facts = Facts.of(func.facts)
    with inference(facts):
        return {
            binding: form
            for binding in bindings
            if (form := _blocked_form(binding, block, rates, facts)) is not None and (not rates.only_halves or _is_of_halves(binding, form))
        }


def _widths(forms: dict[Binding, BlockedForm], block: int, rates: Rates) -> list[int]:
    """How wide blocks may be: `block`, whose forms are given, and multiples of it where convolutions are products for tile registers, of
    which channels of a block fill a row; as wide as any may be where others are not."""
    if rates.tiles is None or block != rates.tiles.lanes(32):
        return [block]
    forms = {binding: form for binding, form in forms.items() if form.op == "conv_blocked"}
    sizes = [_bytes_of(atoms_of(binding.value)[0]) for binding, form in forms.items() if Form.GROUPED in form.operands]
    widths = widths_for_tiles(block, min(sizes)) if sizes else [block]
    are_all = not any(Form.WEIGHTS in form.operands for form in forms.values())
    return widths if are_all else [width for width in widths if width <= BLOCK_VECTORS[-1] * block]


def _convert_bodies(func: Function, block: int, rates: Rates) -> Function:
    def inside(binding: Binding) -> Binding:
        return replace(binding, value=map_bodies(binding.value, lambda body: _convert(body, block, rates)))

    bindings = tuple(map(inside, func.bindings))
    changed = any(new is not old for new, old in zip(bindings, func.bindings, strict=True))
    return replace(func, bindings=bindings) if changed else func


def _blocked_form(binding: Binding, block: int, rates: Rates, facts: Facts) -> BlockedForm | None:
    """How a binding runs on blocks; None when it must run as it is."""
    call = binding.value
    if not isinstance(call, Call) or len(binding.targets) != 1:
        return None
    rule = get_op(call.op).blocked
    result = binding.targets[0].type
    if rule is None or not isinstance(result, TensorType) or result.rank < 3 or result.dtype.bits > 32:
        return None
    types = operand_types(call)
    if any(isinstance(type_, TensorType) and type_.dtype.bits > 32 for type_ in types):
        return None
    form = rule(types, full_attrs(call), block)
    if form is None or not is_const(result.shape[1]):
        return None
    if (rows := _row_form(call, form, result, block, rates, facts)) is not None:
        return rows
    if Form.GROUPED in form.operands:
        is_of_words = form.as_words  # which tile registers have no products of
        takes = _takes_groups(call, rates) and not (is_of_words and rates.tiles is not None)
        if takes and not is_of_words and rates.tiles is not None and pays_on_tiles(call, form, result, block, rates.tiles, facts):
            form = _of_whole_blocks(form)
        return dataclasses.replace(form, as_words=is_of_words or rates.as_words) if takes else None
    if rates.halves_blocked and form.op == "conv_blocked" and _takes_pairs(call, block, rates) and not _is_product_of_groups(call, form):
        if rates.tiles is not None and not pays_on_tiles(call, form, result, block, rates.tiles, facts):
            return None if form.groups else form
        paired = dataclasses.replace(form, operands=tuple(Form.GROUPED if each is Form.WEIGHTS else each for each in form.operands))
        return _of_whole_blocks(paired, PAIR if rates.tiles is None else 0)
    return None if form.groups else form  # f32 is fastest in groups as they are


def _is_product_of_groups(call: Call, form: BlockedForm) -> bool:
    """Whether a convolution is a product of each group and the image as it lies in memory, which is as fast as one of merged groups is."""
    weights = operand_types(call)[1]
    assert weights is not None
    return bool(form.groups) and multiplies_pixels(call, weights)


def _of_whole_blocks(form: BlockedForm, size: int = 0) -> BlockedForm:
    """A convolution that sums whole blocks of channels, as tile registers do, or whole groups of `size`: weights of those that are none are
    zeros."""
    own: dict[str, Any] = dict(form.attrs)
    if form.op != "conv_blocked" or own["groups"] != 1 or own["depthwise"] or form.operands[0] is not Form.CHANNELS:
        return form
    block = size or own["in_block"]
    return dataclasses.replace(form, attrs=tuple({**own, "in_channels": -(-own["in_channels"] // block) * block}.items()))


def _row_form(call: Call, form: BlockedForm, result: TensorType, block: int, rates: Rates, facts: Facts) -> BlockedForm | None:
    """A convolution of few channels that tile registers multiply, a row of the kernel at a time; of images of known sizes."""
    is_few = form.op == "conv_blocked" and call.op in CONVOLUTIONS and form.operands[0] in (Form.PLAIN, Form.FEW)
    if not is_few or rates.tiles is None or not all(map(is_const, result.shape[2:])):
        return None
    if not (_takes_groups(call, rates) if Form.GROUPED in form.operands else rates.halves_blocked and _takes_pairs(call, block, rates)):
        return None
    rows = None if form.as_words else row_form(call, form)
    return rows if rows is not None and rows_pay(call, rows, result, block, rates.tiles, rates.moves, facts) else None


def _takes_pairs(call: Call, block: int, rates: Rates) -> bool:
    """Whether a convolution is one of bf16 whose weights are literals, and its sums are no longer than instructions may make them."""
    weights = call.args[1]
    if not isinstance(weights, TensorConst) or weights.type.dtype is not bf16 or block % 2:
        return False
    return math.prod(weights.value.shape[1:]) <= (LONGEST_CHAIN if rates.tiles is None else LONGEST_CHAIN_ON_TILES)


def _takes_groups(call: Call, rates: Rates) -> bool:
    """Whether there are instructions for a convolution of bytes, and literals to be laid out for them."""
    return rates.bytes_blocked > 0 and isinstance(call.args[1], TensorConst)


def _is_of_halves(binding: Binding, form: BlockedForm) -> bool:
    """Whether all elements have 16 bits, and a convolution is one product, or as many as there are channels."""
    (target,) = binding.targets
    types = [target.type, *(atom.type for atom in atoms_of(binding.value))]
    return dict(form.attrs).get("groups", 1) == 1 and all(isinstance(each, TensorType) and each.dtype.bits == 16 for each in types)


# -- the choice


_Costs = Mapping[tuple[object, object], float]
"""Edges of a graph that each assignment of forms cuts: their seconds."""


def _costs(func: Function, forms: dict[Binding, BlockedForm], block: int, rates: Rates) -> _Costs:
    """What bindings take on blocks and as they are, and copies between them."""
    facts = Facts.of(func.facts)
    producer = {target: binding for binding in forms for target in binding.targets}
    wants: dict[TensorVar, dict[str, list[Binding]]] = {}

    def want(atom: Atom | None, form: str, user: Binding) -> None:
        if isinstance(atom, TensorVar):
            wants.setdefault(atom, {}).setdefault(form, []).append(user)

    capacities: dict[tuple[object, object], float] = {}

    def edge(a: object, b: object, seconds: float) -> None:
        capacities[a, b] = capacities.get((a, b), 0.0) + seconds

    follows = _epilogues(func, forms)
    for binding in func.bindings:
        form = forms.get(binding)
        call = binding.value
        if form is None:
            for atom in atoms_read(binding.value):
                if atom in producer:  # of what is plain in any case nobody makes another copy
                    want(atom, "plain", binding)
            continue
        assert isinstance(call, Call)
        on_blocks, as_it_is = (_seconds(binding, each, block, rates, facts) for each in (form, None))
        if binding in follows:
            edge(follows[binding], binding, as_it_is)  # in a kernel of its own
            on_blocks, as_it_is = PADDED * min(max(on_blocks - as_it_is, 0.0), as_it_is), 0.0
        edge(binding, _PLAIN, on_blocks + _packing_seconds(call, form, rates, facts))
        edge(_BLOCKED, binding, as_it_is)
        for operand, taken in zip(call.args, form.operands, strict=False):
            if taken is Form.CHANNELS:
                want(operand, "either", binding)
            elif taken in (Form.PLAIN, Form.FEW, Form.ROWS):
                want(operand, "plain", binding)
    for result in func.results:
        if isinstance(result, TensorVar):
            wants.setdefault(result, {}).setdefault("plain", [])
    for atom, users in wants.items():
        if atom in producer or "either" in users:
            _conversion_edges(atom, producer.get(atom), users, forms, edge, block, rates, facts)
    return capacities


def _cheapest(costs: _Costs) -> tuple[set[object], float]:
    """What runs on blocks in the cheapest assignment, and its estimated time."""
    chosen = minimum_cut(costs, _BLOCKED, _PLAIN)
    return chosen, sum(each for (a, b), each in costs.items() if a in chosen and b not in chosen)


def _least_seconds(costs: _Costs) -> float:
    """Not more than the time of any assignment: that of bindings where they are faster, without copies."""
    return sum(min(seconds, costs.get((_BLOCKED, binding), 0.0)) for (binding, end), seconds in costs.items() if end == _PLAIN)


_BLOCKED, _PLAIN = "blocked", "plain"


def _epilogues(func: Function, forms: Mapping[Binding, BlockedForm]) -> dict[Binding, Binding]:
    """What maps the elements of a convolution that nothing else reads, and what it follows: it takes no time of its own in the form that
    the convolution has, as it is done in its kernel, but for channels that fill blocks up. Images of one pixel have the same memory in
    both forms."""
    uses = Counter(atom for binding in func.bindings for atom in atoms_read(binding.value))
    uses.update(func.results)
    convolved: dict[Atom | None, Binding] = {}
    found: dict[Binding, Binding] = {}
    for binding, form in forms.items():
        call, (target,) = binding.value, binding.targets
        assert isinstance(call, Call) and isinstance(target.type, TensorType)
        if form.op == "conv_blocked" and not all(is_const(dim, 1) for dim in target.type.shape[2:]):
            convolved[target] = binding
        elif maps_elements(call, form):
            read = [arg for arg, taken in zip(call.args, form.operands, strict=False) if taken is Form.CHANNELS]
            before = next((convolved[arg] for arg in read if arg in convolved and uses[arg] == 1), None)  # type: ignore[index]
            if before is not None:
                convolved[target], found[binding] = binding, before
    return found


def _conversion_edges(
    atom: TensorVar,
    source: Binding | None,
    users: dict[str, list[Binding]],
    forms: dict[Binding, BlockedForm],
    edge: object,
    block: int,
    rates: Rates,
    facts: Facts,
) -> None:
    """A copy is made once for all users that want the other form."""
    assert callable(edge) and isinstance(atom.type, TensorType)
    channels = typical(atom.type.shape[1], facts) if atom.type.rank > 1 else block
    moved = max(2.0, -(-channels // block) * block / max(channels, 1))  # of blocks that are mostly empty, what is read or written
    seconds = moved * _elements(atom.type, facts) * _bytes_of(atom.type) / rates.copies + rates.copy_seconds
    made: object = source if source in forms else _PLAIN
    either = users.get("either", [])
    if either:
        to_blocked = ("blocked copy", atom)
        edge(to_blocked, made, seconds)
        for user in either:
            edge(user, to_blocked, float("inf"))
    if source in forms:
        to_plain = ("plain copy", atom)
        edge(source, to_plain, seconds)
        if "plain" in users:
            edge(to_plain, _PLAIN, float("inf"))
        for user in either:
            edge(to_plain, user, float("inf"))


def _seconds(binding: Binding, form: BlockedForm | None, block: int, rates: Rates, facts: Facts) -> float:
    """The estimated time of a binding, on blocks or (without `form`) plain."""
    return _work_seconds(binding, form, block, rates, facts) * (MERGED if form is not None and form.groups else 1.0)


def _work_seconds(binding: Binding, form: BlockedForm | None, block: int, rates: Rates, facts: Facts) -> float:
    call, result = binding.value, binding.targets[0].type
    assert isinstance(call, Call) and isinstance(result, TensorType)
    channels = typical(result.shape[1], facts)
    waste = -(-channels // block) * block / max(channels, 1) if form is not None else 1.0
    if call.op not in CONVOLUTIONS:
        seconds = (_bytes_of(result) + _bytes_of(call.args[0])) * _elements(result, facts) * waste / rates.moves
        return seconds * (IN_A_COPY if call.op == "interleave" and form is None else 1.0)
    weights = call.args[1]
    assert weights is not None and isinstance(weights.type, TensorType)
    if form is not None and form.groups:
        waste *= inputs_of_group(form) / int(weights.type.shape[1])
    flops = 2.0 * _elements(result, facts) * _elements(weights.type, facts) / max(channels, 1) * waste
    is_depthwise = is_const(weights.type.shape[1], 1)
    if form is not None and rates.tiles is not None and form.rows is not None:
        return seconds_of_rows(call, form, result, block, rates.tiles, rates.moves, facts)
    if form is not None and rates.tiles is not None and {Form.CHANNELS, Form.GROUPED} <= {*form.operands} and not is_depthwise:
        return seconds_on_tiles(call, form, result, block, rates.tiles, facts)
    if form is not None and Form.WEIGHTS in form.operands and _takes_winograd(call, weights.type, block):
        flops /= WINOGRAD_SPEEDUP
    if form is not None:
        grouped = rates.bytes_blocked if call.op == "conv_integer" else rates.halves_blocked
        return flops / (rates.blocked_depthwise if is_depthwise else grouped if Form.GROUPED in form.operands else rates.blocked)
    is_static = all(isinstance(dim, Const) for dim in result.shape[2:])
    if is_depthwise:
        return flops / (rates.plain_depthwise * _depthwise_efficiency(call, result, block, is_static, facts))
    if call.op == "conv_integer":
        windows = _elements(result, facts) / max(channels, 1) * _elements(weights.type, facts) / max(channels, 1)
        return flops / rates.plain_bytes + WINDOWS * windows / rates.copies
    pixels, tile = math.prod(typical(dim, facts) for dim in result.shape[2:]), POINTWISE_TILE * block
    if multiplies_pixels(call, weights.type) and is_static and pixels >= tile and _has_wide_groups(call, weights.type, block, facts):
        return flops * (-(-pixels // tile) * tile / pixels) / rates.plain_pointwise
    is_dense = result.dtype is f32 and full_attrs(call).groups == 1 and not rates.only_halves
    return flops / (rates.plain * (_window_efficiency(call, result, block, facts) if is_dense else 1.0))


def _takes_winograd(call: Call, weights: TensorType, block: int) -> bool:
    """Whether a convolution has the two blocks of channels and outputs that Winograd's method needs."""
    shape = weights.static_shape
    return shape is not None and has_fitting_window(shape[2:], full_attrs(call)) and min(shape[:2]) > block


def _has_wide_groups(call: Call, weights: TensorType, block: int, facts: Facts) -> bool:
    """Whether there is one group, or each has channels and outputs for vectors."""
    outputs, inputs = (typical(dim, facts) for dim in weights.shape[:2])
    groups = full_attrs(call).groups
    return bool(groups == 1 or min(outputs // groups, inputs) >= block)


def _bytes_of(what: object) -> int:
    """Of an element of a tensor, or of a tensor of this type; 4 where there is none."""
    type_ = what if isinstance(what, TensorType) else getattr(what, "type", None)
    return type_.dtype.size_bytes if isinstance(type_, TensorType) else 4


def _packing_seconds(call: Call, form: BlockedForm, rates: Rates, facts: Facts) -> float:
    """The estimated time of cutting weights that are not literals into blocks, in each call."""
    packed = (
        atom.type
        for atom, taken in zip(call.args, form.operands, strict=False)
        if isinstance(atom, TensorVar) and taken in (Form.WEIGHTS, Form.OUTPUTS) and isinstance(atom.type, TensorType)
    )
    return sum(2 * _elements(type_, facts) * type_.dtype.size_bytes for type_ in packed) / rates.copies


def _depthwise_efficiency(call: Call, result: TensorType, block: int, is_static: bool, facts: Facts) -> float:
    """Of a plain depthwise convolution that puts neighbours of a row into vectors."""
    width = max(typical(result.shape[-1], facts), 1)
    stride = (full_attrs(call).strides or (1,))[-1]
    strided = 1.0 if stride == 1 else STRIDED if stride <= MOST_SHUFFLED_STRIDE else FAR
    return width / (-(-width // block) * block) * strided * (1.0 if is_static else SYMBOLIC)


def _window_efficiency(call: Call, result: TensorType, block: int, facts: Facts) -> float:
    """Of a plain convolution of f32, whose vectors are neighbours of a row, over others: of a symbolic number of them half a vector is left
    over."""
    width = max(typical(result.shape[-1], facts), 1)
    vectors = -(-width // block) if is_const(result.shape[-1]) else width / block + 0.5
    stride = (full_attrs(call).strides or (1,))[-1]
    return DENSE_WINDOWS * max(width / (vectors * block), LEAST_OF_ROWS) * (1.0 if stride == 1 else STRIDED_WINDOWS)


def _elements(type_: TensorType, facts: Facts) -> float:
    known = _known_elements(type_)
    return float(math.prod(typical(dim, facts) for dim in type_.shape)) if known is None else known


@cached_on_node
def _known_elements(type_: TensorType) -> float | None:
    shape = type_.static_shape
    return None if shape is None else float(math.prod(shape))
