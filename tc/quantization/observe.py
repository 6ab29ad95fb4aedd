"""One instrumented run over the calibration inputs: what each scale class is, and what the model gives in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tc.errors import QuantizationError
from tc.precision.inputs import Feed
from tc.quantization.correction import LayerInput, layer_inputs, sampled_operands
from tc.quantization.statistics import Statistics
from tc.quantization.topology import QuantizationSite, ScaleClass, Topology
from tc.runtime.module import CompiledModule

Compile = Callable[[onnx.ModelProto], CompiledModule]
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class CalibrationRun:
    """`statistics` of each class of the topology. `outputs`: of the model in f32, a dict for each call. `layers`: what products with
    literal weights read, by site."""

    statistics: tuple[Statistics, ...]
    outputs: tuple[Outputs, ...]
    layers: Mapping[str, LayerInput]


def observe(
    proto: onnx.ModelProto,
    topology: Topology,
    feeds: Sequence[Feed],
    compile_model: Compile,
    progress: Callable[[int, int], None] | None = None,
) -> CalibrationRun:
    """Run the prepared model on every input, once, and take note of the values that have scales.

    UserError where the model's own results are not finite.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    literals = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    inputs = {value.name for value in proto.graph.input}
    outputs = [value.name for value in proto.graph.output]
    samples = sampled_operands(topology, len(feeds))
    seen = dict.fromkeys([*(name for c in topology.classes for name in c.origins), *(name for name, _ in samples)])
    watched = [name for name in seen if name not in inputs and name not in literals and name not in outputs]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in watched)
    module = compile_model(model)
    found = tuple(Statistics() for _ in topology.classes)
    results = []
    for index, feed in enumerate(feeds):
        values = module.run(feed)
        results.append({name: np.array(values[name]) for name in outputs})
        _check_results(results[-1], index)
        known: Mapping[str, np.ndarray] = {**literals, **feed, **values}
        for scale_class, statistics in zip(topology.classes, found, strict=True):
            statistics.update([known[name] for name in scale_class.origins])
        for (name, _), sample in samples.items():
            sample.update(np.asarray(known[name]))
        if progress is not None:
            progress(index + 1, len(feeds))
    return CalibrationRun(found, tuple(results), layer_inputs(proto, topology, samples))


def _check_results(outputs: Outputs, index: int) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise QuantizationError(
                f"the model in f32 gives NaN or infinity in {name!r} on calibration input {index}: nothing to agree with"
            )


def without_infinite(topology: Topology, run: CalibrationRun) -> tuple[Topology, tuple[str, ...]]:
    """The topology without the sites that read a value that was not finite, or none at all, and without the groups of operands that were
    always empty; and what was left out, in words."""
    statistics = run.statistics
    bad = {i for i, each in enumerate(statistics) if not each.is_finite or not each.ranges}
    kept, notes = [], []
    for site in topology.sites:
        infinite = [edge for edge in site.edges if edge.class_index in bad]
        if not infinite:
            kept.append(site)
            continue
        why = "is not finite" if not statistics[infinite[0].class_index].is_finite else "is empty"
        notes.append(f"{site.name} stays in f32: {infinite[0].value!r} {why} on calibration inputs")
        rest = tuple(edge for edge in site.edges if edge not in infinite)
        if rest and not site.is_contraction:
            kept.append(QuantizationSite(site.name, site.op_type, False, site.choices, rest))
    names = run.layers.keys() & {site.name for site in kept}
    groups = tuple(group for group in topology.groups if names.issuperset(group.sites))
    return Topology(tuple(kept), topology.classes, groups), tuple(notes)


def constant_zeros(classes: Sequence[ScaleClass], statistics: Sequence[Statistics]) -> tuple[str, ...]:
    """What is said of values that were 0 on every calibration input: any scale would do."""
    return tuple(
        f"{c.name!r} was 0 on every calibration input: its scale is 1, whatever it is later"
        for c, each in zip(classes, statistics, strict=True)
        if each.is_finite and each.ranges and each.is_constant_zero
    )
