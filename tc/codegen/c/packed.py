"""Elements that share bytes: integers of four bits and of two, and floats of four, in the memory of tensors, one by one."""

from __future__ import annotations

from tc.codegen.c.helpers import Helpers
from tc.codegen.c.scalars import c_type
from tc.ir.dtype import DType


def packed_load(helpers: Helpers, dtype: DType) -> str:
    """The helper that reads element i of packed memory at p."""
    name, kind = f"tc_load_{dtype}", c_type(dtype)
    ones, per_byte, sign = 2**dtype.bits - 1, dtype.per_byte, 2 ** (dtype.bits - 1)
    value = "(u8)bits" if dtype.kind != "int" else f"(i8)((bits ^ {sign}) - {sign})"
    lines = (
        f"{helpers.dialect.helper} {kind} {name}({helpers.dialect.space('global')}const {kind} *p, i64 i) {{",
        f"    const i32 bits = ((u8)p[i / {per_byte}] >> (i % {per_byte} * {dtype.bits})) & {ones};",
        f"    return {value};",
        "}",
    )
    return helpers.need(name, lambda: "\n".join(lines))


def packed_store(helpers: Helpers, dtype: DType, is_shared: bool) -> str:
    """The helper that writes element i of packed memory at p. `is_shared`: other threads may write the byte's other elements, as they
    always may on a device."""
    name, kind = f"tc_store_{dtype}{'_atomic' if is_shared else ''}", c_type(dtype)
    if not helpers.dialect.is_host:
        return helpers.need(f"tc_store_{dtype}_atomic", lambda: _device_store(helpers, dtype))
    ones, per_byte = 2**dtype.bits - 1, dtype.per_byte
    write = ["    *byte = (u8)((*byte & ~mask) | bits);"]
    if is_shared:
        write = [f"    {line}" for line in helpers.dialect.change_bits]
    space = helpers.dialect.space("global")
    lines = (
        f"{helpers.dialect.helper} void {name}({space}{kind} *p, i64 i, {kind} x) {{",
        f"    {space}u8 *byte = ({space}u8 *)p + i / {per_byte};",
        f"    const i32 at = (i32)(i % {per_byte} * {dtype.bits});",
        f"    const u8 mask = (u8)({ones} << at), bits = (u8)((x & {ones}) << at);",
        *write,
        "}",
    )
    return helpers.need(name, lambda: "\n".join(lines))


def _device_store(helpers: Helpers, dtype: DType) -> str:
    """The same on a device, whose atomic operations are on words: memory begins and ends with whole ones, lowest byte first."""
    ones, per_word, kind = 2**dtype.bits - 1, 32 // dtype.bits, c_type(dtype)
    space, volatile = helpers.dialect.space("global"), "volatile " if helpers.dialect.spaces else ""
    take, put = helpers.dialect.atomics
    lines = (
        f"{helpers.dialect.helper} void tc_store_{dtype}_atomic({space}{kind} *p, i64 i, {kind} x) {{",
        f"    {volatile}{space}u32 *word = ({volatile}{space}u32 *)p + i / {per_word};",
        f"    const u32 at = (u32)(i % {per_word}) * {dtype.bits};",
        f"    {take}(word, ~({ones}u << at));",
        f"    {put}(word, ((u32)x & {ones}u) << at);",
        "}",
    )
    return "\n".join(lines)
