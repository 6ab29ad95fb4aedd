"""Faults put into a pipeline of boxes and products of warpgroups: all are seen by the verifier, and by the interpreter when it runs."""

from __future__ import annotations

from functools import cache

import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.ir.dtype import f16
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.schedule.rules import apply_rules
from tests.schedule.gpu.test_matrix_product import Product, finish
from tests.schedule.gpu.test_warpgroup_product import FEATURES, HOPPER, tiles_of

PRODUCT = Product(64, 64, 320, f16, turned=(False, True))
"""Five stages, of which two are in shared memory at once."""


@cache
def text() -> str:
    return print_ir(finish(apply_rules(PRODUCT.func, HOPPER, tiles_of(64, 64, 2)).func, FEATURES))


LAST = "\n" + 36 * " "
FAULTS: dict[str, tuple[str, str, str]] = {
    "products do not wait for a full stage": ("await_phase(full[rito % 2], rito // 2 % 2)", "pass", "that nothing has been copied to"),
    "copies do not wait for an empty stage": (
        "await_phase(empty[ritop % 2], (ritop // 2 + 1) % 2)", "pass",
        r"arrives at full\[0\], whose phase 0 waits for no more",
    ),
    "wrong parity of a full stage": ("rito // 2 % 2)", "(rito // 2 + 1) % 2)", "has not waited for the phase"),
    "wrong parity of an empty stage": ("(ritop // 2 + 1) % 2)", "ritop // 2 % 2)", r"for phase 0 of empty\[0\], without 4 arrivals"),
    "a parity that does not change": ("rito // 2 % 2)", "0)", "has not waited for the phase"),
    "a parity that is none": ("rito // 2 % 2)", "rito // 2)", "waits for parity 2"),
    "another barrier is waited for": ("await_phase(full[rito % 2]", "await_phase(full[(rito + 1) % 2]", "has not waited for the phase"),
    "nobody says that a stage is empty": ("arrive(empty[(rito + 1) % 2])", "pass", r"for phase 0 of empty\[0\], without 4 arrivals"),
    "another stage is given back": ("arrive(empty[(rito + 1) % 2])", "arrive(empty[rito % 2])", r"for phase 0 of empty\[0\], without 4"),
    "a stage is given back while it is read": (
        "await_products(1)" + LAST + "        if 0 < rito:" + LAST +
        "            if tx % 32 == 0:" + LAST + "                arrive(empty[(rito + 1) % 2])",
        "if tx % 32 == 0:" + LAST + "            arrive(empty[rito % 2])",
        "which products may still read",
    ),
    "the wrong lanes say that a stage is empty": ("tx % 32 == 0", "tx < 4", "which products may still read"),
    "all lanes say that a stage is empty": ("tx % 32 == 0", "tx < 128", "nobody can go on"),
    "fewer arrivals than threads that arrive": (
        "set_up_barrier(empty[stage], 4)", "set_up_barrier(empty[stage], 3)",
        "products may still read",
    ),
    "more arrivals than threads that arrive": (
        "set_up_barrier(empty[stage], 4)", "set_up_barrier(empty[stage], 5)",
        r"of empty\[0\], without 1 arr",
    ),
    "two arrivals where one thread copies": (
        "set_up_barrier(full[stage], 1)", "set_up_barrier(full[stage], 2)",
        r"phase 0 of full\[0\], without 1 arrivals",
    ),
    "barriers are not set up": ("set_up_barrier(full[stage], 1)", "pass", "full"),
    "barriers are set up twice": ("set_up_barrier(full[stage], 1)", "set_up_barrier(full[0], 1)", "which is a phase barrier already"),
    "no barrier behind the set-up": ("barrier()\n", "pass\n", "full|empty"),
    "nobody announces bytes": ("arrive(full[ritop % 2], 16384)", "pass", "phase 0 of full"),
    "fewer bytes than are copied": ("16384", "8192", "has not waited for the phase"),
    "more bytes than are copied": ("16384", "16400", r"full\[0\], without 0 arrivals and 16 bytes"),
    "a box that is not copied": (
        "copy_box(X_lhs[ritop % 2, 0, 0], X[0, ritop * 64], (64, 64), full[ritop % 2])", "pass",
        "phase 0 of full|reads boxes",
    ),
    "a box to another stage": ("copy_box(X_lhs[ritop % 2", "copy_box(X_lhs[(ritop + 1) % 2", "X_lhs"),
    "a box that counts elsewhere": (
        "X[0, ritop * 64], (64, 64), full[ritop % 2]", "X[0, ritop * 64], (64, 64), full[(ritop + 1) % 2]",
        "X_lhs",
    ),
    "products of another stage": ("X_lhs[rito % 2, ty * 64", "X_lhs[(rito + 1) % 2, ty * 64", "X_lhs"),
    "registers are not handed over": ("begin_products(mm_local[0, 0, 0, 0])", "pass", "have not been handed over"),
    "products are in no group": ("commit_products()", "pass", "products|product"),
    "two groups of products are on their way": ("await_products(1)", "await_products(2)", "which products may still read"),
    "sums are read too early": ("await_products(0, mm_local[0, 0, 0, 0])", "pass", "product"),
    "a thread of a group stays away": (
        "if ty < 1:" + LAST + "    for rito", "if tx < 100:" + LAST + "    for rito",
        "nobody can go on|do not meet|is of all 128 lanes, but stands under",
    ),
}


def with_fault(name: str) -> str:
    old, new, _ = FAULTS[name]
    assert old in text(), old
    return text().replace(old, new)


def test_the_pipeline_without_faults_is_not_complained_of() -> None:
    verify(parse_prim_func(text()))


@pytest.mark.parametrize("name", FAULTS)
def test_the_verifier_sees(name: str) -> None:
    func = parse_prim_func(with_fault(name))

    with pytest.raises(VerifyError, match=FAULTS[name][2]):
        verify(func)


QUICK = ("products do not wait for a full stage", "nobody announces bytes", "registers are not handed over")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS])
def test_the_interpreter_sees(name: str) -> None:
    func = parse_prim_func(with_fault(name))

    with pytest.raises(VerifyError, match=FAULTS[name][2]):
        run_prim_func(func, PRODUCT.arrays)


def test_only_products_touch_what_boxes_are_copied_to() -> None:
    changed = text().replace("commit_products()\n", "commit_products()\n" + 44 * " " + "X_lhs[0, 0, tx % 64] = f16(1.0)\n")

    with pytest.raises(VerifyError, match="to which boxes are copied"):
        run_prim_func(parse_prim_func(changed), PRODUCT.arrays)
