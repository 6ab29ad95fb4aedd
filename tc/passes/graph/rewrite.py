"""The rewrite engine of the graph: rules are a pattern, a condition, a result, and an example that is checked numerically.

    GraphRule("relu of relu", op("relu", op("relu", any_("x"))), lambda b, m: b.call("relu", m.x), example=...)

A pattern describes the operation that defines a value, and those that define its operands. Matching never looks at names of
variables. Tests run the example of every rule through the interpreter, before and after.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from tc.errors import located
from tc.ir.arith import Facts, equal_shapes
from tc.ir.cached import cached_property
from tc.ir.graph import (
    Atom,
    Attrs,
    Binding,
    Call,
    Function,
    If,
    Loop,
    TensorConst,
    TensorVar,
    atoms_of,
    bodies_of,
    with_atoms,
)
from tc.ir.module import IRModule
from tc.ir.node import Node, replace
from tc.ir.types import DimFact, TensorType
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.manager import map_graph_functions


@dataclass(frozen=True)
class AnyPattern:
    """Any value; kept as `name`. The same name twice means the same value twice."""

    name: str


@dataclass(frozen=True)
class ConstPattern:
    """A literal tensor; kept as `name`."""

    name: str


@dataclass(frozen=True)
class AbsentPattern:
    """An optional operand that is not given."""


@dataclass(frozen=True)
class OpPattern:
    """A call of one of `ops` whose operands match. Its call is kept as `name` (default: its op's name).

    `commutes`: the two operands may come in either order. Trailing operands not listed must be absent, except with `rest`.
    """

    ops: tuple[str, ...]
    args: tuple[Pattern, ...]
    name: str = ""
    commutes: bool = False
    single_use: bool = False
    rest: bool = False

    @cached_property
    def orders(self) -> tuple[tuple[bool, ...], ...]:
        """For each way to match it, whether the operands of what commutes are exchanged: of the outer first, then from left to right."""
        return tuple(itertools.product((False, True), repeat=self.num_commuting))

    @property
    def num_commuting(self) -> int:
        """How many operators at or below it commute."""
        return int(self.commutes) + sum(part.num_commuting for part in self.args if isinstance(part, OpPattern))


Pattern = Union[AnyPattern, ConstPattern, AbsentPattern, OpPattern]


def any_(name: str) -> AnyPattern:
    return AnyPattern(name)


def const_(name: str) -> ConstPattern:
    return ConstPattern(name)


def absent() -> AbsentPattern:
    return AbsentPattern()


def op(
    ops: str, *args: Pattern, name: str = "", commutes: bool = False, single_use: bool = False, rest: bool = False
) -> OpPattern:
    """A call of `ops` ("add" or "add|sub")."""
    return OpPattern(tuple(ops.split("|")), args, name, commutes, single_use, rest)


class Match:
    """What the parts of a pattern stand for: values as atoms (`m.x`), calls by `m.call("conv")`, their attributes by `m.attrs`."""

    def __init__(self, facts: Facts, rewriter: _Rewriter | None = None) -> None:
        self.atoms: dict[str, Atom] = {}
        self.calls: dict[str, Call] = {}
        self.roots: dict[str, TensorVar] = {}
        self.facts = facts
        self._rewriter = rewriter

    def call_of(self, atom: Atom | None, *, single_use: bool = False) -> Call | None:
        """The call whose only result is `atom`, for rules that look further than a pattern can say.

        None when there is no such call, or when `single_use` is asked for and something else uses it too.
        """
        if self._rewriter is None or not isinstance(atom, TensorVar):
            return None
        binding = self._rewriter.definition(atom)
        if binding is None or not isinstance(binding.value, Call) or len(binding.targets) != 1:
            return None
        return None if single_use and self._rewriter.is_shared(atom) else binding.value

    def num_uses(self, atom: Atom | None) -> int:
        """How often a value is used; a result more than twice."""
        return self._rewriter.num_uses(atom) if self._rewriter is not None and isinstance(atom, TensorVar) else 0

    def __getattr__(self, name: str) -> Any:
        try:
            return self.atoms[name]
        except KeyError:
            raise AttributeError(name) from None

    def call(self, name: str) -> Call:
        return self.calls[name]

    def attrs(self, name: str) -> Attrs:
        return full_attrs(self.calls[name])

    def type_of(self, name: str) -> TensorType:
        """The type of the value kept as `name`, or of the result of the call kept as `name`."""
        atom = self.atoms.get(name) or self.roots[name]
        assert isinstance(atom.type, TensorType)
        return atom.type

    def value(self, name: str) -> Any:
        """The numpy array of a literal."""
        atom = self.atoms[name]
        assert isinstance(atom, TensorConst)
        return atom.value


@dataclass(frozen=True)
class GraphRule:
    """Replace what `pattern` matches by the value that `result` builds, if `when` holds. `result` may return None: no change.

    Where the outermost operator has several results, `result` returns as many values.
    `example` builds a small function (through a GraphBuilder, returning its result) to which the rule applies; `inexact` says
    that rounding may differ, and tests then compare within a tolerance.
    """

    name: str
    pattern: OpPattern
    result: Callable[[GraphBuilder, Match], Atom | tuple[Atom, ...] | None]
    example: Callable[[GraphBuilder], Atom]
    when: Callable[[Match], bool] = lambda m: True
    inexact: bool = False


def rewrite_module(
    module: IRModule, rules: Sequence[GraphRule], *, max_rounds: int = 12, tidy: Callable[[IRModule], IRModule] = lambda module: module
) -> IRModule:
    """Apply the rules to every graph function until none applies, at most `max_rounds` times over. Dead code stays behind, unless `tidy`,
    what is done after every round, removes it.

    A round does not ask again what it knows from the one before: rules that did not apply to a value do not apply as long as all that
    they looked at is the same.
    """
    by_op: dict[str, list[GraphRule]] = {}
    for rule in rules:
        for name in rule.pattern.ops:
            by_op.setdefault(name, []).append(rule)
    declined: dict[str, _Declined] = {}
    for _ in range(max_rounds):
        rewritten = tidy(map_graph_functions(module, lambda func: _rewritten(func, by_op, declined)))
        if rewritten is module:
            break
        module = rewritten
    return module


_Seen = tuple[tuple[TensorVar, Union[Binding, None], bool], ...]
"""What rules looked at: values, what defined them, and whether they had several uses."""

_Declined = dict[Binding, _Seen]
"""Bindings to which no rule applied, with what was looked at to find that."""


def _rewritten(func: Function, by_op: Mapping[str, Sequence[GraphRule]], declined: dict[str, _Declined]) -> Function:
    rewriter = _Rewriter(func.facts, by_op, declined.get(func.name, {}))
    found = rewriter.function(func)
    declined[func.name] = rewriter.declined
    return found


_DEEPEST_REPLACED = 12
"""Of a pattern: how many operations lie one above the other."""


@dataclass
class _Rewriter:
    """Rebuilds one function, and the functions inside it, front to back."""

    facts: tuple[DimFact, ...]
    by_op: Mapping[str, Sequence[GraphRule]]
    known_before: _Declined
    declined: _Declined = field(default_factory=dict)
    changed: bool = False
    renamed: dict[TensorVar, Atom] = field(default_factory=dict)
    definitions: dict[TensorVar, Binding] = field(default_factory=dict)
    uses: Counter[Any] = field(default_factory=Counter)
    looked_at: dict[TensorVar, None] = field(default_factory=dict)

    @cached_property
    def _known(self) -> Facts:
        return Facts.of(self.facts)

    def definition(self, atom: TensorVar) -> Binding | None:
        """What defines a value, for a rule that asks."""
        self.looked_at[atom] = None
        return self.definitions.get(atom)

    def is_shared(self, atom: TensorVar) -> bool:
        """Whether a value has more than one use, for a rule that asks."""
        self.looked_at[atom] = None
        return self.uses.get(atom, 0) > 1

    def num_uses(self, atom: TensorVar) -> int:
        """How often a value is used, for a rule that asks. That it does not apply is not asked again if some but not all other uses go."""
        self.looked_at[atom] = None
        return self.uses.get(atom, 0)

    def _is_declined(self, binding: Binding) -> bool:
        """Whether no rule applied to it before, and all that was looked at is the same."""
        seen = self.known_before.get(binding)
        if seen is None:
            return False
        definitions, uses = self.definitions, self.uses
        for atom, definition, is_shared in seen:
            if definitions.get(atom) is not definition or (uses.get(atom, 0) > 1) is not is_shared:
                return False
        self.declined[binding] = seen
        return True

    def _seen(self) -> _Seen:
        return tuple([(atom, self.definitions.get(atom), self.uses.get(atom, 0) > 1) for atom in self.looked_at])

    def function(self, func: Function) -> Function:
        self._count_uses(func)
        new = self._rebuild(func)
        return new if self.changed else func

    def _count_uses(self, func: Function) -> None:
        functions = [func]
        while functions:
            inner = functions.pop()
            calls = [binding.value.args for binding in inner.bindings if isinstance(binding.value, Call)]
            self.uses.update(itertools.chain.from_iterable(calls))  # literals, too, which nobody asks for
            for binding in inner.bindings:
                if not isinstance(binding.value, Call):
                    self.uses.update(atoms_of(binding.value))
                    functions += bodies_of(binding.value)
            self.uses.update((*inner.results, *inner.results))  # results must stay: never of single use

    def _rebuild(self, func: Function) -> Function:
        bindings: list[Binding] = []
        renamed, definitions, by_op = self.renamed, self.definitions, self.by_op
        for binding in func.bindings:
            value = binding.value
            if not isinstance(value, Call) or not renamed.keys().isdisjoint(value.args):
                binding = self._renamed_binding(binding)
                value = binding.value
            bindings.append(binding)
            for target in binding.targets:
                definitions[target] = binding
            if isinstance(value, Call) and value.op in by_op and binding.targets and not self._is_declined(binding):
                self.looked_at = {}
                if not self._try_rules(binding, bindings):
                    self.declined[binding] = self._seen()
        results = tuple(self._atom(result) for result in func.results)
        return replace(func, bindings=tuple(bindings), results=results)

    def _atom(self, atom: Atom) -> Atom:
        while isinstance(atom, TensorVar) and atom in self.renamed:
            atom = self.renamed[atom]
        return atom

    def _renamed_binding(self, binding: Binding) -> Binding:
        value = binding.value
        renames = {a: self._atom(a) for a in atoms_of(value) if a in self.renamed}
        changes = {body_name: self._rebuild(body) for body_name, body in _named_bodies(value)}
        if changes:
            value = replace(value, **changes)
        if renames:
            value = with_atoms(value, renames)
        return replace(binding, value=value)

    def _try_rules(self, binding: Binding, bindings: list[Binding]) -> bool:
        """Whether a rule has put something into the place of a binding, the last of `bindings`."""
        call = binding.value
        assert isinstance(call, Call)
        for rule in self.by_op.get(call.op, ()):
            for match in self._matches(rule.pattern, binding.targets[0]):
                if not rule.when(match):
                    continue
                builder = GraphBuilder(self.facts)
                place = len(bindings) - 1
                with located(binding.span):
                    result = rule.result(builder, match)
                results = result if isinstance(result, tuple) else (result,)
                if not _have_types(results, binding.targets, self._known):
                    continue
                nodes = self._replaced_nodes(binding, builder.bindings)
                for made in builder.bindings:
                    span = made.span or binding.span
                    made = replace(made, span=None if span is None else span.in_place_of(nodes))
                    bindings.append(made)
                    self.definitions.update(dict.fromkeys(made.targets, made))
                    self.uses.update(atoms_of(made.value))
                for target, found in zip(binding.targets, results, strict=True):
                    assert found is not None
                    self.renamed[target] = found
                    if isinstance(found, TensorVar):  # it has the uses of what it takes the place of
                        self.uses[found] += self.uses[target]
                del bindings[place]  # nothing refers to it any more, and it must not match again
                self.changed = True
                return True
        return False

    def _replaced_nodes(self, root: Binding, made: Sequence[Binding]) -> tuple[str, ...]:
        """The model's nodes that new bindings compute in the place of `root`: its own, and those between it and what these read."""
        inner = {target for binding in made for target in binding.targets}
        read = {atom for binding in made for atom in atoms_of(binding.value) if isinstance(atom, TensorVar) and atom not in inner}
        found: dict[TensorVar, tuple[str, ...] | None] = dict.fromkeys(read, ())
        operands = [atom for atom in atoms_of(root.value) if isinstance(atom, TensorVar)]
        behind = [node for atom in operands for node in self._nodes_of(atom, 0, found) or ()]
        return tuple(dict.fromkeys([*behind, *(() if root.span is None else root.span.nodes)]))

    def _nodes_of(self, atom: TensorVar, depth: int, found: dict[TensorVar, tuple[str, ...] | None]) -> tuple[str, ...] | None:
        """The nodes of all that makes a value from what is read, which is in `found`; None for one that is made of something else, too,
        as anything is that the rule has not looked at."""
        if atom not in found:
            binding = self.definitions.get(atom) if atom in self.looked_at else None
            is_inside = binding is not None and isinstance(binding.value, Call) and depth < _DEEPEST_REPLACED
            found[atom] = self._nodes_behind(binding, depth, found) if binding is not None and is_inside else None
        return found[atom]

    def _nodes_behind(self, binding: Binding, depth: int, found: dict[TensorVar, tuple[str, ...] | None]) -> tuple[str, ...] | None:
        parts = [self._nodes_of(atom, depth + 1, found) for atom in atoms_of(binding.value) if isinstance(atom, TensorVar)]
        own = () if binding.span is None else binding.span.nodes
        return None if None in parts else (*(node for part in parts for node in part or ()), *own)

    def _call_for(self, pattern: OpPattern, atom: Atom | None, root: bool) -> Call | None:
        """The call of one of the pattern's operators that makes `atom`."""
        if not isinstance(atom, TensorVar) or (pattern.single_use and not root and self.is_shared(atom)):
            return None
        binding = self.definition(atom)
        call = None if binding is None or not (root or len(binding.targets) == 1) else binding.value
        if not isinstance(call, Call) or call.op not in pattern.ops:
            return None
        if not pattern.rest and any(arg is not None for arg in call.args[len(pattern.args) :]):
            return None
        return call

    def _matches(self, pattern: OpPattern, root: TensorVar) -> Iterator[Match]:
        """Every way in which what defines `root` matches."""
        for turns in pattern.orders:
            match = Match(self._known, self)
            if self._fits(pattern, root, match, iter(turns), root=True):
                yield match

    def _fits(self, pattern: Pattern, atom: Atom | None, match: Match, turns: Iterator[bool], root: bool = False) -> bool:
        """Whether a value is what a pattern says, with operands exchanged where `turns` says so; its parts are kept in `match`."""
        if isinstance(pattern, OpPattern):
            call = self._call_for(pattern, atom, root)
            if call is None:
                return False
            operands = call.args + (None,) * (len(pattern.args) - len(call.args))
            if pattern.commutes and next(turns):
                if len(operands) != 2:
                    return False
                operands = operands[::-1]
            assert isinstance(atom, TensorVar)
            name = pattern.name or pattern.ops[0]
            match.calls[name], match.roots[name] = call, atom
            for part, operand in zip(pattern.args, operands, strict=False):
                if not self._fits(part, operand, match, turns):
                    return False
            return True
        if isinstance(pattern, AbsentPattern):
            return atom is None
        if atom is None or (isinstance(pattern, ConstPattern) and not isinstance(atom, TensorConst)):
            return False
        return match.atoms.setdefault(pattern.name, atom) is atom


def _have_types(results: Sequence[Atom | None], targets: Sequence[TensorVar], facts: Facts) -> bool:
    """Whether there is a value for each target, of its type."""
    return len(results) == len(targets) and all(
        found is not None and _same_type(found, target, facts) for found, target in zip(results, targets, strict=True)
    )


def _same_type(result: Atom, target: TensorVar, facts: Facts) -> bool:
    a, b = result.type, target.type
    assert isinstance(a, TensorType) and isinstance(b, TensorType)
    return a.dtype == b.dtype and equal_shapes(a.shape, b.shape, facts) is True


def _named_bodies(value: Node) -> list[tuple[str, Function]]:
    if isinstance(value, If):
        return [("then_branch", value.then_branch), ("else_branch", value.else_branch)]
    return [("body", value.body)] if isinstance(value, Loop) else []
