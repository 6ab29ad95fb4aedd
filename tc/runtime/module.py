"""CompiledModule: a program that is called, and what is known of the model that it was compiled from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tc.codegen.backend import Loaded
from tc.errors import InputError, UnsupportedError, UserError
from tc.frontend.signature import Signature, StringTable, strings_of_call
from tc.ir.arith import evaluate
from tc.ir.dtype import from_numpy
from tc.ir.expr import Expr, Var
from tc.ir.node import walk
from tc.ir.plan import Check, ExecutionPlan, Launch, SlotPlace
from tc.ir.types import TensorType
from tc.runtime.arrays import like, with_arrays
from tc.runtime.callbacks import Callback
from tc.runtime.entry import EntrySource
from tc.runtime.frames import Frame
from tc.runtime.interface import dim_vars, interface_to_json
from tc.runtime.program import AssumptionFails, DefaultsReplaced, NativeProgram
from tc.runtime.report import KernelTime, Report
from tc.runtime.saved import Seal, plain_seal, write_files, write_module
from tc.target import Target


def _is_known(expr: Expr, env: Mapping[Var, int]) -> bool:
    """Whether an expression has a value for these dims."""
    return all(node in env for node in walk(expr) if isinstance(node, Var))


def _flat(signature: Signature, inputs: Mapping[str, Any], strings: StringTable) -> dict[str, Any]:
    """The tensors of inputs by name."""
    return signature.flatten({name: with_arrays(value, name) for name, value in inputs.items()}, strings)


class CompiledModule(NativeProgram):
    """A compiled model.

    y = m(x)                      arrays by position (in the order of `inputs`), or one dict by name
    m.run({"x": x})               dict of outputs by name
    m(x, out=buffer)              results go into your arrays (a list when there are several)

    Arrays are numpy arrays or anything with `__dlpack__` on the CPU; results are of the kind of the first input. An array that
    is C-contiguous is used in place, another is copied once. dtypes are never converted: a wrong one raises InputError.

    A sequence is a list of arrays, an empty optional None, and a tensor of strings an array of Python strings: `signature` says which
    inputs and outputs are such, and `inputs` and `outputs` then list the tensors that they lie in.

    `out` may lie upon inputs: such a result is computed apart and copied. Results without `out` are the caller's for as long as
    anything holds them; their memory then serves later results of this module, until `trim` gives it back.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        entry: EntrySource,
        library: Loaded,
        symbol: str,
        constants: Sequence[np.ndarray],
        threads: int,
        callback: Callback | None = None,
        report: Report | None = None,
        explanations: Mapping[str, str] | None = None,
        objects: Sequence[bytes] = (),
        target: str = "native",
        make_profiled: Callable[[], tuple[EntrySource, Loaded]] | None = None,
        make_general: Callable[[], CompiledModule] | None = None,
    ) -> None:
        super().__init__(plan, entry, library, symbol, constants, threads, callback)
        self.target = target
        self._objects = tuple(objects)
        self._make_profiled = make_profiled
        self._make_general: Callable[[], CompiledModule] | None = make_general
        self._general: CompiledModule | None = None
        self._make_overriding: Callable[[tuple[str, ...]], CompiledModule] | None = None
        self._write: Callable[[str | None], Mapping[str, str | bytes]] | None = None
        self.signature: Signature | None = None
        """How inputs and outputs lie in the tensors of the program, where they are more than tensors of numbers."""
        self._overriding_modules: dict[tuple[str, ...], CompiledModule] = {}
        self._profiled: tuple[EntrySource, Loaded] | None = None
        self._report = report or Report(())
        self._explanations = dict(explanations or {})

    def _new_frame(self) -> Frame:
        """As every program's; ModelError where this CPU lacks instructions that the target has."""
        Target.parse(self.target).host.require_here()
        return super()._new_frame()

    def __call__(self, *args: Any, out: Any = None) -> Any:
        """Run; returns the result, or a tuple of results when there are several."""
        if self.signature is not None:
            if out is not None:
                raise InputError(
                    "out: a module that takes or returns sequences, optionals, strings or tensors of unknown rank makes its results itself",
                    code="TC2006",
                )
            results = tuple(self.run(self._named(args)).values())
            return results[0] if len(results) == 1 else results
        return self._call_flat(args, out)

    def _named(self, args: tuple[Any, ...]) -> Mapping[str, Any]:
        """The inputs of a call by name, of a module with a signature."""
        assert self.signature is not None
        return args[0] if len(args) == 1 and isinstance(args[0], Mapping) else self.signature.by_position(args)

    def _call_flat(self, args: tuple[Any, ...], out: Any) -> Any:
        try:
            if args and type(args[0]) is np.ndarray and self._enter is not None:
                results = self._run_shortly(args, out)
                if results is not None:
                    return results[0] if len(results) == 1 else results
            return self._call(args, out)
        except AssumptionFails:
            return self.general._call_flat(args, out)
        except DefaultsReplaced as given:
            return self._overriding(given.names)(*args, out=out)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on inputs by name; returns outputs by name, in order."""
        if self.signature is None:
            try:
                return dict(zip(self._output_names, self._run_flat(inputs), strict=True))
            except DefaultsReplaced as given:
                return self._overriding(given.names).run(inputs)  # which may have a signature
        self._check_names(inputs)
        replaced = tuple(sorted(name for name in inputs if name in self.overridable))
        if replaced:
            return self._overriding(replaced).run(inputs)
        with strings_of_call(self.signature.table()) as strings:
            results = self.signature.restore(self._run_flat(_flat(self.signature, inputs, strings)), strings)
        first = inputs[self.signature.inputs[0].name] if self.signature.inputs else None
        return {name: like(first, result) for name, result in results.items()}

    def _run_flat(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        try:
            return self._run_arrays(self._by_name(inputs), None)
        except AssumptionFails:
            return self.general._run_flat(inputs)

    # -- facts

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the symbolic dims of the inputs."""
        return tuple(sorted({var.name for var in dim_vars(self.plan)}))

    def peak_bytes(self, **dims: int) -> int:
        """Memory of one call beyond inputs and constants, for these dims: arena and outputs.

        InputError for a dim that is missing, that the module does not have, or of a size that it cannot have.
        """
        self._check_dims(dims)
        env = {n: dims[n.name] for n in dim_vars(self.plan) if n.name in dims}
        if self._make_general is not None and not all(evaluate(c, env) for c in self._assumptions if _is_known(c, env)):
            return self.general.peak_bytes(**dims)
        total = self._evaluate(self.plan.arena_bytes, env)
        for var, slot in zip(self.plan.outputs, self.plan.output_slots, strict=True):
            if slot.place is not SlotPlace.DYNAMIC:
                assert isinstance(var.type, TensorType)
                total += self._evaluate(var.type.size_bytes, env)
        return total

    def _check_dims(self, dims: Mapping[str, object]) -> None:
        """Refuse what is no size, or contradicts what the module was compiled for."""
        for name, size in dims.items():
            if name not in self.dims:
                raise InputError(f"there is no dim {name!r}; the dims are: {', '.join(self.dims) or 'none, all shapes are fixed'}")
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
                raise InputError(f"dim {name} is {size!r}, must be a whole number, not negative")

    def _evaluate(self, expr: Expr, env: Mapping[Var, int]) -> int:
        for node in walk(expr):
            if isinstance(node, Var) and node not in env:
                raise InputError(f"a value for dim {node.name} is needed")
        return int(evaluate(expr, env))

    def report(self) -> Report:
        """Kernels, reference kernels, sizes, seconds of compilation."""
        return self._report

    def explain(self, node: str) -> str:
        """Why the model's node `node` was fused and scheduled as it was; InputError for a name that is not in the model."""
        if not isinstance(node, str) or node not in self._explanations:
            raise InputError(f"no node {node!r}; the nodes are: {', '.join(list(self._explanations)[:20])} ...")
        return self._explanations[node]

    def profile(self, *args: Any, repeat: int = 10) -> list[KernelTime]:
        """Time every kernel launch of a call on these inputs: the mean over `repeat` calls, after one to warm up, slowest first.

        Seconds of the monotonic clock, on the thread that calls; a launch inside a loop adds up its iterations. The first profile
        compiles an instrumented entry. UnsupportedError for a module that was loaded from a file.
        """
        if not isinstance(repeat, (int, np.integer)) or isinstance(repeat, bool) or repeat < 1:
            raise InputError(f"profile: repeat is {repeat!r}, must be at least 1")
        if self.signature is None:
            return self._profile(args, int(repeat))
        with strings_of_call(self.signature.table()) as strings:
            return self._profile((_flat(self.signature, self._named(args), strings),), int(repeat))

    def _profile(self, args: tuple[Any, ...], repeat: int) -> list[KernelTime]:
        if self._make_profiled is None:
            raise UnsupportedError("profile: a module loaded from a file cannot be instrumented; compile the model again")
        if self._profiled is None:
            self._profiled = self._make_profiled()
        entry, library = self._profiled
        timed = type(self)(
            self.plan, entry, library, self._symbol, self._constants, self.threads, self._callback, make_general=self._make_general
        )
        try:
            timed._call(args, None)
        except AssumptionFails:
            return self.general._profile(args, repeat)
        seconds = np.mean([timed.launch_seconds(*args) for _ in range(repeat)], axis=0)
        rows = [
            KernelTime(str(launch.span or ""), launch.kernel, float(mean))
            for launch, mean in zip(timed.launches, seconds, strict=True)
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    @property
    def _assumptions(self) -> list[Expr]:
        """What the program takes for granted of the dims (`Check.assumed`), as far as it is said before anything runs."""
        return [step.condition for step in self.plan.steps if isinstance(step, Check) and step.assumed]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of an entry that times them, in the order of the plan; of another entry none."""
        return self._entry.timed

    def launch_seconds(self, *args: Any) -> np.ndarray:
        """float64[launches]: what each launch takes in one call of a module whose entry times them, the iterations of loops added up.

        Not for calls from several threads at once.
        """
        words = slice(self._entry.layout.words, self._entry.layout.words + len(self.launches))
        for frame in self._idle:
            frame.words[words] = [0] * len(self.launches)
        self(*args)
        spent = np.array([frame.words[words] for frame in self._idle], np.float64)  # zeros, but for the frame of the call
        return np.asarray(spent.sum(axis=0) * 1e-9)

    # -- files

    @property
    def general(self) -> CompiledModule:
        """The module that takes what this one does not, because it assumes dims to be equal that may be broadcast; compiled when first
        needed. This module itself where it assumes nothing."""
        if self._make_general is None or not any(check.assumed for check in self._entry.checks):
            return self
        if self._general is None:
            self._general = self._make_general()
            self._general._keys = self._keys  # no run has the random numbers of another
        return self._general

    def set_general(self, make_general: Callable[[], CompiledModule]) -> None:
        """Say how to make the module that assumes nothing."""
        self._make_general = make_general

    def set_overriding(self, names: tuple[str, ...], make: Callable[[tuple[str, ...]], CompiledModule] | None) -> None:
        """Say which inputs have a default, and how to make the module that takes some of them."""
        self.overridable, self._make_overriding = names, make

    def _overriding(self, names: tuple[str, ...]) -> CompiledModule:
        if self._make_overriding is None:
            raise InputError(
                f'input "{names[0]}" has a default, which is part of this file\'s program; compile the model with overridden={list(names)}',
                code="TC2001",
            )
        if names not in self._overriding_modules:
            made = self._overriding_modules[names] = self._make_overriding(names)
            made._keys = self._keys
        return self._overriding_modules[names]

    def set_origin(
        self,
        seconds: float,
        make_profiled: Callable[[], tuple[EntrySource, Loaded]],
        make_general: Callable[[], CompiledModule],
    ) -> None:
        """Say that the module was read from a cache, and in how many seconds; and how to make the entry point that profiles, and the
        module that assumes nothing."""
        self.set_general(make_general)
        self._report = dataclasses.replace(self._report, seconds=(("load from cache", seconds),))
        self._make_profiled = make_profiled

    def set_writer(self, write: Callable[[str | None], Mapping[str, str | bytes]]) -> None:
        """Say how to write the program's kernels in a language (None: the usual one of the target) as files by name."""
        self._write = write

    def export(self, folder: str | os.PathLike[str], language: str | None = None) -> tuple[str, ...]:
        """Write the kernels into a folder as text, a file for each, with what the host does ("plan.txt") and how to build them
        ("build.sh"); for target "c" all of a program. Returns the names of the files.

        language: one in which kernels of the target are written ("c", "cuda", "ptx", "opencl", "llvm", "asm"), by default the first of
        its own. The schedules are those of this module. Like `tc compile --emit`, from a model that is compiled already.
        UnsupportedError for a module that was loaded from a file, UserError for a language that is none of the target's.
        """
        if self._write is None:
            raise UnsupportedError("export: a module loaded from a file has no kernels as text; compile the model again")
        if not isinstance(folder, (str, os.PathLike)):
            raise UserError(f"export: the folder is a {type(folder).__name__}, must be a string or path")
        if language is not None and not isinstance(language, str):
            raise UserError(f"export: the language is a {type(language).__name__}, must be a string")
        files = self._write(language)
        write_files(files, folder)
        return tuple(files)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module to a file that `tc.load` reads, with the one that assumes nothing (`general`).

        A node that runs on a reference kernel is in it as the kernel's name.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise UserError(f"save: the path is a {type(path).__name__}, must be a string or path")
        header, sections = self.content()
        try:
            write_module(path, header, sections, plain_seal)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"save: {os.fspath(path)!r} cannot be written: {why}") from error

    def content(self) -> tuple[dict[str, Any], list[bytes | np.ndarray]]:
        """The header and the sections of a file of this module and of the one that assumes nothing."""
        header, sections = self._content()
        try:
            general = self.general
        except UnsupportedError:  # what it assumes is what it is able to do; other dims are refused, as they are now
            general = self
        if general is not self:
            header["general"], others = general._content()
            sections = [*sections, *others]
        return header, sections

    def save_sealed(self, path: str | os.PathLike[str], seal: Seal) -> None:
        """This module alone, for those who can make the one again that assumes nothing, under a seal that whoever loads the file must
        know."""
        write_module(path, *self._content(), seal)

    def _content(self) -> tuple[dict[str, Any], list[bytes | np.ndarray]]:
        """The header and the sections of a file of this module alone."""
        header = {
            **interface_to_json(self.plan, self._entry),
            "target": self.target,
            "rates": self._report.rates,
            "symbol": self._symbol,
            "threads": self.threads,
            "constants": [[from_numpy(c.dtype).name, list(c.shape)] for c in self._constants],
            "num_objects": len(self._objects),
            "kernels": [[k.name, list(k.nodes), k.calls, k.rule] for k in self._report.kernels],
            "explanations": self._explanations,
            "precision": self._report.precision,
            "precisions": [[list(n.nodes), n.op, n.computed, n.stored, n.why] for n in self._report.precisions],
            "general": None,
            "overridable": self.overridable,
            "signature": None if self.signature is None else self.signature.to_json(),
        }
        return header, [*self._objects, *self._constants]
