"""What checking indices costs: `python -m benchmarks.index_checks`.

Each model is compiled twice, with the checks and without them, and both take turns. Without them a wrong index touches foreign memory;
such modules exist here alone.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import onnx
from onnx import helper

import tc
from benchmarks import zoo
from tc.codegen import backends
from tc.codegen.llvm.backend import CPU
from tc.ir.expr import Checked
from tc.ir.loop import PrimFunc
from tc.ir.node import Node, replace, transform
from tc.measure.harness import Plan, time_interleaved
from tc.passes.manager import Pass, PassCall


def trust_indices(func: PrimFunc) -> PrimFunc:
    """What `check_accesses` would leave of a PrimFunc if every index could be trusted."""

    def plain(node: Node) -> Node | None:
        return node.value if isinstance(node, Checked) else None

    return replace(func, body=transform(func.body, plain))


@contextmanager
def without_checks() -> Iterator[None]:
    trusting = PassCall(Pass("trust_indices", "loop", trust_indices), ())
    finish = (*(call for call in CPU.finish if call.target.name != "check_accesses"), trusting)
    backends.BACKENDS = (dataclasses.replace(CPU, finish=finish),)
    try:
        yield
    finally:
        backends.BACKENDS = (CPU,)


Made = tuple[onnx.ModelProto | str, dict[str, np.ndarray]]


def _model(op: str, arrays: list[np.ndarray], **attrs: object) -> Made:
    names = [f"x{k}" for k in range(len(arrays))]
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names, arrays)]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), dict(zip(names, arrays))


def minilm(rng: np.random.Generator) -> Made:
    return str(zoo.path("minilm")), zoo.random_inputs("minilm", rng)


def embedding(rng: np.random.Generator) -> Made:
    """26 tables of 20,000 rows of 64, as in a recommendation model; one row of each for 512 samples, summed up."""
    tables, rows, width, samples = 26, 20_000, 64, 512
    nodes = [helper.make_node("Gather", ["table", f"i{k}"], [f"e{k}"]) for k in range(tables)]
    nodes.append(helper.make_node("Sum", [f"e{k}" for k in range(tables)], ["y"]))
    names = [f"i{k}" for k in range(tables)]
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.INT64, [samples]) for n in names]
    inputs.append(helper.make_tensor_value_info("table", onnx.TensorProto.FLOAT, [rows, width]))
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [samples, width])])
    arrays = {n: rng.integers(0, rows, samples) for n in names}
    arrays["table"] = rng.standard_normal((rows, width)).astype(np.float32)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), arrays


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


CASES: dict[str, Callable[[np.random.Generator], Made]] = {
    "MiniLM": minilm,
    "embedding, 26 x 512 rows of 64": embedding,
    "GatherND, 20,000 rows of 64": lambda r: _model("GatherND", [_floats(r, 100, 100, 64), r.integers(0, 100, (20_000, 2))]),
    "GatherND, 200,000 numbers": lambda r: _model("GatherND", [_floats(r, 300, 300), r.integers(0, 300, (200_000, 2))]),
    "Gather, 200,000 numbers": lambda r: _model("Gather", [_floats(r, 5000), r.integers(0, 5000, 200_000)]),
    "GatherElements, 512 x 512": lambda r: _model("GatherElements", [_floats(r, 512, 512), r.integers(0, 512, (512, 512))], axis=1),
    "ScatterND, 20,000 rows of 16": lambda r: _model(
        "ScatterND", [_floats(r, 30_000, 16), r.permutation(30_000)[:20_000, None], _floats(r, 20_000, 16)]
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each line")
    given = parser.parse_args()
    print("time with checks over time without: median and quartiles of the rounds")
    for threads in map(int, given.threads.split(",")):
        for name, make in CASES.items():
            model, arrays = make(np.random.default_rng(0))
            checked = tc.compile(_as_proto(model), threads=threads)
            with without_checks():
                trusting = tc.compile(_as_proto(model), threads=threads)
            steps = {"checked": partial(checked.run, arrays), "trusting": partial(trusting.run, arrays)}
            ratio = time_interleaved(steps, Plan(budget_seconds=given.seconds)).ratio("checked", "trusting")
            print(f"{name:34} {threads} threads  {ratio}", flush=True)


def _as_proto(model: onnx.ModelProto | str) -> onnx.ModelProto:
    """A message is not looked up in the cache of modules, where both would be one."""
    return onnx.load(model) if isinstance(model, str) else model


if __name__ == "__main__":
    main()
