"""Modules on a device with copies of boxes and products of warpgroups, run in a process whose driver is the fake one."""

import numpy as np
from cuda_driver.driver import FakeDriver, main
from cuda_driver.interpreted import runs_in

import tc
from tc.codegen.cuda.device import open_device
from tc.ir.parser import parse_module

CUDA_C, PTX = "cuda:sm_90a", "cuda:sm_90a,features=+ptx"
DENSE = """
@graph
def main(x: f16[b, s, 192], w: f16[192, 128], bias: f16[128], v: f16[128, 72]):
    h: f16[b, s, 128] = matmul(x, w)
    c: f16[b, s, 128] = add(h, bias)
    a: f16[b, s, 128] = relu(c)
    y: f16[b, s, 72] = matmul(a, v)
    return y
"""
ONE = """
@graph
def main(x: f16[n, 192], w: f16[192, 128]):
    h: f16[n, 128] = matmul(x, w)
    return h
"""
ATTENTION = """
@graph
def main(q: f16[b, 4, s, 64], k: f16[b, 2, t, 64], v: f16[b, 2, t, 64], scale: f16[1], keep: bool[b, 1, 1, t], low: f16[1]):
    y: f16[b, 4, s, 64] = attention(q, k, v, scale, keep, low, steps=('mul', 'keep'))
    return y
"""
IMAGES = """
@graph
def main(x: f16[n, 64, 12, 16], w: f16[128, 64, 3, 3], v: f16[64, 128, 1, 1]):
    a: f16[n, 128, 12, 16] = conv(x, w, pads=(1, 1, 1, 1))
    b: f16[n, 128, 12, 16] = relu(a)
    c: f16[n, 64, 12, 16] = conv(b, v)
    return c
"""
fake = FakeDriver()
fake.run_image = runs_in(fake)
device = open_device(0)


def small(rng, *shape):
    return rng.integers(-2, 3, shape).astype(np.float16)


def check_dense(target):
    module, rng = tc.compile(parse_module(DENSE), target=target), np.random.default_rng(0)
    w, bias, v = small(rng, 192, 128), small(rng, 128), small(rng, 128, 72)
    for b, s in ((2, 70), (1, 1), (3, 0), (0, 5), (1, 130)):
        fake.clear()
        x = small(rng, b, s, 192)
        h = np.maximum(x.astype(np.float32) @ w.astype(np.float32) + bias, 0).astype(np.float16)

        found = module(x, w, bias, v)

        np.testing.assert_array_equal(found, (h.astype(np.float32) @ v.astype(np.float32)).astype(np.float16))
        assert not fake.complaints, fake.complaints
        assert not b * s or fake.count("  tensor map") == 4  # both operands of both products


def a_model_in_ptx_multiplies_what_boxes_bring():
    check_dense(PTX)


def a_model_in_cuda_c_through_nvcc_gives_the_same():
    check_dense(CUDA_C)


def check_attention(target):
    module, rng = tc.compile(parse_module(ATTENTION), target=target), np.random.default_rng(2)
    for b, s, t in ((1, 70, 130), (2, 1, 65), (1, 64, 1)):
        fake.clear()
        q, k, v = (rng.standard_normal((b, *shape, 64)).astype(np.float16) for shape in ((4, s), (2, t), (2, t)))
        keep = rng.random((b, 1, 1, t)) < 0.7
        keep[..., 0] = True
        scores = q.astype(np.float64) @ np.repeat(k, 2, 1).astype(np.float64).swapaxes(-1, -2) * 0.125
        powers = np.where(keep, np.exp(scores), 0)

        found = module(q, k, v, np.array([0.125], np.float16), keep, np.array([-np.inf], np.float16))

        expected = powers / powers.sum(-1, keepdims=True) @ np.repeat(v, 2, 1).astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=2.0**-10, atol=2.0**-9)
        assert not fake.complaints, fake.complaints
        assert fake.count("  tensor map") == 3  # queries, keys and values


def an_attention_in_ptx_has_boxes_of_queries_keys_and_values():
    check_attention(PTX)


def an_attention_in_cuda_c_through_nvcc_gives_the_same():
    check_attention(CUDA_C)


def images_are_convolved_by_products_of_boxes():
    module, rng = tc.compile(parse_module(IMAGES), target=PTX), np.random.default_rng(2)
    w, v = small(rng, 128, 64, 3, 3), small(rng, 64, 128, 1, 1)
    for n in (2, 0):
        fake.clear()
        x = small(rng, n, 64, 12, 16)
        around = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
        taps = np.stack([around[:, :, k // 3 : k // 3 + 12, k % 3 : k % 3 + 16] for k in range(9)], -1)
        h = np.einsum("ncyxk,ock->noyx", taps, w.reshape(128, 64, 9).astype(np.float32), optimize=True)
        h = np.maximum(h, 0).astype(np.float16).astype(np.float32)

        found = module(x, w, v)

        np.testing.assert_array_equal(found, np.einsum("ncyx,oc->noyx", h, v[:, :, 0, 0].astype(np.float32)).astype(np.float16))
        assert not fake.complaints, fake.complaints
        assert not n or fake.count("  tensor map") == 4


def a_refused_description_is_an_error_in_words():
    module, rng = tc.compile(parse_module(ONE), target=PTX), np.random.default_rng(1)
    fake.library.fake_fail_next(b"cuTensorMapEncodeTiled", 801)

    try:
        module(small(rng, 70, 192), small(rng, 192, 128))
    except tc.errors.TcError as error:
        assert "describing what boxes are copied from" in str(error) and "801" in str(error), error
    else:
        raise AssertionError("no error")
    fake.library.fake_clear()


if __name__ == "__main__":
    main(globals())
