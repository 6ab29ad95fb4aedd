"""Every index that comes from data is proved to be in range, or checked before memory is touched.

A statement that needs a `Checked` value, or that reads or writes where data say, happens only if its indices are in range; what was
wrong is written to an additional output, which the entry point reads after the launch. Each index is loaded once: the number that was
checked is the number that is used, whatever others write to the memory it came from meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import replace as replace_fields

from tc.errors import CodegenError
from tc.ir.access import WORDS_PER_CHECK, AccessCheck, checks_attribute
from tc.ir.arith import Facts, prove
from tc.ir.dtype import i64
from tc.ir.expr import (
    TRUE,
    Buffer,
    Checked,
    Expr,
    Load,
    Select,
    Var,
    cast,
    conjuncts,
    const,
    logical_and,
    logical_not,
    logical_or,
    select,
)
from tc.ir.loop import (
    Alloc,
    AwaitCopies,
    Barrier,
    CommitCopies,
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
    seq,
)
from tc.ir.node import Node, binders, cached_on_node, children, map_children, replace, substitute
from tc.ir.uses import buffers_read, buffers_written, reads_memory, variables
from tc.passes.manager import loop_pass


@loop_pass
def check_accesses(func: PrimFunc) -> PrimFunc:
    """Make every access at an index from data conditional on the index being in range.

        for i in range(n):                                       faults[0, 0] = 0; faults[0, 1] = 0; faults[0, 2] = 0
            for j in range(8):                                   for i in range(n):
                y[i, j] = checked(x[t[i], j], t[i], m, ...)          index = t[i]
                                                            =>       if 0 <= index and index < m:
                                                                         for j in range(8): y[i, j] = x[index, j]
                                                                     else:
                                                                         faults[0, 0] = 1; faults[0, 1] = index; faults[0, 2] = m

    `faults` is a further output; the attribute "checks" holds the messages. A check stands outside the loops that it does not depend
    on, and is passed where one of them is of no iteration. An access at an index that is loaded, or depends on a loop whose extent is,
    needs no check where it is proved in range.
    CodegenError where the condition of a `While` needs a check.
    """
    if not _depends_on_data(func.body):
        return func
    checker = _Checker(func)
    body = checker.function_body()
    if not checker.rows:
        return replace(func, body=body)
    faults = Buffer("faults", (const(len(checker.rows)), const(WORDS_PER_CHECK)), i64)
    places = [(const(row), const(word)) for row in range(len(checker.rows)) for word in range(WORDS_PER_CHECK)]
    return replace(
        func,
        params=(*func.buffers, faults, *func.dims),
        body=seq(*(Store(faults, place, const(0)) for place in places), substitute(body, {checker.faults: faults})),
        num_outputs=func.num_outputs + 1,
        attrs=(*func.attrs, checks_attribute(checker.rows)),
    )


@cached_on_node
def _depends_on_data(node: Node) -> bool:
    """Whether data decide that of it, or of anything below."""
    return _from_data(node) or any(map(_depends_on_data, children(node)))


def _from_data(node: object) -> bool:
    """Whether data decide where this touches memory or how often it runs."""
    match node:
        case Checked():
            return True
        case Load(indices=parts) | Store(indices=parts) | For(extent=parts):
            below = parts if isinstance(parts, tuple) else (parts,)
            return any(map(reads_memory, below))
        case Let(value=value):
            return value.dtype.is_int and reads_memory(value)
    return False


@dataclass(frozen=True, eq=False)
class _Test:
    """One check: what the number was made from and the number itself, by names; what must hold; and where that is reported.

    `source`: the index as it was written; `path`: where in its statement it is needed; `in_branch`: made only where a condition on data
    chooses the access. `needs`: the variables that must be in scope. `is_stable`: nothing that it reads is written by the function.
    `asked`: where there is the statement at all, once the test has left loops that may be of no iteration.
    """

    given: Var
    loaded: Expr
    index: Var
    value: Expr
    holds: Expr
    extent: Expr
    row: int
    source: Expr
    path: Expr
    in_branch: bool
    needs: frozenset[Var]
    is_stable: bool
    asked: Expr = TRUE

    def outside(self, extent: Expr) -> _Test:
        """The test outside of a loop of so many iterations, which may be none."""
        return replace_fields(self, asked=logical_and(self.asked, const(0) < extent), needs=self.needs | variables(extent))


@dataclass(frozen=True)
class _Scope:
    """What is known where something is evaluated: facts, the variables that come from data, and under which condition (`path`) of the
    statement. `plain_path` is the part of it that loads nothing.

    Conditions that load are no facts: what is loaded a second time may differ.
    """

    facts: Facts
    tainted: frozenset[Var] = frozenset()
    path: Expr = TRUE
    plain_path: Expr = TRUE

    def within(self, condition: Expr) -> _Scope:
        """Inside a branch of an expression."""
        inner = self.beyond(condition)
        plain = logical_and(self.plain_path, _plain(condition))
        return _Scope(inner.facts, self.tainted, logical_and(self.path, condition), plain)

    def beyond(self, condition: Expr) -> _Scope:
        """Inside a branch of a statement."""
        return _Scope(self.facts.assume(_plain(condition)), self.tainted)

    def with_index(self, test: _Test) -> _Scope:
        """Where a test has been passed."""
        facts = self.facts.with_range(test.index, test.extent)
        return _Scope(facts, self.tainted | {test.given, test.index}, self.path, self.plain_path)

    def is_tainted(self, expr: Expr) -> bool:
        return reads_memory(expr) or bool(variables(expr) & self.tainted)


Tested = tuple[Stmt, list[_Test]]
"""A statement, and the tests that must be passed before it, in order."""


class _Checker:
    """Rewrites the statements of one function. `rows` are the checks met so far, each with its row in the report."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.rows: dict[AccessCheck, int] = {}
        self.faults = Buffer("faults", (const(1), const(WORDS_PER_CHECK)), i64)
        self.written = buffers_written(func.body)
        self.made: dict[tuple[object, ...], _Test] = {}
        self.test_of: dict[Var, _Test] = {}
        self.launch: frozenset[Var] | None = None  # the outermost loops of the launch that is being looked at
        self.kept = frozenset[Var]()  # loops of which data may say that they are of no iteration

    def function_body(self) -> Stmt:
        return self.wrap(*self.statement(self.func.body, _Scope(Facts.of(self.func.facts))))

    # -- statements

    def statement(self, stmt: Stmt, scope: _Scope, nest: frozenset[Var] = frozenset()) -> Tested:
        """`nest`: the variables of parallel loops, each the whole body of the one before, of which `stmt` is the last one's."""
        match stmt:
            case Seq(stmts=stmts):
                return self._sequence(stmt, [self.statement(part, scope) for part in stmts])
            case For():
                return self._loop(stmt, scope, nest)
            case If():
                return self._if(stmt, scope)
            case Let(var=var, value=value, body=body):
                new, tests = self.expression(value, scope)
                inner = _Scope(scope.facts, scope.tainted | ({var} if scope.is_tainted(new) else frozenset()))
                changed, wanted = self.statement(body, inner)
                stay, leave = _split(wanted, lambda test: var in test.needs or not test.is_stable)
                return replace(stmt, value=new, body=self.wrap(changed, stay)), _unique([*tests, *leave])
            case Alloc(body=body):
                changed, tests = self.statement(body, scope)
                return replace(stmt, body=changed), tests
            case While(condition=condition, body=body):
                if self.expression(condition, scope)[1]:
                    raise CodegenError(f"{self.func.name}: the condition of a while loop reads where data say: {condition}")
                return replace(stmt, body=self.wrap(*self.statement(body, scope))), []
            case Store(buffer=buffer, indices=indices, value=value):
                new, tests = self.expression(value, scope)
                inner, places = scope, indices
                for test in (one for one in tests if one.path is TRUE):  # what the value depends on is checked for the place as well
                    inner = inner.with_index(test)
                    places = tuple(_renamed(place, test.source, test.index) for place in places)
                found = [self._expr(place, inner, tests) for place in places]
                return replace(stmt, value=new, indices=self._proved(buffer, found, inner, tests)), _unique(tests)
            case IntrinsicCall(operands=operands):
                checked = [self.expression(operand, scope) for operand in operands]
                return replace(stmt, operands=tuple(new for new, _ in checked)), _unique(t for _, tests in checked for t in tests)
            case Barrier() | CommitCopies() | AwaitCopies():
                return stmt, []
        raise CodegenError(f"{self.func.name}: no checks for {type(stmt).__name__}")

    def _sequence(self, stmt: Seq, parts: list[Tested]) -> Tested:
        """Tests of what nobody writes move in front of all; the others stay where they are."""
        done: list[Stmt] = []
        before: list[_Test] = []
        for part, tests in parts:
            stay, leave = _split(tests, lambda test: not test.is_stable)
            done.append(self.wrap(part, stay))
            before += leave
        changed = any(a is not b for a, b in zip(done, stmt.stmts, strict=True))
        return (seq(*done) if changed else stmt), _unique(before)

    def _loop(self, loop: For, scope: _Scope, nest: frozenset[Var]) -> Tested:
        """Parallel loops that are each other's whole body stay so: what depends on one of them is tested inside all. So do those of a
        launch, out of which no test goes: memory is the device's."""
        is_bound, outer = loop.kind is LoopKind.BOUND, self.launch
        if is_bound and (outer is None or nest == outer):
            self.launch = nest | {loop.var}
        extent, tests = self.expression(loop.extent, scope)
        tainted = scope.tainted | ({loop.var} if scope.is_tainted(extent) else frozenset())
        inside = _Scope(scope.facts.with_range(loop.var, extent), tainted)
        goes_on = loop.kind in (LoopKind.PARALLEL, LoopKind.BOUND) and isinstance(loop.body, For) and loop.body.kind is loop.kind
        around = nest | {loop.var}
        is_launch = is_bound and around == self.launch
        may_be_empty = prove(const(0) < extent, scope.facts) is not True
        if may_be_empty and scope.is_tainted(extent):
            self.kept |= {loop.var}
        body, wanted = self.statement(loop.body, inside, around if goes_on else frozenset())
        if not goes_on:
            kept = is_launch or bool(around & self.kept)
            stay, leave = _split(wanted, lambda test: kept or bool(around & test.needs) or not self._may_leave(test, scope))
            body, wanted = self.wrap(body, stay), leave
        if may_be_empty:
            wanted = [test.outside(extent) for test in wanted]
        self.launch = outer
        return replace(loop, extent=extent, body=body), _unique([*tests, *wanted])

    def _if(self, stmt: If, scope: _Scope) -> Tested:
        """Tests of a branch that speak of nothing that the condition speaks of may stand outside, unless sizes alone choose the branch: an
        index at which a tensor of one element begins is none of an empty one."""
        condition, tests = self.expression(stmt.condition, scope)
        spoken = variables(condition)
        is_by_size = spoken <= {*self.func.dims}

        def branch(body: Stmt | None, holds: Expr) -> Stmt | None:
            if body is None:
                return None
            inner = scope.beyond(holds)
            changed, wanted = self.statement(body, inner)
            stay, leave = _split(
                wanted, lambda test: is_by_size or bool(spoken & test.needs) or not self._may_leave(test, scope)
            )
            tests.extend(leave)
            return self.wrap(changed, stay)

        then_body, else_body = branch(stmt.then_body, condition), branch(stmt.else_body, logical_not(condition))
        return replace(stmt, condition=condition, then_body=then_body, else_body=else_body), _unique(tests)

    def _may_leave(self, test: _Test, scope: _Scope) -> bool:
        """Whether a test may be made where its statement may not run: it reads nothing that is written, and nothing out of range."""
        if not test.is_stable:
            return False
        facts = scope.facts
        for name in test.needs & self.test_of.keys():
            if name is self.test_of[name].index:
                facts = facts.with_range(name, self.test_of[name].extent)
        return _reads_within((test.loaded, test.value, test.extent), facts)

    def wrap(self, body: Stmt, tests: list[_Test]) -> Stmt:
        """`body`, if all tests are passed; the first is outermost."""
        for test in reversed(tests):
            loaded, holds, words = test.loaded, test.holds, (const(1), test.given, test.extent)
            if test.asked is not TRUE:
                loaded, holds = select(test.asked, loaded, const(0)), logical_or(logical_not(test.asked), holds)
            report = seq(*(Store(self.faults, (const(test.row), const(k)), word) for k, word in enumerate(words)))
            fresh = {test.given: Var(test.given.name, i64), test.index: Var(test.index.name, i64)}
            guarded: Stmt = substitute(If(holds, body, report), fresh)
            value = substitute(test.value, fresh)
            if value is fresh[test.given]:
                guarded = substitute(guarded, {fresh[test.index]: value})
            else:
                guarded = Let(fresh[test.index], value, guarded)
            body = Let(fresh[test.given], loaded, guarded)
        return body

    # -- expressions

    def expression(self, expr: Expr, scope: _Scope) -> tuple[Expr, list[_Test]]:
        """The expression over names that have been tested, and the tests."""
        tests: list[_Test] = []
        return self._expr(expr, scope, tests), _unique(tests)

    def _expr(self, expr: Expr, scope: _Scope, tests: list[_Test]) -> Expr:
        match expr:
            case Checked():
                return self._checked(expr, scope, tests)
            case Select(condition=condition, true_value=a, false_value=b):
                c = self._expr(condition, scope, tests)
                yes = self._expr(a, scope.within(c), tests)
                no = self._expr(b, scope.within(logical_not(c)), tests)
                return expr if c is condition and yes is a and no is b else Select(c, yes, no)
            case Load(buffer=buffer, indices=indices):
                return Load(buffer, self._proved(buffer, [self._expr(index, scope, tests) for index in indices], scope, tests))
        return map_children(expr, lambda child: self._expr(child, scope, tests) if isinstance(child, Expr) else child)

    def _checked(self, expr: Checked, scope: _Scope, tests: list[_Test]) -> Expr:
        index, extent, given = (self._expr(part, scope, tests) for part in (expr.index, expr.extent, expr.given))
        test = self._test(index, extent, given, AccessCheck(expr.origin, expr.message), scope)
        tests.append(test)
        value = _renamed(expr.value, expr.index, test.index)
        if expr.given is not expr.index:
            value = _renamed(value, expr.given, test.given)
        return self._expr(value, scope.with_index(test), tests)

    def _proved(self, buffer: Buffer, indices: list[Expr], scope: _Scope, tests: list[_Test]) -> tuple[Expr, ...]:
        """Indices that are in range by proof, or by a test."""
        result = []
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            if scope.is_tainted(index) and not _is_within(index, extent, scope.facts):
                check = AccessCheck(0, f"index {{index}} is out of range for axis {axis} of size {{size}} of {buffer.name}")
                index = cast(index, i64)
                test = self._test(index, extent, index, check, scope, of_operator=False)
                tests.append(test)
                index = test.index
            result.append(index)
        return tuple(result)

    def _test(
        self, index: Expr, extent: Expr, given: Expr, check: AccessCheck, scope: _Scope, of_operator: bool = True
    ) -> _Test:
        """The test of an index; the same object when asked again, so that statements side by side share it.

        An operator looks at all of its indices: whether a choice by data takes its result does not matter, unless what the test reads is
        there in that branch alone. An access that is no operator's own happens where it is chosen: in padding, say, nothing is read.
        """
        read = (index, extent, given)
        is_plain = of_operator and not any(one.in_branch for one in self._earlier(*read)) and _reads_within(read, scope.facts)
        path = scope.plain_path if is_plain else scope.path
        key = (index, extent, given, check, path)
        if key not in self.made:
            name, number = Var("given", i64), Var("index", i64)
            always = path is TRUE
            inside = logical_and(const(0) <= number, number < extent)
            earlier = self._earlier(*read, path)
            test = _Test(
                given=name,
                loaded=given if always else select(path, given, const(0)),
                index=number,
                value=_renamed(index, given, name),
                holds=inside if always else logical_or(logical_not(path), inside),
                extent=extent,
                row=self.rows.setdefault(check, len(self.rows)),
                source=index,
                path=path,
                in_branch=path is not scope.plain_path,
                needs=frozenset().union(*map(variables, (*read, path)), *(one.needs for one in earlier)),
                is_stable=not any(buffers_read(part) & self.written for part in (*read, path)) and all(one.is_stable for one in earlier),
            )
            self.made[key] = test
            self.test_of[name] = self.test_of[number] = test
        return self.made[key]

    def _earlier(self, *parts: Expr) -> list[_Test]:
        """The tests whose numbers these expressions mention."""
        return [self.test_of[var] for part in parts for var in variables(part) if var in self.test_of]


def _renamed(expr: Expr, source: Expr, name: Var) -> Expr:
    """`expr` with `name` for `source`, but for the shapes of buffers, which others share: a literal index may be one of their dims."""
    buffers: dict[Node, Node] = {node: node for node in binders(expr) if isinstance(node, Buffer)}
    return substitute(expr, {**buffers, source: name})


def _is_within(index: Expr, extent: Expr, facts: Facts) -> bool:
    return prove(const(0, index.dtype) <= index, facts) is True and prove(cast(index, i64) < extent, facts) is True


def _plain(condition: Expr) -> Expr:
    """The part of a condition that loads nothing."""
    return logical_and(*(part for part in conjuncts(condition) if not reads_memory(part)))


def _reads_within(parts: Iterable[Expr], facts: Facts) -> bool:
    """Whether everything that is loaded, where it is, lies in its buffer."""
    return all(_part_reads_within(part, facts) for part in parts)


def _part_reads_within(expr: Expr, facts: Facts) -> bool:
    match expr:
        case Select(condition=condition, true_value=a, false_value=b):
            branches = ((condition, facts), (a, facts.assume(condition)), (b, facts.assume(logical_not(condition))))
            return all(_part_reads_within(part, known) for part, known in branches)
        case Load(buffer=buffer, indices=indices):
            if not all(_is_within(index, extent, facts) for index, extent in zip(indices, buffer.shape, strict=True)):
                return False
    return all(_part_reads_within(child, facts) for child in children(expr) if isinstance(child, Expr))


def _unique(tests: Iterable[_Test]) -> list[_Test]:
    """Each test once, asked wherever one of them is."""
    found: dict[Var, _Test] = {}
    for test in tests:
        known = found.get(test.given)
        if known is not None and known is not test:
            test = replace_fields(known, asked=logical_or(known.asked, test.asked), needs=known.needs | test.needs)
        found[test.given] = test
    return list(found.values())


def _split(tests: list[_Test], stays: Callable[[_Test], bool]) -> tuple[list[_Test], list[_Test]]:
    """The tests that stay where they are, and those that may be made before. What needs a number that one that stays makes, stays."""
    stay: list[_Test] = []
    made: set[Var] = set()
    for test in tests:  # in order: what a test needs comes before it
        if stays(test) or made & test.needs:
            stay.append(test)
            made |= {test.given, test.index}
    return stay, [test for test in tests if test not in stay]
