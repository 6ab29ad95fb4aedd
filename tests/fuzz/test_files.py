"""Files that lie end in a numbered error, soon and within bounds; and the search for more of them works."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from onnx import ModelProto

from tc.cli.main import main
from tc.fuzz.files import judge, search
from tc.fuzz.files.corpus import KINDS, FileCase, all_cases
from tc.fuzz.files.judge import judge_file
from tc.fuzz.files.search import (
    Coverage,
    changed,
    changed_bytes,
    changed_field,
    changed_words,
    encode_fields,
    parse_fields,
    search_files,
    smaller,
)

CASES = all_cases()

READ = {
    ("onnx", "good"),
    ("onnx", "good, large"),
    ("onnx", "good, nested"),
    ("onnx", "good, loops"),
    ("onnx", "good, functions"),
    ("onnx", "external data good"),
    ("gguf", "version 9"),
    ("ir", "good graph"),
    ("ir", "good loops"),
}
"""What must be read, and one that must not, so that a reader that refuses all is noticed."""

REFUSED = {
    ("onnx", "cut at 0.5"): "TC1003",
    ("onnx", "graphs nested 20000 deep as bytes"): "TC1032",
    ("onnx", "external data outside"): "TC1004",
    ("onnx", "external data of a link"): "TC1004",
    ("onnx", "external data of a link to itself"): "TC1005",
    ("onnx", "external data before the start"): "TC1005",
    ("onnx", "external data of 5000 digits"): "TC1005",
    ("onnx", "a dim of -1"): "TC1006",
    ("onnx", "a dim of 1099511627776"): "TC1060",
    ("onnx", "65 dims"): "TC1014",
    ("onnx", "a sparse index outside"): "TC1006",
    ("onnx", "sparse indices of floats"): "TC1006",
    ("onnx", "a cycle"): "TC1009",
    ("onnx", "a name twice"): "TC1008",
    ("onnx", "an output of nothing"): "TC1007",
    ("onnx", "a function that calls itself"): "TC1032",
    ("onnx", "a chain of 3000 functions"): "TC1032",
    ("onnx", "functions that call twice, 20 deep"): "TC1061",
    ("onnx", "functions that call four times, 22 deep"): "TC1061",
    ("onnx", "invalid UTF-8 in a name"): "TC1003",
    ("onnx", "opset 2147483648"): "TC1011",
    ("onnx", "opset 9223372036854775807 of another domain"): "TC1030",
    ("onnx", "no opset"): "TC1030",
    ("onnx", "a string where an integer belongs"): "TC1041",
    ("ir", "nested 20000 deep by minus"): "TC4000",
    ("ir", "an int of 5000 digits"): "TC4000",
    ("module", "JSON nested 100000 deep"): "TC4010",
    ("module", "a header of 2^60"): "TC4010",
    ("module", "another hash"): "TC4010",
    ("module", "another version"): "TC4011",
    ("gguf", "1152921504606846976 tensors"): "TC1003",
    ("gguf", "an offset of 1152921504606846976"): "TC1003",
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], judge.FileVerdict]:
    folder = tmp_path_factory.mktemp("files")
    found = {}
    for number, case in enumerate(CASES):
        path = case.write(folder / str(number))
        found[case.kind, case.name] = judge_file(case.kind, path, seconds=20.0)  # of the processor, which may be a slow one
        path.unlink()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_hostile_file_ends_in_a_numbered_error_or_is_read(kind: str, verdicts: dict[tuple[str, str], judge.FileVerdict]) -> None:
    mine = {name: verdict for (of, name), verdict in verdicts.items() if of == kind}

    assert len(mine) > 20
    assert {name: verdict.text for name, verdict in mine.items() if verdict.kind == "finding"} == {}
    assert all(verdict.code.startswith("TC") for verdict in mine.values() if verdict.kind == "refused")
    # Of a tuning database, damaged lines are told of and the others read.
    assert sum(verdict.kind == "refused" for verdict in mine.values()) >= (3 if kind == "records" else 15)


def test_good_files_are_read_and_hostile_ones_refused_for_what_they_are(verdicts: dict[tuple[str, str], judge.FileVerdict]) -> None:
    assert {key: verdicts[key].code for key in REFUSED} == REFUSED
    assert all((verdicts[key].kind == "read") == (key[1] != "version 9") for key in READ), {k: verdicts[k] for k in READ}


def test_names_are_one_for_each_case() -> None:
    names = [(case.kind, case.name) for case in CASES]
    assert len(set(names)) == len(names) > 350


# -- the judge


def as_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: object) -> judge.FileVerdict:
    def read(kind: str, path: Path) -> None:
        if callable(raised):
            raised()
        else:
            assert isinstance(raised, Exception)
            raise raised

    monkeypatch.setattr(judge, "read_file", read)
    return judge_file("onnx", tmp_path, seconds=0.2)


@pytest.mark.parametrize(
    "error", [KeyError("k"), RecursionError(), MemoryError(), AssertionError(), UnicodeDecodeError("utf-8", b"", 0, 1, "")]
)
def test_any_other_error_is_a_finding(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = as_finding(monkeypatch, tmp_path, error)
    assert found.kind == "finding" and type(error).__name__ in found.text


def test_what_never_ends_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spin() -> None:
        while True:
            pass

    assert as_finding(monkeypatch, tmp_path, spin).text.startswith("took more than 0.2 s")


def test_what_takes_all_memory_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = as_finding(monkeypatch, tmp_path, lambda: bytearray(8 << 30))
    assert found.kind == "finding" and found.text.startswith("MemoryError")


# -- the search


def test_fields_of_messages_are_read_and_written_back() -> None:
    model = next(case.data for case in CASES if case.name == "good, functions")

    fields = parse_fields(model)

    assert fields is not None and encode_fields(fields) == model
    assert parse_fields(b"\x07") is None and parse_fields(b"\x0a\x05ab") is None and parse_fields(b"\xff" * 20) is None
    assert parse_fields(encode_fields([(3, 0, (1 << 64) - 1), (5, 5, b"abcd"), (6, 1, b"12345678")])) is not None


def test_changed_fields_leave_most_models_readable_as_messages() -> None:
    rng = random.Random(0)
    model = next(case.data for case in CASES if case.name == "good, functions")

    readable = 0
    for _ in range(200):
        data = changed_field(rng, model, model)
        try:
            ModelProto.FromString(data)
            readable += 1
        except Exception:  # protobuf's
            continue

    assert readable > 120


@pytest.mark.parametrize("change", [changed_bytes, changed_words, changed_field])
def test_changes_take_whatever_they_are_given(change: object) -> None:
    rng = random.Random(1)
    assert callable(change)
    for data in (b"", b"a", b"\xff" * 40, "ü".encode() * 9, CASES[0].data):
        for _ in range(50):
            assert isinstance(change(rng, data, CASES[1].data), bytes)


def test_the_same_seed_gives_the_same_changes() -> None:
    cases = [case for case in CASES if len(case.data) < 2000]

    first, second = ([changed(random.Random(7), cases).data for _ in range(5)] for _ in range(2))

    assert first == second


def test_lines_of_readers_are_noted_and_those_of_others_are_not(tmp_path: Path) -> None:
    path = next(case for case in CASES if case.name == "good graph").write(tmp_path)

    with Coverage() as coverage:
        judge.read_file("ir", path)

    files = {Path(code.co_filename).name for code, _ in coverage.lines}
    assert {"parser.py", "parse_graph.py", "printer.py"} <= files and not files & {"judge.py", "corpus.py", "node.py"}


def test_a_finding_is_made_smaller() -> None:
    case = FileCase("ir", "x", b"a" * 100 + b"NEEDLE" + b"b" * 333)

    assert smaller(case, lambda each: b"NEEDLE" in each.data).data == b"NEEDLE"
    assert smaller(case, lambda each: False).data == case.data


def test_the_command_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(case for case in CASES if case.kind == "gguf")[:20]
    monkeypatch.setattr(search, "all_cases", lambda: few)

    assert main(["fuzz", "--mode", "files", "--count", "20", "--folder", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == 40 and told["findings"] == [] and sum(told["outcomes"].values()) == 40

    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(judge, "read_gguf", broken)
    assert main(["fuzz", "--mode", "files", "--count", "5", "--folder", str(tmp_path)]) == 3
    assert "KeyError" in capsys.readouterr().out
    (told,) = [json.loads(path.read_text()) for path in tmp_path.glob("finding*/finding.json")]
    assert told["kind"] == "gguf" and "KeyError" in told["text"]


def test_the_search_keeps_what_reaches_new_lines_and_finds_nothing(tmp_path: Path) -> None:
    found = search_files(3, 60, folder=tmp_path / "found", kinds=("ir", "gguf"))

    assert found.findings == {}
    assert found.tried == sum(case.kind in ("ir", "gguf") for case in CASES) + 60
    assert found.lines >= found.first_lines > 300 and len(found.kept) > 20
    assert not (tmp_path / "found" / "current").exists()
