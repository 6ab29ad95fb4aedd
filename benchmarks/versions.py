"""Two versions of `tc` beside each other on the same models: is what changed slower anywhere?

    git worktree add ../old COMMIT
    python -m benchmarks.versions ../old . --models resnet50 minilm --threads 1,2

Each version runs in a process of its own, which waits while the other one is measured; they take turns in short slots, and ratios are
taken within a round. Calls are ordinary ones, without `out`. A model may be the path of an ONNX file; `name:dim=size` runs a model
with other sizes of its symbolic dims. With `--symbolic` the first dim of every input is made symbolic before a model is compiled; with
`--symbolic second` only for the second version, which may be the same tree: what does a model cost that takes any size?

    python -m benchmarks.versions . . --symbolic second --models resnet50 vit_tiny

With `--cold` what is timed is a compilation: a process for each, nothing in its caches, from the call of `tc.compile` to its return.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import zoo
from benchmarks.run import DEFAULT_MODELS

_SERVER = r"""
import json, sys, time
import numpy as np
import tc
for line in sys.stdin:
    job = json.loads(line)
    try:
        if job["do"] == "load":
            module = None
            module = tc.compile(job["model"], threads=job["threads"])
            arrays = dict(np.load(job["inputs"]))
            first = module.run(arrays)
            if job["results"]:
                np.savez(job["results"], **{f"r{k}": value for k, value in enumerate(first.values())})
            answer = len(first)
        else:
            calls, end = [], time.perf_counter() + job["seconds"]
            for _ in range(2):
                module.run(arrays)
            while len(calls) < 3 or time.perf_counter() < end:
                start = time.perf_counter()
                module.run(arrays)
                calls.append(time.perf_counter() - start)
            answer = float(np.median(calls))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
"""


_COLD = r"""
import json, sys, time
import tc
begin, work = time.perf_counter(), time.process_time()
tc.compile(sys.argv[1])
print(json.dumps([time.perf_counter() - begin, time.process_time() - work]))
"""


class Version:
    """A process that has one version's package."""

    def __init__(self, tree: Path) -> None:
        command = [sys.executable, "-c", _in_tree(tree, _SERVER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tempfile.gettempdir()
        )

    def ask(self, **job: Any) -> Any:
        """What it answers; RuntimeError with its words when it could not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else "the process died"
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _in_tree(tree: Path, code: str) -> str:
    """A program that has the package of a tree in front of what is installed; nothing else of it is needed."""
    return f"import sys; sys.path.insert(0, {str(tree.resolve())!r})\n{code}"


@contextmanager
def versions(trees: Sequence[Path]) -> Iterator[list[Version]]:
    """A process for each tree."""
    started = [Version(tree) for tree in trees]
    try:
        yield started
    finally:
        for version in started:
            version.close()


def with_symbolic_batch(path: Path, folder: str) -> Path:
    """A copy of the model whose inputs have a symbolic first dim; its outputs state no shape."""
    proto = onnx.load(path)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    for info in proto.graph.input:
        if info.name not in initializers and info.type.tensor_type.shape.dim:
            info.type.tensor_type.shape.dim[0].dim_param = f"first_of_{info.name}"
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    target = Path(folder) / "symbolic.onnx"
    onnx.save(proto, target)
    return target


def cold(model: str, trees: Sequence[Path], rounds: int) -> np.ndarray:
    """float64[rounds, 2, 2]: seconds that each version takes to compile a model, on the clock and of processors, with no cache."""
    path = zoo.path(model) if model in zoo.names() else Path(model).resolve()
    found = np.zeros((rounds, 2, 2))
    for number in range(rounds):
        for k in (0, 1) if number % 2 == 0 else (1, 0):
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [sys.executable, "-c", _in_tree(trees[k], _COLD), str(path)],
                    env={**os.environ, "TC_CACHE_DIR": folder},
                    cwd=folder,
                    capture_output=True,
                    text=True,
                )
            if done.returncode:
                raise RuntimeError(done.stderr.strip().splitlines()[-1])
            found[number, k] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(model: str, trees: Sequence[Path], threads: int, rounds: int, seconds: float, symbolic: str = "") -> np.ndarray:
    """float64[rounds, 2]: seconds of a call of each version. `symbolic`: the versions that get the model with symbolic first dims."""
    name, _, text = model.partition(":")
    dims = {key: int(size) for key, size in (item.split("=") for item in text.split(",") if item)}
    path = zoo.path(name) if name in zoo.names() else Path(name).resolve()
    arrays = zoo.random_inputs(name if name in zoo.names() else path, np.random.default_rng(0), dims)
    with tempfile.TemporaryDirectory() as folder, versions(trees) as pair:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **arrays)
        paths = {"": (path, path)}
        if symbolic:
            changed = with_symbolic_batch(path, folder)
            paths = {"both": (changed, changed), "second": (path, changed)}
        for version, own in zip(pair, paths[symbolic], strict=True):
            version.ask(do="load", model=str(own), inputs=str(inputs), threads=threads, results="")
        found = []
        for number in range(rounds):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            row = [0.0, 0.0]
            for k in order:
                row[k] = pair[k].ask(do="time", seconds=seconds)
            found.append(row)
    return np.array(found)


def main_cold(models: Sequence[str], trees: Sequence[Path], rounds: int) -> None:
    """Print what compiling costs, seconds of the fastest round and ratios, on the clock and of processors."""
    print("old over new: above 1, the new version compiles faster; clock, then processors; seconds are the least of the rounds")
    everything = []
    for model in models:
        try:
            times = cold(model, trees, rounds)
        except (RuntimeError, zoo.ZooError) as error:
            print(f"{model:32} {error}", flush=True)
            continue
        clock, work = np.median(times[:, 0] / times[:, 1], axis=0)
        everything.append((clock, work))
        (old, _), (new, _) = times.min(axis=0)
        print(f"{model:32} {clock:.2f} {work:.2f}   {old:.2f} s -> {new:.2f} s", flush=True)
    if everything:
        mean, least = np.exp(np.mean(np.log(everything), axis=0)), np.min(everything, axis=0)
        print(f"geometric mean {mean[0]:.2f} {mean[1]:.2f}, worst {least[0]:.2f} {least[1]:.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="folders that hold a package tc: the old one, the new one")
    parser.add_argument("--models", nargs="+", default=list(DEFAULT_MODELS))
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one slot")
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--symbolic", nargs="?", const="both", default="", choices=("both", "second"), help="make first dims symbolic")
    own.add_argument("--cold", action="store_true", help="time compilations in processes without caches")
    given = parser.parse_args(arguments)
    everything = []
    if given.cold:
        main_cold(given.models, given.trees, given.rounds)
        return
    print("old over new: above 1, the new version is faster; median and quartiles of the rounds")
    for threads in map(int, given.threads.split(",")):
        for model in given.models:
            try:
                times = compare(model, given.trees, threads, given.rounds, given.seconds, given.symbolic)
            except (RuntimeError, zoo.ZooError) as error:
                print(f"{model:32} {threads} threads  {error}", flush=True)
                continue
            low, middle, high = np.percentile(times[:, 0] / times[:, 1], (25, 50, 75))
            everything.append(middle)
            print(f"{model:32} {threads} threads  {middle:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    if everything:
        print(f"geometric mean {np.exp(np.mean(np.log(everything))):.3f}, worst {min(everything):.3f}")


if __name__ == "__main__":
    main()
