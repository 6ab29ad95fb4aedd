"""A worker whose candidates can be told to fail: a trace `fault:NAME` stands for the default schedule with that fault built in."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tc.autotune.build import SYMBOL, BuildRequest, Built, build
from tc.autotune.inputs import ArraySpec
from tc.autotune.measure import LocalRunner
from tc.autotune.worker import Options, make_handlers, serve
from tc.codegen.llvm.jit import compile_object
from tc.schedule.step import Trace


class FaultyRunner(LocalRunner):
    """Local children that run this module's worker."""

    worker = "tests.autotune.faulty_worker:main"


class BrokenRunner(LocalRunner):
    """Local children that never become ready."""

    worker = "tests.autotune.faulty_worker:leave"


def main(options_text: str) -> None:
    options = Options.from_json(options_text)
    serve(options, {**make_handlers(options), BuildRequest: lambda request, note: build_with_fault(request)})


def leave(options_text: str) -> None:
    sys.exit("no licence for this machine")


def build_with_fault(request: BuildRequest) -> Built:
    name = request.trace.removeprefix("fault:")
    if name == request.trace:
        return build(request)
    if name in BUILD_FAULTS:
        BUILD_FAULTS[name]()
    sound = build(replace(request, trace=Trace().to_json()))
    if name in CODE_FAULTS:
        return replace(sound, code=compile_object(kernel_text(sound, CODE_FAULTS[name])))
    if name == "huge workspace":
        return replace(sound, workspaces=(ArraySpec((1 << 40,), "f32"),))
    return sound


def kernel_text(built: Built, body: str) -> str:
    count = len(built.inputs) + len(built.outputs) + len(built.workspaces)
    params = ", ".join(f"ptr %p{k}" for k in range(count))
    return f"define void @{SYMBOL}({params}, i64 %threads) {{\nentry:\n{body}\n}}\n"


def hang() -> None:
    while True:
        pass


def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(np.ones(1 << 23))


def abort_for_want_of_memory() -> None:
    sys.stderr.write("LLVM ERROR: out of memory\n")
    sys.stderr.flush()
    os.abort()


BUILD_FAULTS: dict[str, Callable[[], object]] = {
    "build hangs": hang,
    "build crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "build eats memory": eat_memory,
    "LLVM aborts": abort_for_want_of_memory,
    "build raises": lambda: {}["no such key"],
    "slow": lambda: time.sleep(0.5),
}

CODE_FAULTS = {
    "crashes": "  store i32 1, ptr null\n  ret void",
    "hangs": "  br label %again\nagain:\n  call void asm sideeffect \"\", \"\"()\n  br label %again",
    "does nothing": "  ret void",
    "traps": "  call void asm sideeffect \"ud2\", \"\"()\n  ret void",
    "writes behind": "  %far = getelementptr float, ptr %p1, i64 4096\n  store float 1.0, ptr %far\n  ret void",
    "changes input": "  store float 7.0, ptr %p0\n  ret void",
}
