"""Integer expressions with numbers put in: how far a value moves when a loop takes one step, and between which ends.

Sizes are known here, so nothing is proven: what is not linear (a quotient, a remainder, what comes from memory) is described by its
mean step and its range. That is enough to count what a loop nest touches, and exact for sums of multiples of loop variables
and for the quotients and remainders that splitting an axis leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tc.cost.typical import USUAL_DIM
from tc.ir.expr import (
    Add,
    And,
    Cast,
    Checked,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Mul,
    Narrow,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
)
from tc.ir.node import children

UNKNOWN_SIZE = float(USUAL_DIM)
"""What a dim without a size, and a number that comes from memory, is taken to be."""

_LARGEST = 2.0**62


class IndexForm:
    """A value as loops run: `steps[loop]` is what one iteration of that loop adds, all values lie in [low, high].

    `irregular`: the value comes from memory, and the steps only say on which loops it depends.
    """

    __slots__ = ("high", "irregular", "low", "steps")

    def __init__(self, steps: dict[int, float], low: float, high: float, irregular: bool = False) -> None:
        self.steps, self.low, self.high, self.irregular = steps, low, high, irregular

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def within(self, low: float, high: float) -> IndexForm:
        """The same value, known to lie in [low, high]."""
        if self.low >= low and self.high <= high:
            return self
        return IndexForm(self.steps, min(max(self.low, low), high), max(min(self.high, high), low), self.irregular)


NOTHING = IndexForm({}, 0.0, 0.0)


class Forms:
    """The forms of expressions over loops that are numbered from 0."""

    def __init__(self, dims: Mapping[Var, int]) -> None:
        self.extents: list[float] = []
        self._known: dict[Expr, IndexForm] = {var: _constant(float(value)) for var, value in dims.items()}

    def add_loop(self, var: Var, extent: float) -> int:
        """Number a loop of `extent` iterations, at least two."""
        number = len(self.extents)
        self.extents.append(extent)
        self._known[var] = IndexForm({number: 1.0}, 0.0, extent - 1)
        return number

    def bind(self, var: Var, form: IndexForm) -> None:
        """From now on `var` is this value."""
        self._known[var] = form

    def of(self, expr: Expr) -> IndexForm:
        """The form of an integer expression."""
        found = self._known.get(expr)
        if found is None:
            rule = _RULES.get(type(expr))
            found = rule(self, expr) if rule is not None else self._opaque(expr)
            self._known[expr] = found
        return found

    def size(self, expr: Expr) -> float:
        """An extent as one number, at least 0: the mean where it changes from iteration to iteration."""
        if type(expr) is Const:
            return max(0.0, float(expr.value))
        form = self.of(expr)
        return UNKNOWN_SIZE if form.irregular else max(0.0, form.mean)

    def share(self, condition: Expr) -> float:
        """The part of all iterations in which `condition` holds; 0 and 1 are certain. A half where memory decides."""
        match condition:
            case Const(value=value):
                return 1.0 if value else 0.0
            case And(lhs=a, rhs=b):
                return self.share(a) * self.share(b)
            case Or(lhs=a, rhs=b):
                return 1 - (1 - self.share(a)) * (1 - self.share(b))
            case Not(operand=a):
                return 1 - self.share(a)
            case Lt() | Le():
                return positive_share(self.slack(condition))
            case Eq(lhs=a, rhs=b):
                return self._equal_share(a, b)
            case Ne(lhs=a, rhs=b):
                return 1 - self._equal_share(a, b)
        return 0.5

    def slack(self, condition: Lt | Le) -> IndexForm:
        """A value that is positive where the comparison holds."""
        slack = _sum(self.of(condition.rhs), self.of(condition.lhs), -1.0)
        if type(condition) is Le:
            slack = IndexForm(slack.steps, slack.low + 1, slack.high + 1, slack.irregular)
        return slack

    def _equal_share(self, lhs: Expr, rhs: Expr) -> float:
        difference = _sum(self.of(lhs), self.of(rhs), -1.0)
        if difference.irregular:
            return 0.5
        if difference.low > 0 or difference.high < 0:
            return 0.0
        return 1 / (1 + difference.high - difference.low)

    def _opaque(self, expr: Expr) -> IndexForm:
        """A value of which only the loops that it depends on are known."""
        steps: dict[int, float] = {}
        for child in children(expr):
            if isinstance(child, Expr):
                steps.update(dict.fromkeys(self.of(child).steps, 1.0))
        high = 1.0 if expr.dtype.is_bool else 2 * UNKNOWN_SIZE
        return IndexForm(steps, 0.0, high, irregular=True)

    def _constant(self, expr: Const) -> IndexForm:
        return _constant(float(expr.value))

    def _dim(self, expr: Var) -> IndexForm:
        return _constant(UNKNOWN_SIZE)

    def _add(self, expr: Add) -> IndexForm:
        return _sum(self.of(expr.lhs), self.of(expr.rhs), 1.0)

    def _sub(self, expr: Sub) -> IndexForm:
        return _sum(self.of(expr.lhs), self.of(expr.rhs), -1.0)

    def _mul(self, expr: Mul) -> IndexForm:
        lhs, rhs = self.of(expr.lhs), self.of(expr.rhs)
        if lhs.low == lhs.high:
            lhs, rhs = rhs, lhs
        if rhs.low == rhs.high:
            return _scaled(lhs, rhs.low)
        steps = {loop: step * rhs.mean for loop, step in lhs.steps.items()}
        for loop, step in rhs.steps.items():
            steps[loop] = steps.get(loop, 0.0) + step * lhs.mean
        corners = [a * b for a in (lhs.low, lhs.high) for b in (rhs.low, rhs.high)]
        return IndexForm(steps, min(corners), max(corners), lhs.irregular or rhs.irregular)

    def _quotient(self, expr: FloorDiv | Div) -> IndexForm:
        lhs, rhs = self.of(expr.lhs), self.of(expr.rhs)
        divisor = rhs.mean
        if divisor <= 0 or lhs.irregular:
            return self._opaque(expr)
        whole, rest = self._parts(lhs, divisor)
        if rest is None:
            steps = {loop: step / divisor for loop, step in lhs.steps.items()}
            return IndexForm(steps, math.floor(lhs.low / divisor), math.floor(lhs.high / divisor))
        steps = {loop: step / divisor for loop, step in whole.steps.items()}
        offset = math.floor(rest.low / divisor)
        return IndexForm(steps, whole.low / divisor + offset, whole.high / divisor + offset)

    def _remainder(self, expr: FloorMod) -> IndexForm:
        lhs, rhs = self.of(expr.lhs), self.of(expr.rhs)
        divisor = rhs.mean
        if divisor <= 0 or lhs.irregular:
            return self._opaque(expr)
        whole, rest = self._parts(lhs, divisor)
        if rest is None:
            steps = {loop: step for loop, step in lhs.steps.items() if loop not in whole.steps}
            return IndexForm({loop: math.fmod(step, divisor) for loop, step in steps.items()}, 0.0, divisor - 1)
        offset = math.floor(rest.low / divisor) * divisor
        return IndexForm(rest.steps, rest.low - offset, rest.high - offset)

    def _parts(self, form: IndexForm, divisor: float) -> tuple[IndexForm, IndexForm | None]:
        """What moves in multiples of the divisor, and the rest, if that stays between two multiples; else None."""
        whole: dict[int, float] = {}
        rest: dict[int, float] = {}
        low = high = 0.0
        for loop, step in form.steps.items():
            if step % divisor:
                rest[loop] = step
                continue
            whole[loop] = step
            reach = step * (self.extents[loop] - 1)
            low, high = low + min(reach, 0.0), high + max(reach, 0.0)
        left = IndexForm(rest, form.low - low, max(form.high - high, form.low - low))
        confined = math.floor(left.low / divisor) == math.floor(left.high / divisor)
        return IndexForm(whole, low, high), left if confined else None

    def _min(self, expr: Min) -> IndexForm:
        lhs, rhs = self.of(expr.lhs), self.of(expr.rhs)
        leader = lhs if len(lhs.steps) >= len(rhs.steps) else rhs
        return IndexForm(leader.steps, min(lhs.low, rhs.low), min(lhs.high, rhs.high), lhs.irregular or rhs.irregular)

    def _max(self, expr: Max) -> IndexForm:
        lhs, rhs = self.of(expr.lhs), self.of(expr.rhs)
        leader = lhs if len(lhs.steps) >= len(rhs.steps) else rhs
        return IndexForm(leader.steps, max(lhs.low, rhs.low), max(lhs.high, rhs.high), lhs.irregular or rhs.irregular)

    def _select(self, expr: Select) -> IndexForm:
        share = self.share(expr.condition)
        yes, no = self.of(expr.true_value), self.of(expr.false_value)
        if share in (0.0, 1.0):
            return yes if share else no
        return IndexForm({**no.steps, **yes.steps}, min(yes.low, no.low), max(yes.high, no.high), yes.irregular or no.irregular)

    def _cast(self, expr: Cast) -> IndexForm:
        return self.of(expr.operand)

    def _checked(self, expr: Checked) -> IndexForm:
        return self.of(expr.value)


_RULES: dict[type, Callable[[Forms, Any], IndexForm]] = {
    Const: Forms._constant,
    Var: Forms._dim,
    Add: Forms._add,
    Sub: Forms._sub,
    Mul: Forms._mul,
    FloorDiv: Forms._quotient,
    Div: Forms._quotient,
    FloorMod: Forms._remainder,
    Min: Forms._min,
    Max: Forms._max,
    Select: Forms._select,
    Cast: Forms._cast,
    Narrow: Forms._cast,
    Checked: Forms._checked,
    Load: Forms._opaque,
}


def positive_share(slack: IndexForm) -> float:
    """The part of the values between the ends of `slack` that are positive."""
    if slack.irregular:
        return 0.5
    if slack.low > 0:
        return 1.0
    return 0.0 if slack.high <= 0 else slack.high / (slack.high - slack.low + 1)


def _constant(value: float) -> IndexForm:
    value = min(max(value, -_LARGEST), _LARGEST) if value == value else 0.0
    return IndexForm({}, value, value)


def _scaled(form: IndexForm, factor: float) -> IndexForm:
    if not factor:
        return NOTHING
    ends = (form.low * factor, form.high * factor)
    return IndexForm({loop: step * factor for loop, step in form.steps.items()}, min(ends), max(ends), form.irregular)


def _sum(lhs: IndexForm, rhs: IndexForm, sign: float) -> IndexForm:
    low, high = (rhs.low, rhs.high) if sign > 0 else (-rhs.high, -rhs.low)
    if not rhs.steps:
        steps = lhs.steps
    else:
        steps = dict(lhs.steps)
        for loop, step in rhs.steps.items():
            total = steps.get(loop, 0.0) + sign * step
            if total:
                steps[loop] = total
            else:
                steps.pop(loop, None)
    return IndexForm(steps, lhs.low + low, lhs.high + high, lhs.irregular or rhs.irregular)
