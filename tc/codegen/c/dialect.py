"""What differs between the languages of the C family: names of types and functions, qualifiers, and how vectors are written.

Everything else is one emitter's. A dialect that is new is a table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """A language of the C family.

    `types`: what the names of types that the emitter writes stand for. `preamble`: lines before everything else. `long_suffix`: of 64-bit
    literals. `is_overloaded`: one name of a math function serves all types of numbers. `gnu_vectors`: vectors are types of the compiler,
    else structs. `spaces`: scope of a buffer -> qualifier of pointers to its memory; `storage`: that of
    its declaration. `barrier`: the statement that the threads of a block
    wait at. `ids`: axis of a GPU -> its number in this thread. `bits`: f32 or f64 -> the functions from its bits and to them.
    `infinity`: its name, if it has one. `atomics`: the functions
    that keep and that set bits of a word of global memory.
    `launch_bounds`: what says how many threads a block has ("{blocks}": and that one block at a time will do, of few threads). `unroll`:
    the line in front of a loop of so many iterations that are to be code of their own; `rolled`: of one that is to stay a loop, "" where
    the compiler may do as it likes.
    `asked_shared`: qualifiers of the shared memory that a launch asks for; "" where functions declare any amount.
    `change_bits`: statements that let `*byte` have `bits` where `mask` is set, whatever other threads do to other bits.
    `has_warps`: it takes PTX, of the instructions of warps.
    `has_async_copies`: copies to shared memory go on while a thread does something else; `has_boxes`: those of boxes, too.
    `casts`: (result, operand) -> the lines of a function of x for a conversion that the device has an instruction for.
    `options`: what its compiler has to be told for the numbers to be those of the IR.
    """

    name: str
    types: Mapping[str, str]
    preamble: tuple[str, ...] = ()
    helper: str = "static inline"
    kernel: str = ""
    restrict: str = "restrict"
    long_suffix: str = "LL"
    is_overloaded: bool = False
    gnu_vectors: bool = False
    alignment: str = "__attribute__((aligned({})))"
    unroll: str = "#pragma unroll {}"
    rolled: str = ""
    spaces: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    barrier: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    bits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    infinity: str = ""
    atomics: tuple[str, str] = ("", "")
    launch_bounds: str = ""
    change_bits: tuple[str, ...] = ()
    has_warps: bool = False
    has_async_copies: bool = False
    has_boxes: bool = False
    asked_shared: str = ""
    casts: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def is_host(self) -> bool:
        """Whether kernels are ordinary functions."""
        return not self.kernel

    def function(self, name: str, dtype: str) -> str:
        """A math function of the language for f32 or f64."""
        return name if self.is_overloaded or dtype == "f64" else f"{name}f"

    def space(self, scope: str) -> str:
        """The qualifier of a pointer to memory of this scope, with a space behind it."""
        found = self.spaces.get(scope, "")
        return f"{found} " if found else ""


def _types(*integers: str) -> dict[str, str]:
    """The types of a language, given those of integers: signed ones first, short ones first."""
    names = [f"{kind}{bits}" for kind in "iu" for bits in (8, 16, 32, 64)]
    return dict(zip(names, integers, strict=True)) | {"f32": "float", "f64": "double"}


C = Dialect(
    name="c",
    types=_types(*(f"{name}{bits}_t" for name in ("int", "uint") for bits in (8, 16, 32, 64))),
    preamble=("#include <math.h>", "#include <stdint.h>"),
    gnu_vectors=True,
    unroll="#pragma GCC unroll {}",
    infinity="INFINITY",
    change_bits=("__atomic_fetch_and(byte, (u8)~mask, __ATOMIC_RELAXED);", "__atomic_fetch_or(byte, bits, __ATOMIC_RELAXED);"),
    # The last one: GCC 12 at -O3 with AVX2 loses what masked loops over arrays of 13 elements select.
    options=("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-fno-tree-loop-if-convert"),
)
"""C11. With TC_SCALAR defined vectors are structs, and nothing of GNU C is left but pragmas and attributes."""

OPENCL = Dialect(
    name="opencl",
    types=_types("char", "short", "int", "long", "uchar", "ushort", "uint", "ulong"),
    preamble=("#pragma OPENCL FP_CONTRACT OFF",),
    helper="static",
    kernel="__kernel",
    launch_bounds="__attribute__((reqd_work_group_size({}, {}, {}))) void",
    long_suffix="L",
    is_overloaded=True,
    unroll="__attribute__((opencl_unroll_hint({})))",
    spaces={"global": "__global", "shared": "__local"},
    storage={"shared": "__local"},
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    ids={
        f"{what}.{axis}": f"get_{name}_id({number})"
        for what, name in (("block", "group"), ("thread", "local"))
        for number, axis in enumerate("xyz")
    },
    bits={"f32": ("as_float", "as_uint"), "f64": ("as_double", "as_ulong")},
    infinity="INFINITY",
    atomics=("atomic_and", "atomic_or"),
    change_bits=(
        "volatile __global uint *word = (volatile __global uint *)((size_t)byte & ~(size_t)3);",
        "const uint up = 8 * (uint)((size_t)byte & 3);",
        "atomic_and(word, ~((uint)mask << up));",
        "atomic_or(word, (uint)bits << up);",
    ),
    options=("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt"),
)

CUDA = Dialect(
    name="cuda",
    types=_types(*(f"{sign}{kind}" for sign in ("signed ", "unsigned ") for kind in ("char", "short", "int", "long long"))),
    helper="static __device__ __forceinline__",
    kernel='extern "C" __global__ void',
    launch_bounds="__launch_bounds__({total}{blocks})",
    restrict="__restrict__",
    alignment="__align__({})",
    rolled="#pragma unroll 1",
    storage={"shared": "__shared__"},
    asked_shared="extern __shared__",
    barrier="__syncthreads();",
    atomics=("atomicAnd", "atomicOr"),
    ids={f"{what}.{axis}": f"{what}Idx.{axis}" for what in ("block", "thread") for axis in "xyz"},
    bits={"f32": ("__uint_as_float", "__float_as_uint"), "f64": ("tc_f64_bits", "tc_bits_f64")},
    change_bits=(
        "unsigned int *word = (unsigned int *)((u64)byte & ~(u64)3);",
        "const unsigned int up = 8 * (unsigned int)((u64)byte & 3);",
        "atomicAnd(word, ~((unsigned int)mask << up));",
        "atomicOr(word, (unsigned int)bits << up);",
    ),
    has_warps=True,
    has_async_copies=True,
    has_boxes=True,
    casts={
        ("f16", "f32"): ("    u16 r;", '    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));', "    return r;"),
        ("f32", "f16"): ("    f32 r;", '    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));', "    return r;"),
    },
    options=("-fmad=false",),
)
