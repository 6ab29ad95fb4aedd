"""What launches report of indices that were out of range is the same in every run, and what the loops in order would report."""

from __future__ import annotations

from tc.ir.access import report_buffer
from tc.ir.expr import Buffer, Const, Load, const, logical_not, not_equal
from tc.ir.hints import NO_HINTS
from tc.ir.launch import has_launch
from tc.ir.loop import (
    Alloc,
    For,
    If,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
    in_place_inputs,
    is_statement,
    seq,
    walk_statements,
)
from tc.ir.node import Node, replace, transform
from tc.ir.structural import fresh_binders
from tc.ir.uses import buffers_read, buffers_written
from tc.passes.manager import loop_pass


@loop_pass
def report_in_order(func: PrimFunc) -> PrimFunc:
    """Let threads only note that a check failed; behind the launches, one thread finds out which one would be the last in order.

        for b in block.x(n):                                    for b in block.x(n):
            with let(t[b]) as given:                                with let(t[b]) as given:
                if 0 <= given and given < m: S                          if 0 <= given and given < m: S
                else:                                     =>            else: faults[0, 0] = 1
                    faults[0, 0] = 1                            if faults[0, 0] != 0:
                    faults[0, 1] = given                            for b in range(n):
                    faults[0, 2] = m                                    with let(t[b]) as given: ... faults[0, 1] = given ...

    All threads that note store the same, so the order in which they run does not show. A check of what the function itself computes cannot
    be made again behind it; its report is that of any one of the threads that fail. Comes after `check_accesses`.
    """
    report = report_buffer(func)
    if report is None or not has_launch(func.body):
        return func
    assert isinstance(func.body, Seq), "the report is cleared first"
    changed = buffers_written(func.body) | {node.buffer for node in walk_statements(func.body) if isinstance(node, Alloc)}
    changed |= {func.inputs[k] for k in in_place_inputs(func)}
    again: dict[int, Stmt] = {}
    clearing, body = _split(func.body, report)
    for row in range(_rows(report)):
        found = _only(body, report, row)
        if found is not None and buffers_read(found).isdisjoint(changed):
            again[row] = fresh_binders(found)
    if not again:
        return func
    noted = transform(body, lambda node: Seq(()) if _is_word(node, report, again) else None, is_statement)
    checks = [If(not_equal(Load(report, (const(row), const(0))), 0), found) for row, found in again.items()]
    return replace(func, body=seq(*clearing, noted, *checks))


def _rows(report: Buffer) -> int:
    rows = report.shape[0]
    assert isinstance(rows, Const), "a function has so many checks"
    return int(rows.value)


def _split(body: Seq, report: Buffer) -> tuple[tuple[Stmt, ...], Stmt]:
    """The stores that clear the report, and what comes behind them."""
    count = next(k for k, stmt in enumerate((*body.stmts, None)) if not (isinstance(stmt, Store) and stmt.buffer is report))
    return body.stmts[:count], seq(*body.stmts[count:])


def _is_word(node: Node, report: Buffer, rows: dict[int, Stmt]) -> bool:
    """Whether a store reports what was found, in one of these rows."""
    match node:
        case Store(buffer=buffer, indices=(Const(value=row), Const(value=word))):
            return buffer is report and row in rows and word != 0
    return False


def _only(stmt: Stmt, report: Buffer, row: int) -> Stmt | None:
    """A statement with nothing but the reports of a row, in order; None when it has none."""
    match stmt:
        case Store(buffer=buffer, indices=(Const(value=number), _)) if buffer is report:
            return stmt if number == row else None
        case Seq(stmts=stmts):
            parts = [found for part in stmts if (found := _only(part, report, row)) is not None]
            return seq(*parts) if parts else None
        case For(body=body):
            inner = _only(body, report, row)
            return None if inner is None else replace(stmt, body=inner, kind=LoopKind.SERIAL, thread="", hints=NO_HINTS)
        case Let(body=body) | Alloc(body=body) | While(body=body):
            inner = _only(body, report, row)
            return None if inner is None else replace(stmt, body=inner)
        case If(then_body=then_body, else_body=else_body):
            yes = _only(then_body, report, row)
            no = None if else_body is None else _only(else_body, report, row)
            if yes is None:
                return None if no is None else If(logical_not(stmt.condition), no)
            return replace(stmt, then_body=yes, else_body=no)
    return None
