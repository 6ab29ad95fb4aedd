"""Sums of products by letters: what numpy makes of them, whichever of them are products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
from tc.errors import TcError
from tests.frontend.models import make_model, node, run_onnxruntime

EQUATIONS = [
    *("bij,bjk->bik", "bij,bkj->bik", "bji,bkj->kib", "ij,jk", "ij,kj->ki", "bchw,bkhw->bck", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk"),
    *("abc,cd->abd", "abc,dcb->ad", "ij,jk->", "ij,kl->ijkl", "i,i->", "bi,bi->b", "ij,j->i", "j,ji->i", "ijx,jky->ik", "ii,ij->ij"),
    *("...ij,...jk->...ik", "...ij,jk->...ik", "b...i,i...j->b...j", "ij,ij->ij", "ij,ij->ji", "ab,bc->ca", " i j , j k -> k i "),
]

SIZES: list[dict[str, int]] = [{}, {}, {"j": 0}, {"i": 1, "b": 1}, {"j": 300}]


def operands(equation: str, rng: np.random.Generator, sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    sizes = dict(sizes or {})
    terms = equation.replace(" ", "").split("->")[0].split(",")
    shapes = []
    for term in terms:
        letters = term.replace("...", "YZ")
        shapes.append([sizes.setdefault(letter, int(rng.integers(1, 9))) for letter in letters])
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes]


def compiled(equation: str, x_shape: list[Any], y_shape: list[Any]) -> tc.CompiledModel:
    inputs = {"x": (np.float32, x_shape), "y": (np.float32, y_shape)}
    return tc.compile(make_model([node("Einsum", "x y", "z", equation=equation)], inputs, ["z"], opset=17))


@pytest.mark.covering
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("number", range(len(SIZES)))
def test_results_are_those_of_numpy(equation: str, number: int) -> None:
    x, y = operands(equation, np.random.default_rng(number), SIZES[number])

    found = compiled(equation, list(x.shape), list(y.shape))(x, y)

    np.testing.assert_array_equal(found, np.einsum(equation.replace(" ", ""), x, y))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_results_of_any_size_are_those_of_numpy(equation: str) -> None:
    drawn = [operands(equation, np.random.default_rng(seed), sizes) for seed, sizes in enumerate(SIZES)]
    module = compiled(equation, *([f"{name}{k}" for k in range(array.ndim)] for name, array in zip("xy", drawn[0], strict=True)))

    for x, y in drawn:
        np.testing.assert_array_equal(module(x, y), np.einsum(equation.replace(" ", ""), x, y))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_other_types(dtype: type) -> None:
    for equation in ("bij,bkj->bik", "ijx,jky->ik"):
        x, y = (array.astype(dtype) for array in operands(equation, np.random.default_rng(1)))
        inputs = {name: (dtype, list(array.shape)) for name, array in (("x", x), ("y", y))}
        model = make_model([node("Einsum", "x y", "z", equation=equation)], inputs, ["z"], opset=17)

        expected = np.einsum(equation, x.astype(np.float64), y.astype(np.float64)).astype(dtype)
        np.testing.assert_array_equal(tc.compile(model)(x, y), expected)


def test_batches_that_are_broadcast() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1, 4, 5)).astype(np.float32), rng.standard_normal((3, 5, 2)).astype(np.float32)
    inputs = {"x": (np.float32, [1, 4, 5]), "y": (np.float32, [3, 5, 2])}
    model = make_model([node("Einsum", "x y", "z", equation="...ij,...jk->...ik")], inputs, ["z"], opset=17)

    np.testing.assert_allclose(tc.compile(model)(x, y), run_onnxruntime(model, {"x": x, "y": y})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,jk->iz", "ij->i", "ijk,jk->i", "ij,jk->ii"])
def test_equations_that_do_not_fit_are_refused(equation: str) -> None:
    inputs = {"x": (np.float32, [2, 3]), "y": (np.float32, [3, 4])}
    with pytest.raises(TcError, match="einsum"):
        tc.compile(make_model([node("Einsum", "x y", "z", equation=equation)], inputs, ["z"], opset=17))


SEVERAL = [
    *("bij,bjk,bkl->bil", "ab,cb,db->acd", "bn,anm,bm->ba", "bqk,bkd,bqd->bq", "ij,jk,kl,lm->im", "ij,kl,jk->il", "i,j,k->ijk"),
    *("ij,ij,ij->i", "ii,ij,jk->ik", "...ij,...jk,kl->...il", "ab,bc,ca->", "ab,cd,ef->ace", "i,ij,j->", "ab,bc,bd,be->ae"),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
@pytest.mark.parametrize("equation", SEVERAL)
def test_several_operands_are_taken_two_at_a_time(equation: str, dtype: type) -> None:
    for seed, sizes in enumerate(({}, {"j": 0}, {"b": 1, "i": 1})):
        arrays = [array.astype(dtype) for array in operands(equation, np.random.default_rng(seed), sizes)]
        for symbolic in (False, True):
            shapes = [[f"d{k}_{axis}" for axis in range(a.ndim)] if symbolic else list(a.shape) for k, a in enumerate(arrays)]
            inputs = {f"x{k}": (dtype, shape) for k, shape in enumerate(shapes)}
            model = make_model([node("Einsum", " ".join(inputs), "z", equation=equation)], inputs, ["z"], opset=17)

            found = np.asarray(tc.compile(model, threads=1)(*arrays))

            expected = np.einsum(equation, *(array.astype(np.float64) for array in arrays))
            np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-2 if dtype is np.float16 else 1e-5, atol=1e-4)


def test_a_chain_of_products_is_products() -> None:
    """As one sum over all letters it took as many multiplications as rows, depths and columns make together."""
    inputs = {"x": (np.float32, [2, 9, 30]), "y": (np.float32, [2, 30, 40]), "z": (np.float32, [2, 40, 7])}
    model = make_model([node("Einsum", "x y z", "r", equation="bij,bjk,bkl->bil")], inputs, ["r"], opset=17)

    assert tc.lower(model, "graph").as_text().count("matmul") >= 2


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bik,bjk->bij", "bhwc,hkc->bhwk", "bi,oij,bj->bo"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_dims_of_other_names_are_taken_to_be_equal_until_they_are_not(equation: str, precision: str) -> None:
    """As exporters name them that name every dim."""
    terms = equation.split("->")[0].split(",")
    inputs = {f"x{k}": (np.float32, [f"{letter}{k}" for letter in term]) for k, term in enumerate(terms)}
    model = make_model([node("Einsum", " ".join(inputs), "r", equation=equation)], inputs, ["r"], opset=17)

    assert "matmul" in tc.lower(model, "graph").as_text()
    module = tc.compile(model, precision=precision)
    shared = next(letter for letter in terms[0] if letter in terms[1])
    for sizes in ({}, {shared: 1}):
        arrays = operands(equation, np.random.default_rng(0))
        if sizes:  # one operand has it once, and is broadcast
            arrays[1] = np.take(arrays[1], [0], axis=terms[1].index(shared))
        expected = np.einsum(equation, *(np.broadcast_to(a, _full(a, term, arrays, terms)) for a, term in zip(arrays, terms, strict=True)))
        np.testing.assert_allclose(module.run(dict(zip(inputs, arrays, strict=True)))["r"], expected, rtol=1e-2, atol=0.3)


def _full(array: np.ndarray, term: str, arrays: list[np.ndarray], terms: list[str]) -> list[int]:
    """The shape of an operand once its dims of 1 are broadcast."""
    sizes = {letter: 1 for each in terms for letter in each}
    for each, other in zip(terms, arrays, strict=True):
        for letter, size in zip(each, other.shape, strict=True):
            sizes[letter] = max(sizes[letter], size)
    return [sizes[letter] for letter in term]
