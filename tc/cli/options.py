"""What users type on the command line, read into values: shapes, dims, inputs."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tc
from tc.errors import UserError
from tc.ir.dtype import DType, parse_dtype

_SHAPE = re.compile(r"((?:\d+x)*)(bool|bf16|[fiu]\d+)")
_DIM = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?")


@dataclass(frozen=True)
class ArraySpec:
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


@dataclass(frozen=True)
class InputSpec:
    """Where one input comes from: a `.npy` file, or random numbers of a shape. Without a name it is the only input."""

    name: str | None
    source: Path | ArraySpec


def parse_array_spec(text: str) -> ArraySpec:
    """Read `1x3x224x224xf32`."""
    matched = _SHAPE.fullmatch(text)
    if matched is None:
        raise UserError(f"'{text}' is not a shape such as 1x3x224x224xf32")
    return ArraySpec(tuple(int(dim) for dim in matched[1].split("x")[:-1]), parse_dtype(matched[2]))


def parse_dims(texts: list[str]) -> dict[str, DimSpec]:
    """Read `batch=4` and `batch=1:16,seq=32:512:32`."""
    dims = {}
    for part in ",".join(texts).split(",") if texts else []:
        name, equals, fact = part.strip().partition("=")
        matched = _DIM.fullmatch(fact)
        if not name or not equals or matched is None:
            raise UserError(f"--dims: '{part}' is not of the form name=8, name=1:64 or name=32:512:32")
        lo = int(matched[1])
        spec = DimSpec(lo, int(matched[2] or lo), int(matched[3] or 1))
        if spec.hi < spec.lo or spec.multiple_of < 1:
            raise UserError(f"--dims: '{part}' holds no number")
        dims[name] = spec
    return dims


def parse_input(text: str) -> InputSpec:
    """Read `x=image.npy`, `image.npy` or `x=1x3x224x224xf32`."""
    name, equals, source = text.partition("=")
    if not equals:
        name, source = "", text
    if source.endswith(".npy"):
        return InputSpec(name or None, Path(source))
    if source.endswith(".npz"):
        raise UserError(f"--input {text}: give an .npz file to --inputs; it holds all inputs by name")
    return InputSpec(name or None, parse_array_spec(source))


def read_array(path: Path) -> np.ndarray:
    """The array in a `.npy` file; UserError when it is not one."""
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as a .npy file: {error}") from error
    return array


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an `.npz` file by name; UserError when it is not one."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as an .npz file: {error}") from error


def random_array(spec: ArraySpec, rng: np.random.Generator) -> np.ndarray:
    """Seeded random data: floats are standard normal, integers and booleans 0 or 1 (valid as ids and masks)."""
    if spec.dtype.is_float:
        return rng.standard_normal(spec.shape, np.float32).astype(spec.dtype.numpy)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype.numpy)


def add_compile_arguments(parser: argparse.ArgumentParser, *, threads: bool = True) -> None:
    """The options of every command that compiles a model; without `threads`, the command has an option of that name itself."""
    group = parser.add_argument_group("compilation")
    group.add_argument("--target", default="native", help="native (default), x86-64-v2, -v3, -v4, cpu:fact=value,...")
    group.add_argument(
        "--dims",
        action="append",
        default=[],
        metavar="NAME=N|LO:HI[:MULTIPLE]",
        help="what is promised about symbolic dims, such as batch=4 or batch=1:16,seq=32:512:32",
    )
    if threads:
        group.add_argument("--threads", type=int, help="how many threads to use (default: every core there is)")
    group.add_argument("--tune", metavar="FILE", help="a tuning database")
    group.add_argument(
        "--numerics",
        choices=("default", "strict"),
        default="default",
        help="strict: every sum and product rounded by itself, no operator computed in another way",
    )
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
    if args.threads is not None and args.threads < 1:
        raise UserError(f"--threads is {args.threads}, must be at least 1")
    dims = {name: tc.Dim(spec.lo, spec.hi, spec.multiple_of) for name, spec in parse_dims(args.dims).items()}
    return {
        "target": args.target,
        "dims": dims or None,
        "tune": args.tune,
        "threads": args.threads,
        "numerics": args.numerics,
        "verify": args.verify,
        "on_unsupported": args.on_unsupported,
    }
