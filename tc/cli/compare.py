"""`tc compare`: the values of all nodes of a model beside those of another runtime, and the first node that differs.

Both compute the model with all values in between as outputs, so that no kernel hides what it does inside: what is compared is what each
node means. The outputs of the model as it is compiled, with everything fused, are compared as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference
from rich.console import Console

import tc
from tc.check.relative_error import relative_error
from tc.cli.options import add_compile_arguments, check_tolerance, compile_options, need_model
from tc.cli.outcome import Outcome, format_array, make_table
from tc.cli.reference import distance
from tc.cli.run import add_input_arguments, hint_at_dims, make_inputs
from tc.errors import UsageError
from tc.frontend.onnx.reading import whole_proto
from tc.fuzz.evaluate import Failed, run_onnxruntime, run_reference
from tc.ir.dtype import from_numpy

EPILOG = """\
examples:
  tc compare model.onnx                                  beside ONNX Runtime, on random inputs
  tc compare model.onnx --inputs in.npz --all            every node
  tc compare model.onnx --against reference              beside ONNX's reference evaluator
  tc compare model.onnx --precision bf16 --tolerance 1e-2
exit code 3 when a node or an output differs by more than the tolerance
"""

RUNTIMES = {"onnxruntime": run_onnxruntime, "reference": run_reference}


@dataclass(frozen=True)
class ValueDifference:
    """How a value compares. error: the largest difference over the largest value of the other runtime, infinite where shapes, dtypes, NaNs
    or infinities differ; ulps: the largest difference in units in the last place, None where nothing can be counted so."""

    node: str
    op_type: str
    value: str
    shape: str
    error: float
    ulps: int | None
    index: tuple[int, ...] = ()
    found: float | None = None
    expected: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument(
        "--against", choices=RUNTIMES, default="onnxruntime", help="onnxruntime (default; its graph optimizations are off) or reference"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest difference over largest value of a node (default 1e-4)"
    )
    parser.add_argument("--all", action="store_true", help="list every node, not only those around the first that differs")
    add_input_arguments(parser)
    add_compile_arguments(parser)


def execute(args: argparse.Namespace) -> Outcome:
    """Compile twice, run both, compare; exit code 3 when something differs."""
    need_model(args.model, "compare", "which no other runtime can read")
    check_tolerance(args.tolerance)
    model = whole_proto(args.model)
    options = compile_options(args)
    module = tc.compile(args.model, **options)
    inputs = make_inputs(module, args)
    with hint_at_dims(module, args):
        whole = module.run(inputs)
    makers, types = values_of(model)
    names = list(makers)
    values = [types[name] for name in names] or list(model.graph.output)  # of a model without nodes its results
    found, expected = _run_both(model, values, inputs, args.against, options)
    nodes = [difference(makers[name], name, found[name], expected[name]) for name in names if isinstance(expected[name], np.ndarray)]
    outputs = [
        difference(None, name, whole[name], expected[name]) for name in whole if isinstance(expected.get(name), np.ndarray)
    ]
    first = next((k for k, each in enumerate(nodes) if not each.error <= args.tolerance), None)
    wrong = [each.value for each in outputs if not each.error <= args.tolerance]
    data: dict[str, Any] = {
        "model": str(args.model),
        "against": args.against,
        "tolerance": args.tolerance,
        "first": None if first is None else asdict(nodes[first]),
        "nodes": [asdict(each) for each in nodes],
        "outputs": [asdict(each) for each in outputs],
    }
    shown = nodes if args.all or (first is None and len(nodes) < 12) else _around(nodes, first)
    return Outcome(data, lambda console: show(console, data, shown, outputs, wrong), 0 if first is None and not wrong else 3)


def values_of(model: onnx.ModelProto) -> tuple[dict[str, onnx.NodeProto], dict[str, onnx.ValueInfoProto]]:
    """The nodes of the main graph by the tensors that they make, in order, and what is known of these."""
    inferred = shape_inference.infer_shapes(model).graph
    known = {info.name: info for info in (*inferred.value_info, *model.graph.output)}
    made = {name: node for node in model.graph.node for name in node.output if name}
    types = {name: known.get(name) or onnx.helper.make_empty_tensor_value_info(name) for name in made}
    return {name: node for name, node in made.items() if types[name].type.WhichOneof("value") in (None, "tensor_type")}, types


def _run_both(
    model: onnx.ModelProto, values: Sequence[onnx.ValueInfoProto], inputs: dict[str, np.ndarray], against: str, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All values, by tc and by the other runtime."""
    names = [value.name for value in values]
    open_model = onnx.ModelProto()
    open_model.CopyFrom(model)
    del open_model.graph.output[:]
    open_model.graph.output.extend(values)
    found = tc.compile(open_model, **options).run(inputs)
    try:
        expected = dict(zip(names, RUNTIMES[against](open_model, inputs), strict=True))
    except Failed as error:
        raise UsageError(f"--against {against}: {str(error).splitlines()[0]}") from error
    return found, expected


def difference(node: onnx.NodeProto | None, name: str, found: np.ndarray, expected: np.ndarray) -> ValueDifference:
    """Of one value; `node`: which makes it, None for an output of the model as it is compiled."""
    label, op_type = ("", "output") if node is None else (node.name or f"{node.op_type} of {name}", node.op_type)
    if expected.dtype.kind in "OUS":  # strings are the same, or not
        shape = "x".join([*map(str, found.shape), "string"])
        return ValueDifference(label, op_type, name, shape, 0.0 if np.array_equal(found, expected) else np.inf, None)
    error = relative_error(found, expected)
    made = ValueDifference(label, op_type, name, format_array(found), error, None)
    if found.shape != expected.shape or found.dtype != expected.dtype or not found.size:
        return made
    apart = distance(found, expected)
    index = tuple(int(k) for k in np.unravel_index(int(apart.argmax()), found.shape))
    ulps = _ulps(found, expected)
    return ValueDifference(label, op_type, name, format_array(found), error, ulps, index, float(found[index]), float(expected[index]))


def _ulps(found: np.ndarray, expected: np.ndarray) -> int | None:
    """The largest number of floats of the type between two that should be equal; of integers their difference."""
    dtype = from_numpy(found.dtype)
    if not dtype.is_float:
        return int(np.abs(found.astype(object) - expected.astype(object)).max()) if dtype.is_int else None
    if dtype.bits < 16:
        return None
    numbers = np.isfinite(found.astype(np.float64)) & np.isfinite(expected.astype(np.float64))
    a, b = (_ordered(array[numbers]) for array in (found, expected))
    return int(np.where(a > b, a - b, b - a).max(initial=0))


def _ordered(floats: np.ndarray) -> np.ndarray:
    """u64 numbers in the order of the floats, neighbours of neighbours; both zeros are one."""
    width = floats.dtype.itemsize
    bits = floats.view(f"u{width}").astype(np.uint64)
    sign, middle = np.uint64(1 << (8 * width - 1)), np.uint64(1 << 63)
    return np.asarray(np.where(bits & sign, middle - (bits ^ sign), middle + bits))


def _around(nodes: list[ValueDifference], first: int | None) -> list[ValueDifference]:
    """The first that differs with some before and behind it; of nodes that all agree those that come nearest to differing."""
    if first is not None:
        return nodes[max(first - 5, 0) : first + 3]
    return sorted(nodes, key=lambda each: -each.error)[:8]


def show(
    console: Console, data: dict[str, Any], shown: list[ValueDifference], outputs: list[ValueDifference], wrong: list[str]
) -> None:
    numbers = ("error ", "ulps ", "tc ", "other ", "at")
    rows = [(_mark(each, data["first"]), each.op_type, each.shape, *_numbers(each)) for each in shown]
    title = "nodes" if len(shown) == len(data["nodes"]) else f"{len(shown)} of {len(data['nodes'])} nodes"
    console.print(make_table(f"{title}, each computed from what tc computed before", ("node", "operator", "shape", *numbers), rows))
    results = [(each.value, each.shape, *_numbers(each)) for each in outputs]
    console.print(make_table("outputs of the model as it is compiled", ("name", "shape", *numbers), results))
    first = data["first"]
    if first is not None:
        console.print(f"the first node that differs from {data['against']}: {first['node']} ({first['op_type']})", markup=False)
    elif wrong:
        console.print(f"no node alone differs, but when they are fused the outputs do: {', '.join(wrong)}", markup=False)
    else:
        console.print(f"[green]agrees with {data['against']}[/green]: {len(data['nodes'])} values compared", highlight=False)


def _mark(each: ValueDifference, first: dict[str, Any] | None) -> str:
    return f"> {each.node}" if first is not None and each.value == first["value"] else each.node


def _numbers(each: ValueDifference) -> tuple[str, ...]:
    """Error, ulps, and the two values that are furthest apart, where any are."""
    ulps = "" if each.ulps is None else f"{each.ulps:,}"
    if each.found is None or each.found == each.expected:
        return f"{each.error:.2g}", ulps, "", "", ""
    return f"{each.error:.2g}", ulps, f"{each.found:.7g}", f"{each.expected:.7g}", ",".join(map(str, each.index))
