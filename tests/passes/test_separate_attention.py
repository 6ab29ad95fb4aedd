"""Attention of bf16 in products for tiles: the same numbers for any heads, transposes and steps; and only where tiles are filled."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from tc.interp.graph import run_function
from tc.ir.dtype import DType, bf16, f16, f32, i64
from tc.ir.expr import Var
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.dce import remove_dead_code
from tc.passes.graph.separate_attention import separate_attention
from tc.target import Target
from tests.golden_files import TARGETS

Shape = tuple[object, ...]
TILES = TARGETS["amx"]


def _attention(q: Shape, k: Shape, v: Shape, dtype: DType = bf16, terms: tuple[Shape, ...] = (), **attrs: object) -> IRModule:
    b = GraphBuilder()
    operands = [b.param(name, tensor_type(shape, dtype)) for name, shape in zip("qkv", (q, k, v), strict=True)]
    more = [b.param(f"t{place}", tensor_type(shape, f32)) for place, shape in enumerate(terms)]
    return IRModule((b.function("main", (b.call("attention", *operands, *more, **attrs),)),))


def _separated(module: IRModule, target: Target = TILES) -> IRModule:
    return remove_dead_code(separate_attention(module, target=target))


def _ops(module: IRModule) -> list[str]:
    return [binding.value.op for binding in module.main.bindings]


@pytest.mark.parametrize("seed", range(12))
def test_the_products_give_what_attention_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group, heads = int(rng.choice([1, 2, 3])), int(rng.integers(1, 4))
    rows, columns, depth, width = (int(rng.integers(32, 70)) for _ in range(4))
    lead = [(), (heads,), (2, heads)][seed % 3]
    queries = (*lead[:-1], heads * group) if lead else ()
    shapes = {"q": (*queries, rows, depth), "k": (*lead, columns, depth), "v": (*lead, columns, width)}
    attrs: dict[str, object] = {"steps": [(), ("mul", "add"), ("tanh", "div")][int(rng.integers(3))]}
    terms = {"mul": (), "div": (1,), "add": (rows, columns)}
    given = tuple(terms[name] for name in attrs["steps"] if name in terms)
    if len(lead) == 2 and rng.random() < 0.7:  # the heads beside the elements of each row
        for name in "qkv":
            shapes[name] = tuple(shapes[name][axis] for axis in (0, 2, 1, 3))
        attrs |= dict.fromkeys(("q_perm", "k_perm", "v_perm", "out_perm"), (0, 2, 1, 3))
    before = _attention(*shapes.values(), terms=given, **attrs)
    arrays = [(rng.standard_normal(shape) / 4).astype(ml_dtypes.bfloat16) for shape in shapes.values()]  # scores that bf16 holds well
    arrays += [np.asarray(rng.random(shape) + 0.5, np.float32) for shape in given]
    after = _separated(before)

    (expected,) = run_function(before, "main", arrays)
    (found,) = run_function(after, "main", arrays)

    assert "attention" not in _ops(after) and _ops(after).count("matmul") == 2
    assert found.shape == expected.shape and found.dtype == expected.dtype
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    assert np.abs(found - expected).max() <= 2.0**-6 * np.abs(expected).max()


SIDES = {"q": (3, 64, 16), "k": (3, 64, 16), "v": (3, 64, 16)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"q": (3, 20, 16)}, "rows would not fill tiles"),
        ({"k": (3, 8, 16), "v": (3, 8, 16)}, "columns would not"),
        ({"q": (3, Var("s", i64), 16)}, "how many rows there are is not known"),
        ({"q": (64, 2048, 16), "k": (1, 2048, 16), "v": (1, 2048, 16)}, "scores would go to memory and come back"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_stay_one_kernel(changes: dict[str, Shape], why: str) -> None:
    assert _ops(_separated(_attention(**{**SIDES, **changes}))) == ["attention"], why


@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
def test_other_types_have_no_tiles(dtype: DType) -> None:
    assert _ops(_separated(_attention(**SIDES, dtype=dtype))) == ["attention"]


def test_without_tiles_attention_stays() -> None:
    features = tuple(each for each in TILES.features if not each.startswith("amx"))

    assert "attention" not in _ops(_separated(_attention(**SIDES)))
    assert _ops(_separated(_attention(**SIDES), dataclasses.replace(TILES, features=features))) == ["attention"]
