"""cvt: between integers, floating-point types, and packed ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx import numerics
from tests.ptx.coder import Coder, Run, builds
from tests.ptx.element_types import PtxType
from tests.ptx.machine import Machine
from tests.ptx.numerics import canonical
from tests.ptx.ops_float import ROUNDINGS, close_values, flushed, open_values, saturate
from tests.ptx.syntax import Operand

TO_INTEGER: dict[str, Callable[[np.ndarray], np.ndarray]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@builds("cvt")
def build_cvt(c: Coder) -> Run:
    if c.flag("pack"):
        return build_pack(c)
    mode = c.choose(*ROUNDINGS, *TO_INTEGER, "rna", default="")
    ftz, sat, relu, satfinite = c.flag("ftz"), c.flag("sat"), c.flag("relu"), c.flag("satfinite")
    target, source = c.type(), c.type()
    if target.name in ("f16x2", "bf16x2", "e4m3x2", "e5m2x2"):
        return build_packed(c, target, source, mode, relu)
    if source.is_integer:
        change = from_integer(target, source, mode, sat, ftz)
    elif target.is_integer:
        change = to_integer(target, source, mode)
    elif target.name == "tf32":
        change = lambda value: numerics.to_tf32(value, mode or "rna")  # noqa: E731
    else:
        change = between_floats(c, target, source, mode, sat, ftz, relu)
    if satfinite and target.name != "tf32":
        raise c.unsupported("satfinite")
    write, read = c.destination(0, target), flushed(c.source(1, source), ftz)
    return lambda m, active: write(m, active, change(read(m, active)))


# ---------------------------------------------------------------- integers


def from_integer(target: PtxType, source: PtxType, mode: str, sat: bool, ftz: bool) -> Callable[[np.ndarray], np.ndarray]:
    if not target.is_integer:
        return lambda value: integer_to_float(value, target, mode or "rn", sat)
    if sat:
        info = np.iinfo(target.dtype)
        return lambda value: clip_integer(value, info.min, info.max).astype(target.dtype)
    return lambda value: value.astype(target.dtype)


def clip_integer(value: np.ndarray, low: int, high: int) -> np.ndarray:
    own = np.iinfo(value.dtype)
    return value.clip(max(low, own.min), min(high, own.max))


def integer_to_float(value: np.ndarray, target: PtxType, mode: str, sat: bool) -> np.ndarray:
    exact = odd_float(value)
    if target.name == "f64":
        return value.astype(np.float64) if mode == "rn" else round_integer_to_f64(value, mode)
    if target.name == "f32":
        result = numerics.round_to(exact, np.float32, mode)
        return saturate(result) if sat else result
    return close_values(target, saturate(exact) if sat else exact, mode)


def odd_float(value: np.ndarray) -> np.ndarray:
    """Integers as float64, rounded to odd."""
    if value.dtype.itemsize < 8:
        return value.astype(np.float64)
    low = value & value.dtype.type(0x7FF)
    high = (value - low).astype(np.float64)  # 53 bits at most
    return numerics.add_odd(high, low.astype(np.float64))


def round_integer_to_f64(value: np.ndarray, mode: str) -> np.ndarray:
    """Directed rounding of 64-bit integers; smaller ones are exact."""
    near = value.astype(np.float64)
    if value.dtype.itemsize < 8:
        return near
    low = value & value.dtype.type(0x7FF)
    error = ((value - low).astype(np.float64) - near) + low.astype(np.float64)  # exact value minus near
    towards_zero = np.where(near > 0, -np.inf, np.inf)
    move = {"rz": np.where(near > 0, error < 0, error > 0), "rm": error < 0, "rp": error > 0}[mode]
    limit = {"rz": towards_zero, "rm": -np.inf, "rp": np.inf}[mode]
    return np.where(move, np.nextafter(near, limit), near)


def to_integer(target: PtxType, source: PtxType, mode: str) -> Callable[[np.ndarray], np.ndarray]:
    """Rounded, then clamped to the type. NaN gives 0, but the highest bit alone from f64 or in 64 bits."""
    info = np.iinfo(target.dtype)
    rounding = TO_INTEGER[mode or "rzi"]
    special = target.bits == 64 or source.bits == 64
    nan = np.array(1 << (target.bits - 1) if special else 0, target.unsigned).view(target.dtype)

    def change(value: np.ndarray) -> np.ndarray:
        exact = rounding(open_values(source, value).astype(np.float64))
        top, bottom = exact >= float(info.max), exact <= float(info.min)
        plain = np.where(top | bottom | np.isnan(exact), 0.0, exact)
        result = plain.astype(np.int64 if target.is_signed else np.uint64).astype(target.dtype)
        result = np.where(top, target.dtype.type(info.max), np.where(bottom, target.dtype.type(info.min), result))
        return np.where(np.isnan(exact), nan, result)

    return change


# ---------------------------------------------------------------- floating point


def between_floats(
    c: Coder, target: PtxType, source: PtxType, mode: str, sat: bool, ftz: bool, relu: bool
) -> Callable[[np.ndarray], np.ndarray]:
    if source.name not in ("f16", "bf16", "f32", "f64", "tf32") or target.name not in ("f16", "bf16", "f32", "f64"):
        raise c.unsupported(f"conversion from {source.name} to {target.name}")
    rounding = TO_INTEGER.get(mode)

    def change(value: np.ndarray) -> np.ndarray:
        exact = open_values(source, value).astype(np.float64)
        if rounding is not None:
            exact = rounding(exact)
        if sat:
            exact = saturate(exact)
        if relu:
            exact = np.where(exact < 0, 0.0, exact)
        return close_float(target, exact, mode if rounding is None and mode else "rn", ftz)

    return change


def close_float(target: PtxType, exact: np.ndarray, mode: str, ftz: bool) -> np.ndarray:
    if target.name == "f64":
        return canonical(exact)
    if target.name == "f32":
        result = canonical(numerics.round_to(exact, np.float32, mode))
        return numerics.flush(result) if ftz else result
    return close_values(target, exact, mode)


# ---------------------------------------------------------------- packed


def build_packed(c: Coder, target: PtxType, source: PtxType, mode: str, relu: bool) -> Run:
    """`cvt.rn.f16x2.f32 d, a, b`: a is the upper half. From the 8-bit pairs there is one operand, a pair itself."""
    if source.name in ("e4m3x2", "e5m2x2"):
        return build_unpacked_fp8(c, target, source, relu)
    if target.name in ("e4m3x2", "e5m2x2"):
        return build_packed_fp8(c, target, source, relu)
    if source.name != "f32":
        raise c.unsupported(f"conversion from {source.name} to {target.name}")
    write, high, low = c.destination(0, target), c.source(1, source), c.source(2, source)

    def run(m: Machine, active: np.ndarray | None) -> None:
        values = np.stack(np.broadcast_arrays(low(m, active), high(m, active)), 1).astype(np.float64)
        if relu:
            values = np.where(values < 0, 0.0, values)
        write(m, active, close_values(target, values, mode or "rn"))

    return run


def build_packed_fp8(c: Coder, target: PtxType, source: PtxType, relu: bool) -> Run:
    write = c.destination(0, target)
    operands: tuple[Operand, ...] = c.operands[1:]
    if source.name == "f32" and len(operands) == 2:
        reads = [c.source(operands[1], source), c.source(operands[0], source)]
    elif source.name in ("f16x2", "bf16x2") and len(operands) == 1:
        reads = [c.source(operands[0], source)]
    else:
        raise c.unsupported(f"conversion from {source.name} to {target.name}")

    def run(m: Machine, active: np.ndarray | None) -> None:
        values = [read(m, active) for read in reads]
        pairs = np.stack(np.broadcast_arrays(*values), 1) if len(values) == 2 else open_values(source, values[0]).astype(np.float32)
        if relu:
            pairs = np.where(pairs < 0, np.float32(0), pairs)
        codes = numerics.to_fp8(pairs, target.name[:4])
        write(m, active, np.ascontiguousarray(codes).view(np.uint16)[:, 0])

    return run


def build_unpacked_fp8(c: Coder, target: PtxType, source: PtxType, relu: bool) -> Run:
    write, read = c.destination(0, target), c.source(1, source)
    table = numerics.FP8[source.name[:4]]

    def run(m: Machine, active: np.ndarray | None) -> None:
        codes = np.ascontiguousarray(read(m, active)).view(np.uint8).reshape(-1, 2)
        values = table[codes].astype(np.float64)
        write(m, active, close_values(target, np.where(values < 0, 0.0, values) if relu else values))

    return run


def build_pack(c: Coder) -> Run:
    """`cvt.pack.sat.s8.s32.b32 d, a, b, c`: a and b clamped into the low bytes below the bytes of c."""
    c.flag("sat")
    target, source = c.type("u8", "s8", "u16", "s16"), c.type("s32")
    has_rest = len(c.operands) == 4
    if has_rest:
        c.type("b32")
    write, a, b = c.destination(0, "b32"), c.source(1, source), c.source(2, source)
    rest = c.source(3, "b32") if has_rest else None
    info = np.iinfo(target.dtype)
    bits = np.uint32(target.bits)

    def run(m: Machine, active: np.ndarray | None) -> None:
        high, low = (read(m, active).clip(info.min, info.max).astype(target.unsigned).astype(np.uint32) for read in (a, b))
        packed = high << bits | low
        write(m, active, packed if rest is None else packed | rest(m, active) << (bits * np.uint32(2)))

    return run
