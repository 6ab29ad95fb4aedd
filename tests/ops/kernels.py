"""Run a single operator through its loops: tensor expressions, a PrimFunc, machine code."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import compile_object, link
from tc.ir.arith import Facts, evaluate
from tc.ir.dtype import from_numpy, pack, tensor_memory, unpack
from tc.ir.loop import PrimFunc
from tc.ir.types import tensor_type
from tc.ops.registry import OpDef, inference
from tc.passes.loop.check_accesses import check_accesses
from tc.passes.loop.lift_workspace import lift_workspace
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.simplify_loops import simplify_loops
from tc.runtime.pool import get_pool
from tc.target import Target, native_target
from tc.te import create_prim_func, placeholder
from tests.codegen.tile_model import emulated

Schedule = Callable[[PrimFunc], PrimFunc]


def make_prim_func(op: OpDef, arrays: list[np.ndarray | None], attrs: dict[str, Any]) -> PrimFunc:
    """The unscheduled PrimFunc of one call of `op`."""
    full = op.attrs(attrs)
    types = [None if a is None else tensor_type(a.shape, from_numpy(a.dtype)) for a in arrays]
    with inference(Facts()):
        results = op.infer_types(types, full)
        inputs = [
            None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)
        ]
        outputs = op.compute_tensors(inputs, full, results)
    return create_prim_func(op.name, [x for x in inputs if x is not None], outputs)


def finish(func: PrimFunc) -> PrimFunc:
    """What every kernel goes through after its schedule."""
    return check_accesses(lift_workspace(simplify_loops(lower_blocks(simplify_loops(func)))))


@functools.lru_cache(maxsize=4)
def build(func: PrimFunc, target: Target | None = None) -> Any:
    """Compile a PrimFunc without blocks, once while it is among the last ones; returns (function, keep-alive). UserError where it is for
    another CPU than this one.

    Instructions on tiles, where the target has them, are those of a model in Python: the processor need not have them.
    """
    target = target or native_target()
    machine = replace(target, features=tuple(name for name in target.features if not name.startswith("amx-")))
    machine.require_here()
    get_pool().start(2)
    text = emit_prim_func(func, "kernel", target.features).ir_text
    library = link([compile_object(text if machine == target else emulated(text), machine)])
    count = len(func.buffers)
    kind = ctypes.CFUNCTYPE(
        None, *[ctypes.c_void_p] * count, *[ctypes.c_int64] * len(func.dims), ctypes.c_int64
    )
    return kind(library.address("kernel")), library


def correlate(padded: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float64[n, o, h, w]: the convolution of padded images f[n, c, h, w] with weights f[o, c, i, j], as products of matrices."""
    rows, columns = weights.shape[2:]
    height, width = padded.shape[2] - rows + 1, padded.shape[3] - columns + 1
    images, kernels = padded.astype(np.float64), weights.astype(np.float64)
    total = np.zeros((len(weights), len(padded), height, width))
    for i in range(rows):
        for j in range(columns):
            total += np.tensordot(kernels[:, :, i, j], images[:, :, i : i + height, j : j + width], (1, 1))
    return total.transpose(1, 0, 2, 3)


def run(
    func: PrimFunc, arrays: list[np.ndarray], dims: tuple[int, ...] = (), threads: int = 2, target: Target | None = None
) -> list[np.ndarray]:
    """Run a finished PrimFunc, compiled for `target` or this machine, on arrays; returns its outputs (and workspaces)."""
    kernel, keep = build(func, target)
    env = dict(zip(func.dims, dims, strict=True))
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.outputs]
    results = [tensor_memory(buffer.dtype, shape) for buffer, shape in zip(func.outputs, shapes, strict=True)]
    inputs = [pack(np.ascontiguousarray(a)) for a in arrays]
    pointers = [a.ctypes.data for a in (*inputs, *results)]
    kernel(*pointers, *dims, threads)
    del keep
    return [unpack(memory, buffer.dtype, shape) for memory, buffer, shape in zip(results, func.outputs, shapes, strict=True)]
