"""What a compiled module says of itself: its inputs and outputs, its kernels, where their time goes."""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.dtype import DType
from tc.ir.expr import Const
from tc.ir.types import TensorType


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: its name, dtype, and shape (ints, and dim names or formulas as text)."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def tensor_info(name: str, type_: TensorType) -> TensorInfo:
    """The facts about an input or output of this type."""
    shape = tuple(int(dim.value) if isinstance(dim, Const) else str(dim) for dim in type_.shape)
    return TensorInfo(name, type_.dtype, shape)


@dataclass(frozen=True)
class KernelReport:
    """One kernel: its name, the model's nodes that it computes, how often it is called, how it was scheduled.

    `cached`: its code came from the cache; `tuned`: its schedule from a tuning database.
    """

    name: str
    nodes: tuple[str, ...]
    calls: int = 1
    rule: str = ""
    cached: bool = False
    tuned: bool = False


@dataclass(frozen=True)
class KernelTime:
    """Where the time of a call goes: a kernel launch, the model's node it ends with, and its seconds in one call of the module."""

    node: str
    kernel: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """What became of a model: kernels, nodes on reference kernels, sizes and seconds of compilation by stage.

    `notes`: what a tuning database holds that could not be used, and why.
    """

    kernels: tuple[KernelReport, ...]
    fallbacks: tuple[str, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()
    arena: str = "0"
    constant_bytes: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.kernels)} kernels, arena {self.arena} bytes, constants {self.constant_bytes} bytes"]
        for kernel in self.kernels:
            times = f" x{kernel.calls}" if kernel.calls > 1 else ""
            rule = f"{kernel.rule}, tuned" if kernel.tuned else kernel.rule
            lines.append(f"  {kernel.name}{times} [{rule}] <- {', '.join(kernel.nodes)}")
        lines += [f"  reference kernel: {node}" for node in self.fallbacks]
        lines += [f"  note: {note}" for note in self.notes]
        lines.append("seconds: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in self.seconds))
        return "\n".join(lines)
