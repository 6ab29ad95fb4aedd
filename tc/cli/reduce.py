"""`tc reduce`: the smallest part of a model that still fails, as ONNX text."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from rich.console import Console

from tc.cli.options import TARGET_HELP, parse_dims, read_arrays
from tc.cli.outcome import Outcome, check_output
from tc.errors import UsageError
from tc.frontend.onnx.reading import whole_proto
from tc.fuzz.campaign import write_subject
from tc.fuzz.differential import How, Run
from tc.fuzz.process import Judge
from tc.fuzz.reduce import describe, reduce_failure
from tc.target import check_threads

EPILOG = """\
examples:
  tc reduce model.onnx                              random inputs; free dims are 1
  tc reduce failing/17.onnx --inputs failing/17.npz
  tc reduce model.onnx -o small                     also writes small.onnx and small.npz
A model fails when tc crashes, differs from onnxruntime and the onnx reference evaluator, or refuses what both run.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="all inputs by name")
    parser.add_argument(
        "--dims", action="append", default=[], metavar="NAME=N", help="sizes of free dims for random inputs"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (default 0)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the compiled model (default 1)")
    parser.add_argument("--numerics", choices=("default", "strict"), default="default")
    parser.add_argument("--target", default="native", help=TARGET_HELP)
    parser.add_argument("--precision", default="f32", help="f32 (default), bf16, f16, mixed:TOLERANCE")
    parser.add_argument("--seconds", type=float, default=120.0, help="stop after this time (default 120)")
    parser.add_argument("-o", "--output", type=Path, metavar="STEM", help="write STEM.onnx and STEM.npz")


def execute(args: argparse.Namespace) -> Outcome:
    """Judge the model, and reduce it when it fails; exit code 3 then."""
    check_threads(args.threads, "--threads")
    if not args.seconds > 0:
        raise UsageError(f"--seconds is {args.seconds:g}, must be above 0")
    if args.output:
        for suffix in (".onnx", ".npz"):
            check_output(args.output.with_name(args.output.name + suffix), "--output", args.model, {"the file of --inputs": args.inputs})
    model = whole_proto(args.model)
    feeds = read_arrays(args.inputs) if args.inputs else random_feeds(model, args)
    missing = {i.name for i in model.graph.input} - set(feeds) - {t.name for t in model.graph.initializer}
    if missing:
        raise UsageError(f"--inputs {args.inputs}: holds no {', '.join(sorted(missing))}")
    how = How(args.threads, args.numerics, args.target, args.precision)
    judge = Judge()
    try:
        verdict = judge.model(model, [Run(feeds)], how)
        if not verdict.failed:
            text = f"does not fail: {verdict.kind}{f' ({verdict.text})' if verdict.text else ''}"
            return Outcome({"kind": verdict.kind, "text": verdict.text}, lambda console: _print(console, text))
        found = reduce_failure(model, [Run(feeds)], verdict, judge, how, seconds=args.seconds)
    finally:
        judge.close()
    if args.output:
        write_subject(args.output, found.subject)
    text = describe(found.subject, found.verdict)
    data = {
        "kind": found.verdict.kind,
        "text": found.verdict.text,
        "model": text,
        "tried": found.tried,
        "taken": found.taken,
    }
    return Outcome(data, lambda console: _print(console, text), 3)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


def random_feeds(model: onnx.ModelProto, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Seeded random inputs: floats are standard normal, integers and booleans 0 or 1; free dims as `--dims` says or 1."""
    sizes = {name: spec.lo for name, spec in parse_dims(args.dims).items()}
    rng = np.random.default_rng(args.seed)
    constants = {t.name for t in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, 1) for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        numbers = rng.standard_normal(shape) if dtype.kind not in "iub" else rng.integers(0, 2, shape)
        feeds[value.name] = np.asarray(numbers).astype(dtype)
    return feeds
