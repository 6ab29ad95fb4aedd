"""Floating-point instructions: rounded exactly where PTX says so, and correctly rounded where it says "approximately".

Values of the narrow types (f16, bf16 and pairs of them) are computed in float64 from their exact values and rounded
once. float32 uses the machine's own operations where these are the rounding that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx import numerics
from tests.ptx.coder import Coder, Reader, Run, builds
from tests.ptx.element_types import PtxType
from tests.ptx.machine import Machine
from tests.ptx.numerics import canonical

ROUNDINGS = ("rn", "rz", "rm", "rp")
PAIRS = ("f16x2", "bf16x2")
NARROW = ("f16", "bf16", *PAIRS)

# ---------------------------------------------------------------- values of types


def open_values(type: PtxType, bits: np.ndarray) -> np.ndarray:
    """Exact values: [n, 2] of pairs."""
    match type.name:
        case "bf16":
            return numerics.from_bf16(bits)
        case "f16x2":
            return np.ascontiguousarray(bits).view(np.float16).reshape(-1, 2)
        case "bf16x2":
            return numerics.from_bf16(np.ascontiguousarray(bits).view(np.uint16).reshape(-1, 2))
    return bits


def close_values(type: PtxType, value: np.ndarray, mode: str = "rn") -> np.ndarray:
    """float64, exact or rounded to odd, -> bits of the type, as `dtype`."""
    if type.name in ("bf16", "bf16x2"):
        bits = numerics.to_bf16(value, mode)
        return bits if type.name == "bf16" else np.ascontiguousarray(bits).view(np.uint32)[:, 0]
    rounded = canonical(numerics.round_to(value, np.float16, mode))
    return rounded if type.name == "f16" else np.ascontiguousarray(rounded).view(np.uint32)[:, 0]


def flushed(read: Reader, ftz: bool) -> Reader:
    """The reader, with subnormal float32 values as zero."""
    if not ftz:
        return read

    def run(m: Machine, active: np.ndarray | None) -> np.ndarray:
        value = read(m, active)
        return numerics.flush(value) if value.dtype == np.float32 else value

    return run


def saturate(value: np.ndarray) -> np.ndarray:
    """To [0, 1]; NaN becomes +0."""
    one, zero = value.dtype.type(1), value.dtype.type(0)
    return np.where(value > zero, np.minimum(value, one), zero)


# ---------------------------------------------------------------- one builder for them all


def arithmetic(
    c: Coder, type: PtxType, native: Callable, exact: Callable, arity: int, mode: str, ftz: bool, sat: bool, relu: bool = False
) -> Run:
    """`native` computes float32 and float64 rounded by `mode`; `exact` float64 (rounded to odd) from exact values."""
    write = c.destination(0, type)
    reads = [flushed(c.source(i + 1, type), ftz) for i in range(arity)]

    def narrow(*values: np.ndarray) -> np.ndarray:
        result = exact(*(open_values(type, v).astype(np.float64) for v in values))
        if sat:
            result = saturate(result)
        if relu:
            result = np.where(result < 0, 0.0, result)
        return close_values(type, result, mode)

    def wide(*values: np.ndarray) -> np.ndarray:
        result = canonical(native(*values))
        if ftz:
            result = numerics.flush(result)
        return saturate(result) if sat else result

    compute = narrow if type.name in NARROW else wide
    return lambda m, active: write(m, active, compute(*(read(m, active) for read in reads)))


def by_odd(exact: Callable, mode: str) -> Callable:
    """float32 arithmetic with a directed rounding, from the float64 sum or product rounded to odd."""
    return lambda *values: numerics.round_to(exact(*(v.astype(np.float64) for v in values)), np.float32, mode)


def take_float(c: Coder, *allowed: str) -> tuple[PtxType, str, bool, bool]:
    """(type, rounding, ftz, sat)"""
    mode = c.choose(*ROUNDINGS, default="rn")
    ftz, sat = c.flag("ftz"), c.flag("sat")
    type = c.type(*(allowed or ("f32", "f64", *NARROW)))
    return type, mode, ftz, sat


def directed64(c: Coder, type: PtxType, mode: str) -> None:
    if type.name == "f64" and mode != "rn":
        raise c.unsupported(f"rounding {mode} of f64")


def build_sum(c: Coder) -> Run:
    type, mode, ftz, sat = take_float(c)
    directed64(c, type, mode)
    native = np.add if c.opcode == "add" else np.subtract

    def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return numerics.add_odd(a, b if c.opcode == "add" else -b)

    return arithmetic(c, type, native if mode == "rn" else by_odd(exact, mode), exact, 2, mode, ftz, sat)


def build_product(c: Coder) -> Run:
    type, mode, ftz, sat = take_float(c)
    directed64(c, type, mode)
    return arithmetic(c, type, np.multiply if mode == "rn" else by_odd(np.multiply, mode), np.multiply, 2, mode, ftz, sat)


@builds("fma")
def build_fma(c: Coder) -> Run:
    relu = c.flag("relu")
    type, mode, ftz, sat = take_float(c)
    directed64(c, type, mode)
    if relu and type.name not in NARROW:
        raise c.unsupported("relu")
    native = numerics.fma64 if type.name == "f64" else (lambda a, b, d: numerics.fma32(a, b, d, mode))
    return arithmetic(c, type, native, numerics.fma_odd, 3, mode, ftz, sat, relu)


def build_division(c: Coder) -> Run:
    c.drop("full", "approx")
    type, mode, ftz, _ = take_float(c, "f32", "f64")
    directed64(c, type, mode)
    return arithmetic(c, type, np.divide if mode == "rn" else by_odd(np.divide, mode), np.divide, 2, mode, ftz, False)


# ---------------------------------------------------------------- functions of one value


def function(c: Coder, compute: Callable[[np.ndarray], np.ndarray], *allowed: str) -> Run:
    """A function computed in float64 and rounded."""
    c.drop("approx")
    type, mode, ftz, _ = take_float(c, *(allowed or ("f32", "f64")))
    directed64(c, type, mode)

    def native(a: np.ndarray) -> np.ndarray:
        if type.name == "f64":
            return compute(a)
        return numerics.round_to(compute(a.astype(np.float64)), np.float32, mode)

    return arithmetic(c, type, native, compute, 1, mode, ftz, False)


def bounded(compute: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: np.where(np.isinf(a), np.nan, compute(np.where(np.isinf(a), 0.0, a)))


def inverse_root(a: np.ndarray) -> np.ndarray:
    return np.where(a == 0, np.copysign(np.inf, a), 1.0 / np.sqrt(a))


FUNCTIONS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "rcp": (lambda a: 1.0 / a, ("f32", "f64")),
    "sqrt": (np.sqrt, ("f32", "f64")),
    "rsqrt": (inverse_root, ("f32", "f64")),
    "sin": (bounded(np.sin), ("f32",)),
    "cos": (bounded(np.cos), ("f32",)),
    "lg2": (np.log2, ("f32",)),
    "ex2": (np.exp2, ("f32", *NARROW)),
    "tanh": (np.tanh, ("f32", *NARROW)),
}


@builds(*FUNCTIONS)
def build_function(c: Coder) -> Run:
    compute, allowed = FUNCTIONS[c.opcode]
    return function(c, compute, *allowed)


# ---------------------------------------------------------------- signs


def sign_bits(type: PtxType) -> np.generic:
    return type.unsigned.type({16: 0x8000, 32: 0x80000000, 64: 1 << 63}[type.bits] | (0x8000 if type.name in PAIRS else 0))


def on_bits(c: Coder, change: Callable[[np.ndarray, np.generic], np.ndarray]) -> Run:
    ftz = c.flag("ftz")
    type = c.type("f32", "f64", *NARROW)
    sign = sign_bits(type)
    write, read = c.destination(0, type), flushed(c.source(1, type), ftz)
    return lambda m, active: write(m, active, change(read(m, active).view(type.unsigned), sign).view(type.dtype))


def build_abs(c: Coder) -> Run:
    return on_bits(c, lambda bits, sign: bits & ~sign)


def build_neg(c: Coder) -> Run:
    return on_bits(c, lambda bits, sign: bits ^ sign)


@builds("copysign")
def build_copysign(c: Coder) -> Run:
    type = c.type("f32", "f64")
    sign = sign_bits(type)
    write, a, b = c.destination(0, type), c.source(1, type), c.source(2, type)

    def run(m: Machine, active: np.ndarray | None) -> None:
        from_a, from_b = a(m, active).view(type.unsigned), b(m, active).view(type.unsigned)
        write(m, active, ((from_a & sign) | (from_b & ~sign)).view(type.dtype))

    return run


@builds("testp")
def build_testp(c: Coder) -> Run:
    what = c.choose("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    type = c.type("f32", "f64")
    smallest = np.finfo(type.dtype).tiny
    tests: dict[str, Callable] = {
        "finite": np.isfinite, "infinite": np.isinf, "number": lambda a: ~np.isnan(a), "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= smallest), "subnormal": lambda a: (a != 0) & (np.abs(a) < smallest),
    }  # fmt: skip
    write, read = c.destination(0, "pred"), c.source(1, type)
    return lambda m, active: write(m, active, tests[what](read(m, active)))


# ---------------------------------------------------------------- least and greatest


def build_extreme(c: Coder) -> Run:
    """min and max: a NaN loses against a number, except with .NaN; -0 is less than +0."""
    ftz, keep_nan, signs = c.flag("ftz"), c.flag("NaN"), c.flag("xorsign")
    if signs:
        c.flag("abs")
    type = c.type("f32", "f64", *NARROW)
    least = c.opcode == "min"
    count = len(c.operands) - 1
    write = c.destination(0, type)
    reads = [flushed(c.source(i + 1, type), ftz) for i in range(count)]

    def pick(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        negative = np.signbit(a) != np.signbit(b)
        if signs:
            a, b = np.abs(a), np.abs(b)
        first = np.where(a == b, np.signbit(a) == least, a < b if least else a > b)
        result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where(first, a, b)))
        if keep_nan:
            result = np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), result)
        return np.where(negative & ~np.isnan(result), -result, result) if signs else result

    def run(m: Machine, active: np.ndarray | None) -> None:
        first, *others = (open_values(type, read(m, active)) for read in reads)
        for other in others:
            first = pick(first, other)
        result = canonical(first)
        write(m, active, close_values(type, result.astype(np.float64)) if type.name in NARROW else result)

    return run


# ---------------------------------------------------------------- comparisons


def unordered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isnan(a) | np.isnan(b)


ORDERED: dict[str, Callable] = {
    "eq": np.equal, "ne": lambda a, b: (a != b) & ~unordered(a, b), "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
COMPARISONS: dict[str, Callable] = {
    **ORDERED,
    **{f"{name}u": (lambda a, b, test=test: test(a, b) | unordered(a, b)) for name, test in ORDERED.items()},
    "num": lambda a, b: ~unordered(a, b),
    "nan": unordered,
}


def comparison(c: Coder, name: str, type: PtxType) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    if name not in COMPARISONS or type.name not in ("f32", "f64", *NARROW):
        raise c.unsupported(f"comparison {name} of {type.name}")
    test = COMPARISONS[name]
    return lambda a, b: test(open_values(type, a), open_values(type, b))


def truth(type: PtxType) -> Callable[[np.ndarray], np.ndarray]:
    """What `set` writes: all ones, or one in a floating-point type."""
    if type.is_integer:
        return lambda flags: np.where(flags, ~type.unsigned.type(0), type.unsigned.type(0)).view(type.dtype)
    if type.name in NARROW:
        return lambda flags: close_values(type, flags.astype(np.float64))
    return lambda flags: flags.astype(type.dtype)
