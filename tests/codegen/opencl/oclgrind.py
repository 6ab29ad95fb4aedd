"""Finished PrimFuncs on Oclgrind, a simulated OpenCL device that reports races and reads of memory that nobody wrote.

    python -m tests.codegen.opencl.oclgrind softmax transpose

runs those of `tests.interp.launch_programs`, and each with every fault that `tests.interp.faults` puts into it, and prints a line of JSON
for each: the program, the fault ("" for none), what Oclgrind reported, and whether the results are right. In a process of its own, since
the simulator reads its options when it is loaded, and a fault may end it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tc.codegen.c.dialect import OPENCL
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.ir.arith import evaluate
from tc.ir.loop import PrimFunc
from tests.interp.faults import faults_of
from tests.interp.launch_programs import PROGRAMS

ROOT = Path(__file__).parents[3]
WITHOUT_RESTRICT = replace(OPENCL, restrict="")
"""Pointers without `restrict`, of which its compiler makes calls of an intrinsic that the simulator does not know."""

OPTIONS = {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_MAX_ERRORS": "1000000", "OCLGRIND_NUM_THREADS": "1"}


def runs_of(programs: Sequence[str], timeout_seconds: float = 600.0) -> list[dict[str, Any]]:
    """What came of programs and their faults."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **OPTIONS, "OCLGRIND_LOG": str(Path(folder, "log")), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.codegen.opencl.oclgrind", *programs]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"the simulator ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Simulator:
    """The device, and the reports that it writes."""

    def __init__(self) -> None:
        import pyopencl

        self.cl = pyopencl
        (platform,) = (each for each in pyopencl.get_platforms() if each.name == "Oclgrind")
        self.context = pyopencl.Context(platform.get_devices())
        self.queue = pyopencl.CommandQueue(self.context)
        self.log = Path(os.environ["OCLGRIND_LOG"])

    def run(self, func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int]) -> tuple[list[np.ndarray], str]:
        """The results of a function whose host code is launches alone, and the reports."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        flags = self.cl.mem_flags.READ_WRITE
        values = dict(zip(func.dims, dims, strict=True))
        shapes = [tuple(int(evaluate(dim, values)) for dim in buffer.shape) for buffer in func.buffers]
        hosts = [np.array(a) for a in arrays] + [np.zeros(s, b.dtype.numpy) for s, b in zip(shapes, func.buffers)][len(arrays) :]
        memory = {b: self.cl.Buffer(self.context, flags, max(h.nbytes, 1)) for b, h in zip(func.buffers, hosts, strict=True)}
        for buffer, host in list(zip(func.buffers, hosts, strict=True))[: len(arrays)]:
            self.cl.enqueue_copy(self.queue, memory[buffer], host)
        program = self.cl.Program(self.context, emit_launches(func, "kernel_", WITHOUT_RESTRICT)).build(list(WITHOUT_RESTRICT.options))
        for launch in launches_of(func):
            grid = [int(evaluate(extent, values)) for extent in launch.grid]
            numbers = [np.int64(values[scalar]) for scalar in launch.scalars]
            kernel = getattr(program, f"kernel__{launch.index}")
            sizes = tuple(n * t for n, t in zip(grid, launch.threads, strict=True))
            kernel(self.queue, sizes, launch.threads, *(memory[buffer] for buffer in launch.buffers), *numbers)
        self.queue.finish()
        for buffer, host in list(zip(func.buffers, hosts, strict=True))[len(arrays) :]:
            self.cl.enqueue_copy(self.queue, host, memory[buffer])
        return hosts[len(arrays) :], self.log.read_text(errors="replace")[begin:] if self.log.exists() else ""


def main(names: Sequence[str]) -> None:
    simulator = Simulator()
    for name in names:
        program = PROGRAMS[name]
        for what, func in [("", program.finished), *((what, changed) for what, _, changed in faults_of(program.finished))]:
            found, report = simulator.run(func, program.inputs(), program.dims)
            right = all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, program.expected(), strict=True))
            print(json.dumps({"program": name, "fault": what, "report": report[:1000], "right": right}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
