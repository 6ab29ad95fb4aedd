"""`tc bisect`: the pass that changes what a model computes, or the kernel that does not compute what its loops mean."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

import tc
from tc.check.bisect import PassEffect, pass_effects
from tc.cli.options import add_compile_arguments, check_tolerance, compile_options, need_model
from tc.cli.outcome import Outcome, make_table
from tc.cli.run import add_input_arguments, hint_at_dims, make_inputs
from tc.errors import UsageError, VerifyError
from tc.frontend.registry import import_model
from tc.target import Target

EPILOG = """\
examples:
  tc bisect model.onnx                      random inputs; free dims are 1
  tc bisect model.onnx --inputs in.npz --tolerance 1e-3
The reference interpreter runs the model after every pass of the graph, which takes long; then every kernel is compared with it.
exit code 3 when a pass or a kernel is found
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="how much a pass may change an output, over its largest value (default 1e-4)"
    )
    add_input_arguments(parser)
    add_compile_arguments(parser)


def execute(args: argparse.Namespace) -> Outcome:
    """Interpret after every pass, then compile and compare the kernels; exit code 3 when one of them is at fault."""
    need_model(args.model, "bisect", "whose passes have run")
    check_tolerance(args.tolerance)
    options = compile_options(args)
    if options.get("precision", "f32") != "f32":
        raise UsageError("--precision: bisect follows the passes of f32")
    module = tc.compile(args.model, **options)
    inputs = make_inputs(module, args)
    imported = import_model(args.model, dims=options.get("dims"), assume_equal=False)
    effects: list[PassEffect] = []
    culprit, kernel = None, None
    with hint_at_dims(module, args):
        for effect in pass_effects(imported, inputs, Target.parse(options["target"]), options["numerics"]):
            effects.append(effect)
            if effect.problem or not effect.error <= args.tolerance:
                culprit = effect
                break
    if culprit is None:
        try:
            tc.compile(args.model, **{**options, "verify": "always"})
        except VerifyError as error:
            kernel = str(error)
    data: dict[str, Any] = {
        "model": str(args.model),
        "tolerance": args.tolerance,
        "passes": [asdict(effect) for effect in effects],
        "pass": None if culprit is None else culprit.name,
        "kernel": kernel,
    }
    return Outcome(data, lambda console: show(console, data, effects), 0 if culprit is None and kernel is None else 3)


def show(console: Console, data: dict[str, Any], effects: list[PassEffect]) -> None:
    rows = [(each.name, f"{each.error:.2g}" if each.changed else "", each.problem) for each in effects]
    console.print(make_table("passes, and the error of the outputs behind them", ("pass", "error ", ""), rows))
    if data["pass"] is not None:
        console.print(f"the pass that changes what the model computes: {data['pass']}", markup=False)
    elif data["kernel"] is not None:
        console.print(f"the passes of the graph keep what the model computes, but: {data['kernel']}", markup=False)
    else:
        console.print("[green]no pass changes what the model computes[/green], and every kernel computes it", highlight=False)
