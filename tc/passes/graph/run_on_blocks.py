"""A function rewritten so that chosen bindings run on channels cut into blocks, with the copies between both forms of a value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tc.ir.dtype import i16
from tc.ir.expr import Const, ceildiv, const, is_const
from tc.ir.graph import Atom, Binding, Call, Function, TensorConst, TensorVar, atoms_of, atoms_read
from tc.ir.node import replace
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder, full_attrs
from tc.ops.registry import BlockedForm, Form, RowForm, get_op
from tc.ops.window import FEW_CHANNELS, inputs_of_group
from tc.passes.graph.blocked_literals import blocked_array, grouped_weights, merge_groups, row_weights


def maps_elements(call: Call, form: BlockedForm) -> bool:
    """Whether an operator does on blocks just what it does as it is, to each element: a window, a pad or a cut has attributes of its own
    there."""
    return form.op == call.op and form.attrs == tuple(full_attrs(call).items())


@dataclass
class Rewriter:
    """Rebuilds a function with some bindings in blocked form; other forms of a value are made where they are first wanted."""

    func: Function
    forms: dict[Binding, BlockedForm]
    block: int
    builder: GraphBuilder = field(init=False)
    plain: dict[TensorVar, Atom] = field(default_factory=dict)
    blocked: dict[TensorVar, TensorVar] = field(default_factory=dict)
    words: dict[TensorVar, TensorVar] = field(default_factory=dict)
    literals: dict[tuple[TensorConst, Form, int, object], TensorConst] = field(default_factory=dict)
    summed: set[TensorVar] = field(default_factory=set)
    """What a convolution is made of, blocked, that sums lanes past its channels."""
    finite: dict[TensorVar, TensorVar] = field(default_factory=dict)
    rests: dict[TensorVar, float] = field(default_factory=dict)
    """What lies in the lanes past the channels of a blocked value, where that is known: one number in all of them."""

    def run(self) -> Function:
        self.builder = GraphBuilder(self.func.facts)
        for binding in reversed(self.func.bindings):
            if binding in self.forms and (self._sums_rest(binding) or not self.summed.isdisjoint(binding.targets)):
                self.summed.update(atom for atom in atoms_of(binding.value) if isinstance(atom, TensorVar))
        for binding in self.func.bindings:
            form = self.forms.get(binding)
            if form is None:
                self._keep(binding)
            else:
                self._convert(binding, form)
        results = tuple(self._plain(result) for result in self.func.results)
        return replace(self.func, bindings=tuple(self.builder.bindings), results=results)

    def _keep(self, binding: Binding) -> None:
        """A binding that stays: what it reads must exist in plain form, under its own name."""
        for atom in atoms_read(binding.value):
            self._plain(atom)
        self.builder.bindings.append(binding)

    def _convert(self, binding: Binding, form: BlockedForm) -> None:
        call, target = binding.value, binding.targets[0]
        assert isinstance(call, Call) and isinstance(target.type, TensorType)
        rank = target.type.rank
        args = tuple(
            None if atom is None else self._operand(atom, taken, rank, form)
            for atom, taken in zip(call.args, form.operands, strict=False)
        )
        if self._sums_rest(binding):
            args = (self._finite(call.args[0]), *args[1:])
        type_ = self._blocked_type(target.type)
        value = Call(form.op, args, form.attrs, span=call.span)
        (made,) = self.builder.bind(value, (type_,), (target.name,), binding.span)
        if form.op == "conv_blocked" and target in self.summed and self._has_rest(target):
            made = self._without_rest(target, made)  # of an infinite operand NaN comes there
        rest = self._rest_of(call, form, target)
        if rest is not None:
            self.rests.setdefault(made, rest)
        self.blocked[target] = made

    def _has_rest(self, atom: TensorVar) -> bool:
        """Whether floats have lanes past the channels."""
        assert isinstance(atom.type, TensorType)
        channels = atom.type.shape[1]
        return atom.type.dtype.is_float and not (isinstance(channels, Const) and channels.value % self.block == 0)

    def _sums_rest(self, binding: Binding) -> bool:
        """Whether a convolution of floats sums lanes past its channels, too: times zeros, which is no number unless they are one."""
        form = self.forms[binding]
        image = binding.value.args[0] if isinstance(binding.value, Call) and form.op == "conv_blocked" else None
        if not isinstance(image, TensorVar) or form.operands[0] is not Form.CHANNELS or not self._has_rest(image):
            return False
        assert isinstance(image.type, TensorType)
        channels, summed = image.type.shape[1], dict(form.attrs)["in_channels"]
        return isinstance(channels, Const) and channels.value != summed

    def _without_rest(self, atom: TensorVar, made: TensorVar) -> TensorVar:
        """The blocked form of a value with zeros past its channels."""
        assert isinstance(atom.type, TensorType)
        kept = self.builder.call("keep_channels", made, size=atom.type.shape[1])
        self.rests[kept] = 0.0
        return kept

    def _finite(self, atom: Atom | None) -> TensorVar:
        """The blocked form of a value whose lanes past the channels are numbers."""
        assert isinstance(atom, TensorVar)
        made = self._blocked(atom)
        if not math.isfinite(self.rests.get(made, math.nan)):
            if atom not in self.finite:
                self.finite[atom] = self._without_rest(atom, made)
            made = self.finite[atom]
        return made

    def _rest_of(self, call: Call, form: BlockedForm, target: TensorVar) -> float | None:
        """What an operator that maps elements makes of what lies past the channels of its operands, if that is one number."""
        arrays: list[np.ndarray | None] = []
        assert isinstance(target.type, TensorType)
        if not maps_elements(call, form):
            return None
        for atom, taken in zip(call.args, form.operands, strict=False):
            known: float | np.ndarray | None = None
            if atom is None:
                arrays.append(None)
                continue
            assert isinstance(atom.type, TensorType)
            if taken is Form.CHANNELS:
                known = self.rests.get(self.blocked[atom]) if isinstance(atom, TensorVar) else 0.0
                if atom.type.shape != target.type.shape:
                    return None
            elif taken is Form.BROADCAST and isinstance(atom, TensorConst) and atom.value.size == 1:
                known = atom.value.reshape(())
            elif taken is Form.BROADCAST and atom.type.rank >= (rank := target.type.rank) - 1:  # cut into blocks, if it is not broadcast
                known = None if is_const(atom.type.shape[1 - rank], 1) else 0.0
            if known is None:
                return None
            arrays.append(np.full((1,) * (target.type.rank + 1), known, atom.type.dtype.numpy))
        if not arrays:
            return None
        with np.errstate(all="ignore"):
            found, *others = get_op(form.op).run_reference(arrays, get_op(form.op).attrs(form.attrs))
        return None if others or found.size != 1 else float(found.reshape(()))

    def _blocked_type(self, type_: TensorType) -> TensorType:
        n, channels, *space = type_.shape
        return TensorType((n, ceildiv(channels, self.block), *space, const(self.block)), type_.dtype)

    def _operand(self, atom: Atom, form: Form, rank: int, taker: BlockedForm) -> Atom:
        if isinstance(atom, TensorConst):
            return self._literal(atom, form, rank, taker)
        assert isinstance(atom, TensorVar), "operators take tensors"
        match form:
            case Form.CHANNELS:
                return self._as_words(self._blocked(atom)) if taker.as_words else self._blocked(atom)
            case Form.BROADCAST:
                return self._broadcast(self._plain(atom), rank)
            case Form.FEW:
                few = self.builder.call("block", self._plain(atom), axis=1, block=FEW_CHANNELS)
                return self._as_words(few) if taker.as_words else few
            case Form.ROWS:
                return self._rows(self.builder.call("block", self._plain(atom), axis=1, block=FEW_CHANNELS), taker.rows)
            case Form.OUTPUTS:
                return self.builder.call("block", self._plain(atom), axis=0, block=self.block)
            case Form.WEIGHTS:
                inputs = self.builder.call("block", self._plain(atom), axis=1, block=self.block)
                return self.builder.call("block", inputs, axis=0, block=self.block)
        return self._plain(atom)

    def _rows(self, image: Atom, form: RowForm | None) -> Atom:
        """What each row of a kernel reads, of an image [n, 1, h, w, b]."""
        assert form is not None and isinstance(image.type, TensorType)
        n, one, height, width, pixel = image.type.shape
        rows = self.builder.call("reshape", image, shape=(n, one, height, width * pixel))
        (top, bottom), (left, right) = form.around
        if top or bottom or left or right:
            fill = TensorConst(np.asarray(form.fill, image.type.dtype.numpy), "fill")
            rows = self.builder.call("pad", rows, fill, pads=(0, 0, top, left * FEW_CHANNELS, 0, 0, bottom, right * FEW_CHANNELS))
        own: dict[str, Any] = {"kernel": form.kernel, "stride": form.stride, "dilation": form.dilation}
        return self.builder.call("row_windows", rows, **own, channels=form.channels, pixel=FEW_CHANNELS)

    def _plain(self, atom: Atom) -> Atom:
        """The plain form of a value, bound to its own variable."""
        if isinstance(atom, TensorVar) and atom in self.blocked and atom not in self.plain:
            assert isinstance(atom.type, TensorType)
            attrs = (("axis", 1), ("size", atom.type.shape[1]))
            self.builder.bindings.append(Binding((atom,), Call("unblock", (self.blocked[atom],), attrs), span=atom.span))
            self.plain[atom] = atom
        return atom

    def _blocked(self, atom: TensorVar) -> TensorVar:
        if atom not in self.blocked:
            assert isinstance(atom.type, TensorType)
            attrs = (("axis", 1), ("block", self.block))
            call = Call("block", (atom,), attrs)
            (made,) = self.builder.bind(call, (self._blocked_type(atom.type),), (atom.name,), atom.span)
            self.blocked[atom] = made
            self.rests[made] = 0.0
            self.plain[atom] = atom
        return self.blocked[atom]

    def _as_words(self, atom: TensorVar) -> TensorVar:
        """A blocked value in i16."""
        assert isinstance(atom.type, TensorType)
        if atom.type.dtype is i16:
            return atom
        if atom not in self.words:
            self.words[atom] = self.builder.call("cast", atom, dtype=i16)
        return self.words[atom]

    def _literal(self, atom: TensorConst, form: Form, rank: int, taker: BlockedForm) -> Atom:
        if form is Form.PLAIN:
            return atom
        in_block = dict(taker.attrs).get("in_block")
        key = (atom, form, rank, (in_block, taker.groups))
        if key not in self.literals:
            if form is Form.GROUPED:
                assert isinstance(in_block, int), "a convolution on blocks"
                values = atom.value.astype(np.int16) if taker.as_words else atom.value
                values = row_weights(values, in_block) if taker.rows else values
                if taker.groups:
                    values = merge_groups(values, inputs_of_group(taker) // values.shape[1], taker.groups)
                array = grouped_weights(values, in_block, self.block)
            else:
                array = blocked_array(atom.value, form, rank, self.block)
            self.literals[key] = TensorConst(array, atom.name, span=atom.span)
        return self.literals[key]

    def _broadcast(self, atom: Atom, rank: int) -> Atom:
        """An operand that is broadcast along the result's channels, or has fewer axes than the result."""
        type_ = atom.type
        assert isinstance(type_, TensorType)
        if type_.rank == 0:
            return atom
        if type_.rank < rank - 1 or is_const(type_.shape[1 - (rank - type_.rank)], 1):
            return self.builder.call("unsqueeze", atom, axes=(type_.rank,))
        if type_.rank == rank - 1:
            atom = self.builder.call("unsqueeze", atom, axes=(0,))
        return self.builder.call("block", atom, axis=1, block=self.block)
