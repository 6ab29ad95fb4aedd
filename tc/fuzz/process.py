"""Models judged in child processes, so that a crash is a verdict like any other."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx

from tc.fuzz.differential import USUAL, How, Run, Verdict
from tc.fuzz.worker import pack_model, pack_runs, unpack_model, unpack_runs

PERTURB = "165"  # malloc of glibc fills memory with this byte when it is given back, so that reading it is seen
WORKER = ("-m", "tc.fuzz.worker")  # what Python runs in a child
LIFETIME = 400  # models that one process judges before a fresh one takes over: what it leaks is bounded


@dataclass(frozen=True)
class Judged:
    """A verdict, with the model and the runs that it is about where they were drawn by the child."""

    verdict: Verdict
    operators: tuple[str, ...] = ()
    model: onnx.ModelProto | None = None
    runs: tuple[Run, ...] = ()


class Judge:
    """A child process that judges models, replaced whenever it dies."""

    def __init__(self, *, timeout_seconds: float = 120.0, quiet: bool = True) -> None:
        self.timeout_seconds = timeout_seconds
        self.quiet = quiet
        self.child: subprocess.Popen[bytes] | None = None
        self.judged = 0
        self._rest = b""

    def draw(self, seed: int, mode: str = "general", how: How = USUAL) -> Judged:
        """Generate the model of a seed and judge it."""
        return self._ask({"seed": seed, "mode": mode, "how": vars(how)})

    def model(self, model: onnx.ModelProto, runs: list[Run], how: How = USUAL) -> Verdict:
        """Judge a model on these runs."""
        return self._ask({"model": pack_model(model), "runs": pack_runs(runs), "how": vars(how)}).verdict

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            for pipe in (self.child.stdin, self.child.stdout):
                if pipe is not None:
                    pipe.close()
            self.child = None

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "MALLOC_PERTURB_": PERTURB, "PYTHONUNBUFFERED": "1"}
        paths = [p for p in sys.path if p]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._rest = b""
        self.judged = 0
        return subprocess.Popen(
            [sys.executable, *WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self.quiet else None,
            env=environment,
        )

    def _ask(self, request: dict[str, Any]) -> Judged:
        if self.child is None or self.judged >= LIFETIME:
            self.close()
            self.child = self._start()
        self.judged += 1
        child = self.child
        assert child.stdin is not None
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        stage, run, oracles, drawn = "generate", 0, 0, {}
        for message in self._messages(child):
            if "verdict" in message:
                verdict = Verdict(**message["verdict"])
                if verdict.failed:  # memory that was touched must not speak in the next verdict
                    self.close()
                return _judged(verdict, drawn)
            if "broken" in message:
                raise RuntimeError(f"the checker failed on {request.get('seed', 'a model')}:\n{message['broken']}")
            stage, run, oracles = message["stage"], message["run"], message["oracles"]
            drawn = message if "model" in message else drawn
        late = child.poll() is None
        self.close()
        if stage != "tc":
            return _judged(Verdict("undecided", f"{'timeout' if late else 'crash'} while at work: {stage}"), drawn)
        code = child.returncode
        text = (
            "no answer in time" if late else f"the process died of {signal.Signals(-code).name if code < 0 else code}"
        )
        if (drawn or request)["runs"][run]["spoilt"]:
            text += ", with an index out of range"
        elif oracles < 2 and run:
            text += ", on inputs that do not fit the model"
        return _judged(Verdict("timeout" if late else "crash", text, run, oracles), drawn)

    def _messages(self, child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
        """What the child says, until it is silent for too long or dead."""
        assert child.stdout is not None
        with _selector(child.stdout) as selector:
            deadline = time.monotonic() + self.timeout_seconds
            while True:
                while b"\n" in self._rest:
                    line, _, self._rest = self._rest.partition(b"\n")
                    yield json.loads(line)
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return
                data = os.read(child.stdout.fileno(), 1 << 16)
                if not data:
                    child.wait()
                    return
                self._rest += data


@contextmanager
def _selector(stream: Any) -> Iterator[selectors.DefaultSelector]:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        yield selector


def _judged(verdict: Verdict, drawn: dict[str, Any]) -> Judged:
    if not drawn:
        return Judged(verdict)
    return Judged(verdict, tuple(drawn["operators"]), unpack_model(drawn["model"]), tuple(unpack_runs(drawn["runs"])))
