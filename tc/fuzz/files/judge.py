"""What a file comes to: read, refused by a numbered error, or a finding: anything else, or too long, or too much memory."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tc.errors import InternalError, TcError, VerifyError
from tc.frontend.gguf import quantized_blocks, read_gguf
from tc.frontend.onnx import inspect_model, load_model
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.records.database import Database
from tc.runtime.loading import load

MOST_SECONDS = 5.0
MOST_BYTES = 1 << 30
_WAITING = 12
"""So many times as long may pass on the clock: other programs use the processor as well."""

TOO_LONG = "took more than"


@dataclass(frozen=True)
class FileVerdict:
    """kind: "read", "refused" or "finding"; code: of the error that refused it; text: what a finding raised, and where."""

    kind: str
    code: str = ""
    text: str = ""
    seconds: float = 0.0


class _TooLongError(BaseException):
    """A file is not read within its time. Nothing in `tc` may catch this."""


def judge_file(kind: str, path: Path, seconds: float = MOST_SECONDS, size_bytes: int = MOST_BYTES) -> FileVerdict:
    """Read a file of a kind, within a time of the processor and so much memory beyond what the process has. Only in a main thread."""
    begin = time.process_time()
    try:
        with _bounded(seconds, size_bytes):
            read_file(kind, path)
    except _TooLongError as error:
        return FileVerdict("finding", "", f"{TOO_LONG} {seconds:g} s in {_place(error)}", seconds)
    except (InternalError, RecursionError, MemoryError) as error:
        return FileVerdict("finding", "", _said(error), time.process_time() - begin)
    except TcError as error:
        spent = time.process_time() - begin
        if type(error) is TcError or (isinstance(error, VerifyError) and kind != "ir"):
            return FileVerdict("finding", "", _said(error), spent)
        try:
            text = str(error)
            text.encode()
        except Exception as problem:  # an error that cannot be shown
            return FileVerdict("finding", "", _said(problem), spent)
        if len(text) > 20_000:
            return FileVerdict("finding", "", f"an error of {len(text)} letters in {_place(error)}", spent)
        return FileVerdict("refused", error.code, text, spent)
    except Exception as error:
        return FileVerdict("finding", "", _said(error), time.process_time() - begin)
    return FileVerdict("read", seconds=time.process_time() - begin)


def read_file(kind: str, path: Path) -> None:
    """Read a file as users do, and look at what is in it."""
    match kind:
        case "onnx":
            load_model(path)
            inspect_model(path)
        case "gguf":
            for tensor in read_gguf(path).tensors.values():
                try:
                    quantized_blocks(tensor)
                except TcError:
                    continue
        case "ir":
            module = parse_module(path.read_bytes().decode("utf-8", "replace"), filename=path.name)
            for each in (module,) if module.entry in module else module.functions:
                verify(each)
            constants: dict[str, np.ndarray] = {}
            parse_module(print_ir(module, constants), constants)
        case "module":
            load(path)
        case "records":
            database = Database(path, create=False)
            for _ in database.records():
                pass
            _ = database.problems, database.num_records
        case _:
            raise AssertionError(f"there is no kind {kind!r} of files")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__} in {_place(error)}: {' '.join(str(error).split())[:300]}"


def _place(error: BaseException) -> str:
    """The function of `tc` in which it is; of many that call each other, the outermost is no help."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/tc/" in frame.filename and "/fuzz/files/" not in frame.filename]
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "no function of tc"


@contextmanager
def _bounded(seconds: float, size_bytes: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _TooLongError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _size_of_process() + size_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    before = signal.signal(signal.SIGPROF, stop), signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _size_of_process() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
