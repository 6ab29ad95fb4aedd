"""Two kernels timed in turns: what the child does that times.

On a shared machine the same kernel takes half as long again a moment later, so a time by itself says little. Candidate and
reference follow each other in short slots, in an order that alternates, and what counts is the ratio within such a pair. The
calls of a slot are made and timed by native code, in groups that are long beside the clock's own cost; the median over the groups
leaves out those that something interrupted.

Both kernels work on the same memory where their signatures agree, so that neither has the better addresses.

Kernels of devices are timed in the same way, by the host's clock from an empty queue to an empty queue; groups of their calls are longer.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tc.autotune.build import SYMBOL, Built
from tc.autotune.inputs import ArraySpec, fill
from tc.autotune.native_timer import native_timer
from tc.autotune.places import PlacedArrays, place_of_kernels
from tc.check.compare import difference
from tc.runtime.memory import ALIGNMENT
from tc.runtime.pool import get_pool

try:
    import resource
except ImportError:  # a system that does not count what it does
    resource = None  # type: ignore[assignment]

_MAX_GROUPS = 512
_COMPARED_ELEMENTS = 1 << 15
_GUARD_BYTES = 4096
_WORKSPACE_ALIGNMENT = 4 * ALIGNMENT
"""Bytes that an array takes at most beside its own, at any place."""
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

Copies = Sequence[tuple[PlacedArrays, Mapping[int, int]]]
"""Other copies of some operands: their memory, and their addresses by the operands' places."""


class TimedKernel:
    """Linked code with the memory that it works on."""

    def __init__(self, built: Built, memory: PlacedArrays, workspace: PlacedArrays, copies: Copies = ()) -> None:
        self._built = built
        self._place = place_of_kernels(built.device)
        self._library = self._place.load(built.code)
        self._address = self._library.address(SYMBOL)
        self._scalars = (ctypes.c_int64 * max(len(built.scalars), 1))(*built.scalars)
        self._out = np.zeros(_MAX_GROUPS, np.int64)
        if built.threads > 1 and not built.device:
            get_pool().start(built.threads)
        self.bind(memory, workspace, copies)

    def bind(self, memory: PlacedArrays, workspace: PlacedArrays, copies: Copies = ()) -> None:
        """Work on these inputs and outputs from now on, on the arrays of `workspace` or, where it is one of bytes, on workspaces in it; in
        turns, the next of `copies` takes the place of some."""
        wanted = self._built.workspaces
        usual = [*memory.addresses, *(workspace.addresses if workspace.specs == wanted else workspace.carve(wanted))]
        tables = [[each.get(place, address) for place, address in enumerate(usual)] for _, each in (*copies, (memory, {}))]
        addresses = [address for table in tables for address in table]
        self._tables, self._count, self._turn = (ctypes.c_void_p * len(addresses))(*addresses), len(tables), 0
        self._kept = (memory, workspace, copies)  # alive as long as the addresses are used
        self._timer = native_timer(len(usual), len(self._built.scalars), self._place.finish)[1]

    @property
    def takes_turns(self) -> bool:
        """Whether groups of calls read other copies of some operands than the groups before."""
        return self._count > 1

    def calls_together(self, seconds: float) -> int:
        """How many calls, of so many seconds each, are a group. In the process one where groups take turns; on devices calls do."""
        if self.takes_turns and not self._place.finish:
            return 1
        return max(1, round(self._place.group_seconds / seconds))

    def first_seconds(self) -> float:
        """Of the first call; on a device of the second, for a driver may finish code at the first."""
        if self._place.finish:
            self.time(1, 1)
        return float(self.time(1, 1)[0])

    def time(self, calls: int, groups: int, threads: int | None = None) -> np.ndarray:
        """float64[groups]: seconds of one call, the mean over `calls` calls. DeviceError for what went wrong with them on a device."""
        groups = min(groups, _MAX_GROUPS)
        many = self._built.threads if threads is None else threads
        with self._place.running(many) as last:
            tables = self._tables, self._turn, self._count
            self._timer(self._address, *tables, self._scalars, last, calls, groups, self._out.ctypes.data)
        self._turn = (self._turn + groups * (calls if self._place.finish else 1)) % self._count
        return self._out[:groups] * (1e-9 / calls)

    def flush(self) -> None:
        """Throw all that the kernel reads and writes out of the caches."""
        memory, workspace, _ = self._kept
        memory.flush()
        workspace.flush()


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
            calls = self.kernel.calls_together(max(self.seconds, least))
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
            actual = found
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

    memory: PlacedArrays
    references: dict[Built, _Reference]
    copies: Copies = ()


class Timer:
    """Runs kernels that others built. Keeps reference kernels, their inputs and their results from trial to trial."""

    def __init__(self, plan: TrialPlan, keep_bytes: int = 1 << 30) -> None:
        self._plan = plan
        self._keep_bytes = keep_bytes
        get_pool()  # whose functions kernels are linked with
        self._sites: dict[object, _Site] = {}
        self._workspaces: dict[str, PlacedArrays] = {}

    def time(self, request: TimeRequest, note: Note) -> Timed:
        """MemoryError or OSError when there is no room for the arrays; the process may die of either kernel."""
        plan = self._plan
        workspace = self._workspace(request.reference, request.candidate)
        note("reference")
        reference = self._reference(request.reference, workspace)
        note("candidate")
        built = request.candidate
        site = self._site(built)
        kernel = TimedKernel(built, site.memory, workspace, site.copies)
        for number in _outputs(built):
            site.memory.spoil(number)
        first = kernel.first_seconds()
        wrong = reference.compare(_results(site, built), built) if request.same_results else None
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
        place = place_of_kernels(built.device)
        memory = place.arrays((*built.inputs, *built.outputs), _GUARD_BYTES)
        workspace = place.arrays(built.workspaces, _GUARD_BYTES)
        kernel = TimedKernel(built, memory, workspace)
        runs = []
        for threads in (1, 1) if built.device else dict.fromkeys((built.threads, 1)):
            for number, value in enumerate(request.inputs):
                memory.write(number, value)
            for number in _outputs(built):
                memory.spoil(number)
            for number in range(len(built.workspaces)):
                workspace.spoil(number)
            kernel.time(1, 1, threads)
            runs.append([memory.read(number).copy() for number in _outputs(built)])
        return (
            _side_effects((memory, workspace), request)
            or _wrong_results(request.expected, runs[0], built)
            or _other_bits(runs[0], runs[-1], "in a second run" if built.device else f"on {built.threads} threads than on one")
        )

    def _reference(self, built: Built, workspace: PlacedArrays) -> _Reference:
        site = self._site(built)
        found = site.references.get(built)
        if found is not None:
            found.paced.kernel.bind(site.memory, workspace, site.copies)
            return found
        kernel = TimedKernel(built, site.memory, workspace, site.copies)
        kernel.time(1, 1)
        found = _Reference(_Paced(kernel, self._plan, float(kernel.time(1, 1)[0])), tuple(_results(site, built)))
        while len(site.references) >= _KEPT_REFERENCES:
            site.references.pop(next(iter(site.references)))
        site.references[built] = found
        return found

    def _site(self, built: Built) -> _Site:
        """Where kernels of this signature work; the sites used last are kept."""
        key = (built.device, built.inputs, built.outputs, built.constants, built.apart_bytes)
        site = self._sites.pop(key, None)
        if site is None:
            constants = sum(built.inputs[place].size_bytes for place in built.constants)
            count = min(-(-built.apart_bytes // constants), _MOST_COPIES) if constants else 0
            needed = sum(spec.size_bytes for spec in (*built.inputs, *built.outputs)) + count * constants
            while self._sites and sum(s.memory.size_bytes for s in self._sites.values()) + needed > self._keep_bytes:
                self._sites.pop(next(iter(self._sites)))
            site = _Site(place_of_kernels(built.device).arrays((*built.inputs, *built.outputs)), {})
            for number, spec in enumerate(built.inputs):
                site.memory.write(number, _filled(spec, number))
            site.copies = [_copy(built) for _ in range(count)]
        self._sites[key] = site
        return site

    def _workspace(self, *kernels: Built) -> PlacedArrays:
        """Memory for the workspaces of kernels at one place: it grows when one needs more, and goes back when it is far too large."""
        needed = max(sum(spec.size_bytes + _WORKSPACE_ALIGNMENT for spec in built.workspaces) for built in kernels)
        device = kernels[0].device
        known = self._workspaces.get(device)
        if known is None or not needed <= known.size_bytes <= max(4 * needed, 64 << 20):
            self._workspaces.pop(device, None)
            del known
            self._workspaces[device] = place_of_kernels(device).arrays((ArraySpec((needed,), "u8"),))
        return self._workspaces[device]


def _outputs(built: Built) -> range:
    """The numbers of a kernel's results among its arrays."""
    return range(len(built.inputs), len(built.inputs) + len(built.outputs))


def _results(site: _Site, built: Built) -> list[np.ndarray]:
    return [_sample(site.memory.read(number)) for number in _outputs(built)]


def _filled(spec: ArraySpec, seed: int) -> np.ndarray:
    array = np.empty(spec.shape, spec.dtype.numpy)
    fill(array, spec, seed)
    return array


def _copy(built: Built) -> tuple[PlacedArrays, dict[int, int]]:
    """The operands that are literals, once more elsewhere."""
    memory = place_of_kernels(built.device).arrays([built.inputs[place] for place in built.constants])
    for number, place in enumerate(built.constants):
        memory.write(number, _filled(built.inputs[place], place))
    return memory, dict(zip(built.constants, memory.addresses, strict=True))


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


def _difference(expected: np.ndarray, actual: np.ndarray, built: Built, number: int) -> str | None:
    reads_floats = any(spec.dtype.is_float for spec in built.inputs)
    return difference(expected, actual, built.outputs[number].dtype, reads_floats)


def _side_effects(memories: tuple[PlacedArrays, PlacedArrays], request: CheckRequest) -> str | None:
    for memory, what in zip(memories, ("arrays", "workspaces"), strict=True):
        broken = memory.broken_guards()
        if broken:
            return f"the kernel writes outside of its {what}, behind number {broken[0]} of {len(memory.addresses)}"
    for number, value in enumerate(request.inputs):
        array = memories[0].read(number)
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


def _other_bits(found: Sequence[np.ndarray], again: Sequence[np.ndarray], where: str) -> str | None:
    for number, (one, other) in enumerate(zip(found, again, strict=True)):
        if one.tobytes() != other.tobytes():
            return f"result {number} has other bits {where}"
    return None
