"""The helpers of CUDA-C that copy boxes, wait for phases of barriers, and say when registers are operands of products of groups."""

from __future__ import annotations

from tc.codegen.box_assembly import (
    ARRIVE,
    ARRIVE_EXPECTING,
    AWAIT_PHASE,
    MAP_ALIGNMENT,
    MAP_BYTES,
    SET_UP_BARRIER,
    copy_box_text,
)
from tc.codegen.c.helpers import Helpers

MAP_TYPE = "tc_box_map"


def map_type(helpers: Helpers) -> str:
    """The type of the description of a tensor that boxes are copied from."""
    text = f"struct __align__({MAP_ALIGNMENT}) {MAP_TYPE} {{ u64 words[{MAP_BYTES // 8}]; }};"
    return helpers.need(MAP_TYPE, lambda: text)


def matrix_helper(helpers: Helpers) -> str:
    """The helper that makes the descriptor of a matrix in shared memory."""
    body = "return bits | (u64)(((u32)__cvta_generic_to_shared(p) & 0x3FFFFu) >> 4);"
    return helpers.need("tc_matrix", lambda: f"{helpers.dialect.helper} u64 tc_matrix(const void *p, u64 bits) {{\n    {body}\n}}")


def barrier_helper(helpers: Helpers, what: str) -> str:
    """The helper that does something with a phase barrier, and a number where it takes one: "set_up", "arrive", "arrive_expecting",
    "await"."""
    texts = {"set_up": SET_UP_BARRIER, "arrive": ARRIVE, "arrive_expecting": ARRIVE_EXPECTING, "await": AWAIT_PHASE}
    text, number = texts[what], what != "arrive"
    operands = '"r"((u32)__cvta_generic_to_shared(barrier))' + (', "r"(number)' if number else "")
    head = f"{helpers.dialect.helper} void tc_{what}(i64 *barrier{', u32 number' if number else ''}) {{"
    body = f'    asm volatile("{text.format("%0", "%1")}" :: {operands} : "memory");'
    return helpers.need(f"tc_{what}", lambda: "\n".join((head, body, "}")))


def copy_box_helper(helpers: Helpers, rank: int) -> str:
    """The helper that copies a box of so many dims."""
    name, kind = f"tc_copy_box{rank}", map_type(helpers)
    places = [f"c{k}" for k in range(rank)]
    head = f"{helpers.dialect.helper} void {name}(void *to, const {kind} *map, i64 *barrier, {', '.join(f'i64 {p}' for p in places)}) {{"
    text = copy_box_text(rank).format(*(f"%{k}" for k in range(3 + rank)))
    shared = [f'"r"((u32)__cvta_generic_to_shared({p}))' for p in ("to", "barrier")]
    operands = ", ".join((shared[0], '"l"(map)', shared[1], *(f'"r"((i32){p})' for p in places)))
    return helpers.need(name, lambda: "\n".join((head, f'    asm volatile("{text}"', f'                 :: {operands} : "memory");', "}")))


def group_helper(helpers: Helpers, what: str, text: str, counts: tuple[tuple[int, bool], ...]) -> str:
    """The helper of an instruction of a group of warps by which registers are handed over. `counts`: how many follow each other in each of
    several places, and whether they are of f32, or words of anything."""
    name = f"tc_{what}_products{'_'.join(f'{count}' if is_float else f'{count}w' for count, is_float in counts)}"
    names = "d" if len(counts) == 1 else [f"d{k}" for k in range(len(counts))]
    params = [f"{'f32' if is_float else 'u32'} *{each}" for each, (_, is_float) in zip(names, counts, strict=True)]
    operands = ", ".join(
        f'"+{"f" if is_float else "r"}"({each}[{k}])'
        for each, (count, is_float) in zip(names, counts, strict=True)
        for k in range(count)
    )
    head = f"{helpers.dialect.helper} void {name}({', '.join(params) or 'void'}) {{"
    body = f'    asm volatile("{text}" : {operands} : : "memory");' if counts else f'    asm volatile("{text}" ::: "memory");'
    return helpers.need(name, lambda: "\n".join((head, body, "}")))
