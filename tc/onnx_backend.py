"""`tc` as a backend of ONNX's own interface, which ONNX's test suite and other tools run models through.

    import onnx.backend.test
    from tc import onnx_backend

    suite = onnx.backend.test.BackendTest(onnx_backend.TcBackend, __name__)

Source: `onnx.backend.base` of the ONNX project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from tc.autotune.tuning import compile_and_tune
from tc.errors import UserError


class Prepared(BackendRep):
    """A compiled model."""

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        self.module = module
        self.names = names

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """The outputs in the order of the model; inputs are a sequence in the order of the model's, or arrays by name."""
        by_name = inputs if isinstance(inputs, Mapping) else dict(zip(self.names, inputs, strict=False))
        own = {value.name for value in (self.module.signature or self.module).inputs}
        given = {name: value if isinstance(value, list) or value is None else np.asarray(value) for name, value in by_name.items()}
        return tuple(self.module.run({name: value for name, value in given.items() if name in own}).values())


class TcBackend(Backend):
    """Compiles models for this machine's CPU. `run_node`, which gives no model, is what `Backend` makes of it."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> Prepared:
        """Compile; `options` are those of `tc.compile`. UserError for a device that is not supported."""
        if not cls.supports_device(device):
            raise UserError(f"device {device!r}: only the CPU is one of this backend")
        return Prepared(compile_and_tune(model, **options), [value.name for value in model.graph.input])

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU"
