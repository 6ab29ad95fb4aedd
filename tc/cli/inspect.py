"""`tc inspect`: what is in a model file, and which nodes run natively, before anything is compiled."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

import tc
from tc.cli.options import add_precision_arguments, is_compiled, precision_options
from tc.cli.outcome import Outcome, format_bytes, format_shape, make_table
from tc.errors import UsageError
from tc.stages import on_host, precisions_of
from tc.target import Target

STATUSES = {
    "native": "compiled to machine code",
    "function body": "compiled from the operator's own definition in smaller operators",
    "fallback": "runs on a reference kernel in Python: slow, correct",
    "refused": "cannot run",
}

EPILOG = """\
examples:
  tc inspect model.onnx                 inputs, outputs, dims, operators; every node that is not native
  tc inspect model.onnx --nodes         every node
  tc inspect model.onnx --precision bf16      how each node would be computed and stored
  tc inspect model.onnx --target cuda:sm_90   also what stays on the host of such a device, and why
  tc inspect model.tcm                  a compiled module: inputs, outputs, dims, target, kernels
  tc inspect model.onnx --json | jq '.nodes[] | select(.status != "native")'

exit code 2 when a node is refused
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file, or a module from `tc compile`")
    parser.add_argument("--nodes", action="store_true", help="list every node, not only those that are not native")
    add_precision_arguments(parser)
    parser.add_argument("--target", help="a device, such as cuda:sm_90, which need not be here: list what stays on its host, and why")


def execute(args: argparse.Namespace) -> Outcome:
    """Read the model named by `args.model` and describe it. A refused node makes the exit code 2."""
    if is_compiled(args.model):
        if args.target is not None:
            raise UsageError(f"--target: {args.model} is compiled already; the option is for its ONNX file")
        if args.precision != "f32" or args.calibration:
            raise UsageError(f"--precision: {args.model} is compiled already; the option is for its ONNX file")
        return describe_compiled(args.model)
    inspection = tc.inspect(args.model)
    nodes: list[dict[str, str]] = [
        {"name": n.name, "op_type": n.op_type, "domain": n.domain, "status": n.status, "reason": n.reason}
        for n in inspection.nodes
    ]
    data: dict[str, Any] = {
        "model": str(args.model),
        "inputs": [describe_value(value) for value in inspection.inputs],
        "outputs": [describe_value(value) for value in inspection.outputs],
        "dims": [str(dim) for dim in inspection.dims],
        "operators": dict(Counter(node["op_type"] for node in nodes).most_common()),
        "statuses": {status: sum(node["status"] == status for node in nodes) for status in STATUSES},
        "nodes": nodes,
    }
    if args.precision != "f32" and not data["statuses"]["refused"]:
        nodes_of, notes = precisions_of(args.model, **precision_options(args), target=args.target or "native")
        data["precision"] = {"asked": args.precision, "notes": list(notes), "nodes": [dataclasses.asdict(each) for each in nodes_of]}
    elif args.target is not None and not data["statuses"]["refused"]:
        work = on_host(args.model, args.target)
        data["host"] = {"target": args.target, "work": [dataclasses.asdict(each) for each in work]}
    exit_code = 2 if data["statuses"]["refused"] else 0
    return Outcome(data, lambda console: show(console, data, args.nodes), exit_code)


def describe_compiled(path: Path) -> Outcome:
    """What a compiled module says of itself."""
    module = tc.load(path)
    report = module.report()
    data: dict[str, Any] = {
        "model": str(path),
        "compiled": True,
        "target": module.target,
        "threads": module.threads,
        "size_bytes": path.stat().st_size,
        "constant_bytes": report.constant_bytes,
        "inputs": [describe_value(value) for value in module.inputs],
        "outputs": [describe_value(value) for value in module.outputs],
        "values": [] if module.signature is None else list(map(str, (*module.signature.inputs, *module.signature.outputs))),
        "dims": list(module.dims),
        "kernels": [{"name": k.name, "nodes": list(k.nodes), "calls": k.calls, "rule": k.rule} for k in report.kernels],
        "fallbacks": list(report.fallbacks),
    }
    if report.precision != "f32":
        nodes = [dataclasses.asdict(each) for each in report.precisions]
        data["precision"] = {"asked": report.precision, "notes": [], "nodes": nodes}
    return Outcome(data, lambda console: show_compiled(console, data))


def show_compiled(console: Console, data: dict[str, Any]) -> None:
    console.print(f"[bold]compiled module[/bold] of {format_bytes(data['size_bytes'])}", highlight=False)
    target = Target.parse(data["target"])
    where = f"{target.cpu}, {target.vector_bits}-bit vectors"
    if target.device is not None:
        where = f"{target.kind} device {target.number} ({target.device.product}, {target.device.arch}) at {where}"
    console.print(f"  for {where}, at most {data['threads']} threads (--json has every feature)", highlight=False, markup=False)
    show_signature(console, data)
    if data["values"]:
        console.print("[bold]which are the tensors of[/bold]\n  " + "\n  ".join(data["values"]), highlight=False)
    rows = [(k["name"], k["calls"], k["rule"], ", ".join(k["nodes"])) for k in data["kernels"]]
    console.print(make_table("kernels", ("kernel", "calls ", "rule", "nodes"), rows))
    if "precision" in data:
        show_precision(console, data["precision"])
    if data["fallbacks"]:
        nodes = ", ".join(data["fallbacks"])
        console.print(f"[bold]on reference kernels in Python[/bold]\n  {nodes}", highlight=False)


def describe_value(value: Any) -> dict[str, str]:
    """Name and shape of an input or output."""
    return {"name": value.name, "shape": format_shape(value.shape, value.dtype)}


def show_signature(console: Console, data: dict[str, Any]) -> None:
    """Inputs, outputs and dims."""
    for kind in ("inputs", "outputs"):
        console.print(f"[bold]{kind}[/bold]")
        for value in data[kind]:
            console.print(f"  {value['name']}={value['shape']}", highlight=False, markup=False)
    if data["dims"]:
        console.print(f"[bold]symbolic dims[/bold]\n  {', '.join(data['dims'])}")


def show(console: Console, data: dict[str, Any], all_nodes: bool) -> None:
    show_signature(console, data)
    operators = ", ".join(f"{name} {count}" for name, count in data["operators"].items())
    console.print(f"[bold]operators[/bold] ({len(data['nodes'])} nodes)\n  {operators}", highlight=False)
    console.print("[bold]how they run[/bold]")
    for status, meaning in STATUSES.items():
        if data["statuses"][status]:
            console.print(f"  {data['statuses'][status]:5} {status}: {meaning}", highlight=False)
    listed = [node for node in data["nodes"] if all_nodes or node["status"] != "native"]
    if listed:
        columns = ("node", "operator", "status", "why")
        rows = [(n["name"], qualified(n), n["status"], n["reason"]) for n in listed]
        console.print(make_table("nodes", columns, rows))
    if "precision" in data:
        show_precision(console, data["precision"])
    if "host" in data:
        show_host(console, data["host"]["work"])


def show_precision(console: Console, data: dict[str, Any]) -> None:
    """How each operation is computed and stored, and why it stays f32 where it might not."""
    rows = [(", ".join(n["nodes"]) or "-", n["op"], n["computed"], n["stored"], n["why"]) for n in data["nodes"]]
    console.print(make_table(f"precision {data['asked']}", ("nodes", "operator", "computed in", "stored in", "why"), rows))
    for note in data["notes"]:
        console.print(f"  {note}", highlight=False, markup=False)


def show_host(console: Console, work: list[dict[str, str]]) -> None:
    """What does not run on the device."""
    if work:
        rows = [(each["node"], each["what"], each["why"]) for each in work]
        console.print(make_table("on the host", ("node", "what", "why"), rows))
    else:
        console.print("[bold]on the host[/bold]\n  nothing but launches", highlight=False)


def qualified(node: dict[str, str]) -> str:
    return f"{node['domain']}.{node['op_type']}" if node["domain"] else node["op_type"]
