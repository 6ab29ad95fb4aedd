"""What compiling and calling cost, apart from arithmetic: `python -m benchmarks.overheads`.

Call overhead of a one-node graph from Python; compile seconds of a model with an empty and with a filled object cache, and the
peak memory of a process that compiles it, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import helper

import tc
from benchmarks import zoo

_COMPILE = """
import json, resource, sys, time
import tc
start = time.perf_counter()
tc.compile(sys.argv[1])
seconds = time.perf_counter() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def call_overhead_us(rounds: int = 30, calls: int = 1000) -> tuple[float, float]:
    """Smallest and median microseconds of a call of relu on 32 floats, over rounds of many calls."""
    signature = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", signature[:1], signature[1:])
    module = tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    x = np.ones((4, 8), np.float32)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            module(x)
        times.append((time.perf_counter() - start) / calls * 1e6)
    return min(times), float(np.median(times))


def compile_cost(path: str, cache: str) -> tuple[float, float]:
    """Seconds and peak MiB of compiling a model in a new process that keeps its objects in `cache`."""
    environment = {**os.environ, "TC_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, path], env=environment, capture_output=True, text=True, check=True
    )
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet50", "minilm"])
    arguments = parser.parse_args()
    least, median = call_overhead_us()
    print(f"call overhead: {least:.1f} us smallest, {median:.1f} us median")
    for name in arguments.models:
        path = str(zoo.path(name))
        with tempfile.TemporaryDirectory() as cache:
            cold, peak = compile_cost(path, cache)
            warm, _ = compile_cost(path, cache)
        size = os.path.getsize(path) / 2**20
        print(f"{name}: compile {cold:.2f} s cold, {warm:.2f} s warm, peak {peak:.0f} MiB (model {size:.0f} MiB)")


if __name__ == "__main__":
    main()
