"""What the command line is read as, and how errors, numbers and pictures are printed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tc.check.relative_error import relative_error
from tc.cli import demo, main
from tc.cli.main import report_error, to_json
from tc.cli.options import DimSpec, InputSpec, ShapeSpec, parse_array_spec, parse_dims, parse_input, random_array
from tc.cli.outcome import format_bytes, format_seconds, make_table, write_file
from tc.cli.values import Values, array_of, parse_values
from tc.errors import CheckError, LimitError, ModelError, UnsupportedError, UserError, VerifyError
from tc.ir import dtype

COMMANDS = ("run", "inspect", "compile", "doctor", "demo")


# Reading the command line.


@pytest.mark.parametrize(
    ("text", "shape", "element"),
    [("1x3x224x224xf32", (1, 3, 224, 224), dtype.f32), ("f16", (), dtype.f16), ("0x7xbool", (0, 7), dtype.bool_)],
)
def test_shapes_are_read_and_printed(text: str, shape: tuple[int, ...], element: dtype.DType) -> None:
    spec = parse_array_spec(text)

    assert (spec, str(spec)) == (ShapeSpec(shape, element), text)


@pytest.mark.parametrize("text", ["", "1x3", "1x3xf33x", "-1xf32", "1 x 2xf32", "batchx3xf32"])
def test_other_text_is_not_a_shape(text: str) -> None:
    with pytest.raises(UserError, match="is not a shape such as 1x3x224x224xf32"):
        parse_array_spec(text)


def test_dims_are_read() -> None:
    assert parse_dims(["batch=4,seq=32:512:32", "n=1:8"]) == {
        "batch": DimSpec(4, 4),
        "seq": DimSpec(32, 512, 32),
        "n": DimSpec(1, 8),
    }
    assert parse_dims([]) == {}


@pytest.mark.parametrize("text", ["batch", "batch=", "=4", "batch=-1", "batch=8:4", "batch=1:8:0", "batch=1:2:3:4"])
def test_bad_dims_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--dims"):
        parse_dims([text])


def test_inputs_are_read() -> None:
    assert parse_input("x=a/b.npy") == InputSpec("x", Path("a/b.npy"))
    assert parse_input("b.npy") == InputSpec(None, Path("b.npy"))
    assert parse_input("x=2xi64") == InputSpec("x", ShapeSpec((2,), dtype.i64))
    with pytest.raises(UserError, match="--inputs"):
        parse_input("x=all.npz")


@pytest.mark.parametrize("element", dtype.ALL_DTYPES, ids=str)
def test_random_arrays_have_the_asked_for_type(element: dtype.DType, rng: np.random.Generator) -> None:
    array = random_array(ShapeSpec((2, 3), element), rng)

    assert (array.shape, array.dtype) == ((2, 3), element.numpy)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_or_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])

    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "--json" in text
    assert "examples:" in text or command in ("doctor", "demo")


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run"], ["run", "m", "--repeat", "x"], ["run", "m", "--nope"]])
def test_a_wrong_command_line_exits_with_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run", "--json"], ["run", "m", "--nope", "--json"], ["--json", "fly"], ["db", "show", "--json"]])
def test_a_wrong_command_line_is_json_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It was plain text, whatever --json said."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    error = json.loads(capsys.readouterr().out)["error"]
    assert stopped.value.code == error["exit_code"] == 1
    assert error["kind"] == "UsageError" and "--help" in error["message"]


@pytest.mark.parametrize(
    ("text", "shape", "values"),
    [
        ("16000", None, (16000,)),
        ("-3", None, (-3,)),
        ("1e-5", None, (1e-5,)),
        (".5", None, (0.5,)),
        ("true", None, (True,)),
        ("-inf", None, (-math.inf,)),
        ("[1,2,3]", (3,), (1, 2, 3)),
        ("[[1,2],[3,4.5]]", (2, 2), (1, 2, 3, 4.5)),
        ("[]", (0,), ()),
    ],
)
def test_values_are_read(text: str, shape: tuple[int, ...] | None, values: tuple) -> None:
    assert parse_input(f"x={text}") == InputSpec("x", Values(text, values, shape))


@pytest.mark.parametrize("text", ["[1,[2]]", "[1", '["a"]', "[null]", "[{}]", "1.2.3", "0x10", "one"])
def test_other_text_is_not_a_value(text: str) -> None:
    with pytest.raises(UserError, match=r"not a (list of numbers|shape)"):
        parse_input(f"x={text}")


@pytest.mark.parametrize(
    ("text", "element", "words"),
    [
        ("300", dtype.u8, "300 does not fit into u8, which holds 0 to 255"),
        ("-1", dtype.u64, "-1 does not fit into u64"),
        ("9223372036854775808", dtype.i64, "does not fit into i64"),
        ("1.5", dtype.i32, "1.5 is not a whole number, but the input is i32"),
        ("nan", dtype.i32, "nan is not a whole number"),
        ("2", dtype.bool_, "2 does not fit into bool"),
        ("70000", dtype.f16, "70000 is too large for f16"),
        ("1e999", dtype.f64, "inf"),
    ],
)
def test_values_that_a_type_cannot_hold_are_refused(text: str, element: dtype.DType, words: str) -> None:
    values = parse_values(text)
    if text == "1e999":  # Python reads it as infinity
        assert array_of(values, "x", element, ()).tolist() == math.inf
        return
    with pytest.raises(UserError, match=words):
        array_of(values, "x", element, ())


def test_one_value_fills_an_input_and_lists_have_their_own_shape() -> None:
    assert array_of(parse_values("3"), "x", dtype.i64, (2, 2)).tolist() == [[3, 3], [3, 3]]
    assert array_of(parse_values("18446744073709551615"), "x", dtype.u64, ()).tolist() == 2**64 - 1
    assert array_of(parse_values("[[1],[2]]"), "x", dtype.f32, (5,)).tolist() == [[1.0], [2.0]]
    assert array_of(parse_values("[true,0]"), "x", dtype.bool_, ()).tolist() == [True, False]


def test_a_shape_with_names_hints_at_dims() -> None:
    with pytest.raises(UserError, match="--dims batch=4,seq=4 gives the sizes of symbolic dims"):
        parse_input("x=batchx3xseqxf32")


# Errors and printing.


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelError("m"), 1),
        (UnsupportedError("m"), 2),
        (CheckError("m"), 3),
        (VerifyError("m"), 3),
        (LimitError("m"), 4),
        (MemoryError(), 4),
        (FileNotFoundError(2, "No such file or directory", "m.onnx"), 1),
        (ZeroDivisionError("m"), 5),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(error, as_json=True) == code

    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["exit_code"] == code
    assert len(captured.err.strip().splitlines()) == 1


def test_json_holds_what_json_cannot_say_as_text() -> None:
    data = {"a": np.float32(1.5), "b": [float("nan"), np.array([1, 2])], "c": Path("x"), 1: (None, True, -np.inf)}

    assert json.loads(to_json(data)) == {"a": 1.5, "b": ["nan", [1, 2]], "c": "x", "1": [None, True, "-inf"]}


def test_sizes_and_times_have_fitting_units() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
    assert [format_seconds(s) for s in (2e-6, 0.0125, 3)] == ["2.0 µs", "12.50 ms", "3.00 s"]


def test_cells_are_plain_text() -> None:
    console = Console(file=open(os.devnull, "w"), record=True, width=80)

    console.print(make_table("t", ("a", "b "), [("f32[n, 4]", 1), ("[red]x[/red]", 22)]))

    text = console.export_text()
    assert "f32[n, 4]" in text and "[red]x[/red]" in text


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    path.write_text("old")

    def interrupted(unfinished: Path) -> None:
        unfinished.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(path, interrupted)

    assert [entry.name for entry in tmp_path.iterdir()] == ["out.bin"]
    assert path.read_text() == "old"


def test_a_folder_that_is_not_there_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out.bin: cannot be written: No such file"):
        write_file(tmp_path / "missing" / "out.bin", lambda path: path.write_text("x"))


def test_relative_error() -> None:
    reference = np.array([1.0, -4.0, np.inf, np.nan], np.float32)
    off = np.array([1.5, -4.0, np.inf, np.nan], np.float32)

    assert relative_error(reference, reference) == 0
    assert relative_error(off, reference) == 0.125
    assert relative_error(np.where(np.isnan(off), 0, off).astype(np.float32), reference) == np.inf
    assert relative_error(reference.astype(np.float64), reference) == np.inf
    assert relative_error(reference[:2], reference) == np.inf
    assert relative_error(np.zeros((0, 2)), np.zeros((0, 2))) == 0
    assert relative_error(np.array([True, False]), np.array([True, True])) == 1


# Pictures.


def test_pictures_without_colour_use_shades() -> None:
    image = np.array([[0, 16], [8, 4]], np.uint8)

    assert demo.draw(image, in_colour=False).plain == "  ██\n▒▒░░"


def test_pictures_in_colour_use_half_blocks() -> None:
    text = demo.draw(np.array([[0, 16], [8, 4]], np.uint8), in_colour=True)

    assert text.plain == "▀▀"
    first, second = (span.style for span in text.spans)
    assert (first.color.triplet.red, first.bgcolor.triplet.red) == (0, 128)
    assert (second.color.triplet.red, second.bgcolor.triplet.red) == (255, 64)


def test_one_of_the_pictures_was_read_wrong_if_any_was() -> None:
    labels = np.arange(10)
    predicted = labels.copy()
    predicted[7] = 0

    assert demo.choose_pictures(predicted, labels, 3).tolist() == [0, 1, 7]
    assert demo.choose_pictures(labels, labels, 3).tolist() == [0, 1, 2]
    assert demo.choose_pictures(predicted, labels, 20).tolist() == list(range(10))
    assert demo.choose_pictures(predicted, labels, 0).tolist() == []
