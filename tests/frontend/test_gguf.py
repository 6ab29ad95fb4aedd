"""GGUF files: what their blocks hold, byte by byte, and products with them; files that are damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tc
from tc.errors import ModelError, ShapeError, UnsupportedError
from tc.frontend.gguf import GgufTensor, decode, quantized_blocks, read_gguf, tensor_product
from tc.ir.expr import Var

Block = list[float]


def half(data: bytes) -> float:
    return float(np.frombuffer(data[:2], "<f2")[0])


def scalar_q4_0(data: bytes) -> Block:
    d, qs = half(data), data[2:]
    return [d * ((q & 15) - 8) for q in qs] + [d * ((q >> 4) - 8) for q in qs]


def scalar_q4_1(data: bytes) -> Block:
    d, m, qs = half(data), half(data[2:]), data[4:]
    return [d * (q & 15) + m for q in qs] + [d * (q >> 4) + m for q in qs]


def scalar_q8_0(data: bytes) -> Block:
    return [half(data) * q for q in struct.unpack("32b", data[2:])]


def scalar_q4_k(data: bytes) -> Block:
    d, least, scales, qs = half(data), half(data[2:]), data[4:16], data[16:]

    def parameters(j: int) -> tuple[int, int]:
        if j < 4:
            return scales[j] & 63, scales[j + 4] & 63
        return scales[j + 4] & 15 | scales[j - 4] >> 6 << 4, scales[j + 4] >> 4 | scales[j] >> 6 << 4

    found: Block = []
    for j in range(8):
        scale, minimum = parameters(j)
        part = qs[32 * (j // 2) : 32 * (j // 2) + 32]
        found += [d * scale * (q >> 4 if j % 2 else q & 15) - least * minimum for q in part]
    return found


def scalar_q6_k(data: bytes) -> Block:
    low, high, scales, d = data[:128], data[128:192], struct.unpack("16b", data[192:208]), half(data[208:])
    found = [0.0] * 256
    for n in range(2):
        for k in range(32):
            for part in range(4):
                byte = low[64 * n + k + 32 * (part % 2)]
                q = (byte >> 4 if part > 1 else byte & 15) | (high[32 * n + k] >> 2 * part & 3) << 4
                found[128 * n + 32 * part + k] = d * scales[8 * n + k // 16 + 2 * part] * (q - 32)
    return found


KINDS: dict[str, tuple[int, int, int, tuple[int, ...], Callable[[bytes], Block]]] = {
    # number, terms, bytes, where halves are, the block element by element
    "Q4_0": (2, 32, 18, (0,), scalar_q4_0),
    "Q4_1": (3, 32, 20, (0, 2), scalar_q4_1),
    "Q8_0": (8, 32, 34, (0,), scalar_q8_0),
    "Q4_K": (12, 256, 144, (0, 2), scalar_q4_k),
    "Q6_K": (14, 256, 210, (208,), scalar_q6_k),
}


def random_blocks(kind: str, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    _, _, size, halves, _ = KINDS[kind]
    data = rng.integers(0, 256, (count, size)).astype(np.uint8)
    for place in halves:
        data[:, place : place + 2] = rng.uniform(-0.1, 0.1, (count, 1)).astype("<f2").view(np.uint8)
    return data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write(path: Path, tensors: dict[str, tuple[int, tuple[int, ...], bytes]], alignment: int = 32, version: int = 3) -> Path:
    """A file with some metadata; tensors: number of the kind, shape with the slowest axis first, bytes."""
    entries = [
        text("general.alignment") + struct.pack("<II", 4, alignment),
        text("general.name") + struct.pack("<I", 8) + text("made up"),
        text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("scores") + struct.pack("<IIQ2f", 9, 6, 2, 0.5, 1.5),
    ]
    heads, data = b"", b""
    for name, (number, shape, raw) in tensors.items():
        heads += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]) + struct.pack("<IQ", number, len(data))
        data += raw + bytes(-len(raw) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + heads
    path.write_bytes(head + bytes(-len(head) % alignment) + data)
    return path


def weights(tmp_path: Path, kind: str, rows: int, depth: int) -> GgufTensor:
    number, terms, *_ = KINDS[kind]
    raw = random_blocks(kind, rows * depth // terms).tobytes()
    return read_gguf(write(tmp_path / "w.gguf", {"w": (number, (rows, depth), raw)})).tensors["w"]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_hold_what_the_format_says_element_by_element(kind: str, tmp_path: Path) -> None:
    number, terms, _, _, scalar = KINDS[kind]
    data = random_blocks(kind, 6)
    found = read_gguf(write(tmp_path / "w.gguf", {"a": (0, (3,), bytes(12)), "w": (number, (3, 2 * terms), data.tobytes())}, 64))

    decoded = decode(found.tensors["w"])

    wanted = np.array([scalar(bytes(block)) for block in data]).reshape(3, 2 * terms)
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded, wanted, rtol=3e-7, atol=1e-7)
    assert found.metadata["general.name"] == "made up"
    assert found.metadata["tokens"] == ["a", "b"]
    assert found.metadata["scores"] == [0.5, 1.5]


@pytest.mark.parametrize("kind", KINDS)
def test_products_use_the_integers_of_a_file(kind: str, tmp_path: Path) -> None:
    tensor = weights(tmp_path, kind, 40, 512)
    exact = decode(tensor).astype(np.float64)
    found = quantized_blocks(tensor)
    most = 16 * np.abs(found.scale).max() + (0 if found.shift is None else np.abs(found.shift).max())

    for module, rows in ((tensor_product(tensor), (1,)), (tensor_product(tensor, Var("rows")), (0, 1, 6, 20))):
        compiled = tc.compile(module, threads=1)
        for count in rows:
            x = np.random.default_rng(count).standard_normal((count, 512)).astype(np.float32)
            bound = 520 * 2.0**-24 * (np.abs(x).sum(1, keepdims=True) * most + np.abs(x) @ np.abs(exact).T)
            assert np.all(np.abs(compiled(x) - x @ exact.T) <= bound)
    rounded = tc.compile(tensor_product(tensor, Var("rows")), threads=1, precision="bf16")
    for count in (1, 20, 40):
        x = np.random.default_rng(count).standard_normal((count, 512)).astype(np.float32)
        low = x.astype(ml_dtypes.bfloat16).astype(np.float64)
        bound = 520 * 2.0**-24 * (np.abs(low).sum(1, keepdims=True) * most + np.abs(low) @ np.abs(exact).T)
        assert np.all(np.abs(rounded(x) - low @ exact.T) <= bound)
    assert "matmul_blocks" in tc.lower(tensor_product(tensor), "graph").as_text()


@pytest.mark.parametrize(("number", "dtype"), [(0, "<f4"), (1, "<f2")])
def test_floats_are_multiplied_as_they_are(number: int, dtype: str, tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((12, 20)).astype(dtype)
    tensor = read_gguf(write(tmp_path / "w.gguf", {"w": (number, (12, 20), w.tobytes())})).tensors["w"]
    x = np.random.default_rng(1).standard_normal((1, 20)).astype(np.float32)

    y = tc.compile(tensor_product(tensor), threads=1)(x)

    np.testing.assert_allclose(y, x @ w.astype(np.float32).T, rtol=1e-5, atol=1e-5)


def test_unknown_kinds_are_listed_and_refused_when_they_are_used(tmp_path: Path) -> None:
    tensor = read_gguf(write(tmp_path / "w.gguf", {"w": (99, (1, 256), bytes(64))})).tensors["w"]

    with pytest.raises(UnsupportedError, match=r"'w' is of an unknown kind, kind 99"):
        decode(tensor)


def test_tensors_that_are_no_matrix_of_the_depth_are_refused(tmp_path: Path) -> None:
    tensor = read_gguf(write(tmp_path / "w.gguf", {"w": (8, (2, 2, 32), random_blocks("Q8_0", 4).tobytes())})).tensors["w"]

    with pytest.raises(ShapeError, match=r"'w', \[2, 2, 32\]"):
        tensor_product(tensor)


DAMAGED = [
    (lambda raw: b"GGML" + raw[4:], "no GGUF file"),
    (lambda raw: raw[:4] + struct.pack("<I", 9) + raw[8:], "version 9"),
    (lambda raw: raw[:40], "the file ends"),
    (lambda raw: raw[:-64], "takes 144 bytes"),
    (lambda raw: raw[:8] + struct.pack("<Q", 1 << 60) + raw[16:], "tensors, more than"),
    (lambda raw: raw[:16] + struct.pack("<Q", 1 << 60) + raw[24:], "entries of metadata, more than"),
    (lambda raw: raw.replace(text("general.name") + struct.pack("<I", 8), text("general.name") + struct.pack("<I", 77)), "type 77"),
    (lambda raw: raw.replace(struct.pack("<II", 4, 32), struct.pack("<II", 4, 33)), "alignment of 33"),
    (lambda raw: raw.replace(struct.pack("<IQ", 1, 256), struct.pack("<IQ", 1, 250)), "hold 256 elements"),
    (lambda _: b"", "w.gguf"),
]


@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_damaged_files_are_told(number: int, tmp_path: Path) -> None:
    damage, words = DAMAGED[number]
    path = write(tmp_path / "w.gguf", {"w": (12, (256,), random_blocks("Q4_K", 1).tobytes())})
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(ModelError, match=words):
        read_gguf(path)


def test_every_short_file_is_refused_or_read(tmp_path: Path) -> None:
    path = write(tmp_path / "w.gguf", {"w": (8, (1, 32), random_blocks("Q8_0", 1).tobytes())})
    whole = path.read_bytes()

    for length in range(0, len(whole) - 64, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            read_gguf(path)
