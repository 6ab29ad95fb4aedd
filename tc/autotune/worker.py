"""The program of a child process: takes requests from its parent one by one, and answers each with a result or with what went wrong.

The child is not to be trusted with its own life: code that it builds or runs may hang, crash, or eat memory. It therefore has a
bound on memory, writes nothing to disk, holds nothing that others need, and ends as soon as its parent is gone.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tc.autotune.build import BuildRequest, Built, build
from tc.autotune.explore import ExploreRequest, explore
from tc.autotune.timing import CheckRequest, Note, Timed, Timer, TimeRequest, TrialPlan
from tc.codegen.cuda.compile import keep_binaries
from tc.codegen.llvm.jit import compile_object
from tc.errors import CodegenError, DeviceError, LimitError, ScheduleError
from tc.runtime.pool import get_pool

try:
    import resource
except ImportError:  # a system without limits for processes
    resource = None  # type: ignore[assignment]

Handler = Callable[[Any, Note], object]
"""Does what a request asks. Exceptions become failures."""

_DETAIL_LENGTH = 400
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Options:
    """What a child is told when it starts. `memory_bytes`: how much it may take beyond what it has then.

    `dies_with_thread`: the system may end the child with the thread that started it, which lives as long as the parent. `binaries`: a
    folder of what was compiled elsewhere, or "".
    """

    handle: int
    parent: int
    memory_bytes: int
    plan: TrialPlan
    dies_with_thread: bool
    binaries: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Options:
        data = json.loads(text)
        return Options(**{**data, "plan": TrialPlan(**data["plan"])})


@dataclass(frozen=True)
class Ready:
    """The child has started."""


@dataclass(frozen=True)
class WorkStage:
    """What the child is about to run."""

    name: str


@dataclass(frozen=True)
class Answer:
    """The end of a request: a value, or the kind of the error and what happened. A child that `retires` takes no more."""

    value: Built | Timed | str | list[Any] | None = None
    error: str | None = None
    detail: str = ""
    retires: bool = False


def main(options_text: str) -> None:
    """The worker that `LocalRunner` starts."""
    options = Options.from_json(options_text)
    serve(options, make_handlers(options))


def make_handlers(options: Options) -> dict[type, Handler]:
    """What a child can do, by the type of the request."""
    if options.binaries:
        keep_binaries(Path(options.binaries))
    timer = Timer(options.plan, keep_bytes=options.memory_bytes // 4)
    return {
        BuildRequest: lambda request, note: build(request),
        ExploreRequest: lambda request, note: explore(request),
        TimeRequest: lambda request, note: _with_room(request.candidate, lambda: timer.time(request, note)),
        CheckRequest: lambda request, note: _with_room(request.candidate, lambda: timer.check(request)),
    }


def _with_room(built: Built, run: Callable[[], object]) -> object:
    """Run a kernel. Drivers of devices take address space by the hundred gigabytes, most of it for nothing: no limit holds for them."""
    if built.device and resource is not None and _is_limited():
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return run()


def serve(options: Options, handlers: Mapping[type, Handler]) -> None:
    """Answer requests until the parent closes the pipe."""
    _end_with_parent(options)
    get_pool()
    compile_object("")  # LLVM's own start
    start = _address_space_bytes()
    _limit_memory(start, options.memory_bytes)
    gc.collect()
    gc.freeze()
    with Connection(options.handle) as pipe:
        pipe.send(Ready())
        while True:
            try:
                request = pipe.recv()
            except (EOFError, ConnectionError):
                return
            answer = _answer(handlers[type(request)], request, lambda name: pipe.send(WorkStage(name)))
            grown = _address_space_bytes() - start
            if answer.error == "memory" or (_is_limited() and grown > options.memory_bytes // 2):
                answer = Answer(answer.value, answer.error, answer.detail, retires=True)
            pipe.send(answer)
            if answer.retires:
                return


def _answer(handler: Handler, request: object, note: Note) -> Answer:
    try:
        value = handler(request, note)
    except ScheduleError as error:
        return Answer(error="illegal", detail=_in_short(error))
    except (MemoryError, LimitError) as error:
        return Answer(error="memory", detail=_in_short(error))
    except DeviceError as error:  # a device that a kernel has brought to an end takes no more work from this process
        return Answer(error="crash", detail=_in_short(error), retires=True)
    except Exception as error:  # whatever a candidate brings about is its result
        is_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
        is_build = isinstance(request, BuildRequest) or isinstance(error, CodegenError)
        return Answer(error="memory" if is_memory else "build" if is_build else "crash", detail=_in_short(error))
    assert value is None or isinstance(value, (Built, Timed, str, list))
    return Answer(value)


def _in_short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_DETAIL_LENGTH] if text else type(error).__name__


def _end_with_parent(options: Options) -> None:
    """Interrupts are for the parent to handle; when that is gone, this process is too, whatever it is doing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.dies_with_thread and sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != options.parent:
        os._exit(1)

    def watch() -> None:
        poll = select.poll()
        poll.register(options.handle, 0)  # only that the other side has closed
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="tc-parent-watch", daemon=True).start()


def _limit_memory(taken: int, memory_bytes: int) -> None:
    if not taken or resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = taken + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most < 0 else min(wanted, most), most))


def _is_limited() -> bool:
    if resource is None:
        return False
    least, most = resource.getrlimit(resource.RLIMIT_AS)
    return bool(least != most)


def _address_space_bytes() -> int:
    """How much address space this process has; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
