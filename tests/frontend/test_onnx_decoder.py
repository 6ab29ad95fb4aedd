"""A language model as model builders write them, step by step: weights of 4 bits, rotary places, a cache of keys and values."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

import tc
from tests.frontend.models import make_model, node, run_onnxruntime

F32 = np.float32
LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, WORDS = 2, 64, 4, 2, 96, 50
HEAD = WIDTH // HEADS
MS = {"domain": "com.microsoft"}


class Decoder:
    """The nodes and literals of the model, as they are drawn."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.literals: dict[str, np.ndarray] = {}

    def literal(self, name: str, array: np.ndarray) -> str:
        self.literals[name] = array
        return name

    def product(self, x: str, terms: int, results: int, name: str) -> str:
        bits = self.literal(f"{name}.q", self.rng.integers(0, 256, (results, terms // 32, 16)).astype(np.uint8))
        scales = self.literal(f"{name}.s", (self.rng.random((results, terms // 32)) / 30).astype(F32).reshape(-1))
        self.nodes.append(node("MatMulNBits", f"{x} {bits} {scales}", name, K=terms, N=results, bits=4, block_size=32, **MS))
        return name

    def norm(self, x: str, total: str, name: str) -> str:
        """The normal form of the sum of both, which it also gives, as `name`.sum."""
        gain = self.literal(f"{name}.gain", self.rng.uniform(0.5, 1.5, WIDTH).astype(F32))
        self.nodes.append(node("SkipSimplifiedLayerNormalization", f"{total} {x} {gain}", f"{name} - - {name}.sum", epsilon=1e-6, **MS))
        return name

    def layer(self, k: int, x: str, total: str | None) -> tuple[str, str]:
        p = f"l{k}"
        if total is None:
            gain, total = self.literal(f"{p}.gain", np.ones(WIDTH, F32)), x
            self.nodes.append(node("SimplifiedLayerNormalization", f"{x} {gain}", f"{p}.in", axis=-1, epsilon=1e-6))
        else:
            total = self.norm(x, total, f"{p}.in") + ".sum"
        made = self.product(f"{p}.in", WIDTH, (HEADS + 2 * KV_HEADS) * HEAD, f"{p}.qkv")
        attrs = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1, **MS}
        operands = f"{made} - - {p}.k {p}.v lengths total cos sin"
        self.nodes.append(node("GroupQueryAttention", operands, f"{p}.a {p}.new_k {p}.new_v", **attrs))
        total = self.norm(self.product(f"{p}.a", WIDTH, WIDTH, f"{p}.o"), total, f"{p}.mid") + ".sum"
        gate, up = (self.product(f"{p}.mid", WIDTH, HIDDEN, f"{p}.{name}") for name in ("gate", "up"))
        self.nodes += [node("Sigmoid", gate, f"{p}.g"), node("Mul", f"{gate} {p}.g", f"{p}.silu"), node("Mul", f"{p}.silu {up}", f"{p}.h")]
        return self.product(f"{p}.h", HIDDEN, WIDTH, f"{p}.down"), total

    def model(self) -> onnx.ModelProto:
        turns = np.outer(np.arange(32), 0.1 ** np.arange(HEAD // 2))
        for name, table in (("cos", np.cos(turns)), ("sin", np.sin(turns)), ("words", self.rng.standard_normal((WORDS, WIDTH)))):
            self.literal(name, table.astype(F32))
        self.literals |= {"one": np.array(1), "along": np.array([1])}
        self.nodes += [
            node("Gather", "words ids", "x"),
            node("ReduceSum", "mask along", "there", keepdims=0),
            node("Sub", "there one", "places"),
            node("Cast", "places", "lengths", to=TensorProto.INT32),
            node("Shape", "mask", "sizes"),
            node("Gather", "sizes one", "most"),
            node("Cast", "most", "total", to=TensorProto.INT32),
        ]
        x, total = "x", None
        for k in range(LAYERS):
            x, total = self.layer(k, x, total)
        assert total is not None
        self.product(self.norm(x, total, "end"), WIDTH, WORDS, "logits")
        cache = {f"l{k}.{name}": (F32, ["b", KV_HEADS, "p", HEAD]) for k in range(LAYERS) for name in "kv"}
        inputs = {"ids": (np.int64, ["b", "s"]), "mask": (np.int64, ["b", "t"]), **cache}
        outputs = ["logits", *(f"l{k}.new_{name}" for k in range(LAYERS) for name in "kv")]
        model = make_model(self.nodes, inputs, outputs, self.literals, domains=[("com.microsoft", 1)])
        for info in model.graph.output:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
        return model


def test_a_decoder_with_a_cache_says_what_onnxruntimes_says() -> None:
    model = Decoder().model()
    module = tc.compile(model, threads=2, on_unsupported="error")
    names = [info.name for info in model.graph.input if info.name not in ("ids", "mask")]

    for batch in (1, 2):
        rng = np.random.default_rng(batch)
        ids, length = rng.integers(0, WORDS, (batch, 5)), 5
        cache = [np.zeros((batch, KV_HEADS, 0, HEAD), F32) for _ in names]
        for _ in range(4):
            arrays = {"ids": ids, "mask": np.ones((batch, length), np.int64), **dict(zip(names, cache, strict=True))}
            found, expected = list(module.run(arrays).values()), run_onnxruntime(model, arrays)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(b).max()))
            cache, ids, length = found[1:], found[0][:, -1:].argmax(-1), length + 1
