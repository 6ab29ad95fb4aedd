"""Random valid ONNX models of all kinds, one for each seed.

A model is drawn row by row from the operator tables; `Builder` runs every node as it is added. What the model is like (its opset, how many
dims are symbols, whether tensors may be empty, how much is known at run time only) is drawn first, as a `Style`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from tc.fuzz.builder import ALL, BF16, BOOL, F16, F32, F64, I32, I64, Builder, Held, Input, Rejected, Style
from tc.fuzz.operators import (
    control,
    domains,
    elementwise,
    indexing,
    layers,
    network,
    programs,
    quantize,
    reduce,
    shape,
    window,
)
from tc.fuzz.operators.row import Row

OLDEST_OPSET = 7
NEWEST_OPSET = 26  # the newest that ONNX Runtime knows; with both oracles not asked for, newer ones are drawn too
NETWORKS = "networks"
PROGRAMS = "programs"
MODES = ("general", "indices", NETWORKS, PROGRAMS)
TABLES = {NETWORKS: layers.ROWS, PROGRAMS: programs.PROGRAM_ROWS}


@dataclass(frozen=True)
class Case:
    """A model, what it is run on, and how it was drawn."""

    seed: int
    model: onnx.ModelProto
    inputs: tuple[Input, ...]
    style: Style
    operators: tuple[str, ...]

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The arrays by the names of the inputs."""
        return {i.name: i.array for i in self.inputs}


def draw_style(rng: np.random.Generator, mode: str = "general") -> Style:
    """What the next model is like."""
    if mode == NETWORKS:
        return draw_network_style(rng)
    if mode == PROGRAMS:
        return draw_program_style(rng)
    dtypes = (
        (F32, I64, BOOL, I32) if rng.random() < 0.5 else (F32, F16, F64, I64, I32, BOOL) if rng.random() < 0.4 else ALL
    )
    both = bool(rng.random() < 0.8)
    newest = NEWEST_OPSET if both else onnx.defs.onnx_opset_version()
    style = Style(
        opset=int(rng.integers(OLDEST_OPSET, newest + 1)) if rng.random() < 0.6 else int(rng.integers(13, newest + 1)),
        nodes=int(rng.choice([1, 2, 3, 4, 5, 6, 8, 10, 14])),
        p_symbolic=float(rng.choice([0.0, 0.3, 0.7, 1.0])),
        p_zero=float(rng.choice([0.0, 0.0, 0.0, 0.05, 0.25])),
        p_one=float(rng.choice([0.1, 0.2, 0.5])),
        p_runtime=float(rng.choice([0.0, 0.3, 0.7])),
        p_initializer=float(rng.choice([0.1, 0.4, 0.8])),
        p_special=float(rng.choice([0.0, 0.0, 0.0, 0.0, 0.3])),
        dtypes=dtypes,
        both=both,
        symbols=int(rng.choice([2, 4, 8])),
    )
    return replace(style, check_indices=True, p_symbolic=min(style.p_symbolic, 0.3)) if mode == "indices" else style


def draw_network_style(rng: np.random.Generator) -> Style:
    """A few layers; weights are constants, or at times not; sizes are symbols every third time."""
    return Style(
        opset=int(rng.integers(13, 25)),
        nodes=int(rng.integers(1, 11)),
        p_symbolic=float(rng.choice([0.0, 0.0, 0.3])),
        p_initializer=float(rng.choice([1.0, 1.0, 0.9, 0.5])),
        dtypes=(F32,),
        both=False,  # the reference evaluator knows quantized values since opset 19 only
        symbols=3,
        most_elements=120_000,
    )


def draw_program_style(rng: np.random.Generator) -> Style:
    """A few steps over rows, most of them loops; inputs of any number of rows, counts of iterations that only the run tells."""
    return Style(
        opset=int(rng.integers(16, 19)),  # what loops and sequences are in both oracles
        nodes=int(rng.integers(1, 5)),
        p_symbolic=float(rng.choice([0.0, 1.0, 1.0])),
        p_runtime=float(rng.choice([0.0, 0.5, 1.0])),
        dtypes=(F32,),
        both=False,
        symbols=3,
    )


def grow(b: Builder, count: int, table: tuple[Row, ...] | None = None) -> None:
    """Add `count` rows of a table: of those that bodies may hold or, at the top, of all."""
    only_indexing = b.style.check_indices and not b.depth
    rows = [r for r in table or ROWS if r.exists(b.style.opset) and (r.simple or b.depth < 2)]
    weights = np.array(
        [
            r.weight * (0.3 if b.depth and not r.simple else 1.0) * (12 if only_indexing and r in INDEXING else 1)
            for r in rows
        ]
    )
    weights /= weights.sum()
    added = attempts = 0
    while added < count and attempts < 12 * (count + 1):
        attempts += 1
        row = rows[int(b.rng.choice(len(rows), p=weights))]
        if try_row(b, row):
            added += 1


def try_row(b: Builder, row: Row) -> bool:
    """Add one use of a row's operator; False, and nothing added, where the draw comes to nothing."""
    state = b.state()
    try:
        row.draw(b)
    except (
        Rejected,
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
    ):  # a draw that does not fit what there is
        b.restore(state)
        return False
    return True


ROWS: tuple[Row, ...] = (
    *elementwise.ROWS,
    *shape.ROWS,
    *indexing.ROWS,
    *reduce.ROWS,
    *window.ROWS,
    *network.ROWS,
    *quantize.ROWS,
    *domains.ROWS,
    *control.rows(grow),
)
INDEXING = frozenset(
    (*indexing.ROWS, *(r for r in ROWS if r.op in ("LSTM", "GRU", "RNN", "RotaryEmbedding", "RoiAlign", "MaxUnpool")))
)


def generate(seed: int, mode: str = "general") -> Case:
    """The model of this seed. `mode` "indices": operators that index, their indices inputs that may be spoilt; "networks": layers;
    "programs": loops and branches over rows."""
    for attempt in range(50):
        rng = np.random.default_rng((seed, attempt, MODES.index(mode)))
        style = draw_style(rng, mode)
        b = Builder(rng, style)
        try:
            grow(b, style.nodes, TABLES.get(mode, ROWS))
            case = finish(b, seed)
        except Rejected:
            continue
        if mode != "indices" or any(i.kind == "index" for i in case.inputs):
            return case
    raise AssertionError(f"seed {seed}: 50 styles led to no model")


def finish(b: Builder, seed: int) -> Case:
    """Choose outputs, drop what does not lead to them, and check the model."""
    consts = {n.output[0] for n in b.nodes if n.op_type == "Constant"}
    read = {name for node in b.nodes for name in node.input}
    made = {name for node in b.nodes for name in node.output} - consts
    ends = [h for h in b.pool if h.name in made and h.name not in read]
    inner = [h for h in b.pool if h.name in made and h.name in read]
    chosen = ends[-6:] + [h for h in inner if b.chance(0.15)][:3]
    if not chosen:
        raise Rejected("no results")
    outputs = []
    for held in dict.fromkeys(chosen):
        if held.dtype == BF16:
            held = b.emit("Cast", [held], to=onnx.TensorProto.FLOAT)[0]
        outputs.append(_output(b, held))
    model = prune(b, outputs)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise Rejected(str(error)) from error
    names = {i.name for i in model.graph.input}
    inputs = tuple(i for i in b.shared.inputs if i.name in names)
    return Case(seed, model, inputs, b.style, tuple(sorted(operators(model.graph))))


def _output(b: Builder, held: Held) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(held.dtype)
    return helper.make_tensor_value_info(held.name, kind, [f"{held.name}_{k}" for k in range(held.rank)])


def prune(b: Builder, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """The model of all nodes, inputs and constants that the outputs need."""
    needed = {o.name for o in outputs}
    nodes = []
    for node in reversed(b.nodes):
        if needed & set(node.output):
            nodes.append(node)
            needed |= _reads(node)
    inputs = [
        helper.make_tensor_value_info(i.name, helper.np_dtype_to_tensor_dtype(i.array.dtype), i.shape)
        for i in b.shared.inputs
        if i.name in needed
    ]
    constants = [t for t in b.shared.initializers if t.name in needed]
    graph = helper.make_graph(nodes[::-1], "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=b.imports(nodes), ir_version=b.ir_version, producer_name="tc")


def _reads(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            names |= {n for inner in attribute.g.node for n in _reads(inner)} | {o.name for o in attribute.g.output}
    return names


def without_dead_nodes(model: onnx.ModelProto, unread: Collection[str] = ()) -> onnx.ModelProto:
    """The model without the results `unread`, and without nodes that lead to no result of their graph or body."""
    bare = onnx.ModelProto.FromString(model.SerializeToString())
    kept = [output for output in model.graph.output if output.name not in unread]
    del bare.graph.output[:]
    bare.graph.output.extend(kept)
    _drop_dead_nodes(bare.graph)
    return bare


def _drop_dead_nodes(graph: onnx.GraphProto) -> None:
    needed, kept = {o.name for o in graph.output}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    _drop_dead_nodes(attribute.g)
            needed |= _reads(node)
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(reversed(kept))


def live_names(graph: onnx.GraphProto) -> set[str]:
    """Names whose values the results may depend on. Nodes that lead to no result of their graph or body are dead, and so is what
    they alone read: a compiler need not run them. What only gives its shape, or its type, is not read either."""
    live = {o.name for o in graph.output}
    for node in reversed(graph.node):
        if live & set(node.output) and node.op_type not in ("Shape", "Size"):
            is_loss = node.op_type == "SoftmaxCrossEntropyLoss"  # its probabilities do not depend on labels
            reads_first = node.op_type == "CastLike" or (is_loss and node.output[0] not in live)
            live |= set(node.input[:1] if reads_first else node.input)
            live = live.union(*(live_names(a.g) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH))
    return live


def operators(graph: onnx.GraphProto) -> Counter[str]:
    """How often each operator stands in a graph and its bodies."""
    found = Counter(node.op_type for node in graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += operators(attribute.g)
    return found
