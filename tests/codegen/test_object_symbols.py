"""What an object file defines and wants, and code that wants what nobody has."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest

from tc.codegen.llvm.jit import compile_object, link
from tc.codegen.llvm.object_symbols import symbols_of
from tc.errors import CodegenError

CALLER = """
@{name}_number = global i64 7
declare double @{callee}(double)
define internal double @twice(double %x) noinline {{
  %y = fadd double %x, %x
  ret double %y
}}
define double @{name}(double %x) {{
  %y = call double @{callee}(double %x)
  %z = call double @twice(double %y)
  ret double %z
}}
"""


def test_names_that_others_may_use_and_names_that_others_must_have() -> None:
    symbols = symbols_of(compile_object(CALLER.format(name="caller", callee="qsort")))

    assert symbols.defined == {"caller", "caller_number"}
    assert symbols.undefined == {"qsort"}


def test_what_is_no_object_file_has_no_symbols() -> None:
    assert symbols_of(b"\xcf\xfa\xed\xfe") == symbols_of(b"")


def test_a_function_that_nobody_has_is_an_error_when_code_is_linked() -> None:
    first = compile_object(CALLER.format(name="first", callee="second"))
    second = compile_object(CALLER.format(name="second", callee="qsort"))
    unknown = compile_object(CALLER.format(name="second", callee="nobody_has_this"))

    assert link([first, second]).address("first")
    with pytest.raises(CodegenError, match="nobody_has_this"):
        link([first, unknown])


def test_objects_may_use_each_other_in_any_order_but_not_in_a_circle() -> None:
    names = ("first", "second", "third", "sqrt")
    objects = [compile_object(CALLER.format(name=name, callee=callee)) for name, callee in pairwise(names)]

    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        library = link([objects[k] for k in order])
        call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address("first"))
        assert call(9.0) == 24.0  # each doubles what the next makes of it; the last takes a root
    with pytest.raises(CodegenError, match="circle"):
        link([objects[0], objects[1], compile_object(CALLER.format(name="third", callee="first"))])
