"""What convolutions on blocks of channels cost on tile registers: the wider the blocks, the fuller the tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tc.cost.typical import typical
from tc.ir.arith import Facts
from tc.ir.dtype import DType, bf16, u8
from tc.ir.expr import is_const
from tc.ir.graph import Call
from tc.ir.intrinsic import INTRINSICS
from tc.ir.types import TensorType
from tc.ir.x86_intrinsics import TILE_ROWS, tile_dot_name
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import BlockedForm, Form, RowForm
from tc.ops.row_windows import row_channels
from tc.ops.window import FEW_CHANNELS, inputs_of_group
from tc.schedule.rules.matrix_tiles import AFTER_VECTOR_CYCLES, TILE_BYTES
from tc.schedule.rules.window_cost import WindowProduct
from tc.target import Target
from tc.target.machine import machine_of

PIXEL_CYCLES = 3.0
"""How much longer a pixel takes that is made by itself, of four elements, than in rows of them. Measured on an Emerald Rapids."""

FOUR_BY_FOUR = 16
"""How many times as long elements take that are copied four at a time."""


def multiplies_on_tiles(target: Target) -> bool:
    """Whether a target has tile registers, for bytes and bf16, whose rates are known."""
    names = (tile_dot_name(bf16, bf16), tile_dot_name(u8, u8))
    features = frozenset(target.features)
    has_rates = machine_of(target).amx_i8_per_cycle > 0 and machine_of(target).amx_bf16_per_cycle > 0
    return has_rates and all(INTRINSICS[name].is_there(features) for name in names)


def widths_for_tiles(block: int, size_bytes: int) -> list[int]:
    """Widths of blocks of elements of this size, in channels: `block`, and multiples of it up to the row of a tile."""
    return [block, *(width for width in (2 * block, 4 * block, 8 * block) if width * size_bytes <= TILE_BYTES)]


def is_pointwise(call: Call, weights: TensorType) -> bool:
    """Whether a convolution is the product of a matrix and the image as it lies in memory."""
    return full_attrs(call).groups == 1 and multiplies_pixels(call, weights)


def multiplies_pixels(call: Call, weights: TensorType) -> bool:
    """Whether a convolution, or each of its groups, is such a product."""
    attrs = full_attrs(call)
    taps_are_one = all(is_const(dim, 1) for dim in weights.shape[2:])
    return taps_are_one and all(step == 1 for step in attrs.strides or ()) and not any(attrs.pads or ())


def seconds_on_tiles(call: Call, form: BlockedForm, result: TensorType, block: int, target: Target, facts: Facts) -> float:
    """The estimated time of a convolution on blocks of channels, by tiles or, where they take less, vectors."""
    return seconds_of(_product(call, form, result, block, facts), target)


def seconds_of(product: WindowProduct, target: Target) -> float:
    """The same of a convolution by its sizes."""
    on_tiles = product.cycles(product.best_grid(target), target) if product.lanes % TILE_ROWS == 0 else math.inf
    return min(on_tiles, product.cycles_on_vectors(target)) / machine_of(target).clock_hz


def pays_on_tiles(call: Call, form: BlockedForm, result: TensorType, block: int, target: Target, facts: Facts) -> bool:
    """Whether a convolution on blocks of channels takes less time by tiles, which sum whole blocks, than by vectors, which sum the channels
    that there are."""
    if block % TILE_ROWS:
        return False
    product, (image, *_) = _product(call, form, result, block, facts), operand_types(call)
    assert isinstance(image, TensorType)
    channels = typical(image.shape[1], facts)
    return product.pays(target, 1.0 if form.groups else channels / (-(-channels // block) * block))


def _product(call: Call, form: BlockedForm, result: TensorType, block: int, facts: Facts) -> WindowProduct:
    """What the rule for such convolutions takes this one for."""
    image, weights = call.args[:2]
    assert image is not None and isinstance(image.type, TensorType)
    assert weights is not None and isinstance(weights.type, TensorType)
    outputs, inputs, *taps = (typical(dim, facts) for dim in weights.type.shape)
    inputs = inputs_of_group(form) if form.groups else inputs
    count, _, *heights, width = (typical(dim, facts) for dim in result.shape)
    height = math.prod(heights)
    if is_pointwise(call, weights.type):
        height, width = 1, height * width
    return window_product((count, -(-outputs // block), height, width, block), -(-inputs // block), math.prod(taps), image.type.dtype)


def row_form(call: Call, form: BlockedForm) -> BlockedForm | None:
    """A convolution of few channels as one of what each row of its kernel reads, side by side as channels; None where there are no rows."""
    image, weights = operand_types(call)[:2]
    assert isinstance(image, TensorType) and isinstance(weights, TensorType)
    own: dict[str, Any] = dict(form.attrs)
    strides, pads, dilations = own["strides"], own["pads"], own["dilations"]
    if len(strides) != 2 or own["groups"] != 1 or is_const(weights.shape[3], 1) or min(pads) < 0:
        return None
    kernel = int(weights.shape[3])
    channels = row_channels(kernel, FEW_CHANNELS, TILE_BYTES // image.dtype.size_bytes)
    top, left, bottom, right = pads
    right += (channels // FEW_CHANNELS - kernel) * dilations[1]
    rows = RowForm(((top, bottom), (left, right)), own.get("fill", 0), kernel, strides[1], dilations[1], channels)
    own |= {"fill": 0} if "fill" in own else {}
    own |= {"strides": (strides[0], 1), "pads": (0, 0, 0, 0), "dilations": (dilations[0], 1), "in_channels": channels, "in_block": channels}
    operands = (Form.ROWS, Form.GROUPED, Form.OUTPUTS)[: len(form.operands)]
    return BlockedForm(form.op, tuple(own.items()), operands, rows=rows)


def row_product(call: Call, form: BlockedForm, result: TensorType, block: int, facts: Facts) -> WindowProduct:
    """What the rule for convolutions on tiles takes one of rows for."""
    image, weights = operand_types(call)[:2]
    assert isinstance(image, TensorType) and isinstance(weights, TensorType) and form.rows is not None
    row_bytes = form.rows.channels * image.dtype.size_bytes
    taps = typical(weights.shape[2], facts)
    steps = taps * -(-row_bytes // TILE_BYTES)
    count, _, height, width = (typical(dim, facts) for dim in result.shape)
    columns = -(-typical(weights.shape[0], facts) // block) * block
    return WindowProduct(count, height, max(width, 1), columns, block, steps, min(row_bytes, TILE_BYTES), image.dtype, taps)


def seconds_of_rows(call: Call, form: BlockedForm, result: TensorType, block: int, target: Target, moves: float, facts: Facts) -> float:
    """The estimated time of a convolution of rows, these being written and read at `moves` bytes/s; element by element where pixels between
    are left out."""
    assert form.rows is not None
    product = row_product(call, form, result, block, facts)
    copied = product.images * product.height * product.width * product.steps * product.row_bytes
    return seconds_of(product, target) + copied * (2 if form.rows.dilation == 1 else FOUR_BY_FOUR) / moves


def rows_pay(call: Call, form: BlockedForm, result: TensorType, block: int, target: Target, moves: float, facts: Facts) -> bool:
    """Whether tiles take less time for it, the copy of rows included, than vectors, which read floats as they lie and bytes in fours."""
    image, weights = operand_types(call)[:2]
    assert isinstance(image, TensorType) and isinstance(weights, TensorType)
    if block % TILE_ROWS:
        return False
    machine, product = machine_of(target), row_product(call, form, result, block, facts)
    _, channels, *kernel = (typical(dim, facts) for dim in weights.shape)
    steps = math.prod(kernel) * (channels if image.dtype.is_float else FEW_CHANNELS / max(machine.i8_dots_per_fma, 1.0))
    vectors = product.images * product.height * product.width * -(-product.columns // target.lanes(32))
    cycles = vectors * (steps / machine.fma_per_cycle + AFTER_VECTOR_CYCLES)
    if not image.dtype.is_float:
        cycles += PIXEL_CYCLES * math.prod(typical(dim, facts) for dim in (image.shape[0], *image.shape[2:]))
    rows = seconds_of_rows(call, form, result, block, target, moves, facts)
    return product.pays(target) and rows < cycles / machine.clock_hz


def window_product(result: Sequence[int], blocks: int, taps: int, dtype: DType) -> WindowProduct:
    """A convolution with a result [n, ob, h, w, b] whose sums are of so many taps of `blocks` blocks of elements of a type."""
    count, outputs, height, width, block = result
    row_bytes = min(block * dtype.size_bytes, TILE_BYTES)
    steps = blocks * taps * (block * dtype.size_bytes // row_bytes)
    return WindowProduct(count, height, max(width, 1), outputs * block, block, steps, row_bytes, dtype, taps)
