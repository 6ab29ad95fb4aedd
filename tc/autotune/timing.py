"""Two kernels timed in turns: what the child does that times.

On a shared machine the same kernel takes half as long again a moment later, so a time by itself says little. Candidate and
reference follow each other in short slots, in an order that alternates, and what counts is the ratio within such a pair. The
calls of a slot are made and timed by native code, in groups that are long beside the clock's own cost; the median over the groups
leaves out those that something interrupted.

Both kernels work on the same memory where their signatures agree, so that neither has the better addresses.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tc.autotune.build import SYMBOL, Built
from tc.autotune.inputs import ArraySpec, fill
from tc.check.compare import difference
from tc.codegen.llvm.jit import Library, compile_object, link
from tc.runtime.memory import ALIGNMENT, Arena
from tc.runtime.pool import get_pool
from tc.target import native_target

try:
    import resource
except ImportError:  # a system that does not count what it does
    resource = None  # type: ignore[assignment]

_GROUP_SECONDS = 20e-6
_MAX_GROUPS = 512
_COMPARED_ELEMENTS = 1 << 15
_GUARD_BYTES = 4096
_GUARD = 0xA5
_ATTEMPTS = 4
_MANY_GROUPS = 8
_LONG_SECONDS = 0.005
_USUAL = 1.3
_COLD_PAIRS = 4
"""Slots of a single call are short and uneven: there may be so many times more of them."""
_KEPT_REFERENCES = 8
_MOST_COPIES = 64
"""Of small literals: enough that each was last read hundreds of microseconds ago."""
_TOO_SLOW = 8.0
"""A first call that takes so many times the reference's, and all of a trial's time, says enough."""


@dataclass(frozen=True)
class TrialPlan:
    """How long a trial lasts. A slot is `slot_seconds` of calls or one call; pairs of slots fill `budget_seconds`, within bounds.

    A trial ends early when every ratio of two pairs is above `hopeless`, or every one of four above `slower`. `cold`: before each
    call all that the kernel reads and writes is thrown out of the caches, and a slot is one call.
    """

    slot_seconds: float = 0.0015
    budget_seconds: float = 0.036
    min_pairs: int = 4
    max_pairs: int = 16
    hopeless: float = 2.0
    slower: float = 1.3
    cold: bool = False


@dataclass(frozen=True)
class TimeRequest:
    """Time `candidate` against `reference`. `same_results`: both compute the same, so their results are compared first."""

    candidate: Built
    reference: Built
    effort: float
    same_results: bool


@dataclass(frozen=True)
class Timed:
    """`ratios`: candidate over reference, pair by pair; `reference_seconds`: median of the reference's slots.

    `wrong` says how the candidate's results differ from the reference's, and nothing was timed; None when they do not.
    """

    ratios: tuple[float, ...]
    reference_seconds: float
    wrong: str | None = None


@dataclass(frozen=True)
class CheckRequest:
    """Run `candidate` on `inputs` and compare with `expected`."""

    candidate: Built
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


Note = Callable[[str], None]
"""Tells the parent what is about to run, so that it knows whose fault it is when this process dies."""

_CLOCK = getattr(time, "CLOCK_MONOTONIC", 1)

_TIMER_TEXT = """
declare i32 @clock_gettime(i32, ptr)
declare void @tc_parallel_for(ptr, ptr, i64, i64, i64)

define internal void @nothing(ptr %context, i64 %begin, i64 %end, i64 %thread) nounwind {{
entry:
  ret void
}}

define internal i64 @now() nounwind {{
entry:
  %time = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %part = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %part, align 8
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}

define void @time_calls(ptr %kernel, ptr %tables, i64 %turn, i64 %count, ptr %scalars, i64 %threads, i64 %calls, i64 %groups,
                        ptr %out) nounwind {{
entry:
{scalars}
  call void @tc_parallel_for(ptr @nothing, ptr null, i64 %threads, i64 1, i64 %threads)
  br label %group
group:
  %g = phi i64 [ 0, %entry ], [ %g1, %done ]
  %turned = add i64 %g, %turn
  %number = urem i64 %turned, %count
  %table = mul i64 %number, {size}
  %pointers = getelementptr ptr, ptr %tables, i64 %table
{pointers}
  %start = call i64 @now()
  br label %again
again:
  %c = phi i64 [ 0, %group ], [ %c1, %again ]
  call void %kernel({arguments})
  %c1 = add i64 %c, 1
  %more = icmp slt i64 %c1, %calls
  br i1 %more, label %again, label %done
done:
  %end = call i64 @now()
  %taken = sub i64 %end, %start
  %place = getelementptr i64, ptr %out, i64 %g
  store i64 %taken, ptr %place, align 8
  %g1 = add i64 %g, 1
  %left = icmp slt i64 %g1, %groups
  br i1 %left, label %group, label %leave
leave:
  ret void
}}
"""
"""`groups` times: `calls` calls of a kernel, and the nanoseconds they take together. The empty parallel loop wakes the workers.

Groups take the `count` tables of pointers in turns, beginning with number `turn`.
"""

_FLUSH_TEXT = """
declare void @llvm.x86.{instruction}(ptr)
declare void @llvm.x86.sse2.mfence()
define void @flush(ptr %start, i64 %lines) nounwind {{
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %j, %again ]
  %offset = mul i64 %i, 64
  %p = getelementptr i8, ptr %start, i64 %offset
  call void @llvm.x86.{instruction}(ptr %p)
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %lines
  br i1 %more, label %again, label %done
done:
  call void @llvm.x86.sse2.mfence()
  ret void
}}
"""


@lru_cache(64)
def _timer(pointers: int, scalars: int) -> tuple[Library, Callable[..., None]]:
    """`time_calls` for kernels that take so many pointers and scalars, and the library it lives in."""
    loads: dict[str, list[str]] = {"ptr": [], "i64": []}
    arguments = []
    for kind, count, table in (("ptr", pointers, "%pointers"), ("i64", scalars, "%scalars")):
        for k in range(count):
            loads[kind].append(f"  %{kind}p{k} = getelementptr {kind}, ptr {table}, i64 {k}")
            loads[kind].append(f"  %{kind}{k} = load {kind}, ptr %{kind}p{k}, align 8")
            arguments.append(f"{kind} %{kind}{k}")
    text = _TIMER_TEXT.format(
        clock=_CLOCK,
        size=pointers,
        pointers="\n".join(loads["ptr"]),
        scalars="\n".join(loads["i64"]),
        arguments=", ".join([*arguments, "i64 %threads"]),
    )
    library = link([compile_object(text)])
    types = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return library, ctypes.CFUNCTYPE(None, *types)(library.address("time_calls"))


class Memory:
    """Arrays one behind the other, each at a multiple of 64 bytes, in huge pages where there is much of it, as in the runtime's
    arena. With `guard_bytes` there are known bytes around each, by which writes beyond its ends show."""

    def __init__(self, specs: Sequence[ArraySpec], guard_bytes: int = 0) -> None:
        self._guard_bytes = guard_bytes
        offsets, end = [], guard_bytes
        for spec in specs:
            offsets.append(end)
            end += -(-spec.size_bytes // ALIGNMENT) * ALIGNMENT + guard_bytes
        self.size_bytes = end
        self._bytes = Arena(end).bytes()
        self._bytes[...] = _GUARD if guard_bytes else 0  # every page is there before anything is timed
        parts = [self._bytes[offset : offset + spec.size_bytes] for offset, spec in zip(offsets, specs, strict=True)]
        self.arrays = [part.view(s.dtype.numpy).reshape(s.shape) for part, s in zip(parts, specs, strict=True)]
        self._inside = [(offset, offset + spec.size_bytes) for offset, spec in zip(offsets, specs, strict=True)]

    def carve(self, specs: Sequence[ArraySpec]) -> list[np.ndarray]:
        """Other arrays in the same bytes, one behind the other; they fit."""
        found, end = [], 0
        for spec in specs:
            part = self._bytes[end : end + spec.size_bytes]
            found.append(part.view(spec.dtype.numpy).reshape(spec.shape))
            end += -(-spec.size_bytes // ALIGNMENT) * ALIGNMENT
        return found

    def broken_guards(self) -> list[int]:
        """The numbers of the arrays behind which something was written; -1: before the first."""
        found, before = [], 0
        for number, (begin, end) in enumerate([*self._inside, (self.size_bytes, self.size_bytes)]):
            if (self._bytes[before:begin] != _GUARD).any():
                found.append(number - 1)
            before = end
        return found


Copies = Sequence[Mapping[int, np.ndarray]]
"""Other copies of some operands, by their places."""


class TimedKernel:
    """Linked code with the memory that it works on."""

    def __init__(
        self, built: Built, arrays: Sequence[np.ndarray], workspaces: Sequence[np.ndarray], copies: Copies = ()
    ) -> None:
        self._built = built
        self._library = link([built.code])
        self._address = self._library.address(SYMBOL)
        self._scalars = (ctypes.c_int64 * max(len(built.scalars), 1))(*built.scalars)
        self._out = np.zeros(_MAX_GROUPS, np.int64)
        if built.threads > 1:
            get_pool().start(built.threads)
        self.bind(arrays, workspaces, copies)

    def bind(self, arrays: Sequence[np.ndarray], workspaces: Sequence[np.ndarray], copies: Copies = ()) -> None:
        """Work on these inputs, outputs and workspaces from now on; group by group, the next of `copies` takes the place of some."""
        self._arrays = [*arrays, *workspaces]
        tables = [[each.get(place, array) for place, array in enumerate(self._arrays)] for each in (*copies, {})]
        addresses = [array.ctypes.data for table in tables for array in table]
        self._tables, self._count, self._turn = (ctypes.c_void_p * len(addresses))(*addresses), len(tables), 0
        self._kept = copies  # alive as long as the addresses are used
        self._timer = _timer(len(self._arrays), len(self._built.scalars))[1]

    @property
    def takes_turns(self) -> bool:
        """Whether groups of calls read other copies of some operands than the groups before."""
        return self._count > 1

    def time(self, calls: int, groups: int, threads: int | None = None) -> np.ndarray:
        """float64[groups]: seconds of one call, the mean over `calls` calls."""
        groups = min(groups, _MAX_GROUPS)
        out, many = self._out, self._built.threads if threads is None else threads
        self._timer(
            self._address, self._tables, self._turn, self._count, self._scalars, many, calls, groups, out.ctypes.data
        )
        self._turn = (self._turn + groups) % self._count
        return out[:groups] * (1e-9 / calls)

    def flush(self) -> None:
        """Throw all that the kernel reads and writes out of the caches."""
        for array in self._arrays:
            _flush(array)


@lru_cache(1)
def _flusher() -> tuple[Library, Callable[[int, int], None]] | None:
    """The function that empties cache lines; None where the processor has none that we know."""
    target = native_target()
    if not target.has("sse2"):
        return None
    instruction = "clflushopt" if target.has("clflushopt") else "sse2.clflush"  # the former does not wait for each line
    library = link([compile_object(_FLUSH_TEXT.format(instruction=instruction), target)])
    return library, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("flush"))


@lru_cache(1)
def _stream() -> np.ndarray:
    """More than the caches hold."""
    target = native_target()
    return np.zeros(2 * max(target.l3_bytes, 4 * target.l2_bytes), np.uint8)


def _flush(array: np.ndarray) -> None:
    flusher = _flusher()
    if flusher is not None:
        flusher[1](array.ctypes.data, -(-array.nbytes // ALIGNMENT))
    elif array.nbytes:
        stream = _stream()
        np.add(stream, 1, out=stream)


class _Paced:
    """A kernel with what a call takes, so that slots of it have the right length."""

    def __init__(self, kernel: TimedKernel, plan: TrialPlan, first_seconds: float) -> None:
        """`first_seconds`: what its first call took. Where that is long beside a slot, it has to do as an estimate."""
        self.kernel = kernel
        self._plan = plan
        self.seconds = self.slot_seconds = first_seconds
        if plan.cold or first_seconds < 4 * plan.slot_seconds:
            self.seconds = min(first_seconds, float(kernel.time(1, 2).min()))
            starts = [time.perf_counter()]
            for _ in range(2 if plan.cold else 1):
                self.seconds = min(self.seconds, self.slot())
                starts.append(time.perf_counter())
            self.slot_seconds = min(np.diff(starts)) if plan.cold else max(plan.slot_seconds, self.seconds)

    def slot(self) -> float:
        """Seconds of one call: the median over the groups of a slot.

        When the system gives a processor to others for some milliseconds, a slot of few groups is lost, and with several threads
        any slot may be: those that go on wait for the one that does not. Such a slot is tried again, and the shortest counts;
        calls that last longer than that cannot be spared.
        """
        least = 1e-8  # of an empty kernel the clock sees nothing
        calls = groups = 1
        if not self._plan.cold:
            calls = 1 if self.kernel.takes_turns else max(1, round(_GROUP_SECONDS / max(self.seconds, least)))
            groups = max(1, round(self._plan.slot_seconds / (calls * max(self.seconds, least))))
        shortest = float("inf")
        for _ in range(_ATTEMPTS if self.seconds < _LONG_SECONDS else 1):
            if self._plan.cold:
                self.kernel.flush()
            before = _interruptions()
            shortest = min(shortest, float(np.median(self.kernel.time(calls, groups))))
            is_usual = groups >= _MANY_GROUPS and shortest < _USUAL * self.seconds
            if is_usual or _interruptions() == before:
                break
        return max(shortest, least)


def _interruptions() -> int:
    """How many times the system took the processor from a thread of this process."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(frozen=True)
class _Reference:
    """A reference kernel at work, and the results that candidates must have, or a part of them."""

    paced: _Paced
    results: tuple[np.ndarray, ...]

    def compare(self, results: Sequence[np.ndarray], built: Built) -> str | None:
        """What is wrong with a candidate's results. Where the reference's are not finite, the inputs are to blame."""
        for number, (expected, found) in enumerate(zip(self.results, results, strict=True)):
            actual = _sample(found)
            if built.outputs[number].dtype.is_float:
                finite = np.isfinite(expected.astype(np.float64))
                expected, actual = expected[finite], actual[finite]
            problem = _difference(expected, actual, built, number)
            if problem is not None:
                return f"result {number} differs from that of the reference kernel: {problem}"
        return None


@dataclass
class _Site:
    """Inputs and outputs of one signature, and the reference kernels that work on them."""

    memory: Memory
    references: dict[Built, _Reference]
    copies: Copies = ()


class Timer:
    """Runs kernels that others built. Keeps reference kernels, their inputs and their results from trial to trial."""

    def __init__(self, plan: TrialPlan, keep_bytes: int = 1 << 30) -> None:
        self._plan = plan
        self._keep_bytes = keep_bytes
        get_pool()  # whose functions kernels are linked with
        self._sites: dict[object, _Site] = {}
        self._workspace = Memory(())

    def time(self, request: TimeRequest, note: Note) -> Timed:
        """MemoryError or OSError when there is no room for the arrays; the process may die of either kernel."""
        plan = self._plan
        self._reserve_workspace(request.reference, request.candidate)
        note("reference")
        reference = self._reference(request.reference)
        note("candidate")
        built = request.candidate
        outputs = self._outputs(built)
        site = self._site(built)
        kernel = TimedKernel(built, site.memory.arrays, self._workspaces(built), site.copies)
        _spoil(outputs)
        first = float(kernel.time(1, 1)[0])
        wrong = reference.compare(outputs, built) if request.same_results else None
        if wrong is not None:
            return Timed((), reference.paced.seconds, wrong)
        if first > _TOO_SLOW * reference.paced.seconds and first > plan.budget_seconds:
            seconds = reference.paced.slot()
            return Timed((first / seconds,), seconds)
        return _time_pairs(reference.paced, _Paced(kernel, plan, first), plan, request.effort)

    def check(self, request: CheckRequest) -> str | None:
        """What is wrong with the candidate's results, or with what else it does; None when nothing is."""
        built = request.candidate
        shapes, taken = [np.shape(x) for x in request.inputs], [spec.shape for spec in built.inputs]
        if shapes != taken:
            return f"the inputs have shapes {shapes}, the kernel takes {taken}"
        memory = Memory((*built.inputs, *built.outputs, *built.workspaces), _GUARD_BYTES)
        first, end = len(built.inputs), len(built.inputs) + len(built.outputs)
        kernel = TimedKernel(built, memory.arrays[:end], memory.arrays[end:])
        runs = []
        for threads in dict.fromkeys((built.threads, 1)):
            for array, value in zip(memory.arrays, request.inputs, strict=False):
                array[...] = value
            _spoil(memory.arrays[first:])
            kernel.time(1, 1, threads)
            runs.append([array.copy() for array in memory.arrays[first:end]])
        return (
            _side_effects(memory, request)
            or _wrong_results(request.expected, runs[0], built)
            or _other_bits(runs[0], runs[-1], built.threads)
        )

    def _reference(self, built: Built) -> _Reference:
        site = self._site(built)
        found = site.references.get(built)
        if found is not None:
            found.paced.kernel.bind(site.memory.arrays, self._workspaces(built), site.copies)
            return found
        kernel = TimedKernel(built, site.memory.arrays, self._workspaces(built), site.copies)
        kernel.time(1, 1)
        found = _Reference(_Paced(kernel, self._plan, float(kernel.time(1, 1)[0])), tuple(map(_sample, self._outputs(built))))
        while len(site.references) >= _KEPT_REFERENCES:
            site.references.pop(next(iter(site.references)))
        site.references[built] = found
        return found

    def _outputs(self, built: Built) -> list[np.ndarray]:
        return self._site(built).memory.arrays[len(built.inputs) :]

    def _site(self, built: Built) -> _Site:
        """Where kernels of this signature work; the sites used last are kept."""
        key = (built.inputs, built.outputs, built.constants, built.apart_bytes)
        site = self._sites.pop(key, None)
        if site is None:
            constants = sum(built.inputs[place].size_bytes for place in built.constants)
            count = min(-(-built.apart_bytes // constants), _MOST_COPIES) if constants else 0
            needed = sum(spec.size_bytes for spec in (*built.inputs, *built.outputs)) + count * constants
            while self._sites and sum(s.memory.size_bytes for s in self._sites.values()) + needed > self._keep_bytes:
                self._sites.pop(next(iter(self._sites)))
            site = _Site(Memory((*built.inputs, *built.outputs)), {})
            for seed, (array, spec) in enumerate(zip(site.memory.arrays, built.inputs, strict=False)):
                fill(array, spec, seed)
            site.copies = [_copy(site.memory.arrays, built) for _ in range(count)]
        self._sites[key] = site
        return site

    def _reserve_workspace(self, *kernels: Built) -> None:
        """One workspace serves all kernels: it grows when one needs more, and goes back when it is far too large."""
        needed = max(sum(spec.size_bytes + ALIGNMENT for spec in built.workspaces) for built in kernels)
        if not needed <= self._workspace.size_bytes <= max(4 * needed, 64 << 20):
            self._workspace = Memory(())
            self._workspace = Memory((ArraySpec((needed,), "u8"),))

    def _workspaces(self, built: Built) -> list[np.ndarray]:
        return self._workspace.carve(built.workspaces)


def _copy(arrays: Sequence[np.ndarray], built: Built) -> dict[int, np.ndarray]:
    """The operands that are literals, once more elsewhere."""
    memory = Memory([built.inputs[place] for place in built.constants])
    for array, place in zip(memory.arrays, built.constants, strict=True):
        array[...] = arrays[place]
    return dict(zip(built.constants, memory.arrays, strict=True))


def _time_pairs(reference: _Paced, candidate: _Paced, plan: TrialPlan, effort: float) -> Timed:
    fitting = int(plan.budget_seconds * effort / (reference.slot_seconds + candidate.slot_seconds))
    most = round(plan.max_pairs * effort) * (_COLD_PAIRS if plan.cold else 1)
    wanted = max(round(plan.min_pairs * effort), min(fitting, most), 1)
    ratios: list[float] = []
    references: list[float] = []
    while len(ratios) < wanted and not _is_clear(ratios, plan):
        first, second = (reference, candidate) if len(ratios) % 2 == 0 else (candidate, reference)
        seconds = {first: first.slot(), second: second.slot()}
        ratios.append(seconds[candidate] / seconds[reference])
        references.append(seconds[reference])
    return Timed(tuple(ratios), float(np.median(references)))


def _is_clear(ratios: Sequence[float], plan: TrialPlan) -> bool:
    """Whether the candidate is so much slower that more rounds tell nothing of use."""
    least = min(ratios, default=0.0)
    return (len(ratios) >= 2 and least > plan.hopeless) or (len(ratios) >= 4 and least > plan.slower)


def _sample(array: np.ndarray) -> np.ndarray:
    """A copy of the elements, or of every nth where there are very many; n is odd, so as to meet all columns of a tile."""
    sample: np.ndarray = array.reshape(-1)[:: array.size // _COMPARED_ELEMENTS | 1].copy()
    return sample


def _spoil(arrays: Sequence[np.ndarray]) -> None:
    """Make earlier results unusable: NaN, or -1."""
    for array in arrays:
        array.reshape(-1).view(np.uint8)[...] = 0xFF


def _difference(expected: np.ndarray, actual: np.ndarray, built: Built, number: int) -> str | None:
    reads_floats = any(spec.dtype.is_float for spec in built.inputs)
    return difference(expected, actual, built.outputs[number].dtype, reads_floats)


def _side_effects(memory: Memory, request: CheckRequest) -> str | None:
    broken = memory.broken_guards()
    if broken:
        return f"the kernel writes outside of its arrays, behind number {broken[0]} of {len(memory.arrays)}"
    for number, (array, value) in enumerate(zip(memory.arrays, request.inputs, strict=False)):
        if array.tobytes() != np.ascontiguousarray(value, array.dtype).tobytes():
            return f"the kernel changes its input {number}"
    return None


def _wrong_results(expected: Sequence[np.ndarray], found: Sequence[np.ndarray], built: Built) -> str | None:
    for number, (want, got) in enumerate(zip(expected, found, strict=False)):
        if np.shape(want) != got.shape:
            return f"result {number} has shape {got.shape}, expected is {np.shape(want)}"
        problem = _difference(np.asarray(want), got, built, number)
        if problem is not None:
            return f"result {number}: {problem}"
    return None


def _other_bits(found: Sequence[np.ndarray], alone: Sequence[np.ndarray], threads: int) -> str | None:
    for number, (many, one) in enumerate(zip(found, alone, strict=True)):
        if many.tobytes() != one.tobytes():
            return f"result {number} has other bits on {threads} threads than on one"
    return None
