"""The parent's side of a child process: start it, give it one request at a time, hear from it, end it, say why it died."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

from tc.autotune.build import Built
from tc.autotune.timing import Timed, TrialPlan
from tc.autotune.worker import Answer, Options, Ready, WorkStage
from tc.errors import MeasureError

START_SECONDS = 120.0
_TAIL_BYTES = 2000
_MEMORY_WORDS = ("out of memory", "bad_alloc", "memoryerror", "cannot allocate memory")

# The interpreter is started anew, without the parent's main module: a script that measures needs no guard around its code.
_BOOT = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
sys.path[:] = json.loads(sys.argv[2])
getattr(importlib.import_module(module), name)(sys.argv[3])
"""


@dataclass(frozen=True)
class ChildOutcome:
    """What became of a request: a value, or the kind of the error and what happened, during which `stage`.

    `killed`: the process was killed, and not by us: another attempt may go well.
    """

    value: Built | Timed | str | list[Any] | None = None
    error: str | None = None
    detail: str = ""
    stage: str = ""
    killed: bool = False


class Child:
    """One process. States: starting, idle (`is_idle`), busy (`is_busy`) with the request of number `index`, gone."""

    def __init__(self, worker: str, memory_bytes: int, plan: TrialPlan, binaries: str = "") -> None:
        """Start `worker`, "module:function", which is called with `Options` as JSON text. Returns before it is ready."""
        self.index = -1
        self.is_idle = False
        self.is_busy = False
        self._stage = ""
        self._limit_seconds = START_SECONDS
        self._deadline = time.monotonic() + START_SECONDS
        self._messages_from = 0
        self._messages = _temporary_file()
        self.pipe, theirs = multiprocessing.Pipe()
        main_thread = threading.current_thread() is threading.main_thread()
        options = Options(theirs.fileno(), os.getpid(), memory_bytes, plan, main_thread, binaries)
        command = [sys.executable, "-c", _BOOT, worker, json.dumps(sys.path), options.to_json()]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._messages or subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:
            self.pipe.close()
            if self._messages is not None:
                self._messages.close()
            raise MeasureError(f"no process can be started to measure in: {error}") from None
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_starting(self) -> bool:
        return not (self.is_idle or self.is_busy or self.pipe.closed)

    @property
    def is_gone(self) -> bool:
        return self.pipe.closed

    def begin(self, index: int, request: Any, limit_seconds: float) -> bool:
        """Give an idle child a request; False when it turns out to be gone."""
        assert self.is_idle, "a child takes one request at a time"
        if self._messages is not None:
            self._messages_from = os.fstat(self._messages.fileno()).st_size
        try:
            self.pipe.send(request)
        except OSError:
            self.kill()
            return False
        self.index, self._stage, self.is_idle, self.is_busy = index, "", False, True
        self._limit_seconds = limit_seconds
        self._deadline = time.monotonic() + limit_seconds
        return True

    def seconds_left(self) -> float:
        """Until a starting or busy child is late."""
        return max(self._deadline - time.monotonic(), 0.0)

    def receive(self) -> ChildOutcome | None:
        """Take in a message, or the end of the process. The outcome of the request, if that is what came."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            return self._died()
        match message:
            case Ready():
                self.is_idle = True
            case WorkStage(name=name):
                self._stage = name
            case Answer():
                self.is_idle, self.is_busy = not message.retires, False
                if message.retires:
                    self.kill()
                return ChildOutcome(message.value, message.error, message.detail, self._stage)
        return None

    def expire(self) -> ChildOutcome:
        """End a child that is late."""
        stage = self._stage
        self.kill()
        return ChildOutcome(None, "timeout", f"took more than {self._limit_seconds:.3g} s", stage)

    def _died(self) -> ChildOutcome:
        """Why the process is gone: its signal or status, and the last it wrote."""
        stage = self._stage
        try:
            status = self._process.wait(5.0)
        except subprocess.TimeoutExpired:  # it has closed the pipe, and goes on
            self._process.kill()
            status = self._process.wait()
        said = self._last_words()
        self.kill()
        error = "memory" if any(word in said.lower() for word in _MEMORY_WORDS) else "crash"
        cause = _signal_text(-status) if status < 0 else f"the process ended with status {status}"
        detail = f"{cause}: {said}" if said else cause
        return ChildOutcome(None, error, detail, stage, killed=status in (-signal.SIGKILL, -signal.SIGTERM))

    def _last_words(self) -> str:
        if self._messages is None:
            return ""
        end = os.fstat(self._messages.fileno()).st_size
        start = max(self._messages_from, end - _TAIL_BYTES)
        text = os.pread(self._messages.fileno(), end - start, start).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][-400:] if lines else ""

    def kill(self) -> None:
        """End the process, whatever it is doing; it has no state worth saving."""
        self.is_idle = self.is_busy = False
        self.pipe.close()
        self._process.kill()
        self._process.wait()
        if self._messages is not None:
            self._messages.close()


def _signal_text(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    meaning = signal.strsignal(number) or ""
    if number == signal.SIGKILL:
        meaning = "by another process, or by the system for want of memory"
    return f"killed by {name} ({meaning})" if meaning else f"killed by {name}"


def _temporary_file() -> IO[bytes] | None:
    """A file for what the child writes to stderr; None where there is no place for one, and then its words are lost."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return None
