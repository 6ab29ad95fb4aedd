"""From the bytes of a file, or of a pickle, to a module that runs."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tc.codegen.backends import backend_of
from tc.errors import ModuleFileError, UserError
from tc.frontend.signature import signature_from_json
from tc.passes.graph.narrowing import NodePrecision
from tc.runtime.callbacks import callback_for
from tc.runtime.interface import interface_from_json
from tc.runtime.module import CompiledModule
from tc.runtime.module_class import MODULE_CLASSES, module_class
from tc.runtime.pool import get_pool
from tc.runtime.report import KernelReport, Report, precision_notes
from tc.runtime.saved import Seal, as_array, pack_module, plain_seal, read_module, unpack_module
from tc.target import Target, check_threads, native_target
from tc.target.machine import machine_fingerprint

OTHER_RATES = "the module was compiled with other rates of this CPU than count now; compile it again for schedules that go by them"


def load(path: str | os.PathLike[str], threads: int | None = None) -> CompiledModule:
    """Read a module that `CompiledModule.save` wrote. It runs on at most the number of threads that it was compiled for.

    A module is native code, and is run: load only what you trust as you trust a program.
    ModelError when the file is damaged or was compiled for a CPU with features that this one lacks.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"load: the path is a {type(path).__name__}, must be a string or path")
    try:
        return _for_here(load_sealed(path, plain_seal, None if threads is None else check_threads(threads)))
    except FileNotFoundError:
        raise ModuleFileError(f"there is no file {os.fspath(path)!r}", code="TC1002") from None
    except OSError as error:
        raise ModuleFileError(f"cannot read {os.fspath(path)!r}: {error.strerror or error}", code="TC1002") from None


def load_sealed(path: str | os.PathLike[str], seal: Seal, threads: int | None = None) -> CompiledModule:
    """`load`, of a file that was saved under a seal."""
    return _loaded(str(path), lambda: read_module(path, seal), threads)


def _from_bytes(data: bytes, threads: int) -> CompiledModule:
    """The module that was pickled."""
    return _for_here(_loaded("the pickled module", lambda: unpack_module(data), threads))


def _for_here(module: CompiledModule) -> CompiledModule:
    """The module, if this machine can run it. One from the cache is not asked: it may have been compiled to be saved for another."""
    Target.parse(module.target).require_here()
    return module


def _loaded(name: str, read: Callable[[], tuple[dict[str, Any], list[np.ndarray]]], threads: int | None) -> CompiledModule:
    try:
        header, sections = read()
        return _load(header, sections, threads)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ModuleFileError(f"{name} is not a valid module: {error!r}") from None


def _load(header: dict[str, Any], sections: list[np.ndarray], threads: int | None) -> CompiledModule:
    target = Target.parse(header["target"])
    plan, entry = interface_from_json(header)
    count = header["num_objects"]
    objects = [section.tobytes() for section in sections[:count]]
    end = count + len(header["constants"])
    constants = [
        as_array(section, dtype, shape) for section, (dtype, shape) in zip(sections[count:end], header["constants"], strict=True)
    ]
    general, rates = header["general"], str(header.get("rates", ""))  # older files do not have them
    precision = str(header.get("precision", "f32"))
    other_rates = () if rates in ("", machine_fingerprint(target)) else (OTHER_RATES,)
    report = Report(
        tuple(KernelReport(name, tuple(nodes), calls, rule, True) for name, nodes, calls, rule in header["kernels"]),
        tuple(f"{call.span} ({call.symbol})" for call in entry.calls),
        arena=header["arena_bytes"],
        constant_bytes=sum(c.nbytes for c in constants),
        notes=(*other_rates, *precision_notes(precision, target)),
        rates=rates,
        precision=precision,
        precisions=tuple(NodePrecision(tuple(nodes), *rest) for nodes, *rest in header.get("precisions", ())),
    )
    get_pool()
    library = backend_of(target).load(objects, target)
    module = module_class(library)(
        plan,
        entry,
        library,
        header["symbol"],
        constants,
        min(header["threads"], native_target().cores if threads is None else threads),  # the scratch memory is for so many
        callback_for(entry.calls),
        report,
        header["explanations"],
        objects,
        header["target"],
        make_general=None if general is None else lambda: _load(general, sections[end:], threads),
    )
    module.set_overriding(tuple(header["overridable"]), None)
    module.signature = signature_from_json(header.get("signature"))
    return module


def _reduced(module: CompiledModule) -> tuple[Any, ...]:
    """A module is pickled, and copied, as the bytes of its file. It is native code: unpickle only what you trust."""
    return _from_bytes, (pack_module(*module.content()), module.threads)


for _kind in MODULE_CLASSES:
    copyreg.pickle(_kind, _reduced)
