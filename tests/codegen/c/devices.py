"""Run launches on the OpenCL device for CPUs that comes as a package, and compile CUDA-C without a device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA, OPENCL
from tc.codegen.c.helpers import Helpers
from tc.codegen.c.host import unit_text
from tc.codegen.c.launch import write_launch
from tc.codegen.launches import launches_of
from tc.codegen.opencl.device import own_options
from tc.ir.arith import evaluate
from tc.ir.dtype import pack, tensor_memory, unpack
from tc.ir.expr import Var
from tc.ir.loop import For, If, Let, LoopKind, PrimFunc, Seq, Stmt
from tests.opencl_driver import need_opencl

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc is here")


def opencl_context():
    """A context and a queue on PoCL; skips where it is not there."""
    need_opencl()
    import pyopencl as cl

    devices = [device for platform in cl.get_platforms() if "Portable" in platform.name for device in platform.get_devices()]
    if not devices:
        pytest.skip("no OpenCL device for the CPU is here")
    context = cl.Context(devices[:1])
    return context, cl.CommandQueue(context)


class OpenClPrograms:
    """The launches of many PrimFuncs in one program."""

    def __init__(self, funcs: Sequence[PrimFunc], context: object, queue: object) -> None:
        import pyopencl as cl

        self.queue, self.context, helpers = queue, context, Helpers(OPENCL)
        self.launches = {id(func): [(launch, f"k{n}_{launch.index}") for launch in launches_of(func)] for n, func in enumerate(funcs)}
        texts = [write_launch(helpers, func, launch, name) for func in funcs for launch, name in self.launches[id(func)]]
        self.text = unit_text(helpers, texts)
        self.program = cl.Program(context, self.text).build(options=[*OPENCL.options, *own_options(context.devices[0])])

    def run(self, func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int] = ()) -> list[np.ndarray]:
        """The outputs, and workspaces."""
        import pyopencl as cl

        env = dict(zip(func.dims, dims, strict=True))
        shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.outputs]
        results = [tensor_memory(buffer.dtype, shape) for buffer, shape in zip(func.outputs, shapes, strict=True)]
        hosts = [*(pack(np.ascontiguousarray(a)) for a in arrays), *results]
        memory = [cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(h.nbytes, 1)) for h in hosts]
        for block, host in zip(memory, hosts, strict=True):
            if host.nbytes:
                cl.enqueue_copy(self.queue, block, host)
        where = dict(zip(func.buffers, memory, strict=True))
        named = {launch.body: (launch, name) for launch, name in self.launches[id(func)]}

        def launch(body: For, values: dict[Var, int]) -> None:
            found, name = named[body]
            grid = [int(evaluate(size, values)) for size in found.grid]
            if all(grid):
                sizes = tuple(g * t for g, t in zip(grid, found.threads, strict=True))
                arguments = [*(where[buffer] for buffer in found.buffers), *(np.int64(values[var]) for var in found.scalars)]
                getattr(self.program, name)(self.queue, sizes, found.threads, *arguments)

        run_host(func.body, env, launch)
        for block, host in list(zip(memory, hosts, strict=True))[len(func.inputs) :]:
            if host.nbytes:
                cl.enqueue_copy(self.queue, host, block)
        self.queue.finish()
        return [unpack(m, buffer.dtype, shape) for m, buffer, shape in zip(results, func.outputs, shapes, strict=True)]


def run_host(stmt: Stmt, values: dict[Var, int], launch) -> None:
    """Host code, its launches by `launch`."""
    match stmt:
        case For(kind=LoopKind.BOUND):
            launch(stmt, values)
        case For(var=var, extent=extent, body=body):
            for number in range(int(evaluate(extent, values))):
                run_host(body, {**values, var: number}, launch)
        case Let(var=var, value=value, body=body):
            run_host(body, {**values, var: int(evaluate(value, values))}, launch)
        case If(condition=condition, then_body=first, else_body=second):
            chosen = first if evaluate(condition, values) else second
            if chosen is not None:
                run_host(chosen, values, launch)
        case Seq(stmts=stmts):
            for inner in stmts:
                run_host(inner, values, launch)
        case _:
            raise AssertionError(f"host code with {type(stmt).__name__}")


def cuda_text(funcs: Sequence[PrimFunc]) -> str:
    """All launches of PrimFuncs as one text."""
    helpers = Helpers(CUDA)
    launches = [(f, each, f"k{n}_{each.index}") for n, f in enumerate(funcs) for each in launches_of(f)]
    return unit_text(helpers, [write_launch(helpers, func, launch, name) for func, launch, name in launches])


def compile_cuda(text: str, folder: Path, arch: str) -> None:
    """By nvcc; warnings are errors."""
    source = folder / "kernels.cu"
    source.write_text(text)
    command = [NVCC, "-cubin", f"-arch={arch}", "-Werror", "all-warnings", *CUDA.options, str(source), "-o", str(folder / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


