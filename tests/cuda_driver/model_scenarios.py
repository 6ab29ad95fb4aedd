"""An encoder, a block of convolutions and one step of a decoder with a cache, in small: whole models in a process whose driver is the fake
one, their kernels from both emitters' texts, for the architecture that FAKE_CUDA_ARCHS names."""

import os

import numpy as np
import onnx
from cuda_driver.driver import FakeDriver, main
from cuda_driver.interpreted import runs_in
from onnx import numpy_helper

import tc
from benchmarks import inputs, llama, minilm
from benchmarks.half import LARGEST, minilm_weights, random_inputs, to_half
from benchmarks.onnx_builder import F32, OnnxBuilder
from tc.frontend.registry import import_model
from tc.interp import run_function

ARCH = {"80": "sm_80", "90": "sm_90a"}[os.environ["FAKE_CUDA_ARCHS"]]
TARGETS = {"ptx": f"cuda:{ARCH},features=+ptx", "cuda": f"cuda:{ARCH}"}
WORDS = 40
STEP = {np.float32: 2.0**-23, np.float16: 2.0**-10}
ROUNDINGS = 40
"""One after the other on the longest way through a model, each of half a step; numbers are of one size, as models normalise them."""

OF_WARPS = {"sm_80": ("mma.sync",), "sm_90a": ("mma.sync", "wgmma.mma_async")}
"""Instructions that an encoder of halves is made of."""

fake = FakeDriver()
interpreted = runs_in(fake)
texts = set()


def run_image(text, *others):
    texts.add(text)
    interpreted(text, *others)


fake.run_image = run_image


def with_sizes(module, **sizes):
    """The module of a model's maker, whose sizes are constants of it, in small."""
    for name, size in sizes.items():
        assert hasattr(module, name)
        setattr(module, name, size)


def encoder():
    with_sizes(minilm, VOCABULARY=WORDS, LAYERS=1, WIDTH=128, HEADS=4, HEAD_WIDTH=32, MAX_TOKENS=64)
    return minilm.make_minilm(minilm_weights(np.random.default_rng(0)), 1, 49), inputs.make_sentences


def block():
    """relu(conv(relu(conv(x))) + x), windows of 3 by 3."""
    rng, g, shape = np.random.default_rng(1), OnnxBuilder("block"), (1, 16, 9, 7)
    x = g.input("x", F32, shape)
    value = x
    for name in ("first", "second"):
        weight = rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
        bias = rng.standard_normal(16).astype(np.float32)
        value = g.op("Conv", value, g.weight(f"{name}.weight", weight), g.weight(f"{name}.bias", bias), pads=(1, 1, 1, 1))
        value = g.op("Relu", value) if name == "first" else g.op("Relu", g.op("Add", value, x))
    g.output(value, "y", F32, shape)
    return g.model(), inputs.make_any


def decoder():
    """One query of each head that sees itself and 150 keys of before; two heads share keys."""
    small = {"VOCABULARY": WORDS, "LAYERS": 1, "WIDTH": 64, "HEADS": 4, "KV_HEADS": 2, "HIDDEN": 48, "HEAD_WIDTH": 16, "KV_WIDTH": 32}
    with_sizes(llama, **small)
    return llama.make_llama(np.random.default_rng(2), 1, 150), inputs.make_prompt


def rounded(model):
    """In f32 with numbers that are halves: what is compared with is rounded nowhere else."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    attributes = [attribute.t for node in made.graph.node for attribute in node.attribute if attribute.HasField("t")]
    for tensor in (*made.graph.initializer, *attributes):
        if tensor.data_type == F32:
            values = np.clip(numpy_helper.to_array(tensor), -LARGEST, LARGEST).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    return made


def check(model, fill, dtype, instructions=()):
    """Both texts give what the reference gives, by these instructions."""
    given = to_half(model) if dtype is np.float16 else model
    arrays = {name: a % WORDS if name == "input_ids" else a for name, a in random_inputs(given, fill).items()}
    wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in arrays.values()]
    reference = import_model(rounded(model) if dtype is np.float16 else model).module
    expected = run_function(reference, "main", wide)
    for name, target in TARGETS.items():
        module = tc.compile(given, target=target)
        fake.clear()
        texts.clear()
        found = module(*arrays.values())
        assert not fake.complaints, fake.complaints
        assert all(any(each in text for text in texts) for each in instructions), name
        for want, got in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
            assert got.dtype == dtype and got.shape == want.shape
            largest = float(np.abs(want).max())
            worst = float(np.abs(got.astype(np.float64) - want).max())
            assert worst <= ROUNDINGS * STEP[dtype] / 2 * largest, f"{name}: {worst} of {largest}"


def an_encoder_in_f32():
    check(*encoder(), np.float32)


def an_encoder_in_halves():
    check(*encoder(), np.float16, OF_WARPS[ARCH])


def a_block_of_convolutions_in_f32():
    check(*block(), np.float32)


def a_block_of_convolutions_in_halves():
    check(*block(), np.float16)


def a_step_of_a_decoder_in_f32():
    check(*decoder(), np.float32)


def a_step_of_a_decoder_in_halves():
    check(*decoder(), np.float16)


if __name__ == "__main__":
    main(globals())
