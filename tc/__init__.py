"""tc: a tensor compiler for deep-learning models.

    import tc
    m = tc.compile("model.onnx")
    y = m(x)
"""

from tc.errors import TcError
from tc.frontend.dims import Dim
from tc.frontend.onnx import inspect_model as inspect
from tc.lowering import interpret, lower
from tc.runtime.loading import load
from tc.runtime.module import CompiledModule
from tc.target import Target
from tc.tuning import compile_and_tune as compile
from tc.tuning import tune
from tc.version import __version__

__all__ = [
    "CompiledModule",
    "Dim",
    "Target",
    "TcError",
    "__version__",
    "compile",
    "inspect",
    "interpret",
    "load",
    "lower",
    "tune",
]
