"""`tc run`: compile a model, run it on given or random inputs, and compare with a reference if asked to."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import tc
from tc.cli.options import (
    ArraySpec,
    InputSpec,
    add_compile_arguments,
    compile_options,
    parse_dims,
    parse_input,
    random_array,
    read_array,
    read_arrays,
)
from tc.cli.outcome import Outcome, format_array, format_seconds, make_table, write_file
from tc.cli.reference import CHECKERS, compare
from tc.errors import CheckError, UserError

EPILOG = """\
examples:
  tc run model.onnx                                    random inputs; free dims are 1
  tc run model.onnx --dims batch=4 --repeat 100        with times
  tc run model.onnx --input x=image.npy -o out.npz     given inputs, results to a file
  tc run model.onnx --input ids=1x128xi64 --seed 3     random numbers of a given shape
  tc run model.onnx --check onnxruntime                exit code 3 when the results differ
  tc run model.tcm                                     a module from `tc compile`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file, or a module from `tc compile`")
    add_input_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.npz", help="write the results by name")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run N times and report times")
    parser.add_argument("--check", choices=CHECKERS, help="compare the results with this reference")
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="largest error over largest reference value (default 1e-4)"
    )
    add_compile_arguments(parser)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say what a model is run on."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy|SHAPE",
        help="an input: a .npy file, or a shape such as 1x3x224x224xf32 for seeded random data; may be repeated",
    )
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="all inputs by name")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (default 0)")


def execute(args: argparse.Namespace) -> Outcome:
    """Compile or load, run, measure, check, write. Raises CheckError when results differ from the reference."""
    if args.repeat < 1:
        raise UserError(f"--repeat is {args.repeat}, must be at least 1")
    if args.output and args.output.suffix != ".npz":
        raise UserError(f"--output {args.output}: results are written as .npz")
    start = time.perf_counter()
    module = tc.load(args.model) if is_compiled(args.model) else tc.compile(args.model, **compile_options(args))
    compile_seconds = time.perf_counter() - start
    inputs = make_inputs(module, args)
    outputs, seconds = run_repeatedly(module, inputs, args.repeat)

    data: dict[str, Any] = {
        "model": str(args.model),
        "inputs": {name: format_array(array) for name, array in inputs.items()},
        "outputs": {name: describe_output(array) for name, array in outputs.items()},
        "compile_seconds": compile_seconds,
        "run_seconds": {"first": seconds[0], "median": statistics.median(seconds), "minimum": min(seconds)},
        "runs": args.repeat,
    }
    if args.output:
        write_file(args.output, lambda path: np.savez(path, **outputs))  # type: ignore[arg-type]
        data["output"] = str(args.output)
    if args.check:
        data["check"] = check(args, inputs, outputs)
    return Outcome(data, lambda console: show(console, data))


def is_compiled(path: Path) -> bool:
    return path.suffix == ".tcm"


def make_inputs(module: tc.CompiledModule, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """An array for every input of the module: as given, else random, with free dims as `--dims` says or 1."""
    arrays = read_arrays(args.inputs) if args.inputs else {}
    rng = np.random.default_rng(args.seed)
    specs = name_inputs([parse_input(text) for text in args.input], [value.name for value in module.inputs])
    dims = {name: spec.lo for name, spec in parse_dims(args.dims).items()}
    for value in module.inputs:
        if value.name in arrays:
            continue
        source = specs.get(value.name)
        if isinstance(source, Path):
            arrays[value.name] = read_array(source)
        else:
            arrays[value.name] = random_array(source or ArraySpec(concrete_shape(value, dims), value.dtype), rng)
    return arrays


def name_inputs(specs: list[InputSpec], names: list[str]) -> dict[str, Path | ArraySpec]:
    """The sources by input name; a source without a name belongs to the only input."""
    sources = {}
    for spec in specs:
        if spec.name is None and len(names) != 1:
            raise UserError(f"--input {spec.source}: say which input it is: {', '.join(f'{n}=...' for n in names)}")
        name = spec.name or names[0]
        if name not in names:
            raise UserError(f"--input {name}: the model has no such input; it has {', '.join(names)}")
        sources[name] = spec.source
    return sources


def concrete_shape(value: Any, dims: dict[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else dims.get(str(dim), 1) for dim in value.shape)


def run_repeatedly(
    module: tc.CompiledModule, inputs: dict[str, np.ndarray], times: int
) -> tuple[dict[str, np.ndarray], list[float]]:
    """The results of the last run, and the seconds each run took (perf_counter)."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        outputs = module.run(inputs)
        seconds.append(time.perf_counter() - start)
    return outputs, seconds


def describe_output(array: np.ndarray) -> dict[str, Any]:
    """Shape, range and mean; a few values where there are no more."""
    facts: dict[str, Any] = {"shape": format_array(array)}
    if array.size:
        numbers = array.astype(np.float64)
        facts |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    if array.size <= 16:
        facts["values"] = array.tolist()
    return facts


def check(args: argparse.Namespace, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    errors = compare(outputs, CHECKERS[args.check](args.model, inputs))
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= args.tolerance:
        raise CheckError(
            f"output '{worst}' differs from {args.check}: largest error is {errors[worst]:.3g} of the largest "
            f"reference value, allowed is {args.tolerance:.3g}"
        )
    return {"against": args.check, "tolerance": args.tolerance, "errors": errors}


def show(console: Console, data: dict[str, Any]) -> None:
    console.print(make_table("inputs", ("name", "shape"), data["inputs"].items()))
    columns = ("name", "shape", "min ", "mean ", "max ")
    rows = [
        (name, facts["shape"], *(f"{facts[key]:.6g}" if key in facts else "" for key in ("min", "mean", "max")))
        for name, facts in data["outputs"].items()
    ]
    console.print(make_table("outputs", columns, rows))
    for name, facts in data["outputs"].items():
        if "values" in facts:
            console.print(f"{name} = {facts['values']}", markup=False)
    times = data["run_seconds"]
    console.print(f"compiled in {format_seconds(data['compile_seconds'])}", highlight=False)
    line = f"ran in {format_seconds(times['first'])}"
    if data["runs"] > 1:
        line += f" the first time; {data['runs']} runs: median {format_seconds(times['median'])}"
        line += f", fastest {format_seconds(times['minimum'])}"
    console.print(line, highlight=False)
    if "check" in data:
        agrees = f"[green]agrees with {data['check']['against']}[/green]"
        worst = max(data["check"]["errors"].values(), default=0.0)
        console.print(f"{agrees}: largest error {worst:.2g} of the largest value")
    if "output" in data:
        console.print(f"wrote {data['output']}", highlight=False, markup=False)
