"""What is known where a statement stands, from the statements around it."""

from __future__ import annotations

from tc.ir.bounds import Facts
from tc.ir.expr import logical_not
from tc.ir.loop import For, If, PrimFunc, Stmt


def facts_along(func: PrimFunc, path: tuple[Stmt, ...], stmt: Stmt) -> Facts:
    """The dims' promises, the ranges of the loops around `stmt` (`path`, outermost first), and the conditions that it stands under."""
    facts = Facts.of(func.facts)
    for each, inner in zip(path, (*path, stmt)[1:], strict=True):
        match each:
            case For(var=var, extent=extent):
                facts = facts.with_range(var, extent)
            case If(condition=condition, else_body=else_body):
                facts = facts.assume(condition if inner is not else_body else logical_not(condition))
    return facts
