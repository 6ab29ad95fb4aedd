"""The ONNX front end: `load_model` and `inspect_model`."""

from tc.frontend.imported import Imported, Inspection, NodeReport, ValueReport
from tc.frontend.onnx import (
    branches,
    loops,
    ops_attention,
    ops_early,
    ops_einsum,
    ops_experts,
    ops_fourier,
    ops_grouped_attention,
    ops_linear_attention,
    ops_math,
    ops_microsoft,
    ops_ml,
    ops_nn,
    ops_quantized,
    ops_random,
    ops_resize,
    ops_sequence,
    ops_shape,
    ops_slice,
    ops_training,
    ops_trees,
    ops_vision,
    ops_weights,
    reference_run,
    rnn,
)
from tc.frontend.onnx.load import inspect_model, load_model

# Importing these fills the tables of operators and of Python functions.
OPERATOR_TABLES = (
    *(branches, loops, ops_attention, ops_math, ops_microsoft, ops_nn, ops_quantized, ops_resize, ops_sequence, ops_shape, ops_training),
    *(ops_experts, ops_linear_attention, ops_vision),
    *(ops_early, ops_einsum, ops_fourier, ops_grouped_attention, ops_ml, ops_random, ops_slice, ops_trees, ops_weights, reference_run, rnn),
)

__all__ = ["OPERATOR_TABLES", "Imported", "Inspection", "NodeReport", "ValueReport", "inspect_model", "load_model"]
