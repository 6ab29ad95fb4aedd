"""When `tc` itself fails: an error that says in which step, and a folder with the part of the model that the step was at.

A node that could not be imported becomes a model of that node alone (`model.onnx`), a pass of the graph leaves the part of the graph that
it fails on (`program.tc`), a kernel its loops before they were scheduled. `failure.json` says what was being done, for what target, with
which versions; `tc reproduce FOLDER` does the step again. Of literals above `KEPT_BYTES` nothing is kept: random numbers of the same range,
mean and deviation stand for them. Folders lie in the user's cache, or in TC_REPRODUCERS ("off": none), `MOST_FOLDERS` at most.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from tc.check.cut import smallest_part
from tc.codegen.kernels import schedule_kernel
from tc.errors import (
    Activity,
    CodegenError,
    InternalError,
    LoweringError,
    ModelError,
    ScheduleError,
    TcError,
    VerifyError,
    activities_of,
)
from tc.frontend.imported import Imported
from tc.frontend.onnx.fallback import model_of_node
from tc.frontend.onnx.node_context import NodeContext
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.parser import parse_module, parse_prim_func
from tc.ir.printer import print_ir
from tc.passes.manager import PASSES, parse_pipeline
from tc.passes.pipeline import PreparedModel
from tc.runtime.builder import kernel_object
from tc.runtime.cache_root import cache_path
from tc.target import Target
from tc.version import __version__

KEPT_BYTES = 1 << 12
MOST_FOLDERS = 20
SEED = 0

Compile = Callable[[Any, Mapping[str, Any]], object]
"""Compiles a model with options of `tc.compile`."""

_OURS = (ScheduleError, LoweringError, CodegenError, VerifyError)
"""Errors of a step that no model of a user brings about, in a compiler without errors."""

_OPTIONS = ("target", "numerics", "on_unsupported", "precision")
_writing = threading.local()


@dataclass(frozen=True)
class KeptFailure:
    """What is kept of a failure. kind: how it is done again: "node", "graph" (compile it), "pass" (of the graph), "kernel" (loops)."""

    kind: str
    step: str
    files: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def explained(options: Mapping[str, Any], is_ir: bool, compile_model: Compile) -> Iterator[None]:
    """Make what only an error in `tc` raises an InternalError that says in which step, and write a reproducer of it.

    options: those of `tc.compile` that matter; is_ir: whether the model is IR, whose errors may be the user's. Errors of schedules, loops
    and code that a model brings about keep their class, and say where the reproducer is.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, TcError) and not (isinstance(error, _OURS) and activities_of(error) and not is_ir):
            raise
        if getattr(_writing, "on", False) or _is_of_signal(error):  # this is a step that is being done again, or was interrupted
            raise
        step = " of ".join(dict.fromkeys(work.step for work in activities_of(error)[:2])) or "an unknown step"
        folder, found = write_reproducer(error, options, compile_model)
        if isinstance(error, TcError):
            error.hint = _hint(error.hint, found)
            raise
        made = InternalError(f"tc failed in {step}: {type(error).__name__}: {error}"[:2000], hint=found)
        made.reproducer = None if folder is None else str(folder)
        raise made from error


def _is_of_signal(error: Exception) -> bool:
    """Whether the user's handler of a signal has raised an error, as an alarm that ends what takes too long."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _hint(own: str, found: str) -> str:
    return f"{own}; {found}" if own else found


def write_reproducer(error: Exception, options: Mapping[str, Any], compile_model: Compile) -> tuple[Path | None, str]:
    """A folder with what an error came from, and what to say of it. Never raises: without a folder, it says why there is none."""
    _writing.on = True
    try:
        root = reproducers_path()
        if root is None:
            return None, "TC_REPRODUCERS=off keeps no reproducer of it"
        failure = _failure_of(error, options, compile_model)
        folder = _written(root, failure, error, options)
        if failure.kind == "unknown":  # of which nothing can be done again
            return folder, f"what is known of it is in {folder}; please report it"
        try:
            run_again(folder, compile_model)
            again = "alone it does not fail"
        except Exception as other:
            again = "it fails alone" if signature(other) == signature(error) else f"alone it fails by {type(other).__name__}"
        _note(folder, again)
        return folder, f"what it was at is in {folder} ({again}; tc reproduce {folder}); please report it"
    except Exception as problem:  # nothing here may hide the error that is to be reported
        return None, f"no reproducer could be written ({type(problem).__name__}: {problem}); please report it"
    finally:
        _writing.on = False


def reproducers_path() -> Path | None:
    """TC_REPRODUCERS, else a part of the cache, else of the folder for temporary files. None when TC_REPRODUCERS is "0" or "off"."""
    chosen = os.environ.get("TC_REPRODUCERS")
    if chosen in ("0", "off"):
        return None
    if chosen:
        return Path(chosen).absolute()
    cache = cache_path()
    return Path(tempfile.gettempdir()).absolute() / f"tc-failures-{os.getuid()}" if cache is None else cache.absolute() / "failures"


def signature(error: BaseException) -> tuple[str, str]:
    """What two failures have in common that are one: the kind of error and the function that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    while isinstance(error, InternalError) and error.__cause__ is not None:
        error = error.__cause__
        frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""


# -- what is kept


def _failure_of(error: Exception, options: Mapping[str, Any], compile_model: Compile) -> KeptFailure:
    works = activities_of(error)
    kernels = [work for work in works if isinstance(work.program, PrimFunc)]
    if kernels:  # the outermost: before its schedule
        return KeptFailure("kernel", kernels[-1].step, {"program.tc": print_ir(kernels[-1].program).encode()})
    for work in works:
        if isinstance(work.program, NodeContext):
            try:
                model = model_of_node(work.program, stand_in)
            except TcError:  # it reads what no model can say; the node around it may do
                continue
            return KeptFailure("node", f"import of {work.program.label}", {"model.onnx": model.SerializeToString()})
    graphs = [work for work in works if isinstance(work.program, IRModule)]
    if graphs:
        return _graph_failure(graphs[0], signature(error))
    return KeptFailure("unknown", works[0].step if works else "an unknown step")


def _graph_failure(work: Activity, wanted: tuple[str, str]) -> KeptFailure:
    module, name = work.program, work.step.partition("(")[0]
    again = work.again
    if again is None or name not in PASSES:
        return KeptFailure("graph", work.step, _text_of(module))

    def fails(part: IRModule) -> bool:
        try:
            again(part)
        except Exception as error:
            return signature(error) == wanted
        return False

    return KeptFailure("pass", work.step, _text_of(smallest_part(module, fails)))


def _text_of(module: IRModule) -> dict[str, bytes]:
    constants: dict[str, np.ndarray] = {}
    files = {"program.tc": print_ir(module, constants).encode()}
    if constants:
        kept = {name: stand_in(array) for name, array in constants.items()}
        table = {name: [array.dtype.name, list(array.shape)] for name, array in kept.items()}
        files["constants.json"] = json.dumps(table, indent=1).encode()
        files["constants.bin"] = b"".join(array.tobytes() for array in kept.values())
    return files


def _constants_in(folder: Path) -> dict[str, np.ndarray]:
    if not (folder / "constants.json").exists():
        return {}
    table, data, place, found = json.loads((folder / "constants.json").read_text()), (folder / "constants.bin").read_bytes(), 0, {}
    for name, (dtype, shape) in table.items():
        count = int(np.prod(shape, dtype=object))
        found[name] = np.frombuffer(data, np.dtype(dtype), count, place).reshape(shape)
        place += found[name].nbytes
    return found


def stand_in(array: np.ndarray) -> np.ndarray:
    """What is kept of a literal: all of a small one; of a large one random numbers with its range, mean and deviation."""
    if array.nbytes <= KEPT_BYTES or array.dtype == object:
        return array
    rng = np.random.default_rng(SEED)
    values = array.astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return np.zeros_like(array)
    low, high = values.min(), values.max()
    drawn = rng.normal(values.mean(), values.std(), array.shape).clip(low, high)
    whole = array.dtype.kind in "iub" or "int" in array.dtype.name
    return (np.rint(drawn) if whole else drawn).astype(array.dtype)


# -- the folder


def _written(root: Path, failure: KeptFailure, error: Exception, options: Mapping[str, Any]) -> Path:
    contents = hashlib.sha256(repr((sorted(failure.files.items()), signature(error))).encode()).hexdigest()
    word = "".join(c if c.isalnum() else "_" for c in failure.step.partition("(")[0])[:40]
    folder = root / f"{word}-{contents[:10]}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _forget_oldest(root, folder.name)
    folder.mkdir(mode=0o700, exist_ok=True)
    kind, place = signature(error)
    facts = {
        "kind": failure.kind,
        "step": failure.step,
        "during": [work.step for work in activities_of(error)],
        "error": {"type": kind, "at": place, "message": str(error)[:4000]},
        "options": {name: str(options[name]) for name in _OPTIONS if name in options},
        "dims": {str(name): str(dim) for name, dim in dict(options.get("dims") or {}).items()},
        "versions": _versions(),
        "seed": SEED,
        "literals": f"those above {KEPT_BYTES} bytes are random numbers of the same range, mean and deviation",
    }
    files = {**failure.files, "traceback.txt": "".join(traceback.format_exception(error)).encode()}
    files["failure.json"] = json.dumps(facts, indent=1).encode()
    files["README.txt"] = _README.format(kind=_KINDS[failure.kind], step=failure.step, folder=folder).encode()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


_KINDS = {
    "node": "model.onnx: a model of the one node that could not be imported",
    "pass": "program.tc: the part of the graph on which the pass fails",
    "graph": "program.tc: the graph that could not be compiled",
    "kernel": "program.tc: the loops of the kernel, before they were scheduled",
    "unknown": "no program: it is not known what part of the model it was",
}

_README = """\
tc failed in the step {step}. Here is what it was at:

  {kind}
  failure.json: the step, the error, the options, versions
  traceback.txt: where in tc the error came from

  tc reproduce {folder}

does that step again. Literals above a few kilobytes are random numbers that are like them.
"""


def _versions() -> dict[str, str]:
    found = {"tc": __version__, "python": platform.python_version(), "machine": platform.platform()}
    for name in ("numpy", "onnx", "llvmlite", "ml_dtypes"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _forget_oldest(root: Path, but: str) -> None:
    """Keep the number of folders bounded; only those that are reproducers are touched."""
    found = [each for each in root.iterdir() if (each / "failure.json").is_file() and not each.is_symlink() and each.name != but]
    for each in sorted(found, key=lambda path: path.stat().st_mtime)[: max(0, len(found) - MOST_FOLDERS + 1)]:
        shutil.rmtree(each, ignore_errors=True)


def _note(folder: Path, again: str) -> None:
    facts = json.loads((folder / "failure.json").read_text())
    (folder / "failure.json").write_text(json.dumps({**facts, "again": again}, indent=1))


# -- doing it again


def read_failure(folder: Path) -> dict[str, Any]:
    """What `failure.json` of a folder says. ModelError when it is none."""
    try:
        facts = json.loads((folder / "failure.json").read_text(encoding="utf-8"))
        _ = facts["kind"], facts["step"], facts["error"]["type"], facts["error"]["at"], dict(facts["options"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}: holds no failure.json of a reproducer: {error}", code="TC1002") from error
    return dict(facts)


def run_again(folder: Path, compile_model: Compile) -> None:
    """Do the step that failed again; what it raises comes out. ModelError for a folder that is no reproducer."""
    facts = read_failure(folder)
    options = {name: value for name, value in facts["options"].items() if name != "precision" or value == "bf16"}
    target = Target.parse(options.get("target", "native"))
    match facts["kind"]:
        case "node":
            compile_model((folder / "model.onnx").read_bytes(), options)
        case "graph":
            compile_model(_module_in(folder), options)
        case "pass":
            module = _module_in(folder)
            model = PreparedModel(Imported(module, (), ()), module, target, options.get("numerics", "default"))
            model.run(parse_pipeline(facts["step"]))
        case "kernel":
            kernel = schedule_kernel(parse_prim_func((folder / "program.tc").read_text(), str(folder / "program.tc")), target)
            kernel_object(kernel.final, kernel.symbol, target.host if kernel.on_host else target)
        case kind:
            raise ModelError(f"{folder}: of a failure of the kind {kind!r} nothing can be done again", code="TC1002")


def _module_in(folder: Path) -> IRModule:
    return parse_module((folder / "program.tc").read_text(), _constants_in(folder), str(folder / "program.tc"))
