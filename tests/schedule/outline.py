"""A PrimFunc in a few lines: what tests of schedules look at."""

from __future__ import annotations

from tc.ir.expr import TRUE
from tc.ir.loop import Alloc, Block, For, If, IntrinsicCall, LoopKind, PrimFunc, Seq, Stmt, Store


def outline(func: PrimFunc) -> str:
    """Loops, allocations, blocks with the values of their axes and their stores, one a line, indented."""
    lines: list[str] = []
    _write(func.body, 0, lines)
    return "\n".join(lines)


def _write(stmt: Stmt, depth: int, lines: list[str]) -> None:
    def emit(text: str, deeper: int = 0) -> None:
        lines.append("  " * (depth + deeper) + text)

    match stmt:
        case For(var=var, extent=extent, body=body, kind=kind):
            mark = "" if kind is LoopKind.SERIAL else f"{kind.value} "
            emit(f"{mark}{var.name} < {extent}")
            _write(body, depth + 1, lines)
        case Alloc(buffer=buffer, body=body):
            emit(f"{buffer.scope} {buffer}")
            _write(body, depth, lines)
        case Seq(stmts=stmts):
            for inner in stmts:
                _write(inner, depth, lines)
        case Block(name=name, axes=axes, where=where, init=init, body=body):
            values = ", ".join(f"{axis.var.name}={axis.value}" for axis in axes)
            emit(f"{name}({values})" + ("" if where is TRUE else f" if {where}"))
            if init is not None:
                emit("start", 1)
                _write(init, depth + 2, lines)
            _write(body, depth + 1, lines)
        case If(condition=condition, then_body=then_body):
            emit(f"if {condition}")
            _write(then_body, depth + 1, lines)
        case Store(buffer=buffer, indices=indices, value=value):
            emit(f"{buffer.name}[{', '.join(map(str, indices))}] = {value}")
        case IntrinsicCall(name=name, operands=operands):
            emit(f"{name}({', '.join(map(str, operands))})")
        case _:
            emit(type(stmt).__name__)
