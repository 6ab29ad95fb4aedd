"""Compiles what is generated for devices, without a device: every kernel of models and of the operators' samples, as it would be shipped.

    python -m benchmarks.device_text --targets cuda:sm_75 cuda:sm_80 cuda:sm_90a --models minilm resnet50 --operators

Each kernel is written in each language of the target (`tc compile --emit`) and compiled by the command that is written beside it (nvcc
with warnings as errors, ptxas); assembly for AMD's devices was made by a compiler already, LLVM, and tells what it said. Registers, spills
and the occupancy that follows are printed a row a model, and with --output kept as JSON, a row a device function. Exit code 1 when a text
does not compile.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tc
from benchmarks import zoo
from benchmarks.run import chosen_models
from tc.codegen.amdgpu.resources import wave_resources
from tc.codegen.backends import backend_of
from tc.errors import TcError
from tc.frontend.registry import Model
from tc.ir.dtype import from_numpy
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.registry import OPS
from tc.target import DeviceFacts, Target, occupancy

TELL = {"cuda": "-Werror all-warnings -Xptxas -v,--warning-as-error", "ptx": "-v --warning-as-error"}
"""What makes the compiler of a language tell what functions take, and takes warnings for errors."""

TOLD = ("amdgpu",)
"""Languages whose texts tell it themselves."""

REGISTER_BYTES = 4
_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_THREADS = re.compile(r"__launch_bounds__\((\d+)[^)]*\)[^(]*?\b(\w+)\(|\.entry (\w+)\(.*?\.(?:maxntid|reqntid) ([\d, ]+)", re.DOTALL)


@dataclass(frozen=True)
class DeviceFunction:
    """What a compiler says of a function. `blocks`: how many of its blocks a processor holds; None where their size is not told."""

    name: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    blocks: int | None


@dataclass(frozen=True)
class TextResult:
    """One kernel in one language for one target: its functions, or what is wrong with it."""

    model: str
    kernel: str
    target: str
    language: str
    functions: tuple[DeviceFunction, ...] = ()
    problem: str = ""


def check_model(name: str, model: Model, target: Target, language: str, folder: Path, pool: ThreadPoolExecutor) -> list[TextResult]:
    """All kernels of a model."""
    try:
        lowered = tc.lower(model, language, target)
    except TcError as error:
        return [TextResult(name, "", target.device_text, language, problem=str(error))]

    def check(kernel: str) -> TextResult:
        try:
            text = lowered.as_text(kernel)
        except TcError as error:
            return TextResult(name, kernel, target.device_text, language, problem=str(error))
        told = (tuple(read_waves(text, target)), "") if language in TOLD else None
        found, problem = told or compile_text(text, target, language, folder)
        return TextResult(name, kernel, target.device_text, language, found, problem)

    return list(pool.map(check, lowered.kernels))


def compile_text(text: str, target: Target, language: str, folder: Path) -> tuple[tuple[DeviceFunction, ...], str]:
    """What the compiler says of the functions of a text, and of what is wrong with it."""
    how = backend_of(target).languages[language]
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        Path(inner, f"kernel{how.suffix}").write_text(text, encoding="utf-8")
        command = f"{how.build(f'kernel{how.suffix}', target)} {TELL.get(language, '')}"
        done = subprocess.run(command, shell=True, cwd=inner, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        return (), said.strip()[:2000] or f"exit code {done.returncode}"
    assert target.device is not None
    return tuple(read_functions(said, dict(threads_of(text)), target.device)), ""


def read_waves(text: str, target: Target) -> Iterator[DeviceFunction]:
    """The functions of an assembly of AMD's."""
    assert target.device is not None
    for each in wave_resources(text):
        spill_bytes = each.spilled * REGISTER_BYTES
        yield DeviceFunction(each.name, each.vector, spill_bytes, each.scratch_bytes, each.shared_bytes, each.blocks(target.device))


def threads_of(text: str) -> Iterator[tuple[str, int]]:
    """The functions of a text and the threads of their blocks."""
    for bounds, name, entry, sizes in _THREADS.findall(text):
        yield (name, int(bounds)) if name else (entry, int(np.prod([int(size) for size in sizes.split(",")])))


def read_functions(said: str, threads: dict[str, int], facts: DeviceFacts) -> Iterator[DeviceFunction]:
    """The functions that ptxas tells of."""
    for part in re.split(r"(?=ptxas info\s*: Compiling)", said):
        name, spills, used = _FUNCTION.search(part), _SPILLS.search(part), _USED.search(part)
        if name is None or used is None:
            continue
        registers, shared = int(used[1]), int(used[2] or 0)
        blocks = occupancy(threads[name[1]], registers, shared, facts) if name[1] in threads else None
        stack, stores, loads = map(int, spills.groups()) if spills else (0, 0, 0)
        yield DeviceFunction(name[1], registers, stores + loads, stack, shared, blocks)


def operator_models(samples: int) -> Iterator[tuple[str, IRModule]]:
    """A module for each of the first samples of every operator that has loops."""
    for name in sorted(OPS):
        if OPS[name].compute is None:
            continue
        for number, (arrays, attrs) in zip(range(samples), OPS[name].samples(np.random.default_rng(7))):
            builder = GraphBuilder()
            types = [None if a is None else tensor_type(a.shape, from_numpy(a.dtype)) for a in arrays]
            args = [None if type_ is None else builder.param(f"x{k}", type_) for k, type_ in enumerate(types)]
            yield f"{name}/{number}", IRModule((builder.function("main", builder.call_many(name, *args, **attrs)),))


def show(results: Sequence[TextResult], title: str) -> None:
    """A line for some results, and what is wrong with those that do not compile."""
    functions = [each for result in results for each in result.functions]
    wrong = [result for result in results if result.problem]
    spilling, stacked = (sum(getattr(each, field) > 0 for each in functions) for field in ("spill_bytes", "stack_bytes"))
    registers = max((each.registers for each in functions), default=0)
    print(
        f"{title}: {len(results)} kernels, {len(functions)} functions, {len(wrong)} do not compile, {spilling} spill, "
        f"{stacked} have a stack, at most {registers} registers",
        flush=True,
    )
    for result in wrong:
        print(f"    {result.model} {result.kernel}: {result.problem.splitlines()[0][:300]}", flush=True)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_text", description="Compile device text without a device.")
    parser.add_argument("--targets", nargs="+", default=["cuda:sm_75", "cuda:sm_80", "cuda:sm_90a"], metavar="TARGET")
    parser.add_argument("--languages", nargs="+", metavar="NAME", help="of the targets (default: all that a compiler is known for)")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="of the zoo, or ONNX files (default: those of benchmarks.run)")
    parser.add_argument("--operators", action="store_true", help="samples of every operator, too")
    parser.add_argument("--samples", type=int, default=3, help="of each operator, at most (default: 3)")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time (default: 2)")
    parser.add_argument("--output", type=Path, help="a JSON file of all results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        names = () if options.models == [] else chosen_models(options.models)
        models = [(name, zoo.path(name) if name in zoo.names() else Path(name)) for name in names]
        targets = [Target.parse(text) for text in options.targets]
    except (zoo.ZooError, TcError) as error:
        print(f"device_text: {error}", file=sys.stderr)
        return 1
    results: list[TextResult] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for target in targets:
            for language in options.languages or [name for name in backend_of(target).languages if name in (*TELL, *TOLD)]:
                what = f"{target.device_text} {language}"
                for name, model in models:
                    found = check_model(name, model, target, language, Path(folder), pool)
                    show(found, f"{what} {name}")
                    results += found
                if options.operators:
                    samples = operator_models(options.samples)
                    found = [r for name, model in samples for r in check_model(name, model, target, language, Path(folder), pool)]
                    show(found, f"{what} operators")
                    results += found
    show(results, "all")
    if options.output:
        options.output.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1) + "\n", encoding="utf-8")
    return 1 if any(result.problem for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
