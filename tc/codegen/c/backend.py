"""C as a back end: kernels as text for the system's C compiler, whose object files are linked into the process like LLVM's."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tc.codegen.backend import Backend, Language
from tc.codegen.c.dialect import C
from tc.codegen.c.host import MARK, emit_host
from tc.codegen.c.program import export_program
from tc.codegen.llvm.backend import load_objects
from tc.codegen.llvm.jit import compile_group
from tc.errors import CodegenError
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import FINISH_CALLS
from tc.target import Target

OPTIONS = ("-std=gnu11", "-O3", "-fPIC", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", *C.options)

_X86_FLAGS = (
    *("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi"),
)
"""Features that a compiler of C makes use of by itself, under its names and LLVM's."""

_ROOM = "static long tc_room __attribute__((used));"
"""What lets the linker keep an object in one piece: see `tc.codegen.llvm.jit`."""

COMPILERS = ("gcc", "clang", "cc")


def machine_options(target: Target) -> tuple[str, ...]:
    """What tells a compiler which instructions it may use."""
    flags = tuple(f"-m{name}" for name in _X86_FLAGS if target.has(name))
    if not target.has("sse2"):
        return ()
    return (*flags, f"-mprefer-vector-width={target.vector_bits}") if target.has("avx") else flags


def find_compiler() -> list[str]:
    """The C compiler and its first words: `CC` if set, else what is there. CodegenError when there is none."""
    chosen = os.environ.get("CC", "").split()
    if chosen:
        return chosen
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise CodegenError(f"target c: no C compiler is here (looked for {', '.join(COMPILERS)}); install one, or say which with CC")
    return [found]


def emit_kernel(func: PrimFunc, symbol: str, target: Target) -> str:
    """A kernel as a file of C, under this symbol."""
    return emit_host(func, symbol)


def compile_texts(texts: Sequence[str], optimized: bool, target: Target) -> list[bytes]:
    """Object files: of C by the system's compiler, of what is LLVM IR (entries of programs) by LLVM."""
    numbers = [number for number, text in enumerate(texts) if text.startswith(MARK)]
    objects = dict(zip(numbers, _compile([texts[number] for number in numbers], target), strict=True))
    others = [number for number in range(len(texts)) if number not in objects]
    if others:
        objects |= zip(others, compile_group([texts[number] for number in others], optimized, target), strict=True)
    return [objects[number] for number in range(len(texts))]


def _compile(texts: Sequence[str], target: Target) -> list[bytes]:
    if not texts:
        return []
    with tempfile.TemporaryDirectory(prefix="tc-c-") as name:
        folder = Path(name)
        files = [f"kernel{number}.c" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            (folder / file).write_text(f"{text}\n{_ROOM}\n", encoding="utf-8")
        command = [*find_compiler(), *OPTIONS, *machine_options(target), "-c", *files]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise CodegenError(f"target c: {command[0]} cannot be run: {error.strerror or error}") from None
        if done.returncode:
            raise CodegenError(f"target c: {command[0]} refuses a kernel:\n{done.stderr[:2000]}")
        return [(folder / file).with_suffix(".o").read_bytes() for file in files]


def _build(file: str, target: Target) -> str:
    return f"${{CC:-cc}} {shlex.join((*OPTIONS, *machine_options(target)))} $CFLAGS -c {file}"


C_LANGUAGE = Language(".c", emit_kernel, _build, export_program, "/* {} */")


C_BACKEND = Backend("c", FINISH_CALLS, emit_kernel, compile_texts, load_objects, languages={"c": C_LANGUAGE})
