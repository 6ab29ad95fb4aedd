"""What a tuning database says about the kernels of a model that is being compiled.

A record is advice: one that does not replay on the kernel at hand, whatever the reason, leaves a note, and the kernel gets its default.
"""

from __future__ import annotations

from tc.autotune.database import Database
from tc.autotune.record import Record, target_key
from tc.errors import TcError
from tc.ir.loop import PrimFunc
from tc.schedule.knobs import Value
from tc.schedule.rules import Scheduled
from tc.schedule.step import Trace
from tc.target import Target

STEP_LIMIT = 4096
"""No schedule has more steps; one from a file that does is not tried."""
# What primitives raise when names or numbers in a step are not of the kind they take: a step from a file may hold anything.
_BAD_ARGUMENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)


class TunedSchedules:
    """The best known schedules and choices for a target and a number of threads.

    `notes` says, one line each, which kernels have records that could not be used, and why. `applied` are the workloads that were
    scheduled by a record.
    """

    def __init__(self, database: Database, target: Target, threads: int) -> None:
        self.database = database
        self.notes: list[str] = []
        self.applied: set[str] = set()
        self._target = target_key(target)
        self._threads = threads

    def record(self, workload: str, variant: str | None = None) -> Record | None:
        """The fastest verified record of a workload, of any variant if none is given."""
        return self.database.best(workload, self._target, self._threads, variant)

    def find(self, workload: str, variant: str | None = None) -> Trace | None:
        """The schedule of that record; None when there is none, or it is not one of this schedule language (and then a note)."""
        record = self.record(workload, variant)
        return None if record is None else self._trace(record, record.task or workload)

    def choice(self, pass_name: str, key: str) -> Value | None:
        """What was decided for the node with workload `key`."""
        found = self.database.choice(pass_name, key, self._target, self._threads)
        return None if found is None else found.value

    def schedule(self, func: PrimFunc, workload: str, variant: str | None = None) -> Scheduled | None:
        """`func` scheduled as in the best record of its workload. None when there is no such record, or, with a note, it does not replay."""
        record = self.record(workload, variant)
        trace = None if record is None else self._trace(record, func.name)
        if record is None or trace is None:
            return None
        try:
            scheduled = Scheduled(trace.apply(func), record.rule, trace)
        except (TcError, *_BAD_ARGUMENT) as error:
            self._note(func.name, error)
            return None
        self.applied.add(workload)
        return scheduled

    def summary(self) -> list[str]:
        """`notes`, and a line on records that were made for other machines, threads or versions, if there are any."""
        ignored = str(self.database.ignored(self._target, self._threads))
        return [*self.notes, *([f"{self.database.path}: records that do not count here: {ignored}"] if ignored else [])]

    def _trace(self, record: Record, name: str) -> Trace | None:
        try:
            trace = record.parse_trace()
        except TcError as error:
            self._note(name, error)
            return None
        if len(trace.steps) > STEP_LIMIT:
            self._note(name, f"it has {len(trace.steps)} steps, {STEP_LIMIT} are allowed")
            return None
        return trace

    def _note(self, name: str, why: object) -> None:
        text = str(why).strip() or type(why).__name__
        self.notes.append(f"{name}: its tuned schedule does not replay, so it has the default one: {' '.join(text.split())}")
