"""Operators that ONNX's reference implementation gets wrong, for the evaluators that `fallback` makes."""

from __future__ import annotations

import builtins
import functools
from typing import Any

import numpy as np


@functools.cache
def corrected_ops() -> tuple[type, ...]:
    """Classes for `ReferenceEvaluator(new_ops=...)`; bodies of control flow get them, too."""
    from onnx import helper
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops.aionnxml.op_svm_classifier import SVMClassifier as KnownSVMClassifier
    from onnx.reference.ops.aionnxml.op_svm_classifier import sigmoid_probability
    from onnx.reference.ops.op_grid_sample import GridSample as KnownGridSample
    from onnx.reference.ops.op_loop import Loop as KnownLoop
    from onnx.reference.ops.op_scan import Scan as KnownScan
    from onnx.reference.ops.op_sequence_map import SequenceMap as KnownSequenceMap
    from onnx.reference.ops.op_slice import Slice_10 as KnownSlice
    from onnx.reference.ops.op_string_split import StringSplit as KnownStringSplit
    from onnx.reference.ops.op_unique import Unique as KnownUnique

    class Loop(KnownLoop):  # type: ignore[misc]
        """Without a condition it runs; what it scans is stacked along a new axis, by no iterations as well.

        ONNX's does not run without a condition, and joins what it scans along the axis there is.
        """

        op_domain = ""

        def _run(
            self, trip_count: Any, condition: Any, *init: Any, context: Any = None, bindings: Any = None, attributes: Any = None, **_: Any
        ) -> tuple[Any, ...]:
            names, carried = self.body.input_names, list(init)
            go_on = condition is None or bool(np.all(condition))
            stacks: list[list[np.ndarray]] = []
            i = 0
            while go_on and (trip_count is None or i < int(np.max(trip_count))):
                own = dict(zip(names, (np.array(i, np.int64), np.array(go_on), *carried), strict=True))
                after, *results = self._run_body({**(context or {}), **own}, attributes=attributes, bindings=bindings)
                go_on, carried = bool(np.all(after)), results[: len(init)]
                stacks.append(results[len(init) :])
                i += 1
            if not stacks:
                return (*carried, *(_empty_stack(info) for info in self.body.proto_.output[1 + len(init) :]))
            return (*carried, *(np.stack(stack) for stack in zip(*stacks, strict=True)))

    class Scan(KnownScan):  # type: ignore[misc]
        """Of strings, along all axes, from the back and of no iterations too: ONNX's knows none of these."""

        op_domain = ""

        def __init__(self, onnx_node: Any, run_params: Any) -> None:
            OpRun.__init__(self, onnx_node, run_params)

        def _run(self, *args: Any, context: Any = None, bindings: Any = None, attributes: Any = None, **_: Any) -> tuple[Any, ...]:
            count, outputs = self.num_scan_inputs, self.body.proto_.output
            carried, stacked = list(args[:-count]), outputs[len(args) - count :]
            ways = zip(args[-count:], self.scan_input_axes or [0] * count, self.scan_input_directions or [0] * count, strict=True)
            scanned = [np.moveaxis(x, axis, 0)[:: -1 if is_back else 1] for x, axis, is_back in ways]
            stacks: list[list[np.ndarray]] = []
            for rows in zip(*scanned, strict=True):
                items = (np.asarray(row, x.dtype) for row, x in zip(rows, scanned, strict=True))
                own = dict(zip(self.body.input_names, (*carried, *items), strict=True))
                results = self._run_body({**(context or {}), **own}, attributes=attributes, bindings=bindings)
                carried = results[: len(carried)]
                stacks.append(results[len(carried) :])
            made = [np.stack(stack) for stack in zip(*stacks, strict=True)] if stacks else [_empty_stack(info) for info in stacked]
            ways = zip(made, self.scan_output_axes or [0] * len(made), self.scan_output_directions or [0] * len(made), strict=True)
            return (*carried, *(np.moveaxis(x[:: -1 if is_back else 1], 0, axis) for x, axis, is_back in ways))

    class SequenceInsert(OpRun):  # type: ignore[misc]
        """`position` may be the length: ONNX's takes that for 0."""

        op_domain = ""

        def _run(self, sequence: Any, tensor: Any, position: Any = None) -> tuple[Any, ...]:
            items = list(sequence)
            place = len(items) if position is None else int(np.max(position))
            if not -len(items) <= place <= len(items):
                raise IndexError(f"position {place} in a sequence of {len(items)}")
            items.insert(place, tensor)
            return (items,)

    class Optional(OpRun):  # type: ignore[misc]
        """What it holds: ONNX's puts it into a list, from which its OptionalGetElement does not take it."""

        op_domain = ""

        def _run(self, content: Any = None, type: Any = None) -> tuple[Any, ...]:
            return (content,)

    class SequenceMap(KnownSequenceMap):  # type: ignore[misc]
        """Its body sees what is around it, and there may be no items: ONNX's has neither values around nor results of no items."""

        op_domain = ""

        def need_context(self) -> bool:
            return True

        def _run(
            self, items: Any, *others: Any, body: Any = None, attributes: Any = None, context: Any = None, **_: Any
        ) -> tuple[Any, ...]:
            made = []
            for k, item in enumerate(items):
                own = [item, *(other[k] if isinstance(other, list) else other for other in others)]
                given = {**(context or {}), **dict(zip(body.input_names, own, strict=True))}
                made.append(body.run(None, given, attributes=attributes))
            return tuple(map(list, zip(*made, strict=True))) if made else tuple([] for _ in body.output_names)

    class Unique(KnownUnique):  # type: ignore[misc]
        """Of strings, along an axis and in their own order too; ONNX's takes what is not sorted from the first axis."""

        op_domain = ""

        def _run(self, x: Any, axis: Any = None, sorted: Any = None) -> tuple[Any, ...]:
            if x.dtype.kind not in "OUS":
                return super()._run(x, axis, sorted)
            is_flat = axis is None or np.isnan(axis)
            along, axis = (x.reshape(-1), 0) if is_flat else (x, axis)
            rows = [tuple(row.reshape(-1)) for row in np.moveaxis(along, axis, 0)] if not is_flat else [(text,) for text in along]
            first = {row: place for place, row in reversed(list(enumerate(rows)))}
            order = builtins.sorted(first, key=None if sorted else first.__getitem__)
            number = {row: place for place, row in enumerate(order)}
            places, numbers = (np.array(found, np.int64) for found in ([first[row] for row in order], [number[row] for row in rows]))
            found = np.take(along, places, axis), places, numbers, np.bincount(numbers, minlength=len(order)).astype(np.int64)
            return found[: len(self.onnx_node.output)]

    class StringSplit(KnownStringSplit):  # type: ignore[misc]
        """Of one string too, which is no vector."""

        op_domain = ""

        def _run(self, x: Any, delimiter: Any = None, maxsplit: Any = None) -> tuple[Any, ...]:
            parts, counts = super()._run(np.reshape(x, (-1,)), delimiter, maxsplit)
            return parts.reshape(*x.shape, parts.shape[-1]), counts.reshape(x.shape)

    class GridSample(KnownGridSample):  # type: ignore[misc]
        """With cubic interpolation the border stands in for taps outside, as in PyTorch: ONNX's moves the sample to the border."""

        op_domain = ""

        def _run(self, x: Any, grid: Any, mode: Any = None, padding_mode: Any = None, align_corners: Any = None) -> tuple[Any, ...]:
            self.stays = (mode or self.mode) == "cubic"
            return super()._run(x, grid, mode, padding_mode, align_corners)

        def _clamp(self, value: Any, low: int, high: int) -> Any:
            return value if self.stays and isinstance(value, np.floating) else super()._clamp(value, low, high)

    class Slice(KnownSlice):  # type: ignore[misc]
        """Starts before the first element are at it, also where steps go back: ONNX's takes them as numpy does, and nothing is left."""

        op_domain = ""

        def _run(self, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> tuple[Any, ...]:
            along = np.arange(np.size(starts)) if axes is None else np.ravel(axes)
            sizes = np.array(x.shape, np.int64)[along]
            first = np.ravel(starts).astype(np.int64)
            return super()._run(x, np.where(first < -sizes, 0, first), ends, axes, steps)

    class SVMClassifier(KnownSVMClassifier):  # type: ignore[misc]
        """Probabilities of more than two classes are coupled by products of single elements; ONNX's has a sum of products there. It also
        rounds scores to the type of x, takes labels that are strings for numbers, and has no scores of no rows. Where there is one class
        alone, all rows are of it."""

        op_domain = "ai.onnx.ml"

        def _run(self, x: Any, classlabels_ints: Any = None, classlabels_strings: Any = None, **attributes: Any) -> tuple[Any, ...]:
            labels = np.array(classlabels_ints or classlabels_strings)
            rows = x.astype(np.float32) if len(x) else np.zeros((1, *x.shape[1:]), np.float32)
            places, scores = super()._run(rows, list(range(len(labels))), None, **attributes)
            return labels[np.minimum(places, len(labels) - 1)][: len(x)], scores[: len(x)]

        def _probabilities(self, scores: Any, count: int) -> Any:
            first, second = np.triu_indices(count, 1)
            atts = self._svm.atts
            numbers = zip(scores, atts.prob_a, atts.prob_b, strict=count > 1)
            pairs = np.clip([sigmoid_probability(*each) for each in numbers], 1e-7, 1 - 1e-7)
            found = np.zeros((count, count))
            found[first, second], found[second, first] = pairs, 1 - pairs
            return coupled_probabilities(found).astype(scores.dtype)

    def _empty_stack(info: Any) -> np.ndarray:
        tensor = info.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.float32
        return np.zeros((0, *(dim.dim_value for dim in tensor.shape.dim)), dtype)

    return Loop, Scan, SequenceInsert, SequenceMap, Optional, Unique, StringSplit, GridSample, Slice, SVMClassifier


def coupled_probabilities(pairs: np.ndarray) -> np.ndarray:
    """float64[k]: the probabilities of k classes whose odds against each other come nearest to float64[k, k] `pairs`: that it is the row's
    class, if it is that or the column's. Iterated as long as libsvm does. Source: Wu, Lin, Weng, "Probability Estimates for Multi-class
    Classification by Pairwise Coupling" (2004), the second method.
    """
    count = len(pairs)
    others = pairs * (1 - np.eye(count))
    matrix = np.diag((others**2).sum(0)) - others * others.T
    found = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        errors = matrix @ found
        mean = found @ errors
        if np.abs(errors - mean).max() < 0.005 / count:
            break
        for t in range(count):
            step = (mean - errors[t]) / matrix[t, t]
            mean = (mean + step * (step * matrix[t, t] + 2 * errors[t])) / (1 + step) ** 2
            errors = (errors + step * matrix[t]) / (1 + step)
            found[t] += step
            found /= 1 + step
    return found
