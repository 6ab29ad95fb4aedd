"""What users type on the command line, read into values: shapes, dims, inputs."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tc
from tc.cli.values import Values, parse_values
from tc.errors import LimitError, UsageError, UserError
from tc.files import why_no_arrays
from tc.frontend.formats import foreign_format
from tc.frontend.onnx.tensors import MAX_TENSOR_BYTES
from tc.ir.dtype import DType, parse_dtype
from tc.runtime.saved import MAGIC
from tc.target import check_threads

_SHAPE = re.compile(r"((?:\d+x)*)(bool|bf16|[fiu]\d+)")
_NAMED_SHAPE = re.compile(r"((?:(?:\d+|[A-Za-z_][\w.]*?)x)+)(bool|bf16|[fiu]\d+)")
_DIM = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?")


@dataclass(frozen=True)
class ShapeSpec:
    """A shape and an element type, written `1x3x224x224xf32`; a scalar is written `f32`."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return "x".join((*map(str, self.shape), str(self.dtype)))


@dataclass(frozen=True)
class DimSpec:
    """What is said about a symbolic dim: `8` (just that), `1:64` (a range), `32:512:32` (a range, multiples of 32)."""

    lo: int
    hi: int
    multiple_of: int = 1

    @property
    def smallest(self) -> int:
        """The smallest size that is left."""
        return -(-self.lo // self.multiple_of) * self.multiple_of


Source = Path | ShapeSpec | Values


@dataclass(frozen=True)
class InputSpec:
    """Where one input comes from: a `.npy` file, random numbers of a shape, or values. Without a name it is the only input."""

    name: str | None
    source: Source


def parse_array_spec(text: str) -> ShapeSpec:
    """Read `1x3x224x224xf32`."""
    matched = _SHAPE.fullmatch(text)
    if matched is not None:
        return ShapeSpec(tuple(int(dim) for dim in matched[1].split("x")[:-1]), parse_dtype(matched[2]))
    named = _NAMED_SHAPE.fullmatch(text)
    if named is not None:
        names = [part for part in named[1].split("x")[:-1] if not part.isdecimal()]
        hint = ",".join(f"{name}=4" for name in names)
        raise UsageError(f"'{text}' is not a shape such as 1x3x224x224xf32; --dims {hint} gives the sizes of symbolic dims")
    raise UsageError(f"'{text}' is not a shape such as 1x3x224x224xf32")


def parse_dims(texts: list[str], option: str = "--dims") -> dict[str, DimSpec]:
    """Read `batch=4` and `batch=1:16,seq=32:512:32`, the values of `option`."""
    dims = {}
    for part in ",".join(texts).split(",") if texts else []:
        name, equals, fact = part.strip().partition("=")
        matched = _DIM.fullmatch(fact)
        if not name or not equals or matched is None:
            raise UsageError(f"{option}: '{part}' is not of the form name=8, name=1:64 or name=32:512:32")
        lo = int(matched[1])
        spec = DimSpec(lo, int(matched[2] or lo), int(matched[3] or 1))
        if spec.hi < spec.lo or spec.multiple_of < 1:
            raise UsageError(f"{option}: '{part}' holds no number")
        if name in dims:
            raise UsageError(f"{option}: {name} is given twice")
        dims[name] = spec
    return dims


def parse_input(text: str) -> InputSpec:
    """Read `x=image.npy`, `image.npy`, `x=1x3x224x224xf32`, `rate=16000` or `ids=[[101,2023,102]]`."""
    name, equals, source = text.partition("=")
    if not equals:
        name, source = "", text
    if source.endswith(".npy"):
        return InputSpec(name or None, Path(source))
    if source.endswith(".npz"):
        raise UsageError(f"--input {text}: give an .npz file to --inputs; it holds all inputs by name")
    values = parse_values(source)
    if values is not None:
        return InputSpec(name or None, values)
    try:
        return InputSpec(name or None, parse_array_spec(source))
    except UserError as error:
        raise UsageError(f"--input: {error.text}. It may also be a value, such as 16000 or [1,2,3], or a .npy file") from None


def read_array(path: Path) -> np.ndarray:
    """The array in a `.npy` file; UserError when it is not one."""
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path}: cannot be read as a .npy file: {_why(path, error)}") from error
    return array


def _why(path: Path, error: Exception) -> str:
    """What the file is instead, where that shows; else the error's own words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if not path.is_file():
        return "it is not a file"
    with path.open("rb") as file:
        head = file.read(512)
    foreign = None if head.startswith((b"\x93NUMPY", b"PK")) else foreign_format(head)
    if foreign is not None:
        return f"it is {foreign}"
    return why_no_arrays(error)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an `.npz` file by name; UserError when it is not one."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise UsageError(f"{path}: holds one array, no .npz file of arrays by name; --input takes it")
        with found as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise UsageError(f"{path}: cannot be read as an .npz file: {_why(path, error)}") from error


def check_room(shape: tuple[int, ...], dtype: DType, what: str) -> None:
    """LimitError for an input that is larger than a tensor may be."""
    size_bytes = math.prod(shape) * dtype.size_bytes
    if size_bytes > MAX_TENSOR_BYTES:
        raise LimitError(f"--input: {what} would take {size_bytes} bytes; the limit is {MAX_TENSOR_BYTES}", code="TC1060")


def random_array(spec: ShapeSpec, rng: np.random.Generator) -> np.ndarray:
    """Seeded random data: floats are standard normal, integers and booleans 0 or 1 (valid as ids and masks).

    LimitError for more bytes than a tensor may have.
    """
    check_room(spec.shape, spec.dtype, str(spec))
    if spec.dtype.is_float:
        return rng.standard_normal(spec.shape, np.float32).astype(spec.dtype.numpy)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype.numpy)


def is_compiled(path: Path) -> bool:
    """Whether a file holds a compiled module, whatever it is called."""
    if not path.is_file():  # to open a pipe waits for who writes to it
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # whoever reads it next says what is wrong


def need_model(path: Path, command: str, why: str) -> None:
    """UserError for a compiled module, where only the model will do."""
    if is_compiled(path):
        raise UsageError(f"{path} is a compiled module, {why}; {command} wants the ONNX file that it was made from")


def check_tolerance(tolerance: float) -> None:
    """UserError for what no difference can be compared with."""
    if not tolerance >= 0:
        raise UsageError(f"--tolerance is {tolerance}, must be a number that is not negative")


THREADS_HELP = "how many threads to use (default: TC_NUM_THREADS, else OMP_NUM_THREADS, else one for each core)"
TARGET_HELP = (
    "native (default), x86-64-v2, -v3, -v4, cpu:fact=value,...; c; opencl, opencl:1, opencl:generic; cuda, cuda:sm_80, ...; "
    "rocm:gfx942 (for --emit only)"
)
_COMPILE_DEFAULTS: dict[str, Any] = {"target": "native", "tune": None, "numerics": "default", "verify": "auto"}
_COMPILE_DEFAULTS |= {"on_unsupported": "fallback", "precision": "f32", "calibration": []}


def refuse_compile_options(args: argparse.Namespace) -> None:
    """UserError for options that come too late: of a module that is compiled already."""
    for name, default in _COMPILE_DEFAULTS.items():
        if getattr(args, name) != default:
            option = name.replace("_", "-")
            raise UsageError(f"--{option}: {args.model} is compiled already; the option is for compiling its ONNX file")


def add_precision_arguments(group: argparse._ActionsContainer) -> None:
    """The options that say how exact floats are to be."""
    group.add_argument(
        "--precision",
        default="f32",
        metavar="WORD",
        help="f32 (default), bf16, bf16x3 (products of sums of two bf16, nearly f32), f16, or mixed:1e-2: bf16 where results keep that "
        "relative error, bf16x3 or f32 elsewhere",
    )
    group.add_argument(
        "--calibration",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="inputs such as the model will get: .npz by name, .npy for one input, or a folder of such files; repeatable; f16 and mixed "
        "need them",
    )


def precision_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `tc.compile` that say how exact floats are to be."""
    if not args.calibration:
        return {"precision": args.precision} if args.precision != "f32" else {}
    return {"precision": args.precision, "calibration": args.calibration}


def add_compile_arguments(parser: argparse.ArgumentParser, *, threads: bool = True) -> None:
    """The options of every command that compiles a model; without `threads`, the command has an option of that name itself."""
    group = parser.add_argument_group("compilation")
    group.add_argument("--target", default="native", help=TARGET_HELP)
    group.add_argument(
        "--dims",
        action="append",
        default=[],
        metavar="NAME=N|LO:HI[:MULTIPLE]",
        help="what is promised about symbolic dims, such as batch=4 or batch=1:16,seq=32:512:32",
    )
    if threads:
        group.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    group.add_argument("--tune", metavar="FILE", help="a tuning database")
    group.add_argument(
        "--numerics",
        choices=("default", "strict"),
        default="default",
        help="strict: every sum and product rounded by itself, no operator computed in another way",
    )
    add_precision_arguments(group)
    group.add_argument(
        "--verify",
        choices=("auto", "always", "never"),
        default="auto",
        help="always: compare every compiled kernel with the reference interpreter, exit code 3 when one differs",
    )
    group.add_argument(
        "--on-unsupported",
        choices=("fallback", "error"),
        default="fallback",
        help="what to do with a node that has no native kernel: run its reference kernel (default), or stop",
    )


def compile_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `tc.compile` that the command line gives."""
    threads = None if args.threads is None else check_threads(args.threads, "--threads")
    dims = {name: tc.Dim(spec.lo, spec.hi, spec.multiple_of) for name, spec in parse_dims(args.dims).items()}
    return {
        "target": args.target,
        "dims": dims or None,
        "tune": args.tune,
        "threads": threads,
        "numerics": args.numerics,
        "verify": args.verify,
        "on_unsupported": args.on_unsupported,
        **precision_options(args),
    }
