"""Instructions of warps in CUDA-C: a function for each, of one piece of assembly on registers that are elements of arrays.

Where such a function is inlined, and loops around it are unrolled, all indices are constant, and the arrays are registers.
"""

from __future__ import annotations

from tc.codegen.c.helpers import Helpers
from tc.codegen.warp_assembly import DESCRIPTOR, WarpAssembly, assembly_of

WORD = "tc_word"
"""32 bits of several elements, whatever these are."""


DESCRIPTOR_TYPE = "u64 "
"""What says where a matrix in shared memory is."""


def warp_function(helpers: Helpers, name: str) -> str:
    """The name of the function of an intrinsic: pointers to registers, the result's last; of a row, to its first element."""
    assembly = assembly_of(name)
    helpers.need(WORD, lambda: f"typedef unsigned int __attribute__((may_alias)) {WORD};")
    return helpers.need(f"tc_{name.replace('.', '_')}", lambda: _text(helpers, name, assembly))


def pointer_types(name: str) -> tuple[str, ...]:
    """What the function's arguments are cast to."""
    assembly = assembly_of(name)
    result = "f32 *" if assembly.kind == "f" else f"{WORD} *"
    kinds = {0: "const void *", DESCRIPTOR: DESCRIPTOR_TYPE}
    return (*(kinds.get(count, f"const {WORD} *") for count in assembly.operands), result)


def _inputs(place: str, count: int) -> list[str]:
    if count == DESCRIPTOR:
        return [f'"l"({place})']
    return [f'"r"({place}[{k}])' for k in range(count)] or [f'"r"((u32)__cvta_generic_to_shared({place}))']


def _text(helpers: Helpers, name: str, assembly: WarpAssembly) -> str:
    places = [f"p{k}" for k in range(len(assembly.operands))]
    params = [f"{kind}{place}" for kind, place in zip(pointer_types(name), (*places, "d"), strict=True)]
    results = [f'"{"+" if assembly.is_update else "="}{assembly.kind}"(d[{k}])' for k in range(assembly.results)]
    inputs = [
        text
        for place, count in zip(places, assembly.operands, strict=True)
        for text in _inputs(place, count)
    ]
    clobbers = ' : "memory"' if assembly.has_address else ""
    lines = [
        f"{helpers.dialect.helper} void tc_{name.replace('.', '_')}({', '.join(params)}) {{",
        f'    asm volatile("{assembly.written(lambda k: f"%{k}")}"',
        f"        : {', '.join(results)}",
        f"        : {', '.join(inputs)}{clobbers});",
        "}",
    ]
    return "\n".join(lines)
