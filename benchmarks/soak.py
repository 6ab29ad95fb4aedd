"""Compile and call thousands of small networks in one process, from several threads, and print how its memory grows.

    python -m benchmarks.soak --compilations 10000 --calls 100000 --threads 2
    python -m benchmarks.soak --repeats 200 --forks 200

No two networks are equal, nothing is taken from a cache, and modules are dropped by another thread than the one that made them. One
network in `CHECKED` is compared with the reference implementation of ONNX. Exit code 1 for a wrong result or more growth than
`--limit`, or if each network of the second half left more than `--heap-limit` in the C heap; a crash shows the stacks of all threads.
`--repeats`: threads compile a few networks again and again, each another one at a time, and every result must have the bits of the first.
`--forks`: while threads call and compile them, the process forks so often; each child calls one and compiles another, and must end with
the same bits before `CHILD_SECONDS`.
Under `LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3 MALLOC_PERTURB_=165` it is slower and finds more.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as oh
from onnx.reference import ReferenceEvaluator

import tc

CHECKED = 50
"""One network in so many is compared."""

ALIVE = 16
"""Modules that wait to be dropped."""

KINDS = 7
"""Networks that are compiled again and again."""

CHILD_SECONDS = 120.0

Array = np.ndarray


@dataclass
class Progress:
    """What the threads have done; `warm_bytes` is the memory when a tenth of it was done, `heap_bytes` the C heap at the half."""

    compilations: int
    started: float = field(default_factory=time.perf_counter)
    done: int = 0
    warm_bytes: int = 0
    heap_bytes: int = 0
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self) -> None:
        """Count a network, and print a line from time to time."""
        with self.lock:
            self.done += 1
            if self.done == max(1, self.compilations // 10):
                self.warm_bytes = settled_bytes()
            if self.done == self.compilations // 2:
                self.heap_bytes = heap_bytes()
            if self.done % max(1, self.compilations // 20) == 0:
                minutes = (time.perf_counter() - self.started) / 60
                print(f"{self.done:6d} networks {minutes:6.1f} min {settled_bytes() / 1e6:8.1f} MB", flush=True)


def settled_bytes() -> int:
    """Resident memory, garbage in cycles collected."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class _HeapUse(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def heap_bytes() -> int:
    """What is allocated from the C heap and not freed, garbage in cycles collected: unlike resident memory, without holes and Python's
    small objects. 0 where the C library cannot say."""
    gc.collect()
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return 0
    library.mallinfo2.restype = _HeapUse
    use = library.mallinfo2()
    return int(use.uordblks + use.hblkhd)


def network(choose: random.Random) -> tuple[bytes, Array]:
    """A small network that no other is equal to, and an input."""
    rng = np.random.default_rng(choose.randrange(1 << 40))
    batch, channels, size, results = (choose.randint(1, most) for most in (3, 40, 20, 40))
    weights: dict[str, Array] = {}

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = rng.standard_normal(shape, dtype=np.float32)
        return name

    def axes(*values: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = np.array(values)
        return name

    nodes: list[onnx.NodeProto] = []

    def node(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(oh.make_node(kind, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    kind = choose.randrange(5)
    shape: tuple[int, ...] = (batch, size, channels)
    if kind == 0:
        shape = (batch, channels, size, size)
        image = node("Relu", node("Conv", "x", weight(results, channels, 3, 3), pads=[1, 1, 1, 1]))
        node("MatMul", node("Flatten", node("GlobalAveragePool", image)), weight(results, 7))
    elif kind == 1:
        node("MatMul", node("Softmax", node("MatMul", "x", weight(channels, results))), weight(results, 5))
    elif kind == 2:
        flat = node("Transpose", node("LayerNormalization", "x", weight(channels), weight(channels)), perm=[0, 2, 1])
        node("ReduceSum", node("Tanh", flat), axes(1))
    elif kind == 3:
        moved = node("Add", node("Sigmoid", "x"), weight(size, channels))
        node("Sub", moved, node("ReduceMax", moved, axes(2)))
    else:
        node("Transpose", node("NonZero", node("Relu", node("Add", "x", weight(channels)))), perm=[1, 0])  # a size from data
    given = [None if kind in (1, 2) and d == 0 else size for d, size in enumerate(shape)]
    graph = oh.make_graph(
        nodes,
        "soak",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, ["n" if size is None else size for size in given])],
        [oh.make_tensor_value_info(nodes[-1].output[0], TensorProto.INT64 if kind == 4 else TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    return made.SerializeToString(), rng.standard_normal(shape, dtype=np.float32)


def compile_networks(seed: int, count: int, calls: int, progress: Progress, dropped: queue.Queue[object]) -> None:
    """One thread's networks."""
    choose = random.Random(seed)
    for number in range(count):
        model, x = network(choose)
        compiled = tc.compile(model, threads=choose.choice((1, 2)))
        found = [compiled(x) for _ in range(calls)]
        if number % CHECKED == 0:
            (expected,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})
            scale = 1e-4 * max(1.0, float(np.abs(expected).max(initial=0.0)))
            if not all(each.shape == expected.shape and np.allclose(each, expected, rtol=0, atol=scale) for each in found):
                progress.failures.append(f"network {number} of seed {seed} is wrong")
        dropped.put(compiled)
        progress.add()


def drop_modules(dropped: queue.Queue[object], stop: threading.Event) -> None:
    """Let go of modules that other threads have made, the oldest first."""
    while not stop.is_set():
        if dropped.qsize() > ALIVE:
            dropped.get()
        else:
            time.sleep(0.002)


def bits_of(model: bytes, x: Array, threads: int) -> bytes:
    """What a network makes of an input, compiled anew."""
    return np.asarray(tc.compile(model, threads=threads)(x)).tobytes()


def compile_again(repeats: int, threads: int, seed: int) -> list[str]:
    """Compile a few networks `repeats` times in all, from several threads at once; what did not have the bits of the first time."""
    networks = [network(random.Random(seed + k)) for k in range(KINDS)]
    first = [bits_of(model, x, 1) for model, x in networks]
    failures: list[str] = []

    def work(thread: int) -> None:
        for number in range(thread, repeats, threads):
            which = (number + thread * KINDS // threads) % KINDS
            if bits_of(*networks[which], threads=1 + number % 2) != first[which]:
                failures.append(f"compilation {number} of network {which} has other bits")

    _run_together([lambda thread=thread: work(thread) for thread in range(threads)], failures)  # type: ignore[misc]
    return failures


def fork_again(forks: int, threads: int, seed: int) -> list[str]:
    """Fork while threads call and compile; what the children did wrong, and those that did not end."""
    networks = [network(random.Random(seed + k)) for k in range(KINDS)]
    compiled = [tc.compile(model, threads=2) for model, _ in networks]
    first = [np.asarray(module(x)).tobytes() for module, (_, x) in zip(compiled, networks, strict=True)]
    failures: list[str] = []
    stop = threading.Event()

    def use(thread: int) -> None:
        number = thread
        while not stop.is_set():
            number += 1
            which = number % KINDS
            model, x = networks[which]
            found = bits_of(model, x, 2) if number % 5 == 0 else np.asarray(compiled[which](x)).tobytes()
            if found != first[which]:
                failures.append(f"a call of network {which} has other bits")

    def fork() -> None:
        for number in range(forks):
            which = number % KINDS
            child = os.fork()
            if child == 0:
                status = 2  # of an error
                try:
                    model, x = networks[(which + 1) % KINDS]
                    same = np.asarray(compiled[which](networks[which][1])).tobytes() == first[which]
                    status = 0 if same and bits_of(model, x, 2) == first[(which + 1) % KINDS] else 1
                finally:
                    os._exit(status)
            failures.extend(_failure_of(child, number))
        stop.set()

    _run_together([fork, *(lambda thread=thread: use(thread) for thread in range(threads))], failures, stop)  # type: ignore[misc]
    return failures


def _failure_of(child: int, number: int) -> list[str]:
    """What is wrong with a child, which is waited for."""
    end = time.perf_counter() + CHILD_SECONDS
    while time.perf_counter() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return [] if status == 0 else [f"child {number} ended with {status}"]
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return [f"child {number} hangs"]


def _run_together(works: list[Callable[[], None]], failures: list[str], stop: threading.Event | None = None) -> None:
    """Each in a thread of its own; an error of one is a failure, and the others end."""

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            if stop is not None:
                stop.set()

    workers = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@dataclass(frozen=True)
class Outcome:
    """How many bytes the process has grown by from a tenth of the work to its end, how many of the C heap each network of the second
    half has kept, and what went wrong."""

    growth: int
    kept_for_each: float
    failures: list[str]


def run(compilations: int, calls: int, threads: int, seed: int) -> Outcome:
    """Compile and call the networks, and drop all modules."""
    progress, dropped, stop = Progress(compilations), queue.Queue[object](), threading.Event()
    dropper = threading.Thread(target=drop_modules, args=(dropped, stop))
    dropper.start()
    shares = [(seed + k, compilations // threads, max(1, calls // compilations), progress, dropped) for k in range(threads)]
    workers = [threading.Thread(target=_guarded, args=(progress, share)) for share in shares]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stop.set()
    dropper.join()
    while not dropped.empty():
        dropped.get()
    kept = (heap_bytes() - progress.heap_bytes) / max(1, compilations - compilations // 2)
    return Outcome(settled_bytes() - progress.warm_bytes, kept, progress.failures)


def _guarded(progress: Progress, share: tuple[int, int, int, Progress, queue.Queue[object]]) -> None:
    try:
        compile_networks(*share)
    except Exception as error:  # the other threads go on; the exit code says it
        progress.failures.append(f"seed {share[0]}: {type(error).__name__}: {error}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilations", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=50.0, help="megabytes that the process may grow by")
    parser.add_argument("--heap-limit", type=float, default=float("inf"), help="kilobytes of C heap that each network may keep")
    parser.add_argument("--repeats", type=int, default=0, help="compilations of a few networks, again and again, instead")
    parser.add_argument("--forks", type=int, default=0, help="forks while threads call and compile, instead")
    options = parser.parse_args()
    faulthandler.enable()
    os.environ["TC_CACHE_DIR"] = "off"
    if options.repeats or options.forks:
        failures = compile_again(options.repeats, options.threads, options.seed) if options.repeats else []
        print(f"{options.repeats} compilations of {KINDS} networks in {options.threads} threads: {len(failures)} failures", flush=True)
        failures += fork_again(options.forks, options.threads, options.seed) if options.forks else []
        print(f"{options.forks} forks while {options.threads} threads call and compile; {len(failures)} failures in all")
        print(*failures, sep="\n")
        return int(bool(failures))
    found = run(options.compilations, options.calls, options.threads, options.seed)
    print(f"growth {found.growth / 1e6:.1f} MB, at most {options.limit:.0f}; each network of the second half keeps")
    print(f"{found.kept_for_each / 1e3:.1f} KB of C heap, at most {options.heap_limit:.0f}; {len(found.failures)} failures")
    for failure in found.failures:
        print(failure)
    too_much = found.growth > options.limit * 1e6 or found.kept_for_each > options.heap_limit * 1e3
    return int(bool(found.failures) or too_much)


if __name__ == "__main__":
    sys.exit(main())
