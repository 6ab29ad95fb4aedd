"""Models and kernels in 16-bit floats for devices, made on the spot with seeded weights: nothing is fetched.

    python -m benchmarks.half FOLDER [NAME ...]     write them as ONNX files

ResNet-50, MiniLM, a ViT, and prefill and decode of a llama-style decoder, for batches of 1 and 16; single operators beside them.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import inputs, minilm
from benchmarks.inputs import InputSpec
from benchmarks.kernels import (
    make_attention,
    make_elementwise,
    make_gelu_chain,
    make_layernorm,
    make_matmul,
    make_softmax,
)
from benchmarks.light import make_batch_symbolic, make_light
from benchmarks.llama import make_llama
from benchmarks.minilm import make_minilm
from benchmarks.vision import make_vit_tiny

LARGEST = 65504.0
"""Of 16-bit floats. A mask's lowest number becomes the lowest of these: infinite ones would make NaN of what is not masked."""

WIDE = ("Cos", "Sin")
"""Operators that stay in f32, with all that leads to them: angles of thousands of radians are nothing to a 16-bit float."""


# -- conversion


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of f32 with all its floats in f16, inputs and results included; what leads to `WIDE` operators stays in f32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    graph.ClearField("value_info")
    wide = _leading_to_wide(graph)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in graph.initializer:
        if tensor.name not in wide:
            tensor.CopyFrom(_half_tensor(tensor))
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type in WIDE:
            result = node.output[0]
            node.output[0] = f"{result}_wide"
            nodes.append(helper.make_node("Cast", [node.output[0]], [result], to=TensorProto.FLOAT16, name=f"{node.name}_half"))
        elif not wide.intersection(node.output):
            _convert_attributes(node)
    graph.ClearField("node")
    graph.node.extend(nodes)
    onnx.checker.check_model(made)
    return made


def _leading_to_wide(graph: onnx.GraphProto) -> set[str]:
    """The names of all values from which those of `WIDE` are computed."""
    made_by = {name: node for node in graph.node for name in node.output}
    found: set[str] = set()
    stack = [name for node in graph.node if node.op_type in WIDE for name in node.input]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(made_by[name].input if name in made_by else ())
    return found


def _half_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    values = np.clip(numpy_helper.to_array(tensor), -LARGEST, LARGEST)
    return numpy_helper.from_array(values.astype(np.float16), tensor.name)


def _convert_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(_half_tensor(attribute.t))
        elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16


# -- what there is


Fill = Callable[[np.random.Generator, tuple[InputSpec, ...], inputs.Shapes], inputs.Arrays]


@dataclass(frozen=True)
class HalfModel:
    """A model, what its inputs look like, and what one run has to do: operations of its products, and bytes it cannot do without moving;
    0 where nobody counted them."""

    make: Callable[[], onnx.ModelProto]
    fill: Fill
    flops: float = 0.0
    bytes: float = 0.0


def _seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _resnet50(batch: int) -> onnx.ModelProto:
    model = make_batch_symbolic(make_light("resnet50", _seeded("resnet50")))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return to_half(model)


def _minilm(batch: int) -> onnx.ModelProto:
    return to_half(make_minilm(minilm_weights(_seeded("minilm")), batch, 128))


def minilm_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights for the encoder, of the published ones' shapes and sizes."""
    width, hidden = minilm.WIDTH, 4 * minilm.WIDTH

    def linear(name: str, n_in: int, n_out: int) -> dict[str, np.ndarray]:
        weight = rng.standard_normal((n_out, n_in), dtype=np.float32) * np.float32(n_in**-0.5)
        return {f"{name}.weight": weight, f"{name}.bias": rng.standard_normal(n_out).astype(np.float32) * np.float32(0.1)}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": rng.uniform(0.8, 1.2, width).astype(np.float32), f"{name}.bias": np.zeros(width, np.float32)}

    rows = {"word": minilm.VOCABULARY, "token_type": 2, "position": minilm.MAX_TOKENS}
    found = {f"embeddings.{k}_embeddings.weight": rng.standard_normal((n, width), dtype=np.float32) for k, n in rows.items()}
    found |= norm("embeddings.LayerNorm")
    for layer in range(minilm.LAYERS):
        prefix = f"encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            found |= linear(prefix + name, width, width)
        found |= linear(prefix + "intermediate.dense", width, hidden) | linear(prefix + "output.dense", hidden, width)
        found |= norm(prefix + "attention.output.LayerNorm") | norm(prefix + "output.LayerNorm")
    return found


def _vit(batch: int) -> onnx.ModelProto:
    return to_half(make_vit_tiny(_seeded("vit"), 224, batch))


def _models() -> dict[str, HalfModel]:
    found = {}
    for batch in (1, 16):
        made = {
            "resnet50": HalfModel(lambda batch=batch: _resnet50(batch), inputs.make_images, 8.2e9 * batch),
            "minilm": HalfModel(lambda batch=batch: _minilm(batch), inputs.make_sentences, 2.8e9 * batch),
            "vit_tiny": HalfModel(lambda batch=batch: _vit(batch), inputs.make_images, 2.5e9 * batch),
            "llama_prefill": HalfModel(lambda batch=batch: to_half(make_llama(_seeded("llama"), 128, 0, batch)), inputs.make_prompt),
            "llama_decode": HalfModel(lambda batch=batch: to_half(make_llama(_seeded("llama"), 1, 128, batch)), inputs.make_prompt),
        }
        found |= {f"{name}_b{batch}": model for name, model in made.items()}
    return found


def _matmul(n: int) -> HalfModel:
    return HalfModel(lambda: to_half(make_matmul(_seeded("matmul"), n, n, n, constant=False)), inputs.make_any, 2.0 * n**3, 6.0 * n**2)


def _chain(make: Callable[[], onnx.ModelProto], elements: float) -> HalfModel:
    return HalfModel(lambda: to_half(make()), inputs.make_any, 0.0, 2.0 * elements)


def make_causal_attention(heads: int, tokens: int, width: int) -> onnx.ModelProto:
    """`make_attention` of which no query sees a later key: the mask is added to the scores, a constant of 0 and the lowest float."""
    model = make_attention(heads, tokens, width)
    graph = model.graph
    mask = np.triu(np.full((tokens, tokens), -LARGEST, np.float32), 1)
    graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    (softmax,) = [node for node in graph.node if node.op_type == "Softmax"]
    place = list(graph.node).index(softmax)
    graph.node.insert(place, helper.make_node("Add", [softmax.input[0], "mask"], ["masked"], name="masking"))
    graph.node[place + 1].input[0] = "masked"
    return model


def _attention(heads: int, tokens: int, width: int, causal: bool) -> HalfModel:
    make = make_causal_attention if causal else make_attention
    flops = 4.0 * heads * tokens**2 * width / (2 if causal else 1)
    return HalfModel(lambda: to_half(make(heads, tokens, width)), inputs.make_any, flops, 8.0 * heads * tokens * width)


MODELS: Mapping[str, HalfModel] = _models()
"""By name: models of which each comes with a batch of 1 and of 16."""

_ROWS, _WIDTH = 16384, 4096

KERNELS: Mapping[str, HalfModel] = {
    "matmul_256": _matmul(256),
    "matmul_4096": _matmul(4096),
    "matmul_8192": _matmul(8192),
    "attention": _attention(32, 4096, 128, causal=False),
    "attention_causal": _attention(32, 4096, 128, causal=True),
    "gelu_chain": _chain(lambda: make_gelu_chain(_ROWS, _WIDTH), 2.0 * _ROWS * _WIDTH),
    "add": _chain(lambda: make_elementwise("Add", 2, _ROWS, _WIDTH), 3.0 * _ROWS * _WIDTH),
    "softmax": _chain(lambda: make_softmax(_ROWS, _WIDTH), 2.0 * _ROWS * _WIDTH),
    "layernorm": _chain(lambda: make_layernorm(_seeded("layernorm"), _ROWS, _WIDTH), 2.0 * _ROWS * _WIDTH),
}
"""By name: products, attention, and chains that memory bounds."""

SMALL: Mapping[str, HalfModel] = {
    "small_matmul": _matmul(32),
    "small_attention": _attention(2, 16, 8, causal=False),
    "small_attention_causal": _attention(2, 16, 8, causal=True),
    "small_chain": _chain(lambda: make_gelu_chain(8, 64), 2.0 * 8 * 64),
    "small_softmax": _chain(lambda: make_softmax(8, 64), 2.0 * 8 * 64),
}
"""The same in sizes that an interpreter gets through."""


def entry(name: str) -> HalfModel:
    """What a name stands for; KeyError for none of these."""
    return {**MODELS, **KERNELS, **SMALL}[name]


def random_inputs(model: onnx.ModelProto, fill: Fill, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs that mean something to a model, floats in its own dtype."""
    arrays = [(value, value.type.tensor_type) for value in model.graph.input]
    shapes = {value.name: tuple(dim.dim_value for dim in kind.shape.dim) for value, kind in arrays}
    dtypes = {value.name: helper.tensor_dtype_to_np_dtype(kind.elem_type) for value, kind in arrays}
    wide = {name: np.dtype(np.float32) if dtype == np.float16 else dtype for name, dtype in dtypes.items()}
    specs = tuple(InputSpec(name, str(wide[name]), shapes[name]) for name in shapes)
    found = fill(np.random.default_rng(seed), specs, shapes)
    return {name: np.asarray(found[name]).astype(dtypes[name]) for name in shapes}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write models into a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.half", description="Models in 16-bit floats as ONNX files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(MODELS)}")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or MODELS:
        path = options.folder / f"{name}.onnx"
        path.write_bytes(entry(name).make().SerializeToString())
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
