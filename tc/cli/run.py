"""`tc run`: compile a model, run it on given or random inputs, and compare with a reference if asked to."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import tc
from tc.cli.options import (
    InputSpec,
    ShapeSpec,
    Source,
    add_compile_arguments,
    check_room,
    compile_options,
    is_compiled,
    need_model,
    parse_dims,
    parse_input,
    random_array,
    read_array,
    read_arrays,
    refuse_compile_options,
)
from tc.cli.outcome import Outcome, check_output, format_array, format_seconds, make_table, write_file
from tc.cli.reference import CHECKERS, OutputCheck, check_outputs, describe_check
from tc.cli.values import Values, array_of
from tc.errors import CheckError, InputError, ShapeError, UsageError
from tc.frontend.signature import require_numbers
from tc.ir.arith import evaluate
from tc.ir.expr import Var
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.runtime.interface import dim_vars
from tc.stages import interpret_in_f64

EPILOG = """\
examples:
  tc run model.onnx                                    random inputs; free dims are 1
  tc run model.onnx --dims batch=4 --repeat 100        with times
  tc run model.onnx --input x=image.npy -o out.npz     given inputs, results to a file
  tc run model.onnx --input ids=1x128xi64 --seed 3     random numbers of a given shape
  tc run model.onnx --input rate=16000                 a value
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
        "--tolerance",
        type=float,
        default=1e-4,
        help="largest difference over largest reference value (default 1e-4); beyond it, float64 decides",
    )
    add_compile_arguments(parser)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say what a model is run on."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy|SHAPE|VALUE",
        help="an input: a .npy file, a shape such as 1x3x224x224xf32 for seeded random data, or a value such as 16000, which fills "
        "it, or [[101,102]]; may be repeated",
    )
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="all inputs by name")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (default 0)")


def execute(args: argparse.Namespace) -> Outcome:
    """Compile or load, run, measure, check, write. Raises CheckError when results differ from the reference."""
    if args.repeat < 1:
        raise UsageError(f"--repeat is {args.repeat}, must be at least 1")
    if math.isnan(args.tolerance):
        raise UsageError("--tolerance is nan, must be a number")
    check_seed(args.seed)
    if args.output and args.output.suffix != ".npz":
        raise UsageError(f"--output {args.output}: results are written as .npz")
    if args.output:
        given = {f"the file of --input {text}": Path(text.partition("=")[2]) for text in args.input if text.endswith(".npy")}
        check_output(args.output, "--output", args.model, {"the file of --inputs": args.inputs, **given})
    if args.check:
        need_model(args.model, "--check", "which no reference can read")
    start = time.perf_counter()
    module = load_module(args)
    compile_seconds = time.perf_counter() - start
    inputs = make_inputs(module, args)
    with hint_at_dims(module, args):
        outputs, seconds = run_repeatedly(module, inputs, args.repeat)

    data: dict[str, Any] = {
        "model": str(args.model),
        "inputs": {name: format_array(array) for name, array in inputs.items()},
        "threads": module.threads,
        "assumed_dims": list(assumed_dims(module, args)),
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
    if args.threads is not None and module.threads < args.threads:
        data["note"] = f"on {module.threads} threads: the module was compiled for no more"
    return Outcome(data, lambda console: show(console, data))


def load_module(args: argparse.Namespace) -> tc.CompiledModule:
    """The module that the command is about: read when the file is one, compiled when it is a model."""
    options = compile_options(args)
    if not is_compiled(args.model):
        module = tc.compile(args.model, **options)
        require_numbers(module.signature, "tc makes up and prints inputs")
        return module
    refuse_compile_options(args)
    module = tc.load(args.model, options["threads"])
    require_numbers(module.signature, "tc makes up and prints inputs")
    for name in parse_dims(args.dims):
        if name not in module.dims:
            known = ", ".join(module.dims) or "none: all its shapes are fixed"
            raise UsageError(f"--dims: {args.model} has no symbolic dim '{name}'; it has {known}")
    return module


def check_seed(seed: int) -> None:
    """UserError for a seed that numpy does not take."""
    if seed < 0:
        raise UsageError(f"--seed is {seed}, must not be negative")


def make_inputs(module: tc.CompiledModule, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """An array for every input of the module: as given, else random, with free dims as `--dims` says or 1."""
    check_seed(args.seed)
    arrays = read_arrays(args.inputs) if args.inputs else {}
    rng = np.random.default_rng(args.seed)
    sources = name_inputs([parse_input(text) for text in args.input], [value.name for value in module.inputs])
    for value, shape in zip(module.inputs, input_shapes(module, args), strict=True):
        source = sources.get(value.name)
        if isinstance(source, Path):
            arrays[value.name] = read_array(source)
        elif isinstance(source, Values):
            check_room(shape, value.dtype, f"{value.name} of shape {list(shape)}")
            arrays[value.name] = array_of(source, value.name, value.dtype, shape)
        elif source is not None or value.name not in arrays:
            arrays[value.name] = random_array(source or ShapeSpec(shape, value.dtype), rng)
    return arrays


def input_shapes(module: tc.CompiledModule, args: argparse.Namespace) -> list[tuple[int, ...]]:
    """The shapes of the inputs, each dim as `--dims` says, its smallest size where that leaves several, or 1."""
    sizes = {name: spec.smallest for name, spec in parse_dims(args.dims).items()}
    env = {var: sizes.get(var.name, 1) for var in dim_vars(module.plan)}
    shapes = []
    for var in module.plan.inputs:
        assert isinstance(var.type, TensorType)
        shapes.append(tuple(int(evaluate(dim, env)) for dim in var.type.shape))
    return shapes


def assumed_dims(module: tc.CompiledModule, args: argparse.Namespace) -> tuple[str, ...]:
    """The symbolic dims that were taken as 1, as nothing was said about them: those of inputs of which nothing is given."""
    given = {parse_input(text).name or module.inputs[0].name for text in args.input}
    given |= set(read_arrays(args.inputs)) if args.inputs else set()
    free = {var for value in module.plan.inputs if value.name not in given for var in walk(value.type) if isinstance(var, Var)}
    return tuple(sorted({var.name for var in free} - set(parse_dims(args.dims))))


@contextmanager
def hint_at_dims(module: tc.CompiledModule, args: argparse.Namespace) -> Iterator[None]:
    """Add to an error over shapes that dims were taken as 1, and how to say otherwise."""
    try:
        yield
    except (InputError, ShapeError) as error:
        assumed = assumed_dims(module, args)
        if assumed:
            error.said += f" ({say_assumed(assumed)})"
        raise


def say_assumed(dims: Sequence[str]) -> str:
    names = ", ".join(dims)
    return f"nothing is said of {names}: taken as 1; --dims {','.join(f'{name}=N' for name in dims)} says otherwise"


def name_inputs(specs: list[InputSpec], names: list[str]) -> dict[str, Source]:
    """The sources by input name; a source without a name belongs to the only input."""
    sources: dict[str, Source] = {}
    for spec in specs:
        if spec.name is None and len(names) != 1:
            raise UsageError(f"--input {spec.source}: say which input it is: {', '.join(f'{n}=...' for n in names)}")
        name = spec.name or names[0]
        if name not in names:
            raise UsageError(f"--input {name}: the model has no such input; it has {', '.join(names)}")
        if name in sources:
            raise UsageError(f"--input {name}: given twice, as {sources[name]} and {spec.source}")
        sources[name] = spec.source
    return sources


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
    """Compare with the reference. CheckError for an output that differs, and that float64 does not take the side of."""
    reference = CHECKERS[args.check](args.model, inputs)
    checks, unjudged = check_outputs(outputs, reference, args.tolerance, lambda: interpret_in_f64(args.model, inputs))
    wrong = [each for each in checks if not each.is_right]
    if wrong:
        worst = max(wrong, key=lambda each: each.error)
        note = "" if unjudged is None else f"; float64 could not be asked ({unjudged})"
        raise CheckError(f"output '{worst.name}' differs from {args.check}: {describe_check(worst, args.check, args.tolerance)}{note}")
    return {
        "against": args.check,
        "tolerance": args.tolerance,
        "errors": {each.name: each.error for each in checks},
        "outputs": [{key: value for key, value in asdict(each).items() if key != "reference_shape"} for each in checks],
        "judged_by_float64": [each.name for each in checks if each.own_error is not None],
    }


def show(console: Console, data: dict[str, Any]) -> None:
    console.print(make_table("inputs", ("name", "shape"), data["inputs"].items()))
    if data["assumed_dims"]:
        console.print(f"({say_assumed(data['assumed_dims'])})", highlight=False, markup=False)
    columns = ("name", "shape", "min ", "mean ", "max ")
    rows = [
        (name, facts["shape"], *(f"{facts[key]:.6g}" if key in facts else "" for key in ("min", "mean", "max")))
        for name, facts in data["outputs"].items()
    ]
    console.print(make_table("outputs", columns, rows))
    for name, facts in data["outputs"].items():
        if "values" in facts:
            console.print(f"{name} = {facts['values']}", markup=False)
    if "note" in data:
        console.print(data["note"], highlight=False, markup=False)
    times = data["run_seconds"]
    console.print(f"compiled in {format_seconds(data['compile_seconds'])}", highlight=False)
    line = f"ran in {format_seconds(times['first'])}"
    if data["runs"] > 1:
        line += f" the first time; {data['runs']} runs: median {format_seconds(times['median'])}"
        line += f", fastest {format_seconds(times['minimum'])}"
    console.print(line, highlight=False)
    if "check" in data:
        show_check(console, data["check"])
    if "output" in data:
        console.print(f"wrote {data['output']}", highlight=False, markup=False)


def show_check(console: Console, data: dict[str, Any]) -> None:
    console.print(f"[green]agrees with {data['against']}[/green]: {count_outputs(data)}", highlight=False)
    for each in data["outputs"]:
        found = OutputCheck(reference_shape=each["shape"], **each)
        console.print(f"  {found.name}: " + describe_check(found, data["against"], data["tolerance"]), markup=False, highlight=False)


def count_outputs(data: dict[str, Any]) -> str:
    number, judged = len(data["outputs"]), len(data["judged_by_float64"])
    text = f"{number} output{'s' if number != 1 else ''} compared"
    return text + (f", {judged} of them by float64" if judged else "")
