"""`tc inspect`: what is in a model file, and which nodes run natively, before anything is compiled."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.console import Console

import tc
from tc.cli.outcome import Outcome, format_shape, make_table

STATUSES = {
    "native": "compiled to machine code",
    "function body": "compiled from the operator's own definition in smaller operators",
    "fallback": "runs on the reference kernel: slow, correct",
    "refused": "cannot run",
}

EPILOG = """\
examples:
  tc inspect model.onnx                 inputs, outputs, dims, operators; every node that is not native
  tc inspect model.onnx --nodes         every node
  tc inspect model.onnx --json | jq '.nodes[] | select(.status != "native")'

exit code 2 when a node is refused
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--nodes", action="store_true", help="list every node, not only those that are not native")


def execute(args: argparse.Namespace) -> Outcome:
    """Read the model named by `args.model` and describe it. A refused node makes the exit code 2."""
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
    exit_code = 2 if data["statuses"]["refused"] else 0
    return Outcome(data, lambda console: show(console, data, args.nodes), exit_code)


def describe_value(value: Any) -> dict[str, str]:
    """Name and shape of an input or output."""
    return {"name": value.name, "shape": format_shape(value.shape, value.dtype)}


def show(console: Console, data: dict[str, Any], all_nodes: bool) -> None:
    for kind in ("inputs", "outputs"):
        console.print(f"[bold]{kind}[/bold]")
        for value in data[kind]:
            console.print(f"  {value['name']}={value['shape']}", highlight=False, markup=False)
    if data["dims"]:
        console.print(f"[bold]symbolic dims[/bold]\n  {', '.join(data['dims'])}")
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


def qualified(node: dict[str, str]) -> str:
    return f"{node['domain']}.{node['op_type']}" if node["domain"] else node["op_type"]
