"""The tuning database: what is found again, and that nothing is believed when files are damaged."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tc.errors import UserError
from tc.records.database import Database, Ignored
from tc.records.file import HEADER
from tc.schedule.step import LANGUAGE_VERSION
from tc.target import Target
from tests.records.made_up_records import KEY, TARGET, WORKLOAD, all_records, lines_of, make_choice, make_record, seal

SMALLER_CACHE = Target.parse("x86-64-v3:cores=2,l2=128K")


# What is found again.


def test_a_new_file_has_a_header_and_nothing_else(database: Database, path: Path) -> None:
    assert path.read_bytes() == HEADER == b'{"format":"tc-tuning","version":1}\n'
    assert (list(database.records()), database.problems, database.num_records) == ([], (), 0)
    assert database.best(WORKLOAD, TARGET, 2) is None


def test_records_come_back_in_their_order(database: Database, path: Path) -> None:
    first, second = [make_record(i) for i in range(3)], [make_record(error="timeout"), make_record(9, verified=False)]

    database.append(first)
    database.append(iter(second))
    database.append([])

    assert list(database.records()) == all_records(path) == [*first, *second]
    assert database.num_records == 5
    assert [json.loads(line)["record"]["trial"] for line in lines_of(path)[1:]] == [0, 1, 2, 4, 9]


def test_records_are_chosen_by_workload_target_threads_and_language(database: Database) -> None:
    other_key = "x86-64-v2"
    plain, other_workload, other_target = make_record(0), make_record(1, workload="ab"), make_record(2, target=other_key)
    other_threads, other_language = make_record(3, threads=1), make_record(4, language=LANGUAGE_VERSION + 1)
    database.append([plain, other_workload, other_target, other_threads, other_language])

    assert list(database.records(WORKLOAD, TARGET, 2)) == [plain]
    assert list(database.records(workload="ab")) == [other_workload]
    assert list(database.records(target=Target.parse("x86-64-v2"))) == [other_target]
    assert list(database.records(threads=1)) == [other_threads]
    assert other_language not in list(database.records())
    assert other_language in list(database.records(any_language=True))
    assert list(database.records("abc")) == []


def test_the_best_is_the_fastest_verified_record(database: Database) -> None:
    database.append([make_record(1, 3e-3), make_record(2, 1e-3, verified=False), make_record(3, 2e-3), make_record(error="crash")])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(3, 2e-3)

    database.append([make_record(2, 1e-3)])
    assert database.best(WORKLOAD, KEY, 2) == make_record(2, 1e-3)


@pytest.mark.parametrize(
    "changes",
    [{"target": "x86-64-v2"}, {"threads": 1}, {"language": LANGUAGE_VERSION + 1}, {"verified": False}, {"workload": "ab"}],
    ids=str,
)
def test_the_best_is_made_for_the_same_machine_threads_and_language(changes: dict[str, Any], database: Database) -> None:
    database.append([make_record(1, 1e-3, **changes)])
    assert database.best(WORKLOAD, TARGET, 2) is None

    database.append([make_record(2, 2e-3)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(2, 2e-3)


def test_cores_do_not_matter_but_caches_do(database: Database) -> None:
    database.append([make_record()])

    assert database.best(WORKLOAD, Target.parse("x86-64-v3:cores=64"), 2) == make_record()
    assert database.best(WORKLOAD, SMALLER_CACHE, 2) is None


def test_records_that_do_not_count_are_counted(database: Database) -> None:
    assert str(database.ignored(TARGET, 2)) == ""

    languages = [make_record(i, language=LANGUAGE_VERSION + 1) for i in range(3)]
    database.append([make_record(1, target="x86-64-v2"), make_record(1, threads=1), make_record(1), *languages])

    assert database.ignored(TARGET, 2) == Ignored(other_targets=1, other_languages=3, other_threads=1)
    assert database.ignored(SMALLER_CACHE, 2) == Ignored(other_targets=6)
    assert str(database.ignored(TARGET, 1)) == (
        "1 for another CPU or device, 3 in another version of the schedule language, 1 for another number of threads"
    )


def test_variants_compete_unless_one_is_asked_for(database: Database) -> None:
    direct, winograd = make_record(1, 2e-3, variant="direct"), make_record(2, 1e-3, variant="winograd 4")
    database.append([direct, winograd])

    assert database.best(WORKLOAD, TARGET, 2) == winograd
    assert database.best(WORKLOAD, TARGET, 2, variant="direct") == direct
    assert database.best(WORKLOAD, TARGET, 2, variant="winograd 2") is None


@pytest.mark.parametrize("wrong_first", [False, True])
def test_a_schedule_once_found_wrong_is_never_the_best(wrong_first: bool, database: Database) -> None:
    fast, slow = make_record(1, 1e-3), make_record(2, 2e-3)
    wrong = make_record(1, error="wrong", detail="largest error 0.3")

    for batch in ([[wrong], [fast, slow]] if wrong_first else [[fast, slow], [wrong]]):
        database.append(batch)

    assert database.best(WORKLOAD, TARGET, 2) == slow
    assert database.best(WORKLOAD, TARGET, 2, variant="") == slow


def test_a_schedule_wrong_on_another_machine_or_workload_may_be_right_here(database: Database) -> None:
    database.append([make_record(1, error="wrong", target="x86-64-v2"), make_record(1, error="wrong", workload="ab")])
    database.append([make_record(1, error="timeout"), make_record(1)])

    assert database.best(WORKLOAD, TARGET, 2) == make_record(1)


def test_all_of_the_best_schedules_may_turn_out_wrong(database: Database) -> None:
    database.append([make_record(i, 1e-3 * (i + 1)) for i in range(20)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(0, 1e-3)

    database.append([make_record(i, error="wrong") for i in range(18)])

    for reader in (database, Database(database.path)):
        assert reader.shortlist(WORKLOAD, TARGET, 2, 8) == [make_record(18, 1e-3 * 19), make_record(19, 1e-3 * 20)]


@pytest.mark.parametrize("variant", [None, ""])
def test_a_schedule_is_found_however_many_are_faster(database: Database, variant: str | None) -> None:
    records = [make_record(i, 1e-3 * (i + 1)) for i in range(100)]
    database.append([*records, make_record(90, 2.0), make_record(91, error="wrong")])

    for reader in (database, Database(database.path)):
        assert reader.verified(WORKLOAD, TARGET, 2, variant, records[90].schedule_key) == records[90]
        assert reader.verified(WORKLOAD, TARGET, 2, variant, records[91].schedule_key) is None
        assert reader.verified(WORKLOAD, TARGET, 2, "other", records[90].schedule_key) is None
        assert reader.verified(WORKLOAD, TARGET, 1, variant, records[90].schedule_key) is None


def test_the_last_choice_holds(database: Database) -> None:
    database.append([make_choice(2), make_choice(4), make_choice(0, threads=1), make_choice(6, key="ab")])

    assert database.choice("use_winograd", WORKLOAD, TARGET, 2) == make_choice(4)
    assert database.choice("use_winograd", WORKLOAD, TARGET, 1) == make_choice(0, threads=1)
    assert database.choice("use_winograd", WORKLOAD, SMALLER_CACHE, 2) is None
    assert database.choice("pack_matmul", WORKLOAD, TARGET, 2) is None
    assert [choice.value for choice in database.choices()] == [2, 4, 0, 6]
    assert list(database.records()) == []


def test_objects_see_what_others_append(path: Path) -> None:
    first, second = Database(path), Database(path)
    for number in range(5):
        (first, second)[number % 2].append([make_record(number, 1e-3 / (number + 1))])

        assert first.best(WORKLOAD, TARGET, 2) == second.best(WORKLOAD, TARGET, 2) == make_record(number, 1e-3 / (number + 1))


# Damaged files.


def test_damaged_lines_are_refused_by_number_and_the_others_count(path: Path) -> None:
    Database(path).append([make_record(i, 1e-3 * (i + 1)) for i in range(6)])
    lines = lines_of(path)
    lines[1] = lines[1].replace(b'"seconds":0.001', b'"seconds":0.0001')  # too good to be true
    lines[3] = lines[3][:100] + b"\n"
    lines[4] = b"# a note of mine\n"
    lines[5] = seal({"record": {"workload": WORKLOAD}})
    lines.insert(3, b"\n")
    path.write_bytes(b"".join(lines))

    database = Database(path)

    assert [record.trial for record in database.records()] == [1, 5]
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 2e-3)
    assert database.num_problems == 4
    assert [str(problem) for problem in database.problems] == [
        "line 2: its checksum does not match: it was edited or damaged",
        "line 5: it is cut off",
        "line 6: it has no checksum, so it is not a line that tc has written",
        "line 7: 'created' is missing",
    ]
    database.append([make_record(9, 1e-4)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(9, 1e-4)
    assert database.num_problems == 4


def test_damage_after_the_file_was_opened_is_noticed(database: Database, path: Path) -> None:
    database.append([make_record(1, 1e-3), make_record(2, 2e-3)])
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 1e-3)

    path.write_bytes(path.read_bytes().replace(b'"threads":2', b'"threads":3', 1))

    assert database.best(WORKLOAD, TARGET, 2) == make_record(2, 2e-3)
    assert [problem.line for problem in database.problems] == [2]


def test_damage_that_leaves_no_trace_in_times_is_noticed_when_it_matters(database: Database, path: Path) -> None:
    database.append([make_record(1, 1e-3), make_record(2, 2e-3)])
    status = path.stat()
    assert database.best(WORKLOAD, TARGET, 2) == make_record(1, 1e-3)

    path.write_bytes(path.read_bytes().replace(b'"threads":2', b'"threads":3', 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert database.best(WORKLOAD, TARGET, 2) == make_record(2, 2e-3)


def test_a_file_cut_anywhere_keeps_its_whole_lines_and_goes_on(path: Path, tmp_path: Path) -> None:
    Database(path).append([make_record(1), make_record(2)])
    data = path.read_bytes()
    ends = [len(b"".join(lines_of(path)[: n + 1])) for n in range(3)]
    cut = tmp_path / "cut.db"

    for length in [*range(ends[0] + 2), *range(ends[1] - 3, ends[1] + 3), *range(ends[1] + 3, ends[2], 17), ends[2] - 1]:
        cut.write_bytes(data[:length])
        whole = sum(length >= end for end in ends[1:])
        torn = length not in (0, *ends)

        reader = Database(cut, create=False)
        assert [record.trial for record in reader.records()] == [1, 2][:whole]
        assert [problem.why.partition(":")[0] for problem in reader.problems] == ["it has no end"] * torn

        Database(cut).append([make_record(3)])
        rescued = [2] if length == ends[2] - 1 else [1] if length == ends[1] - 1 else []  # only the end was missing
        assert [record.trial for record in all_records(cut)] == [*[1, 2][:whole], *rescued, 3]
        assert reader.problems == Database(cut).problems == ()


def test_lines_with_the_ends_of_another_system_are_read(database: Database, path: Path) -> None:
    database.append([make_record(1), make_record(2)])
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert [record.trial for record in all_records(path)] == [1, 2]
    Database(path).append([make_record(3)])
    assert [record.trial for record in all_records(path)] == [1, 2, 3]


def test_a_line_without_measure_is_skipped(database: Database, path: Path) -> None:
    database.append([make_record(1)])
    with path.open("ab") as file:
        file.write(b'{"sum":"' + b"x" * (3 << 20) + b"\n")
    database.append([make_record(2)])
    with path.open("ab") as file:
        file.write(b"y" * (3 << 20))
    database.append([make_record(3)])

    assert [record.trial for record in database.records()] == [1, 2, 3]
    assert [problem.line for problem in database.problems] == [3, 5]
    assert all("more than" in problem.why for problem in database.problems)


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_never_invents_a_record(seed: int, path: Path) -> None:
    records = [make_record(i, 1e-3 * (i + 1)) for i in range(5)]
    Database(path).append([*records, make_choice()])
    rng, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 6)):
        start = rng.randrange(len(HEADER), len(data))
        match rng.randrange(4):
            case 0:
                data[start] = rng.randrange(256)
            case 1:
                del data[start : start + rng.randrange(1, 400)]
            case 2:
                data[start:start] = rng.randbytes(rng.randrange(1, 40))
            case 3:
                data[start:start] = data[start - 30 : start + rng.randrange(1, 900)]
    path.write_bytes(data)

    database = Database(path)
    found = list(database.records())

    assert all(record in records for record in found)
    assert database.best(WORKLOAD, TARGET, 2) == min(found, key=lambda record: record.seconds, default=None)
    assert database.choice("use_winograd", WORKLOAD, TARGET, 2) in (None, make_choice())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format":"tc-tuning","version":2}\n{"anything":1}\n', "is a tuning database of version 2; this tc reads and writes version 1"),
        (b'{"format":"tc-tuning","version":"1"}\n', "is not a tuning database"),
        (b'{"format":"other","version":1}\n', "is not a tuning database"),
        (b"task,seconds\nconv,0.1\n", "is not a tuning database"),
        (b"\x7fELF\x00\x01", "is not a tuning database"),
        (b"[" * 100_000, "is not a tuning database"),
        (b'{"format":"tc-tuning","version":1', "without"),
    ],
)
def test_files_of_other_kinds_and_versions_are_refused_and_not_touched(content: bytes, words: str, path: Path) -> None:
    path.write_bytes(content)
    if words == "without":  # the header of this very version, cut off: a crash while the file was made
        Database(path)
        assert path.read_bytes() == HEADER
        return

    for create in (False, True):
        with pytest.raises(UserError, match=f"tuned.db: {words}"):
            Database(path, create=create)

    assert path.read_bytes() == content


def test_a_file_that_becomes_another_one_is_not_written(database: Database, path: Path) -> None:
    path.write_bytes(b'{"format":"tc-tuning","version":2}\n')

    for action in (lambda: database.append([make_record()]), lambda: database.prune(1), lambda: database.best("a", KEY, 1)):
        with pytest.raises(UserError, match="of version 2"):
            action()

    assert path.read_bytes() == b'{"format":"tc-tuning","version":2}\n'
