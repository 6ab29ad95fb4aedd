"""Kernels for devices, their launches run by the interpreter of PTX, one after the other as the host stub would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.codegen.launches import BoxMap, launches_of
from tc.ir.arith import evaluate
from tc.ir.dtype import pack, tensor_memory, unpack
from tc.ir.expr import Var
from tc.ir.loop import For, PrimFunc
from tests.codegen.c.devices import run_host
from tests.ptx.launch import Report, run
from tests.ptx.tensor_map import TensorMap


def box_map(each: BoxMap, memory: np.ndarray, env: dict[Var, int]) -> TensorMap | bytes:
    """What the host describes; nothing for an empty tensor."""
    shape = [int(evaluate(dim, env)) for dim in each.shape]
    if 0 in shape:
        return bytes(128)
    return TensorMap(memory.reshape(shape), tuple(reversed(each.extents)), 128)


def run_launches(
    func: PrimFunc, text: str, symbol: str, arrays: Sequence[np.ndarray], dims: Sequence[int] = (),
    reports: list[Report] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The outputs of a PrimFunc whose launch k is the kernel `symbol`_k of a PTX text; memory that nobody writes holds rubbish.

    What each launch did is added to `reports`.
    """
    env = dict(zip(func.dims, dims, strict=True))
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.outputs]
    results = [tensor_memory(buffer.dtype, shape) for buffer, shape in zip(func.outputs, shapes, strict=True)]
    for memory in results:
        memory.reshape(-1).view(np.uint8)[...] = 0xCD
    hosts = [*(pack(np.array(a, order="C")) for a in arrays), *results]
    where = dict(zip(func.buffers, hosts, strict=True))
    found = {launch.body: launch for launch in launches_of(func)}
    reports = [] if reports is None else reports

    def launch(body: For, values: dict[Var, int]) -> None:
        this = found[body]
        grid = tuple(int(evaluate(size, values)) for size in this.grid)
        if all(grid):
            maps = [box_map(each, where[each.source], env) for each in this.maps]
            arguments = [*maps, *(where[buffer] for buffer in this.buffers), *(values[var] for var in this.scalars)]
            shared = this.shared_bytes if this.asks_for_shared else 0
            reports.append(run(text, f"{symbol}_{this.index}", grid, this.threads, arguments, shared))

    run_host(func.body, env, launch)
    return [unpack(m, buffer.dtype, shape) for m, buffer, shape in zip(results, func.outputs, shapes, strict=True)]
