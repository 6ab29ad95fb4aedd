"""Tuning records as lines of text: there and back, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tc.errors import ScheduleError, UserError
from tc.records.record import LINE_LIMIT_BYTES, DamagedLine, decode, encode, target_key
from tc.schedule.step import LANGUAGE_VERSION, Trace
from tc.target import Target, native_target
from tests.records.made_up_records import make_choice, make_record, make_trace, seal


@pytest.mark.parametrize(
    "entry",
    [
        make_record(),
        make_record(variant="winograd 4", verified=False, point=()),
        make_record(error="timeout", detail="no answer\n\tin 5 s"),
        make_record(task="größe/🙂", point=(("a", ((1, (2, -3)), False, "x")), ("b", 2**62))),
        make_record(language=LANGUAGE_VERSION + 3, seconds=1e-9),
        make_choice(),
        make_choice((4, "a"), seconds=((True, math.inf), (False, 0.5))),
    ],
)
def test_a_line_gives_back_what_was_put_in(entry: Any) -> None:
    line = encode(entry)

    assert decode(line) == entry
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert json.loads(line)["sum"]


def test_types_come_back_as_they_were() -> None:
    point = (("flag", True), ("number", 1), ("text", "1"), ("factors", (1, True)))

    found = decode(encode(make_record(point=point)))

    assert [(type(value), str(value)) for _, value in found.point] == [(type(value), str(value)) for _, value in point]


def test_numbers_of_numpy_are_numbers() -> None:
    entry = make_record(
        seconds=np.float64(0.5), low=np.float32(0.25), trial=np.int64(3), verified=np.bool_(True), point=(("a", (np.int32(4),)),)
    )

    found = decode(encode(entry))

    assert (found.seconds, found.low, found.trial, found.verified, found.point) == (0.5, 0.25, 3, True, (("a", (4,)),))
    assert type(found.seconds) is float and type(found.trial) is int and found.verified is True


def test_text_from_models_and_compilers_is_put_right() -> None:
    entry = make_record(task="a\x1b[2Jb\nc", error="build", detail="x" * 10_000 + "\x07", verified=False)

    found = decode(encode(entry))

    assert found.task == "a�[2Jb c"
    assert found.detail == "x" * 4095 + "…"


@pytest.mark.parametrize("position", range(0, len(encode(make_record())) - 1, 7))
def test_every_change_of_a_byte_is_found(position: int) -> None:
    line = bytearray(encode(make_record()))
    line[position] ^= 1

    with pytest.raises(DamagedLine, match=r"checksum|cut off"):
        decode(bytes(line))


def test_every_cut_is_found() -> None:
    line = encode(make_record())

    for length in range(len(line) - 1):
        with pytest.raises(DamagedLine, match=r"no checksum|cut off|edited"):
            decode(line[:length])
    assert decode(line[:-1]) == decode(line.replace(b"\n", b"\r\n")) == make_record()


BAD_FIELDS: dict[str, list[Any]] = {
    "workload": ["", None, 7, "a\x1b[2J", "x" * 200, "\ud800", ["a"]],
    "variant": [None, "a\nb", "x" * 200],
    "target": ["", 1, "x" * 10_000],
    "threads": [0, -1, 2.0, "2", True, None, 1 << 40],
    "trace": ["", None, {"steps": []}, "x" * (1 << 20)],
    "seconds": [0, -1.0, "1", True, None, [1.0], 10**400],
    "ratio": [0.0, None],
    "error": [7, "", "time\nout"],
    "detail": [None, "a\x00b", "x" * 5000],
    "verified": [0, 1, "yes", None],
    "point": [{}, "ab", ["ab"], [["a"]], [["a", 1, 2]], [["a", 1.5]], [["a", None]], [["", 1]], [[1, 1]], [["a", {"b": 1}]],
              [["a", 1 << 70]], [["a", [[[[[[1]]]]]]]], [["a", list(range(100))]], [["a", 1]] * 1000, [["a\x1b", 1]], [["a", "\x1b"]]],
    "dims": [{}, [["n"]], [["n", -1]], [["n", 1.0]], [["n", "1"]], [["", 1]], [["n\x1b", 1]], None],
    "trial": [-1, 1.0, "1", None, 1 << 60],
    "language": [0, "1", None, True],
    "created": ["", "yesterday", "2026-05-17", 7, "2026-05-17T09:30:00Z\n", "٢٠٢٦-05-17T09:30:00Z"],
    "version": ["", None, "1\x1b"],
    "rule": [None, 3],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_FIELDS.items() for value in values])
def test_a_field_of_another_kind_is_refused_by_its_name(name: str, value: Any) -> None:
    members = json.loads(encode(make_record()))["record"]

    with pytest.raises(DamagedLine, match=f"'{name}'|more than {LINE_LIMIT_BYTES}"):
        decode(seal({"record": {**members, name: value}}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seconds": None}, "'seconds' is inf, but 'error' is None"),
        ({"error": "crash"}, "'seconds' is 0.001, but 'error' is crash"),
        ({"error": "crash", "seconds": None, "low": None, "high": None, "ratio": None}, "'verified' is true, but"),
        ({"colour": "red"}, "'colour' is no field of it"),
        ({"__class__": "os.system"}, "is no field of it"),
    ],
)
def test_fields_that_contradict_each_other_or_are_unknown_are_refused(changes: dict[str, Any], words: str) -> None:
    members = json.loads(encode(make_record()))["record"]

    with pytest.raises(DamagedLine, match=words):
        decode(seal({"record": {**members, **changes}}))


def test_lines_from_before_sizes_were_kept_are_read() -> None:
    record = make_record(dims=(("n", 30),))
    members = json.loads(encode(record))["record"]
    assert members.pop("dims") == [["n", 30]]

    assert decode(seal({"record": members})) == replace(record, dims=())


def test_a_missing_field_is_named() -> None:
    members = json.loads(encode(make_choice()))["choice"]
    del members["value"]

    with pytest.raises(DamagedLine, match="'value' is missing"):
        decode(seal({"choice": members}))


@pytest.mark.parametrize(
    "body",
    [b'"record":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'"record":{"seconds":NaN}}', b'"record":{"trial":' + b"9" * 9999 + b"}}",
     b'"record":[]}', b'"other":{}}', b'"record":{},"choice":{}}', b'"record":{}}{}', b'"record":"\xff"}'],
)  # fmt: skip
def test_json_that_is_no_record_is_refused(body: bytes) -> None:
    checksum = hashlib.blake2b(body, digest_size=8).hexdigest().encode()

    with pytest.raises(DamagedLine, match=r"not JSON|neither a record nor a choice"):
        decode(b'{"sum":"%s",%s\n' % (checksum, body))


@pytest.mark.parametrize(
    "entry",
    [
        make_record(threads=0),
        make_record(seconds=math.nan),
        replace(make_record(), error="crash"),
        make_record(point=(("a", 1.5),)),
        make_record(workload=""),
        make_record(trace="x" * (1 << 20)),
        make_choice({"a": 1}),
        make_choice(created="now"),
    ],
)
def test_what_cannot_be_read_is_not_written(entry: Any) -> None:
    with pytest.raises(UserError, match="cannot be kept"):
        encode(entry)


def test_schedules_are_told_apart_by_variant_and_steps() -> None:
    keys = {make_record(1).schedule_key, make_record(2).schedule_key, make_record(1, variant="a").schedule_key}

    assert len(keys) == 3
    assert make_record(1).schedule_key == make_record(1, seconds=5.0, workload="ab").schedule_key


def test_the_steps_are_read_or_refused() -> None:
    assert make_record().parse_trace() == Trace.from_json(make_trace())
    for text in ("{}", '{"version":1,"steps":' + "[" * 50_000 + "]" * 50_000 + "}"):
        with pytest.raises(ScheduleError, match="not a schedule trace"):
            make_record(trace=text).parse_trace()


@pytest.mark.parametrize("text", ["x86-64-v3:cores=7", "native:cores=3", "cpu:name=a,cores=2,features=avx2", "x86-64-v4:l2=2M"])
def test_the_key_of_a_target_has_everything_but_the_cores(text: str) -> None:
    target = Target.parse(text)
    key = target_key(target)

    assert "cores" not in key
    assert replace(Target.parse(key), cores=1) == replace(target, cores=1)
    assert target_key(key) == key == target_key(replace(target, cores=64))
    assert target_key(replace(target, l2_bytes=12345)) != key


def test_the_key_of_this_machine_can_be_kept() -> None:
    assert decode(encode(make_record(target=target_key(native_target())))).target == target_key(native_target())
