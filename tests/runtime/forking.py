"""A program that forks in many ways while it calls a model. Every child checks its own results; the program exits with 0 when all are
right. `python -m tests.runtime.forking SCENARIO CHILDREN`."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

import tc
from tc.ir.parser import parse_module

ROWS = 40
TEXT = """
@graph
def main(x: f32[N, 300], w: f32[300, 300]):
    a: f32[N, 300] = matmul(x, w)
    b: f32[N, 300] = tanh(a)
    c: f32[N, 300] = matmul(b, w)
    d: f32[N, 300] = tanh(c)
    e: f32[N, 300] = matmul(d, w)
    s: f32[N, 300] = softmax(e, axis=1)
    return s
""".replace("[N,", f"[{ROWS},")
LIMIT_SECONDS = 60
Check = Callable[[int], bool]


def make_check() -> Check:
    """A module of two threads, and the function that calls it with the input of a number and says whether the result is right."""
    module = tc.compile(parse_module(TEXT), threads=2)
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((300, 300)) / 17).astype(np.float32)
    inputs = [rng.standard_normal((ROWS, 300)).astype(np.float32) for _ in range(8)]
    expected = [np.array(module(x, weights)) for x in inputs]
    return lambda k: np.array_equal(module(inputs[k % 8], weights), expected[k % 8])


def in_child(body: Callable[[], bool]) -> int:
    """Fork, and let the child exit with 0 when `body` is true there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if body() else 1
        finally:
            os._exit(status)
    return child


def failures(children: list[int]) -> int:
    """How many do not end well, or not in time."""
    deadline = time.monotonic() + LIMIT_SECONDS
    bad = 0
    for child in children:
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.002)
        if done[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
        bad += done[0] == 0 or done[1] != 0
    return bad


@contextmanager
def threads_at(work: Callable[[], object], count: int) -> Iterator[None]:
    """Threads that do `work` over and over."""
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=loop) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def in_groups(count: int, start: Callable[[int], int], size: int = 4) -> int:
    """Failures among `count` children, of which `size` live at once."""
    return sum(failures([start(k) for k in range(first, min(first + size, count))]) for first in range(0, count, size))


def beside_parent(count: int) -> int:
    """Children and their parent call at the same time."""
    check = make_check()
    bad = 0
    for first in range(0, count, 4):
        children = [in_child(lambda k=k: all(check(k + i) for i in range(300))) for k in range(first, min(first + 4, count))]
        bad += not all(check(k) for k in range(300))
        bad += failures(children)
    return bad


def threads_fork(count: int) -> int:
    """Two threads fork while all of three call."""
    check = make_check()
    bad: list[int] = []

    def fork_many() -> None:
        for k in range(count // 2):
            check(k)
            bad.append(failures([in_child(lambda k=k: all(check(k + i) for i in range(5)))]))

    with threads_at(lambda: check(5), 1):
        forking = [threading.Thread(target=fork_many) for _ in range(2)]
        for thread in forking:
            thread.start()
        for thread in forking:
            thread.join()
    return sum(bad) + (len(bad) != count // 2 * 2)


def grandchildren(count: int) -> int:
    """Children that fork children of their own."""
    check = make_check()

    def body(k: int) -> bool:
        return check(k) and failures([in_child(lambda: check(k + 1) and check(k + 2))]) == 0 and check(k + 3)

    return in_groups(count, lambda k: in_child(lambda: body(k)))


def while_compiling(count: int) -> int:
    """Children that compile, of a parent that compiles on another thread."""
    os.environ["TC_CACHE_DIR"] = "off"
    check = make_check()

    def compile_one() -> bool:
        text = TEXT.replace(f"[{ROWS},", "[7,").replace("tanh", "exp", 1)
        x, w = np.zeros((7, 300), np.float32), np.zeros((300, 300), np.float32)
        return bool(np.allclose(tc.compile(parse_module(text), threads=2)(x, w), 1 / 300))

    with threads_at(compile_one, 1):
        return in_groups(count, lambda k: in_child(lambda: check(k) and compile_one() and check(k)), 2)


def server(count: int) -> int:
    """A server that compiles, then forks its workers; each takes connections from one socket, and answers whether results are right."""
    check = make_check()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:

        def serve() -> bool:
            while True:
                connection, _ = listening.accept()
                with connection:
                    number = connection.recv(1)[0]
                    if number == 255:
                        return True
                    connection.sendall(bytes([all(check(number + k) for k in range(20))]))

        def ask(number: int) -> bytes:
            with socket.create_connection(listening.getsockname(), timeout=LIMIT_SECONDS) as connection:
                connection.sendall(bytes([number]))
                return connection.recv(1)

        workers = [in_child(serve) for _ in range(count)]
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(ask, (k % 200 for k in range(count * 10))))
        for _ in workers:
            ask(255)
        return failures(workers) + sum(answer != b"\1" for answer in answers)


def pool_of(method: str) -> Callable[[int], int]:
    """A pool of processes, made by `method`, maps over inputs."""

    def run(count: int) -> int:
        global _check
        if method == "fork":
            _check = make_check()
        with multiprocessing.get_context(method).Pool(4 if method == "fork" else 1) as pool:
            return count - sum(pool.map(_checked, range(count), chunksize=1))

    return run


_check: Check | None = None


def _checked(first: int) -> bool:
    """Calls in a process of the pool, which compiles what it did not get by fork."""
    global _check
    if _check is None:
        _check = make_check()
    return all(_check(first + k) for k in range(100))


SCENARIOS: dict[str, Callable[[int], int]] = {
    "beside_parent": beside_parent,
    "threads_fork": threads_fork,
    "grandchildren": grandchildren,
    "while_compiling": while_compiling,
    "server": server,
    "pool_fork": pool_of("fork"),
    "pool_spawn": pool_of("spawn"),
    "pool_forkserver": pool_of("forkserver"),
}

if __name__ == "__main__":
    sys.exit(min(SCENARIOS[sys.argv[1]](int(sys.argv[2])), 99))
