"""`tc profile`: where the time of a call goes, kernel by kernel."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

import tc
from tc.cli.options import add_compile_arguments, compile_options, need_model
from tc.cli.outcome import Outcome, format_array, format_seconds, make_table
from tc.cli.run import add_input_arguments, hint_at_dims, make_inputs
from tc.errors import UsageError

EPILOG = """\
examples:
  tc profile model.onnx                                random inputs; free dims are 1
  tc profile model.onnx --dims batch=4 --threads 1     the ten slowest kernels, one thread
  tc profile model.onnx --input ids=1x128xi64 --top 0  every kernel
  tc profile model.onnx --by kernel --json             calls of one kernel added up
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    add_input_arguments(parser)
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="calls to average over (default 10)")
    parser.add_argument("--by", choices=("node", "kernel"), default="node", help="one row a launch, or one a kernel")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows to show, 0 for all (default 20)")
    add_compile_arguments(parser)


def execute(args: argparse.Namespace) -> Outcome:
    """Compile, profile, and add up. Seconds are means over the calls of launches alone, without the entry around them."""
    if args.repeat < 1:
        raise UsageError(f"--repeat is {args.repeat}, must be at least 1")
    if args.top < 0:
        raise UsageError(f"--top is {args.top}, must not be negative")
    need_model(args.model, "tc profile", "in which no launch has a clock")
    module = tc.compile(args.model, **compile_options(args))
    inputs = make_inputs(module, args)
    with hint_at_dims(module, args):
        launches = module.profile(inputs, repeat=args.repeat)
    rules = {kernel.name: kernel.rule for kernel in module.report().kernels}
    rows = [
        {"node": launch.node, "kernel": launch.kernel, "rule": rules.get(launch.kernel, ""), "calls": 1, "seconds": launch.seconds}
        for launch in launches
    ]
    data: dict[str, Any] = {
        "model": str(args.model),
        "threads": module.threads,
        "inputs": {name: format_array(array) for name, array in inputs.items()},
        "calls": args.repeat,
        "seconds": sum(launch.seconds for launch in launches),
        "rows": rows if args.by == "node" else by_kernel(rows),
    }
    return Outcome(data, lambda console: show(console, data, args.top))


def by_kernel(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kernel, its launches added up, slowest first. The nodes of all launches are named."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = found.setdefault(row["kernel"], {**row, "calls": 0, "seconds": 0.0, "node": []})
        total["calls"] += 1
        total["seconds"] += row["seconds"]
        total["node"].append(row["node"])
    merged = [{**total, "node": ", ".join(dict.fromkeys(total["node"]))} for total in found.values()]
    return sorted(merged, key=lambda row: -row["seconds"])


def show(console: Console, data: dict[str, Any], top: int) -> None:
    total = data["seconds"] or 1.0
    rows = data["rows"][: top or None]
    table = make_table(
        "",
        ("time ", "share ", "calls ", "kernel", "rule", "node"),
        [
            (
                format_seconds(row["seconds"]),
                f"{100 * row['seconds'] / total:.1f} %",
                row["calls"],
                row["kernel"],
                row["rule"],
                row["node"],
            )
            for row in rows
        ],
    )
    console.print(table)
    hidden = data["rows"][len(rows) :]
    if hidden:
        left = sum(row["seconds"] for row in hidden)
        console.print(f"{len(hidden)} more rows take {format_seconds(left)} (--top 0 shows them)", highlight=False)
    console.print(
        f"{format_seconds(data['seconds'])} in kernels, {data['threads']} threads, mean of {data['calls']} calls", highlight=False
    )
