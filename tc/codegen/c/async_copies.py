"""The helpers of CUDA-C that copy from global to shared memory in the background, and wait for that.

Architectures before sm_80 have no such copies: what is to be copied is there at once, and nobody waits.
"""

from __future__ import annotations

from tc.codegen.c.helpers import Helpers

_WORDS = {4: "unsigned int", 8: "uint2", 16: "uint4"}


def copy_helper(helpers: Helpers, size_bytes: int) -> str:
    """The helper that copies so many bytes where its last argument is true, and else stores zeros: only what goes past the first level
    of caches can be 16 bytes long."""
    name, kind, level = f"tc_copy{size_bytes}", _WORDS[size_bytes], "cg" if size_bytes == 16 else "ca"
    zero = "0u" if size_bytes == 4 else f"make_{kind}({', '.join(['0u'] * (size_bytes // 4))})"
    begin = f'asm volatile("cp.async.{level}.shared.global [%0], [%1], {size_bytes}, %2;"'
    operands = '"r"((unsigned int)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from))'
    return helpers.need(name, lambda: "\n".join((
        f"{helpers.dialect.helper} void {name}(void *to, const void *from, int exists) {{",
        "#if __CUDA_ARCH__ >= 800",
        f"    {begin}",
        f"                 :: {operands}, \"r\"(exists ? {size_bytes} : 0) : \"memory\");",
        "#else",
        f"    *({kind} *)to = exists ? *(const {kind} *)from : {zero};",
        "#endif",
        "}",
    )))  # fmt: skip


def commit_helper(helpers: Helpers) -> str:
    """The helper that closes a group of copies."""
    return _instruction(helpers, "tc_commit_copies", "cp.async.commit_group;")


def wait_helper(helpers: Helpers, pending: int) -> str:
    """The helper that waits until at most so many groups are on their way."""
    return _instruction(helpers, f"tc_await_copies{pending}", f"cp.async.wait_group {pending};")


def _instruction(helpers: Helpers, name: str, text: str) -> str:
    body = ("#if __CUDA_ARCH__ >= 800", f'    asm volatile("{text}" ::: "memory");', "#endif")
    return helpers.need(name, lambda: "\n".join((f"{helpers.dialect.helper} void {name}(void) {{", *body, "}")))
