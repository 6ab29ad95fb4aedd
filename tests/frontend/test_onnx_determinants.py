"""Det: against numpy in float64, of drawn matrices of any size, and of those at the ends of what floats can be."""

import itertools

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node

DTYPES = (np.float16, np.float32, np.float64)


def close(found: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Whether determinants are those of matrices but for what rounding does: as much as the condition of each lets it, and once at the end.
    What is too large for the dtype is infinite."""
    size, work = x.shape[-1], np.finfo(np.float64 if x.dtype == np.float64 else np.float32).eps
    wide = x.astype(np.float64)
    expected = np.asarray(np.linalg.det(wide))
    condition = np.linalg.cond(wide) if size else np.ones(expected.shape)
    bound = np.abs(expected) * (size * work * condition + np.finfo(x.dtype).eps) + np.finfo(x.dtype).tiny
    return np.where(np.abs(expected) < float(np.finfo(x.dtype).max), np.abs(found - expected) <= bound, np.isinf(found))


def compiled(dtype: type, shape: list[int | str], threads: int = 1) -> tc.CompiledModule:
    return tc.compile(make_model([node("Det", "x", "y")], {"x": (dtype, shape)}, ["y"], opset=22), threads=threads, on_unsupported="error")


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_any_size_and_number(dtype: type) -> None:
    module, rng = compiled(dtype, ["b", "n", "n"]), np.random.default_rng(0)

    for batch, size in itertools.product((0, 1, 2, 70), (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 33)):
        x = rng.standard_normal((batch, size, size)).astype(dtype)
        found = module(x)
        assert found.shape == (batch,) and found.dtype == dtype
        assert close(found, x).all(), (batch, size)


def test_one_matrix_and_two_threads() -> None:
    x = np.random.default_rng(1).standard_normal((40, 3, 20, 20)).astype(np.float32)
    one, two = (compiled(np.float32, [40, 3, 20, 20], threads)(x) for threads in (1, 2))

    assert one.tobytes() == two.tobytes()
    assert close(one, x).all()
    assert compiled(np.float32, [2, 2])(np.array([[1, 2], [3, 5]], np.float32)) == pytest.approx(-1, rel=1e-6)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[1, 2, 3], [2, 4, 6], [1, 0, 1]], 0.0),
        ([[0, 1, 0], [0, 0, 1], [0, 0, 0]], 0.0),
        ([[0, 0, 2], [3, 0, 0], [0, 4, 0]], 24.0),
        (np.diag([1e200, 1e200, 1e-200, 1e-200]), 1.0),
        (np.diag([1e-300, 1e-300, 1e300, 2e300]), 2.0),
        (np.diag([1e-320, 1e300]), 1e-320 * 1e300),
        (np.diag([1e200, 1e200, -1.0]), -np.inf),
        (np.diag([1e-200, 1e-200]), 0.0),
        (np.diag([np.inf, 2.0]), np.inf),
        ([[np.nan, 1], [1, 2]], np.nan),
        ([[0, 1, 2], [np.nan, 1, 1], [3, 1, 1]], np.nan),
    ],
)
def test_the_ends_of_floats(matrix: list[list[float]], expected: float) -> None:
    x = np.array(matrix, np.float64)

    found = compiled(np.float64, ["n", "n"])(x)

    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not (expected == 0 and np.signbit(found))


def test_what_is_not_square_is_refused() -> None:
    with pytest.raises(tc.errors.TcError, match="the last two dims"):
        compiled(np.float32, [2, 3])
    with pytest.raises(tc.errors.TcError, match="dim 1 is 3, but must be n"):
        compiled(np.float32, ["n", "n"])(np.zeros((2, 3), np.float32))
