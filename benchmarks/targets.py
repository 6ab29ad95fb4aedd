"""Models on other targets than the CPU's usual one: whether their results are those of ONNX Runtime.

    python -m benchmarks.targets --targets c opencl --models minilm mobilenet_v2 --seconds 600

Each model is compiled and run once per target in a process of its own, with the inputs of the zoo; a row says the error, relative to the
largest expected magnitude, and the bound that it must not pass. Exit code 1 when one does, or a model does not run. This is no measure of
speed: the OpenCL device of a wheel is the CPU, which runs the threads of a block one after the other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

import tc
from benchmarks import zoo
from benchmarks.run import chosen_models
from tc.errors import TcError
from tc.measure.runtimes import reference_outputs, relative_error

MOST_ERROR = 1e-4
"""Of f32 models, as in `tc.check.compare`: kernels add in another order, thousands of terms at most."""


def check(model: str, target: str) -> str:
    """Compile and run a model of the zoo; what came of it, in words that begin with "right" if all is."""
    arrays = zoo.random_inputs(model, np.random.default_rng(0))
    expected = reference_outputs(zoo.path(model), arrays)
    try:
        module = tc.compile(zoo.path(model), target=target)
        found = list(module.run(arrays).values())
    except TcError as error:
        return f"{type(error).__name__}: {error}"
    wrong = relative_error(found, expected)
    kernels = len(module.report().kernels)
    return f"{'right' if wrong <= MOST_ERROR else 'WRONG'}: error {wrong:.1e} of {MOST_ERROR:.0e}, {kernels} kernels"


def check_apart(model: str, target: str, seconds: float) -> str:
    """`check` in a process of its own, which may take so long."""
    command = [sys.executable, "-m", "benchmarks.targets", "--one", model, target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"not done in {seconds:.0f} s"
    lines = done.stdout.strip().splitlines()
    return lines[-1] if done.returncode == 0 and lines else f"died with {done.returncode}: {done.stderr.strip()[-300:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each model and target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.targets", description=__doc__.split("\n\n")[0])
    parser.add_argument("--targets", nargs="+", default=["c", "opencl"], metavar="TARGET")
    parser.add_argument("--models", nargs="+", metavar="PATTERN", help="names of the zoo, with wildcards; default: all")
    parser.add_argument("--seconds", type=float, default=900, help="for one model on one target (default %(default)s)")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(check(*options.one))
        return 0
    good = True
    for model in chosen_models(options.models):
        for target in options.targets:
            row = check_apart(model, target, options.seconds)
            good &= row.startswith("right")
            print(f"{model:24} {target:12} {row}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
