"""Compiles every kernel of the operators and of the models as CUDA-C and as PTX, without a device, and prints what came of it.

    python -m benchmarks.gpu_texts --archs sm_75,sm_80,sm_90a --models all --operators '*'

CUDA-C goes through nvcc with every warning an error, PTX through ptxas. A row is a source, a language and an architecture: kernels (equal
ones once), failures, kernels with spilled registers, the most registers of a thread and the most shared memory of a block. Exit code 1 when
anything failed; with --keep, texts that failed are left in a folder.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import zoo
from benchmarks.run import DEFAULT_MODELS
from tc.codegen.backends import language_of
from tc.codegen.kernels import Kernel, schedule_kernel
from tc.compiler import run_stages
from tc.errors import TcError
from tc.ir.arith import Facts
from tc.ir.dtype import from_numpy
from tc.ir.loop import PrimFunc
from tc.ir.types import tensor_type
from tc.ops.registry import OPS, OpDef, inference
from tc.passes.loop.simplify_loops import simplify_loops
from tc.target import Target
from tc.te import create_prim_func, placeholder

LANGUAGES = ("cuda", "ptx")
BATCH = 24
"""Kernels that one run of a compiler takes: nvcc needs half a second to begin."""

_SECONDS = 1200


@dataclass(frozen=True)
class Text:
    """The text of a kernel. `rule` scheduled it; `error`: why there is none."""

    name: str
    rule: str
    text: str
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a compiler made of a kernel's functions: the most that one of them takes. `error`: its words when it refused."""

    name: str
    registers: int = 0
    spilled_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    error: str = ""


# -- kernels


def kernels_of_models(names: Iterable[str], target: Target) -> Iterator[tuple[str, Mapping[str, Kernel] | str]]:
    """The kernels of each model, or why there are none."""
    for name in names:
        try:
            yield name, run_stages(zoo.path(name), target).kernels
        except (TcError, zoo.ZooError) as error:
            yield name, f"{type(error).__name__}: {error}"


def kernels_of_operators(pattern: str, target: Target) -> tuple[dict[str, Kernel], list[Text]]:
    """The kernels of the samples of operators, and what went wrong before there was a text."""
    found: dict[str, Kernel] = {}
    failed = []
    for name in sorted(OPS):
        if not fnmatch.fnmatchcase(name, pattern) or OPS[name].compute is None:
            continue
        for number, (arrays, attrs) in enumerate(OPS[name].samples(np.random.default_rng(7))):
            try:
                kernel = schedule_kernel(_operator_func(OPS[name], arrays, attrs), target)
                found.setdefault(kernel.symbol, kernel)
            except TcError as error:
                failed.append(Text(f"{name}[{number}]", "", "", f"{type(error).__name__}: {error}"))
    return found, failed


def _operator_func(op: OpDef, arrays: Sequence[np.ndarray | None], attrs: Mapping[str, Any]) -> PrimFunc:
    """The loops of one call of an operator."""
    full = op.attrs(attrs)
    types = [None if a is None else tensor_type(a.shape, from_numpy(a.dtype)) for a in arrays]
    with inference(Facts()):
        results = op.infer_types(types, full)
        inputs = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)]
        outputs = op.compute_tensors(inputs, full, results)
    return simplify_loops(create_prim_func(op.name, [x for x in inputs if x is not None], outputs))


def texts_of(kernels: Iterable[Kernel], language: str, target: Target) -> list[Text]:
    """Each different kernel as text."""
    write, texts = language_of(language, target).write, {}
    for kernel in kernels:
        if kernel.symbol in texts:
            continue
        try:
            texts[kernel.symbol] = Text(kernel.name, kernel.rule, write(kernel.final, kernel.symbol, target))
        except TcError as error:
            texts[kernel.symbol] = Text(kernel.name, kernel.rule, "", f"{type(error).__name__}: {error}")
    return list(texts.values())


# -- compilers


def compile_texts(texts: Sequence[Text], language: str, arch: str, jobs: int) -> list[Outcome]:
    """What the language's compiler says of each text, in order."""
    good = [text for text in texts if not text.error]
    batches = [good[k : k + BATCH] for k in range(0, len(good), BATCH)]
    with ThreadPoolExecutor(jobs) as pool:
        made = iter([each for part in pool.map(lambda batch: _compile_batch(batch, language, arch), batches) for each in part])
    return [Outcome(text.name, error=text.error) if text.error else next(made) for text in texts]


def _compile_batch(batch: Sequence[Text], language: str, arch: str) -> list[Outcome]:
    """All at once; where that fails, one by one."""
    said = _compile(_joined([text.text for text in batch], language), language, arch)
    if said.error and len(batch) > 1:
        return [outcome for text in batch for outcome in _compile_batch([text], language, arch)]
    if said.error:
        return [Outcome(batch[0].name, error=said.error)]
    return [_resources(text, said.output, language) for text in batch]


@dataclass(frozen=True)
class _Said:
    output: str
    error: str = ""


def _joined(texts: Sequence[str], language: str) -> str:
    """Several kernels as one text; what helps them has the same names in all."""
    if language == "cuda":
        return "\n".join(f"namespace n{k} {{\n{text}\n}}" for k, text in enumerate(texts))
    head, mark, _ = texts[0].partition(".address_size 64\n")
    return head + mark + "\n".join(text.partition(mark)[2] for text in texts)


def _compile(text: str, language: str, arch: str) -> _Said:
    with tempfile.TemporaryDirectory(prefix="tc-texts-") as folder:
        path = Path(folder, "kernels.cu" if language == "cuda" else "kernels.ptx")
        path.write_text(text, encoding="utf-8")
        if language == "cuda":
            command = ["nvcc", "-cubin", f"-arch={arch}", "-fmad=false", "-Werror", "all-warnings", "-Xptxas", "-v,--warning-as-error"]
        else:
            command = ["ptxas", f"-arch={arch}", "-v", "--warning-as-error"]
        done = subprocess.run(
            [*command, "-o", str(path.with_suffix(".out")), str(path)], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    output = done.stdout + done.stderr
    return _Said(output, output.strip() if done.returncode else "")


_FUNCTION = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_ENTRY = {
    "cuda": re.compile(r'extern "C" __global__ void\s*(?:__launch_bounds__\([^)]*\))?\s*(\w+)\('),
    "ptx": re.compile(r"\.entry (\w+)\("),
}


def _resources(text: Text, output: str, language: str) -> Outcome:
    mine = set(_ENTRY[language].findall(text.text))
    found = [match for match in _FUNCTION.finditer(output) if match["name"] in mine]
    if len(found) < len(mine):
        return Outcome(text.name, error=f"the compiler says nothing of some of {sorted(mine)}")
    shared = [int(size) for match in found for size in re.findall(r"(\d+) bytes smem", match["rest"])]
    return Outcome(
        text.name,
        max((int(match["registers"]) for match in found), default=0),
        max((int(match["stores"]) + int(match["loads"]) for match in found), default=0),
        max((int(match["stack"]) for match in found), default=0),
        max(shared, default=0),
    )


# -- the table

HEADER = f"{'source':24} {'language':8} {'arch':8} {'kernels':>8} {'failed':>7} {'spill':>6} {'stack':>6} {'registers':>10} {'shared':>8}"


def row(source: str, language: str, arch: str, outcomes: Sequence[Outcome]) -> str:
    """A line of the table."""
    failed = sum(1 for each in outcomes if each.error)
    spilled, stack = (sum(1 for each in outcomes if value(each)) for value in (lambda o: o.spilled_bytes, lambda o: o.stack_bytes))
    most = [max((value(each) for each in outcomes), default=0) for value in (lambda o: o.registers, lambda o: o.shared_bytes)]
    return f"{source:24} {language:8} {arch:8} {len(outcomes):8} {failed:7} {spilled:6} {stack:6} {most[0]:10} {most[1]:8}"


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_texts", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--archs", default="sm_75,sm_80,sm_90a")
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--models", default="all", help="names with commas, 'all', or 'none'")
    parser.add_argument("--operators", default="*", help="a pattern of names, or 'none'")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="a folder for texts that fail")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    models = {"all": DEFAULT_MODELS, "none": ()}.get(options.models, tuple(options.models.split(",")))
    failures: list[str] = []
    print(HEADER)
    for arch in options.archs.split(","):
        target = Target.parse(f"cuda:{arch}@x86-64-v3")
        for source, kernels, failed in _sources(models, options.operators, target):
            for language in options.languages.split(","):
                texts = [*texts_of(kernels, language, target), *failed]
                outcomes = compile_texts(texts, language, arch, options.jobs)
                print(row(source, language, arch, outcomes), flush=True)
                bad = [(text, outcome) for text, outcome in zip(texts, outcomes, strict=True) if outcome.error]
                failures += [f"{source} {language} {arch} {text.name} ({text.rule}): {outcome.error}" for text, outcome in bad]
                _keep([text for text, _ in bad], options.keep, language, arch)
    for failure in failures:
        print(failure[:2000])
    return 1 if failures else 0


def _sources(models: Sequence[str], operators: str, target: Target) -> Iterator[tuple[str, list[Kernel], list[Text]]]:
    if operators != "none":
        found, failed = kernels_of_operators(operators, target)
        yield "operators", list(found.values()), failed
    for name, kernels in kernels_of_models(models, target):
        if isinstance(kernels, str):
            yield name, [], [Text(name, "", "", kernels)]
        else:
            yield name, list(kernels.values()), []


def _keep(texts: Sequence[Text], folder: Path | None, language: str, arch: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for text in texts:
        if text.text:
            (folder / f"{text.name}-{arch}{'.cu' if language == 'cuda' else '.ptx'}").write_text(text.text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
