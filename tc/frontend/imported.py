"""What is said about a model: per node, how it will run; for the whole, inputs, outputs and dims."""

from __future__ import annotations

from dataclasses import dataclass

from tc.frontend.signature import Signature
from tc.ir.dtype import DType
from tc.ir.module import IRModule
from tc.ops.registry import Requirement

NATIVE = "native"
FUNCTION_BODY = "function body"
FALLBACK = "fallback"
REFUSED = "refused"
_SEVERITY = (NATIVE, FUNCTION_BODY, FALLBACK, REFUSED)


RANDOM_KEY = "tc.random_key"
"""The input that models with random operators have besides their own: u64, other numbers for each. It need not be given."""


@dataclass(frozen=True)
class NodeReport:
    """How one node of the model runs.

    status: "native": our operators; "function body": ONNX's own definition in smaller operators; "fallback": in Python, on ONNX's
    reference implementation or on numpy's kernel of one of our operators; "refused": not at all. `reason` says why it is not native.
    """

    name: str
    op_type: str
    domain: str
    status: str
    reason: str = ""

    def joined(self, other: NodeReport) -> NodeReport:
        """Of two reports on one node, the one to show: the worse."""
        return max(self, other, key=lambda report: _SEVERITY.index(report.status))


@dataclass(frozen=True)
class ValueReport:
    """An input or output of a model; symbolic dims by name, unknown ones as "?"."""

    name: str
    shape: tuple[int | str, ...]
    dtype: DType | str


@dataclass(frozen=True)
class Inspection:
    """What is in a model file."""

    inputs: tuple[ValueReport, ...]
    outputs: tuple[ValueReport, ...]
    dims: tuple[str, ...]
    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True)
class Imported:
    """A model as a module, the conditions over dims to check before it runs, how each node was imported, and the files of data
    that it was read from besides its own. `assumes`: among the conditions are some that the model does not need (`Requirement.assumed`).
    `defaults`: names of inputs whose values the file has, and which are constants here. `signature`: how inputs and outputs lie in the
    tensors of the module, where they are not those."""

    module: IRModule
    requirements: tuple[Requirement, ...]
    report: tuple[NodeReport, ...]
    data_files: tuple[str, ...] = ()
    assumes: bool = False
    defaults: tuple[str, ...] = ()
    signature: Signature | None = None
