"""A failing model made small: a node, an output, a dim less at a time, as long as it fails in the same way.

Every simplification is a function from a `Subject` to smaller ones; the first that still fails is taken, until none does. Whether one
fails is asked of `fails`, which knows nothing of models; `failing` makes one from a `Judge`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tc.fuzz.differential import USUAL, How, Run, Verdict
from tc.fuzz.evaluate import Feeds, node_reads, trace
from tc.fuzz.process import Judge

Fails = Callable[["Subject"], bool]


@dataclass(frozen=True)
class Subject:
    """A model and the inputs on which it fails."""

    model: onnx.ModelProto
    feeds: Feeds


@dataclass(frozen=True)
class Reduced:
    """What reduction leaves: the model, its inputs, the verdict on it, and how many simplifications were tried and taken."""

    subject: Subject
    verdict: Verdict
    tried: int
    taken: int


def reduce_model(subject: Subject, fails: Fails, *, seconds: float = 60.0) -> tuple[Subject, int, int]:
    """The smallest model found within the time that fails as `subject` does; how many steps were tried and taken."""
    deadline = time.monotonic() + seconds
    tried = taken = 0
    simpler = True
    while simpler and time.monotonic() < deadline:
        simpler = False
        for candidate in candidates(subject):
            if time.monotonic() > deadline:
                break
            tried += 1
            if fails(candidate):
                subject, simpler = candidate, True
                taken += 1
                break
    return subject, tried, taken


def reduce_failure(
    model: onnx.ModelProto,
    runs: Sequence[Run],
    verdict: Verdict,
    judge: Judge,
    how: How = USUAL,
    *,
    seconds: float = 60.0,
) -> Reduced:
    """Reduce a model on which `judge` came to `verdict`. A bad index that went through is left as it is but for its run."""
    spoilt = runs[verdict.run].spoilt

    def runs_for(subject: Subject) -> list[Run]:
        return [Run(subject.feeds, spoilt)]

    def fails(subject: Subject) -> bool:
        try:
            found = judge.model(subject.model, runs_for(subject), how)
        except RuntimeError:  # simplified to something that is no model
            return False
        alike = found.kind == verdict.kind and found.oracles == verdict.oracles
        return alike and (found.kind == "wrong" or found.signature == verdict.signature)

    start = Subject(model, runs[verdict.run].feeds)
    if (spoilt and verdict.kind == "unchecked") or not fails(start):
        return Reduced(start, verdict, 1, 0)
    subject, tried, taken = reduce_model(start, fails, seconds=seconds)
    subject = renamed(subject)
    final = judge.model(subject.model, runs_for(subject), how)
    return Reduced(subject, final, tried, taken)


def describe(subject: Subject, verdict: Verdict) -> str:
    """The model as ONNX text, its inputs, and what is wrong."""
    lines = [onnx.printer.to_text(subject.model), ""]
    for name, value in subject.feeds.items():
        lines.append(
            f"{name} = {np.array2string(np.asarray(value), threshold=64, separator=', ')}  # {value.dtype}{list(value.shape)}"
        )
    return "\n".join([*lines, "", f"{verdict.kind}: {verdict.text}"])


def candidates(subject: Subject) -> Iterator[Subject]:
    """Simpler models, those that lose most first."""
    steps = (
        single_outputs, shorter, cut, bypassed, without_attributes, without_inputs, simpler_bodies, known_dims, constants, smaller,
        plainer_values,
    )  # fmt: skip
    for simplify in steps:
        yield from simplify(subject)


def rebuilt(
    subject: Subject,
    *,
    nodes: Sequence[onnx.NodeProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    constants: Sequence[onnx.TensorProto] | None = None,
    feeds: Feeds | None = None,
) -> Subject:
    """The subject with parts replaced, and without what its outputs do not need."""
    graph = subject.model.graph
    outputs = list(graph.output) if outputs is None else list(outputs)
    needed = {o.name for o in outputs}
    kept = []
    for node in reversed(list(graph.node) if nodes is None else nodes):
        if needed & set(node.output):
            kept.append(node)
            needed |= node_reads(node)
    inputs = [i for i in (graph.input if inputs is None else inputs) if i.name in needed]
    constants = [t for t in (graph.initializer if constants is None else constants) if t.name in needed]
    model = onnx.ModelProto()
    model.CopyFrom(subject.model)
    model.graph.CopyFrom(helper.make_graph(kept[::-1], graph.name, inputs, outputs, constants))
    names = {i.name for i in inputs}
    return Subject(model, {k: v for k, v in (subject.feeds if feeds is None else feeds).items() if k in names})


def single_outputs(subject: Subject) -> Iterator[Subject]:
    """One of several outputs."""
    outputs = subject.model.graph.output
    if len(outputs) > 1:
        for output in outputs:
            yield rebuilt(subject, outputs=[output])


def _info(name: str, value: np.ndarray, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape if shape is None else shape)
    )


def shorter(subject: Subject) -> Iterator[Subject]:
    """The model up to an earlier node."""
    graph = subject.model.graph
    values = trace(subject.model, subject.feeds).values
    ends = {o.name for o in graph.output}
    for node in graph.node[:-1]:
        for name in node.output:
            value = values.get(name)
            if name and name not in ends and isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
                yield rebuilt(subject, outputs=[_info(name, value, [f"{name}_{k}" for k in range(value.ndim)])])


def cut(subject: Subject) -> Iterator[Subject]:
    """The value of a node as an input: its dims known, or free."""
    graph = subject.model.graph
    values = trace(subject.model, subject.feeds).values
    for node in reversed(graph.node):
        for name in node.output:
            value = values.get(name)
            if (
                not isinstance(value, np.ndarray)
                or value.dtype.kind not in "fiub"
                or name in {o.name for o in graph.output}
            ):
                continue
            rest = [_without_output(n, name) for n in graph.node]
            if node.op_type == "Constant":
                constant = numpy_helper.from_array(value, name)
                yield rebuilt(subject, nodes=rest, constants=[*graph.initializer, constant])
                continue
            for shape in (value.shape, [f"{name}_{k}" for k in range(value.ndim)] if value.ndim else None):
                if shape is not None:
                    yield rebuilt(
                        subject,
                        nodes=rest,
                        inputs=[*graph.input, _info(name, value, shape)],
                        feeds={**subject.feeds, name: value},
                    )


def _without_output(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    if name not in node.output:
        return node
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    outputs = [o if o != name else ("" if len(node.output) > 1 else "unused") for o in node.output]
    del changed.output[:]
    changed.output.extend(outputs)
    return changed


def _substituted(node: onnx.NodeProto, old: str, new: str) -> onnx.NodeProto:
    """The node with `new` wherever it or its bodies read `old`."""
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    for k, name in enumerate(changed.input):
        if name == old:
            changed.input[k] = new
    for attribute in changed.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            nodes = [_substituted(inner, old, new) for inner in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(nodes)
            for output in attribute.g.output:
                if output.name == old:
                    output.name = new
    return changed


def bypassed(subject: Subject) -> Iterator[Subject]:
    """A node less: who read its result reads one of its inputs, of the same dtype."""
    graph = subject.model.graph
    values = trace(subject.model, subject.feeds).values
    for index, node in enumerate(graph.node):
        for output in node.output[:1]:
            for source in dict.fromkeys(n for n in node.input if n):
                a, b = values.get(output), values.get(source)
                if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.dtype != b.dtype:
                    continue
                nodes = [_substituted(n, output, source) for k, n in enumerate(graph.node) if k != index]
                if output not in {o.name for o in graph.output}:
                    yield rebuilt(subject, nodes=nodes)


def _changed(subject: Subject, index: int, node: onnx.NodeProto) -> Subject:
    nodes = list(subject.model.graph.node)
    nodes[index] = node
    return rebuilt(subject, nodes=nodes)


def without_attributes(subject: Subject) -> Iterator[Subject]:
    """An attribute less."""
    for index, node in enumerate(subject.model.graph.node):
        for k, attribute in enumerate(node.attribute):
            if attribute.type != onnx.AttributeProto.GRAPH and node.op_type != "Constant":
                changed = onnx.NodeProto()
                changed.CopyFrom(node)
                del changed.attribute[k]
                yield _changed(subject, index, changed)


def without_inputs(subject: Subject) -> Iterator[Subject]:
    """The last operand of a node left out."""
    for index, node in enumerate(subject.model.graph.node):
        if len(node.input) > 1 and node.op_type not in ("Loop", "Scan"):
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            del changed.input[-1]
            while changed.input and not changed.input[-1]:
                del changed.input[-1]
            yield _changed(subject, index, changed)


def simpler_bodies(subject: Subject) -> Iterator[Subject]:
    """A node of a body less, or bypassed; a pair of state and result, or a stacked result, less."""
    for index, node in enumerate(subject.model.graph.node):
        for k, attribute in enumerate(node.attribute):
            if attribute.type != onnx.AttributeProto.GRAPH:
                continue
            for graph in _smaller_graphs(attribute.g):
                changed = onnx.NodeProto()
                changed.CopyFrom(node)
                changed.attribute[k].g.CopyFrom(graph)
                yield _changed(subject, index, changed)
        yield from (
            _changed(subject, index, n)
            for n in _fewer_results(node, {o.name for o in subject.model.graph.output} | _read(subject))
        )


def _read(subject: Subject) -> set[str]:
    return {name for node in subject.model.graph.node for name in node_reads(node)}


def _smaller_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for index, node in enumerate(graph.node):
        for source in dict.fromkeys(n for n in node.input if n):
            smaller = onnx.GraphProto()
            smaller.CopyFrom(graph)
            del smaller.node[:]
            nodes = [_substituted(n, node.output[0], source) for k, n in enumerate(graph.node) if k != index]
            smaller.node.extend(nodes)
            if node.output[0] not in {o.name for o in graph.output}:
                yield smaller
    needed = {o.name for o in graph.output}.union(*(node_reads(n) for n in graph.node))
    if any(not needed & set(n.output) for n in graph.node):
        smaller = onnx.GraphProto()
        smaller.CopyFrom(graph)
        del smaller.node[:]
        smaller.node.extend(n for n in graph.node if needed & set(n.output))
        yield smaller


def _fewer_results(node: onnx.NodeProto, used: set[str]) -> Iterator[onnx.NodeProto]:
    """If, Loop without a result that nobody reads; for a carried one, without the state too."""
    for k, name in enumerate(node.output):
        if name in used or node.op_type not in ("If", "Loop") or len(node.output) == 1:
            continue
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        del changed.output[k]
        carried = len(node.input) - 2
        for attribute in changed.attribute:
            if attribute.type != onnx.AttributeProto.GRAPH:
                continue
            body = attribute.g
            del body.output[k + (1 if node.op_type == "Loop" else 0)]
            if node.op_type == "Loop" and k < carried:
                del body.input[k + 2]
        if node.op_type == "Loop" and k < carried:
            del changed.input[k + 2]
        yield changed


def known_dims(subject: Subject) -> Iterator[Subject]:
    """Every dim of every input known; else one symbol less."""
    graph = subject.model.graph
    symbols = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim if not d.HasField("dim_value")}
    for chosen in ([symbols] if len(symbols) > 1 else []) + [{s} for s in sorted(symbols)]:
        inputs = []
        for i in graph.input:
            value = subject.feeds[i.name]
            dims = [
                n if d.HasField("dim_value") or d.dim_param in chosen else d.dim_param
                for d, n in zip(i.type.tensor_type.shape.dim, value.shape)
            ]
            inputs.append(_info(i.name, value, dims))
        yield rebuilt(subject, inputs=inputs)


def constants(subject: Subject) -> Iterator[Subject]:
    """An input as a constant of the model."""
    graph = subject.model.graph
    for i in graph.input:
        if len(graph.input) > 1:
            constant = numpy_helper.from_array(np.asarray(subject.feeds[i.name]), i.name)
            yield rebuilt(
                subject, inputs=[k for k in graph.input if k.name != i.name], constants=[*graph.initializer, constant]
            )


def smaller(subject: Subject) -> Iterator[Subject]:
    """A size made smaller wherever it stands: in inputs, constants, and integers that may speak of shapes."""
    graph = subject.model.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    sizes = {n for v in (*subject.feeds.values(), *arrays.values()) for n in v.shape if n > 1}
    for size in sorted(sizes, reverse=True):
        for new in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < new < size:
                yield _resized(subject, arrays, size, new)
    for i in graph.input:  # one tensor alone
        value = subject.feeds[i.name]
        for axis, n in enumerate(value.shape):
            for new in dict.fromkeys((1, 2, n // 2)):
                if 0 < new < n:
                    yield _narrowed(subject, i.name, axis, new)


def _resized(subject: Subject, arrays: Feeds, size: int, new: int) -> Subject:
    def shrink(value: np.ndarray) -> np.ndarray:
        for axis, n in enumerate(value.shape):
            if n == size:
                value = np.take(value, range(new), axis)
        return np.where(value == size, new, value).astype(value.dtype) if value.dtype == np.int64 else value

    feeds = {name: shrink(value) for name, value in subject.feeds.items()}
    tensors = [numpy_helper.from_array(shrink(value), name) for name, value in arrays.items()]
    return rebuilt(
        subject, inputs=[_like(i, feeds[i.name]) for i in subject.model.graph.input], constants=tensors, feeds=feeds
    )


def _narrowed(subject: Subject, name: str, axis: int, new: int) -> Subject:
    feeds = {**subject.feeds, name: np.take(subject.feeds[name], range(new), axis)}
    return rebuilt(subject, inputs=[_like(i, feeds[i.name]) for i in subject.model.graph.input], feeds=feeds)


def _like(info: onnx.ValueInfoProto, value: np.ndarray) -> onnx.ValueInfoProto:
    """The declaration with the sizes of `value`; symbols stay."""
    dims = info.type.tensor_type.shape.dim
    return _info(info.name, value, [n if d.HasField("dim_value") else d.dim_param for d, n in zip(dims, value.shape)])


def plainer_values(subject: Subject) -> Iterator[Subject]:
    """Inputs and constants of ones, or counting up, instead of what was drawn."""
    plain: list[Callable[[np.ndarray], np.ndarray]] = [
        np.ones_like,
        lambda v: (np.arange(v.size) + 1).reshape(v.shape).astype(v.dtype),
    ]
    floats = {name: v for name, v in subject.feeds.items() if v.dtype.kind == "f"}
    for make in plain:
        feeds = {**subject.feeds, **{name: make(v) for name, v in floats.items()}}
        if any(feeds[n].tobytes() != subject.feeds[n].tobytes() for n in floats) and not _is_plain(floats):
            yield replace(subject, feeds=feeds)


def _is_plain(floats: Feeds) -> bool:
    return all((v.reshape(-1) == np.arange(v.size) + 1).all() or (v == 1).all() for v in floats.values())


def renamed(subject: Subject) -> Subject:
    """Short names for all values, in the order in which they come."""
    graph = subject.model.graph
    order = [
        *(i.name for i in graph.input),
        *(t.name for t in graph.initializer),
        *(o for n in graph.node for o in n.output if o),
    ]
    names = {old: f"_{k}" for k, old in enumerate(dict.fromkeys(order))}
    model = onnx.ModelProto()
    model.CopyFrom(subject.model)
    for nodes in (list(model.graph.node),):
        for old, new in names.items():
            nodes = [_substituted(n, old, new) for n in nodes]
        for node in nodes:
            outputs = [names.get(o, o) for o in node.output]
            del node.output[:]
            node.output.extend(outputs)
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names.get(value.name, value.name)
    for k, output in enumerate(model.graph.output):
        for j, dim in enumerate(output.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_param = f"o{k}_{j}"
    return Subject(model, {names.get(k, k): v for k, v in subject.feeds.items()})
