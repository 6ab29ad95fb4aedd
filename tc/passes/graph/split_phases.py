"""Transposed convolutions as ordinary ones: one for all phases of the stride at once, or one for each, and a rearrangement.

Result element i * s + a takes only the taps t with t = a + begin (mod s). So the elements of one phase a are an ordinary convolution of
the input with every s-th tap, and all phases together are one with s times as many output channels per axis, in each group. Taps that are
further apart are so there, too, as far as all phases have them at the same distances. Phases need not begin with the first element: in
steps of 2, 4 taps and a pad of 1 are 2 for each phase if the first element is of the second phase, and else 3, a third of them zeros. Where
some phases have many more taps than others, each is a convolution of its own: 3 x 3 taps in steps of 2 are 9 then, and 16 together.
Source: the sub-pixel convolution of Shi et al. (2016), read backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as cartesian
from math import gcd, prod
from typing import Any

import numpy as np

from tc.ir.arith import simplify
from tc.ir.dtype import f32
from tc.ir.expr import Const, Expr, const
from tc.ir.graph import Atom, Attrs, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import TensorType, product, tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.window import Window, window_of
from tc.passes.graph.rewrite import GraphRule, Match, absent, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def split_phases(module: IRModule, *, block: int = 16, strict: bool = False) -> IRModule:
    """Replace transposed convolutions by literals; output channels of a phase are rounded up to `block`, from half a block on.

    Phases of fewer taps than others get zeros, by which an infinite input becomes NaN; with `strict` such convolutions stay. So do those
    by literals that are not finite. Weights that are data make NaN of padding where they are not, if not `strict`.
    """
    return rewrite_module(module, phase_rules(block, strict))


@graph_pass
def spell_out_phases(module: IRModule) -> IRModule:
    """Rearrange phases whose elements go to neighbouring places, as those of whole blocks do not, by a transposition, for which there are
    schedules."""
    return rewrite_module(module, (_SPELLED_OUT,))


@dataclass(frozen=True)
class PhaseAxis:
    """One spatial axis of a transposed convolution: which tap phase a applies at offset k * `step` - `pad_begin` of the input (-1: none),
    and the padding that this takes. Result element 0 is of phase `first`."""

    taps: tuple[tuple[int, ...], ...]
    step: int
    pad_begin: int
    pad_end: int
    first: int = 0

    @property
    def kernel(self) -> int:
        return len(self.taps[0])

    def of_phase(self, a: int) -> PhaseAxis | None:
        """What phase a alone takes, for as many results as all take; None where that would be to cut something off."""
        used = [k for k, tap in enumerate(self.taps[a]) if tap >= 0]
        if not used:
            return None
        first, last = min(used[0], self.pad_begin // self.step), used[-1]
        end = self.pad_end - (self.kernel - 1 - last) * self.step
        own = (self.taps[a][first : last + 1],)
        return PhaseAxis(own, self.step, self.pad_begin - first * self.step, end) if end >= 0 else None


def _axis(window: Window, d: int, size: Expr, result: Expr) -> PhaseAxis | None:
    """The phases of spatial axis d, of as few places for taps as any first phase leads to; None when the padding would depend on the
    size."""
    counts = [(len(_offsets(first, window, d)[1]), first) for first in range(window.strides[d])]
    for _, first in sorted(each for each in counts if each[0]):
        axis = _axis_from(first, window, d, size, result)
        if axis is not None:
            return axis
    return None


def _offsets(first: int, window: Window, d: int) -> tuple[dict[tuple[int, int], int], range]:
    """The tap of each phase at each of its offsets into the input, and all offsets."""
    stride, begin, apart = window.strides[d], window.begin[d] - first, window.dilations[d]
    taps = {((t * apart - begin) % stride, -((t * apart - begin) // stride)): t for t in range(int(window.kernel[d]))}
    if not taps:
        return {}, range(0)
    low, high = min(o for _, o in taps), max(o for _, o in taps)
    step = gcd(*(o - low for _, o in taps)) or 1
    low -= step * max(-(-low // step), 0)
    return taps, range(low, high + 1, step)


def _axis_from(first: int, window: Window, d: int, size: Expr, result: Expr) -> PhaseAxis | None:
    stride = window.strides[d]
    tap_at, offsets = _offsets(first, window, d)
    if not tap_at:
        return None
    taps = tuple(tuple(tap_at.get((a, o), -1) for o in offsets) for a in range(stride))
    positions = (result + (first + stride - 1)) // stride
    pad_end = simplify(positions + offsets[-1] - size)
    if not isinstance(pad_end, Const):
        return None
    end = max(int(pad_end.value), 0)  # what is made beyond a cropped end is sliced off
    return PhaseAxis(taps, offsets.step, -offsets.start, end, first)


def phase_rules(block: int, strict: bool = False) -> tuple[GraphRule, ...]:
    """The rewrite rules for blocks of `block` channels."""

    def of_literal(b: GraphBuilder, m: Match) -> Atom | None:
        return _as_convolution(b, m, block, strict)

    def of_data(b: GraphBuilder, m: Match) -> Atom | None:
        return None if isinstance(m.atoms["w"], TensorConst) else _by_data(b, m, strict)

    return tuple(
        GraphRule(
            f"a transposed convolution{words}{' with bias' if has_bias else ''}",
            op("conv_transpose", any_("x"), w, any_("bias") if has_bias else absent(), name="conv"),
            rewritten,
            when=_can_split,
            example=partial(_example, has_bias=has_bias, is_literal=rewritten is of_literal),
            inexact=True,
        )
        for words, w, rewritten in (("", const_("w"), of_literal), (" by weights that are data", any_("w"), of_data))
        for has_bias in (False, True)
    )


def _can_split(m: Match) -> bool:
    w = m.type_of("w")
    return w.dtype.is_float and all(isinstance(dim, Const) and dim.value > 0 for dim in w.shape) and m.type_of("x").rank > 2


LEAST_SPARED = 48
"""Multiply-adds of each element, for which each phase is a convolution of its own: kernels cost more than they compute, and of few
channels some phases are not done in blocks, so that the results have to be chosen from (measured)."""


def _as_convolution(b: GraphBuilder, m: Match, block: int, strict: bool) -> Atom | None:
    w, result, groups = m.value("w"), m.type_of("conv"), m.attrs("conv").groups
    strides, found = phase_axes(m.attrs("conv"), w.shape, m.type_of("x"), result)
    if found is None or not np.isfinite(w).all():  # by padding such a weight makes NaN
        return None
    if not strict and groups == 1 and min(w.shape[0], w.shape[1] * prod(strides)) > block:
        found = _by_nine_taps(m, w.shape[2:], found)
    apart = _phases_apart(found, strides) if groups == 1 else None
    must = strict and _has_zeros([found])
    if apart is not None and not (strict and _has_zeros(apart)) and (must or _pays_apart(found, apart, w.shape[0])):
        return _as_convolutions(b, m, found, apart, block, strides)
    if must:
        return None
    channels = phase_channels(w.shape[1], block, groups)
    return interleave(b, _convolved(b, m, found, strides, channels), found, strides, channels, result, m.call("conv").span, groups)


MOST_PHASES = 4096
"""Of more the weights alone, which have channels for each, would be large beside those that are given."""

LEAST_POSITIONS = 8
"""Of an image along each axis, that Winograd's method has few of its tiles of six cut short."""


def _by_nine_taps(m: Match, kernel: Sequence[int], found: list[PhaseAxis]) -> list[PhaseAxis]:
    """Phases from the first element on where these are 3 x 3 places for 2 x 2 taps: Winograd's method does the nine in 2.25 products, and
    other methods the four in four."""
    x, result = m.type_of("x"), m.type_of("conv")
    if len(found) != 2 or any(isinstance(dim, Const) and dim.value < LEAST_POSITIONS for dim in x.shape[2:]):
        return found
    window = window_of(m.attrs("conv"), kernel, 2, "conv_transpose")
    axes = [_axis_from(0, window, d, x.shape[2 + d], result.shape[2 + d]) for d in range(2)]
    return [axis for axis in axes if axis is not None] if _are_nine(axes) else found


def _are_nine(axes: Sequence[PhaseAxis | None]) -> bool:
    return len(axes) == 2 and all(axis is not None and (axis.kernel, axis.step) == (3, 1) for axis in axes)


def _convolved(b: GraphBuilder, m: Match, axes: Sequence[PhaseAxis], strides: Sequence[int], channels: int) -> Atom:
    """The convolution for the phases of these axes: all those of the strides, or one."""
    groups, span = m.attrs("conv").groups, m.call("conv").span
    weights = phase_weights(m.value("w"), axes, strides, channels, groups=groups)
    shift = _bias_for_all_phases(b, m, strides, channels)
    return b.call("conv", m.x, b.const(weights), shift, **phase_attrs(axes, groups), span=span)


def _bias_for_all_phases(b: GraphBuilder, m: Match, strides: Sequence[int], channels: int) -> Atom | None:
    """The bias with zeros up to so many channels in a group, for each phase; None if there is none."""
    bias, groups, span = m.atoms.get("bias"), m.attrs("conv").groups, m.call("conv").span
    if bias is None:
        return None
    (size,) = m.type_of("bias").shape
    assert isinstance(size, Const), "as many as the weights have outputs, whose shape is known"
    outputs = int(size.value) // groups
    if isinstance(bias, TensorConst):
        return b.const(for_all_phases(np.pad(bias.value.reshape(groups, outputs), ((0, 0), (0, channels - outputs))), strides, groups))
    own = b.call("reshape", bias, shape=_dims(groups, 1, outputs), span=span)
    if channels > outputs:
        own = b.call("concat", own, b.const(np.zeros((groups, 1, channels - outputs)), m.type_of("bias").dtype.numpy), axis=2, span=span)
    repeated = b.call("expand", own, shape=_dims(groups, prod(strides), channels), span=span)
    return b.call("reshape", repeated, shape=_dims(groups * prod(strides) * channels), span=span)


def _by_data(b: GraphBuilder, m: Match, strict: bool) -> Atom | None:
    """All phases as one convolution, whose weights are gathered when the model runs."""
    w, result, groups, span = m.type_of("w"), m.type_of("conv"), m.attrs("conv").groups, m.call("conv").span
    inputs, outputs, *kernel = (int(dim.value) for dim in w.shape if isinstance(dim, Const))
    strides, found = phase_axes(m.attrs("conv"), (inputs, outputs, *kernel), m.type_of("x"), result)
    if found is None or (strict and (_has_zeros([found]) or any(axis.pad_begin or axis.pad_end for axis in found))):
        return None
    taps = b.call("reshape", m.atoms["w"], shape=_dims(groups, inputs // groups, outputs, prod(kernel)), span=span)
    if _has_zeros([found]):
        zeros = b.const(np.zeros((groups, inputs // groups, outputs, 1)), w.dtype.numpy)
        taps = b.call("concat", taps, zeros, axis=3, span=span)
    # The taps of each phase, one after the other; the one of zeros, behind all others, where a phase has none.
    numbers = np.arange(prod(kernel)).reshape((1, 1, *kernel))
    wanted = phase_weights(numbers, found, strides, 1, fill=prod(kernel)).reshape(-1)
    chosen = b.call("gather", taps, b.const(wanted), axis=3, in_range=True, span=span)
    places = tuple(axis.kernel for axis in found)
    split = b.call("reshape", chosen, shape=_dims(groups, inputs // groups, outputs, prod(strides), *places), span=span)
    rank = len(strides)
    moved = b.call("transpose", split, perm=(0, 3, 2, 1, *range(4, 4 + rank)), span=span)
    weights = b.call("reshape", moved, shape=_dims(groups * prod(strides) * outputs, inputs // groups, *places), span=span)
    bias = _bias_for_all_phases(b, m, strides, outputs)
    phases = b.call("conv", m.x, weights, bias, **phase_attrs(found, groups), span=span)
    return interleave(b, phases, found, strides, outputs, result, span, groups)


def _dims(*sizes: int) -> tuple[Expr, ...]:
    return tuple(map(const, sizes))


def _has_zeros(phases: Sequence[Sequence[PhaseAxis]]) -> bool:
    """Whether something is multiplied by zeros for want of a tap."""
    return any(tap < 0 for axes in phases for axis in axes for taps in axis.taps for tap in taps)


def _phases_apart(axes: Sequence[PhaseAxis], strides: Sequence[int]) -> list[list[PhaseAxis]] | None:
    """The axes of each phase, the slowest part of axis 0 first; None where one cannot be apart."""
    found: list[list[PhaseAxis]] = []
    for phase in np.ndindex(*strides):
        own = [one for axis, a in zip(axes, phase, strict=True) if (one := axis.of_phase(a)) is not None]
        if len(own) < len(axes):
            return None
        found.append(own)
    return found


def _pays_apart(axes: Sequence[PhaseAxis], phases: Sequence[Sequence[PhaseAxis]], inputs: int) -> bool:
    """Whether phases apart spare enough products. A convolution of 3 x 3 taps for all is done in fewer than it has."""
    if _are_nine(axes):
        return False
    spared = prod(axis.kernel for axis in axes) - sum(prod(axis.kernel for axis in own) for own in phases) / len(phases)
    return spared * inputs > LEAST_SPARED


def _as_convolutions(
    b: GraphBuilder, m: Match, axes: Sequence[PhaseAxis], phases: list[list[PhaseAxis]], block: int, strides: Sequence[int]
) -> Atom:
    channels, span = phase_channels(m.value("w").shape[1], block, 1), m.call("conv").span
    parts = [_convolved(b, m, own, (1,) * len(strides), channels) for own in phases]
    # Before the batch, so that they lie one after the other however large it is.
    joined = b.call("concat", *parts, axis=0, span=span)
    return _cut(b, b.call("interleave", joined, strides=tuple(strides), of_batch=True, span=span), axes, m.type_of("conv"), span)


def phase_axes(
    attrs: Attrs, weights: Sequence[int], x: TensorType, result: TensorType
) -> tuple[Sequence[int], list[PhaseAxis] | None]:
    """The strides, and what each spatial axis of a transposed convolution is; None where the padding depends on sizes, and of too many
    phases."""
    window = window_of(attrs, weights[2:], x.rank - 2, "conv_transpose")
    if prod(window.strides) > MOST_PHASES:
        return window.strides, None
    axes = [_axis(window, d, x.shape[2 + d], result.shape[2 + d]) for d in range(x.rank - 2)]
    found = [axis for axis in axes if axis is not None]
    return window.strides, found if len(found) == len(axes) else None


def phase_channels(channels: int, block: int, groups: int) -> int:
    """How many channels each phase has: whole blocks, from more than half a block on: those of one phase are then side by side."""
    return -(-channels // block) * block if 2 * channels > block and groups == 1 else channels


def phase_attrs(axes: Sequence[PhaseAxis], groups: int) -> dict[str, Any]:
    """What the convolution for all phases is told."""
    pads = (*(axis.pad_begin for axis in axes), *(axis.pad_end for axis in axes))
    apart = {"dilations": tuple(axis.step for axis in axes)} if any(axis.step > 1 for axis in axes) else {}
    return {"pads": pads, **apart, **({"groups": groups} if groups > 1 else {})}


def phase_weights(
    w: np.ndarray, axes: Sequence[PhaseAxis], strides: Sequence[int], channels: int, fill: np.ndarray | int = 0, groups: int = 1
) -> np.ndarray:
    """[groups * phases * channels, inputs / groups, *kernel] from [inputs, outputs / groups, *taps], the slowest part of axis 0 first.

    fill: what a tap is that a phase has not, one number or one for each of the channels of a group.
    """
    own, outputs, rank = w.shape[0] // groups, w.shape[1], len(strides)
    parts = w.reshape(groups, own, *w.shape[1:])
    weights = np.zeros((groups, *strides, channels, own, *(axis.kernel for axis in axes)), w.dtype)
    weights[...] = np.reshape(fill, (-1, *(1 for _ in weights.shape[rank + 2 :])))
    for phase in np.ndindex(*strides):
        choices = [axis.taps[a] for axis, a in zip(axes, phase, strict=True)]
        for place in cartesian(*(range(len(c)) for c in choices)):
            tap = tuple(c[k] for c, k in zip(choices, place, strict=True))
            if min(tap) >= 0:
                into, out_of = (slice(None), *phase, slice(0, outputs), slice(None), *place), (..., *tap)
                weights[into] = parts[out_of].transpose(0, 2, 1)
    return weights.reshape(-1, *weights.shape[rank + 2 :])


def for_all_phases(values: np.ndarray, strides: Sequence[int], groups: int) -> np.ndarray:
    """A number for each output, as one for each channel of the convolution for all phases."""
    return np.tile(values.reshape(groups, 1, -1), (1, int(np.prod(strides)), 1)).reshape(-1)


def interleave(
    b: GraphBuilder,
    phases: Atom,
    axes: Sequence[PhaseAxis],
    strides: Sequence[int],
    channels: int,
    result: TensorType,
    span: object,
    groups: int = 1,
) -> Atom:
    """[n, groups * phases * channels, *positions] -> [n, outputs, *space]."""
    if prod(strides) == 1:
        merged = phases
    elif groups > 1:
        assert isinstance(phases.type, TensorType)
        n, _, *positions = phases.type.shape
        split = b.call("reshape", phases, shape=(n, const(groups), *map(const, strides), const(channels), *positions), span=span)  # type: ignore[arg-type]
        merged = spelled_out(b, split, 2, strides, span)
    else:
        merged = b.call("interleave", phases, strides=tuple(strides), span=span)  # type: ignore[arg-type]
    return _cut(b, merged, axes, result, span)


def spelled_out(b: GraphBuilder, split: Atom, phases: int, strides: Sequence[int], span: object) -> Atom:
    """Interleaved phases, of axes that are apart: batch, groups, if any, channels, and positions, and among the first of them the phases,
    which begin with axis `phases`."""
    rank = len(strides)
    shape = split.type.shape  # type: ignore[union-attr]
    own = [k for k in range(len(shape) - rank) if k not in range(phases, phases + rank)]  # the batch, groups, channels
    order = [*own]
    for d in range(rank):
        order += [len(shape) - rank + d, phases + d]
    moved = b.call("transpose", split, perm=tuple(order), span=span)  # type: ignore[arg-type]
    space = [simplify(product((p, const(s)))) for p, s in zip(shape[len(shape) - rank :], strides, strict=True)]
    channels = simplify(product(tuple(shape[k] for k in own[1:])))
    return b.call("reshape", moved, shape=(shape[own[0]], channels, *space), span=span)  # type: ignore[arg-type]


def _spell_out(b: GraphBuilder, m: Match) -> Atom:
    x, attrs, span = m.type_of("x"), m.attrs("phases"), m.call("phases").span
    batch, channels = m.type_of("phases").shape[:2]
    strides = [const(s) for s in attrs.strides]
    lead = (*strides, batch, channels) if attrs.of_batch else (batch, *strides, channels)
    split = b.call("reshape", m.x, shape=(*lead, *x.shape[2:]), span=span)
    return spelled_out(b, split, 0 if attrs.of_batch else 1, attrs.strides, span)


_SPELLED_OUT = GraphRule(
    "phases of neighbouring places are rearranged by a transposition",
    op("interleave", any_("x"), name="phases"),
    _spell_out,
    when=lambda m: m.attrs("phases").strides[-1] > 1,
    example=lambda b: b.call("interleave", b.param("x", tensor_type((2, 12, 3, 4), f32)), strides=(2, 3)),
)


def _cut(b: GraphBuilder, merged: Atom, axes: Sequence[PhaseAxis], result: TensorType, span: object) -> Atom:
    """Whole positions without what is cut off at the ends."""
    if all(a is b for a, b in zip(merged.type.shape, result.shape, strict=True)):  # type: ignore[union-attr]
        return merged
    starts, ones = (0, 0, *(axis.first for axis in axes)), (1,) * result.rank
    return b.call("slice", merged, starts=starts, sizes=result.shape, steps=ones, span=span)  # type: ignore[arg-type]


def _example(b: GraphBuilder, has_bias: bool, is_literal: bool) -> Atom:
    rng = np.random.default_rng(0)
    x = b.param("x", tensor_type((2, 3, 4, 5), f32))
    shape = (3, 10, 3, 2)
    w: Atom = b.const(rng.uniform(-1, 1, shape).astype(np.float32)) if is_literal else b.param("w", tensor_type(shape, f32))
    shift = b.const(rng.uniform(-1, 1, 10).astype(np.float32)) if has_bias else None
    return b.call("conv_transpose", x, w, shift, strides=(2, 2), pads=(1, 0, 1, 0), output_padding=(1, 0))
