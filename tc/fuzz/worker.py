"""The process that runs models for `tc.fuzz.process`: one request a line on standard input, one answer a line on standard output.

A request names a seed, or carries a model and its runs. Before the answer come lines that say who works, so that whoever finds this
process dead knows whose fault it is.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import resource
import sys
import traceback
import warnings
from typing import Any, TextIO

import numpy as np
import onnx

from tc.fuzz.differential import How, Run, judge, runs_of
from tc.fuzz.generate import generate
from tc.target import Target

MOST_MEMORY_BYTES = 12 << 30  # of addresses, not of pages


def pack_runs(runs: list[Run]) -> list[dict[str, Any]]:
    """Runs as JSON: arrays in the format of .npz files, in base64."""
    packed = []
    for run in runs:
        stream = io.BytesIO()
        np.savez(stream, **run.feeds)
        packed.append({"feeds": base64.b64encode(stream.getvalue()).decode(), "spoilt": run.spoilt})
    return packed


def unpack_runs(packed: list[dict[str, Any]]) -> list[Run]:
    """What `pack_runs` wrote."""
    runs = []
    for item in packed:
        with np.load(io.BytesIO(base64.b64decode(item["feeds"])), allow_pickle=False) as arrays:
            runs.append(Run(dict(arrays), item["spoilt"]))
    return runs


def pack_model(model: onnx.ModelProto) -> str:
    """A model as text for JSON."""
    return base64.b64encode(model.SerializeToString()).decode()


def unpack_model(text: str) -> onnx.ModelProto:
    """What `pack_model` wrote."""
    return onnx.ModelProto.FromString(base64.b64decode(text))


def answer(request: dict[str, Any], out: TextIO) -> dict[str, Any]:
    """Do what one request asks."""

    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    operators: tuple[str, ...] = ()
    if "seed" in request:
        say(stage="generate", run=0, oracles=0)
        case = generate(request["seed"], request["mode"])
        model, runs, operators = case.model, runs_of(case), case.operators
        say(stage="oracles", run=0, oracles=0, model=pack_model(model), runs=pack_runs(runs), operators=operators)
    else:
        model, runs = unpack_model(request["model"]), unpack_runs(request["runs"])
    verdict = judge(
        model,
        runs,
        How(**request["how"]),
        tell=lambda stage, run, oracles: say(stage=stage, run=run, oracles=oracles),
    )
    return {"verdict": dataclasses.asdict(verdict)}


def limit_memory(target: str) -> None:
    """A model that asks for too much is refused its memory. Not on devices: their drivers reserve addresses far beyond what they use."""
    if Target.of(target).device is None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


def main() -> None:
    """Answer until standard input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries print must not stand between answers
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        try:
            request = json.loads(line)
            limit_memory(request["how"]["target"])
            message = answer(request, out)
        except Exception:  # what `tc` raises is a verdict; this is about the checker itself
            message = {"broken": traceback.format_exc()}
        out.write(json.dumps(message) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
