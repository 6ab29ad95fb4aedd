"""What a loop program that somebody wrote indexes with is proved, refused or checked: no access outside of a buffer."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.errors import InputError, TcError, VerifyError
from tc.interp import run_prim_func
from tc.ir.expr import Buffer, Checked, const
from tc.ir.index_ranges import check_indices
from tc.ir.node import replace, substitute, walk
from tc.ir.parser import parse_module, parse_prim_func
from tc.ir.types import DimFact

F32 = np.float32


def module_of(body: str, result: str = "f32[n]", dims: str = "n,", params: str = "n: i64"):  # type: ignore[no-untyped-def]
    """A module that calls loops over x: f32[n]."""
    return parse_module(
        f"@loops\ndef f(X: f32[n], Y: {result}, {params}):\n{body}\n"
        f"@graph\ndef main(x: f32[n]):\n    a: {result} = call_tir(\"f\", (x,), ({dims}))\n    return a\n"
    )


def loops(extent: object, target: str, source: str, size: object = 8, block: str = "") -> str:
    return f"@loops\ndef f(X: f32[{size}], Y: f32[{size}]):\n    for i in range({extent}):\n        {target} = {source}\n"


@pytest.mark.parametrize(("text", "message"), [
    (loops(8, "Y[i]", "X[i + 1]"), r"index i \+ 1 takes values from 1 to 8, out of range for axis 0 of X of size 8"),
    (loops(8, "Y[i + 1]", "X[i]"), r"index i \+ 1 takes values from 1 to 8, out of range for axis 0 of Y of size 8"),
    (loops(8, "Y[i]", "X[i - 1]"), r"index i - 1 takes values from -1 to 6, out of range for axis 0 of X of size 8"),
    (loops(9, "Y[i]", "1.0"), r"index i takes values from 0 to 8, out of range for axis 0 of Y of size 8"),
    (
        "@loops\ndef f(X: f32[8], Y: f32[8]):\n    for i in range(8):\n"
        "        with block('b', vi=spatial(8, i * 2)):\n            Y[vi] = X[vi]\n",
        r"index i \* 2 takes values from 0 to 14, out of range for axis vi of block b of size 8",
    ),
])
def test_an_index_that_is_out_of_range_is_refused(text: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        check_indices(parse_prim_func(text))


@pytest.mark.parametrize("text", [
    loops(8, "Y[7 - i]", "X[i // 2 + i % 4]"),
    loops(8, "Y[i]", "select(i < 7, X[i + 1], 0.0)"),
    loops(8, "Y[i]", "X[min(i + 3, 7)]"),
    "@loops\ndef f(X: f32[n], Y: f32[n], n: i64):\n    for i in range(n):\n        if 1 <= i:\n            Y[i] = X[i - 1]\n",
    "@loops\ndef f(X: f32[n], Y: f32[n], n: i64):\n    for io in range((n + 7) // 8):\n        for ii in range(8):\n"
    "            with block('b', vi=spatial(n, io * 8 + ii)):\n                where(io * 8 + ii < n)\n"
    "                Y[vi] = X[n - 1 - vi]\n",
])
def test_what_is_proved_stays_as_it_is(text: str) -> None:
    func = parse_prim_func(text)

    assert check_indices(func) is func


def test_an_index_that_depends_on_a_dim_is_checked_when_it_runs() -> None:
    module = module_of("    for i in range(n):\n        Y[i] = X[i * 2 % 7]")

    compiled = tc.compile(module)

    x = np.arange(7, dtype=F32)
    np.testing.assert_array_equal(np.asarray(compiled(x)), x[np.arange(7) * 2 % 7])
    with pytest.raises(InputError, match="index 4 is out of range for axis 0 of X of size 3"):
        compiled(np.zeros(3, F32))


def test_a_store_that_depends_on_a_dim_is_checked_when_it_runs() -> None:
    module = module_of("    for i in range(n):\n        Y[i] = 0.0\n    for i in range(4):\n        Y[i] = X[i]")

    compiled = tc.compile(module)

    np.testing.assert_array_equal(np.asarray(compiled(np.ones(5, F32))), [1, 1, 1, 1, 0])
    with pytest.raises(InputError, match=r"index [23] is out of range for axis 0 of \w+ of size 2"):
        compiled(np.ones(2, F32))


def test_a_dim_that_is_not_as_promised_is_refused() -> None:
    module = module_of("    for i in range(n):\n        Y[i] = X[i] + X[2]")
    func = next(f for f in module.functions if f.name == "f")
    promised = replace(func, facts=(DimFact(func.dims[0], 3),))
    module = replace(module, functions=tuple(promised if f is func else f for f in module.functions))

    compiled = tc.compile(module)

    np.testing.assert_array_equal(np.asarray(compiled(np.arange(3, dtype=F32))), [2, 3, 4])
    with pytest.raises(TcError, match="n is at least 3"):
        compiled(np.zeros(2, F32))


def test_strides_that_lead_out_of_the_memory_of_a_parameter_are_refused() -> None:
    text = "@loops\ndef f(X: f32[2, 4], Y: f32[8]):\n    for i in range(8):\n        Y[i] = X[i // 4, i % 4]\n"
    func = parse_prim_func(text)
    plain = func.inputs[0]

    for rows in (4, 4000):
        strided = substitute(func, {plain: Buffer("X", plain.shape, plain.dtype, strides=(const(rows), const(1)))})
        if rows == 4:
            assert check_indices(strided) is strided
            continue
        with pytest.raises(VerifyError, match="X is not one row after the other in memory"):
            check_indices(strided)


def test_random_indices_are_proved_refused_or_checked_as_numbers_say() -> None:
    rng = np.random.default_rng(0)
    kinds = {"proved": 0, "refused": 0, "checked": 0}
    for _ in range(300):
        n, m, size = (int(v) for v in rng.integers(1, 9, 3))
        a, b, c, d = int(rng.integers(-2, 4)), int(rng.integers(-2, 3)), int(rng.integers(-3, 9)), int(rng.integers(1, 5))
        index = f"({a} * i + {b} * j + {c})" + str(rng.choice(["", f" // {d}", f" % {d}"]))
        guard = str(rng.choice(["", "if i < j:", "if 1 <= i:"]))
        lines = [f"    for i in range({n}):", f"        for j in range({m}):"]
        lines += [f"            {guard}", f"                Y[i, j] = X[{index}]"] if guard else [f"            Y[i, j] = X[{index}]"]
        func = parse_prim_func(f"@loops\ndef f(X: f32[{size}], Y: f32[{n}, {m}]):\n" + "\n".join(lines) + "\n")
        try:
            run_prim_func(func, [np.zeros(size, F32)])
            fits = True
        except VerifyError:
            fits = False
        try:
            checked = check_indices(func)
        except VerifyError:
            assert not fits, str(func)
            kinds["refused"] += 1
            continue
        has_check = any(isinstance(node, Checked) for node in walk(checked.body))
        assert fits or has_check, str(func)
        kinds["checked" if has_check else "proved"] += 1
    assert kinds["proved"] >= 60 and kinds["refused"] >= 100 and kinds["checked"] <= 30, kinds
