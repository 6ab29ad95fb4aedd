"""Finished PrimFuncs on Oclgrind, a simulated OpenCL device that reports races and reads of memory that nobody wrote.

    python -m tests.codegen.opencl.oclgrind scan transpose rules:softmax

runs those of `tests.interp.launch_programs`, each with every fault that `tests.interp.faults` puts into it, or what the rules make of some
problems of a class. It prints a line of JSON for each run: the program, the fault ("" for none), what
Oclgrind reported, and whether the results are right. In a process of its own, since the simulator reads its options when it is loaded, and
a fault may end it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tc.codegen.c.dialect import OPENCL
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.interp import run_prim_func
from tc.ir.access import report_buffer
from tc.ir.arith import evaluate
from tc.ir.loop import PrimFunc
from tc.target import Target
from tests.codegen.opencl.kernels import finished
from tests.interp.faults import faults_of
from tests.interp.launch_programs import PROGRAMS
from tests.schedule.gpu.problems import DEVICE_CLASSES
from tests.schedule.random_problems import CLASSES as ANY_CLASSES

CLASSES = {**ANY_CLASSES, **DEVICE_CLASSES}
DEVICE = Target.parse("opencl:generic")
MOST_ELEMENTS = 2000
ROOT = Path(__file__).parents[3]
PLAIN = replace(OPENCL, restrict="", options=(*OPENCL.options, "-cl-opt-disable"))
"""Code as it is written: the optimizer, and pointers with `restrict`, make instructions that the simulator does not know."""

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
        self.kept: list[Any] = []  # of memory that was freed and is used again it says that nobody wrote it
        self.log = Path(os.environ["OCLGRIND_LOG"])

    def run(self, func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int]) -> tuple[list[np.ndarray], str]:
        """The results and workspaces of a function whose host code is launches alone, and the reports."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        context, queue = self.context, self.queue
        values = dict(zip(func.dims, dims, strict=True))
        made = [np.zeros([evaluate(dim, values) for dim in buffer.shape], buffer.dtype.numpy) for buffer in func.buffers[len(arrays) :]]
        hosts = [np.array(array) for array in arrays] + made
        memory = [self.cl.Buffer(context, self.cl.mem_flags.READ_WRITE, max(host.nbytes, 1)) for host in hosts]
        self.kept += memory
        for k, buffer in enumerate(func.buffers):
            if hosts[k].nbytes and (k < len(arrays) or buffer is report_buffer(func)):
                self.cl.enqueue_copy(queue, memory[k], hosts[k])
        program = self.cl.Program(context, emit_launches(func, "kernel_", PLAIN)).build(list(PLAIN.options))
        for launch in launches_of(func):
            sizes = [int(evaluate(extent, values)) * threads for extent, threads in zip(launch.grid, launch.threads, strict=True)]
            given = [memory[func.buffers.index(buffer)] for buffer in launch.buffers]
            numbers = [np.int64(values[scalar]) for scalar in launch.scalars]
            if all(sizes):
                getattr(program, f"kernel__{launch.index}")(queue, sizes, launch.threads, *given, *numbers)
        for k in range(len(arrays), len(hosts)):
            if hosts[k].nbytes:
                self.cl.enqueue_copy(queue, hosts[k], memory[k])
        return made, self.log.read_text(errors="replace")[begin:] if self.log.exists() else ""

    def tell(self, name: str, fault: str, func: PrimFunc, given: tuple[Any, ...], expected: Sequence[np.ndarray]) -> None:
        """Run one and print what came of it."""
        found, report = self.run(func, *given)
        right = all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, expected, strict=False))  # workspaces follow
        print(json.dumps({"program": name, "fault": fault, "report": report[:1000], "right": right}), flush=True)


def tell_of_faults(simulator: Simulator, name: str) -> None:
    """A program, and the same with faults."""
    program = PROGRAMS[name]
    for what, func in [("", program.finished), *((what, changed) for what, _, changed in faults_of(program.finished))]:
        simulator.tell(name, what, func, (program.inputs(), program.dims), program.expected())


def tell_of_rules(simulator: Simulator, name: str, seeds: range = range(3)) -> None:
    """What the rules make of random problems of a class, those of few numbers."""
    for seed in seeds:
        func, arrays, dims = CLASSES[name](np.random.default_rng([zlib.crc32(name.encode()), seed]))
        if sum(array.size for array in arrays) <= MOST_ELEMENTS:
            simulator.tell(f"{name} {seed}", "", finished(func, DEVICE), (arrays, dims), run_prim_func(func, arrays, dims))


def main(names: Sequence[str]) -> None:
    simulator = Simulator()
    for name in names:
        kind, _, rest = name.rpartition(":")
        (tell_of_rules if kind == "rules" else tell_of_faults)(simulator, rest)


if __name__ == "__main__":
    main(sys.argv[1:])
