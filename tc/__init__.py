"""tc: a tensor compiler for deep-learning models.

    import tc
    m = tc.compile("model.onnx")
    y = m(x)
"""

import os
import sys

try:
    from tc.autotune.tuning import compile_and_tune as compile
    from tc.autotune.tuning import tune
    from tc.errors import TcError
    from tc.frontend.dims import Dim
    from tc.frontend.onnx import inspect_model as inspect
    from tc.frontend.operators import op, remove_op
    from tc.quantization.quantize import quantize
    from tc.runtime.loading import load
    from tc.runtime.module import CompiledModule
    from tc.stages import interpret, lower
    from tc.target import Target
    from tc.version import __version__
except KeyboardInterrupt:  # which programs that import tc get, but commands end quietly, as they do later
    if not sys.argv or os.path.basename(sys.argv[0]) not in ("tc", "-m"):  # the latter while `python -m tc` is being found
        raise
    sys.exit(130)

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
    "op",
    "quantize",
    "remove_op",
    "tune",
]
