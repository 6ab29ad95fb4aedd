"""Ask a question once: conditions move out of the loops that they do not depend on."""

from __future__ import annotations

from tc.ir.expr import conjuncts, logical_and
from tc.ir.launch import is_block_loop
from tc.ir.loop import Alloc, For, If, PrimFunc, Seq, Stmt, is_statement, seq
from tc.ir.node import Node, replace, transform, walk
from tc.ir.uses import reads_memory
from tc.passes.manager import loop_pass


@loop_pass
def hoist_guards(func: PrimFunc) -> PrimFunc:
    """Move each condition outside the loops whose variable it does not use; neighbours with equal conditions share one.

        for i in range(n):                    if k < m:
            for j in range(8):                    for i in range(n):
                if k < m and i < p: S(i, j)  =>       if i < p:
                                                          for j in range(8): S(i, j)

    Conditions that read memory stay, and so do those with an `else`. None leaves the blocks of a launch.
    """

    def hoist(node: Node) -> Node | None:
        match node:
            case For(var=var, body=If(else_body=None) as guard) if not is_block_loop(node):
                return _outside(node, guard, lambda part: not any(inner is var for inner in walk(part)))
            case Alloc(body=If(else_body=None) as guard):
                return _outside(node, guard, lambda part: True)
            case Seq(stmts=stmts):
                return _joined(stmts)
            case If(condition=outer, then_body=If(condition=inner, else_body=None, then_body=body), else_body=None):
                return replace(node, condition=logical_and(outer, inner), then_body=body)
        return None

    return replace(func, body=transform(func.body, hoist, is_statement))


def _outside(node: For | Alloc, guard: If, is_free: object) -> Stmt | None:
    parts = conjuncts(guard.condition)
    free = [part for part in parts if is_free(part) and not reads_memory(part)]  # type: ignore[operator]
    if not free:
        return None
    rest = [part for part in parts if part not in free]
    body = replace(guard, condition=logical_and(*rest)) if rest else guard.then_body
    return If(logical_and(*free), replace(node, body=body))


def _joined(stmts: tuple[Stmt, ...]) -> Stmt | None:
    """Statements with runs of equal guards put under one."""
    result: list[Stmt] = []
    for stmt in stmts:
        last = result[-1] if result else None
        if _same_guard(last, stmt):
            assert isinstance(last, If) and isinstance(stmt, If)
            result[-1] = replace(last, then_body=seq(last.then_body, stmt.then_body))
        else:
            result.append(stmt)
    return seq(*result) if len(result) < len(stmts) else None


def _same_guard(a: Stmt | None, b: Stmt) -> bool:
    if not isinstance(a, If) or not isinstance(b, If) or a.else_body is not None or b.else_body is not None:
        return False
    return a.condition is b.condition and not reads_memory(a.condition)
