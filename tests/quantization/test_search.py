"""The search with a made-up model of error and time: it finds the known best, repeats itself, and goes on where it was stopped."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tc.errors import UserError
from tc.quantization.description import Combination
from tc.quantization.evaluate import Quality
from tc.quantization.journal import Journal
from tc.quantization.search import (
    ALGORITHMS,
    WIDENED_STEPS,
    Search,
    Trial,
    coarse_first,
    pareto,
    widening_steps,
    worth_measuring,
)
from tc.quantization.strategy import Strategy, all_small
from tc.quantization.topology import Edge, QuantizationSite, ScaleClass, Topology

CHOICES = (Combination(("u8", "s8"), 0.25), Combination(("f32", "f32"), 1.0))
NOISE = {"a": 0.5, "b": 0.02, "c": 0.3, "d": 0.01}
SECONDS = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}
FACTS = {"kind": "tc quantization", "seed": 0}


def make_topology() -> Topology:
    sites = tuple(
        QuantizationSite(name, "Conv", True, CHOICES, (Edge(0, name, 0, None, i), Edge(1, f"w{name}", 1, 0, -1)))
        for i, name in enumerate(NOISE)
    )
    return Topology(sites, tuple(ScaleClass((name,), (name,)) for name in NOISE))


def quality(strategy: Strategy) -> Quality:
    """Noise of products in 8 bits adds up in squares; the range of least squares halves it, and clipped weights save a tenth."""
    better = {"minmax": 1.0, "mse": 0.5}
    parts = [
        NOISE[name] * better.get(method, 0.8) * (0.9 if strategy.weights == "mse" else 1.0)
        for (name, choice), method in zip(strategy.choices, strategy.methods, strict=True)
        if choice == 0
    ]
    error = math.sqrt(sum(part**2 for part in parts))
    return Quality(error, 1 - error / 2, 0.0, error, error)


def seconds(strategy: Strategy) -> float:
    return sum(SECONDS[name] * (0.25, 1.0)[choice] for name, choice in strategy.choices)


def search(journal: Journal | None = None, algorithm: str = "greedy", **options: object) -> Search:
    found = Search(make_topology(), quality, seconds, journal or Journal(None, FACTS), **{"max_trials": 120, **options})
    found.run(algorithm)
    return found


def best_front() -> list[tuple[float, float]]:
    """By trying everything with the best thresholds."""
    topology = make_topology()
    everything = [
        Strategy(tuple(zip(NOISE, choices, strict=True)), ("mse",) * len(topology.classes), "mse")
        for choices in product((0, 1), repeat=len(NOISE))
    ]
    pairs = sorted((seconds(strategy), quality(strategy).loss) for strategy in everything)
    return [pair for i, pair in enumerate(pairs) if all(other[1] > pair[1] for other in pairs[:i])]


def test_greedy_finds_most_of_the_front() -> None:
    found = {(round(t.predicted, 9), round(t.quality.loss, 9)) for t in pareto(search().trials)}

    best = {(round(a, 9), round(b, 9)) for a, b in best_front()}

    assert {min(best), max(best)} <= found
    assert len(best & found) >= 0.8 * len(best)


def test_the_most_sensitive_and_cheapest_product_is_widened_first() -> None:
    widened = [t for t in search(max_trials=40).trials if t.stage == "widening"]

    wide = sorted(({name for name, choice in trial.strategy.choices if choice == 1} for trial in widened), key=len)

    assert wide[:2] == [{"a"}, {"a", "c"}]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_seed_says_everything(algorithm: str) -> None:
    runs = [[t.strategy for t in search(algorithm=algorithm, seed=seed).trials] for seed in (3, 3, 4)]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_search_beats_eight_bits_by_default(algorithm: str) -> None:
    found = search(algorithm=algorithm)
    default = quality(all_small(make_topology())).loss

    fast = min(t.quality.loss for t in found.trials if t.predicted <= seconds(all_small(make_topology())))

    assert fast <= 0.5 * default


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stopped_search_goes_on_where_it_was(tmp_path: Path, algorithm: str) -> None:
    whole = search(algorithm=algorithm, max_trials=60).trials
    evaluated: list[str] = []

    def counted(strategy: Strategy) -> Quality:
        evaluated.append(strategy.key)
        if len(evaluated) == 25:
            raise KeyboardInterrupt
        return quality(strategy)

    path = tmp_path / "state.jsonl"
    options: dict[str, Any] = {"max_trials": 60, "error_of": lambda strategy: quality(strategy).error}
    first = Search(make_topology(), counted, seconds, Journal(path, FACTS), **options)
    ended = first.run(algorithm)
    second = Search(make_topology(), counted, seconds, Journal(path, FACTS), **options)
    second.run(algorithm)

    assert ended == "interrupted" and len(first.trials) == 24
    assert second.trials == whole
    assert len(set(evaluated)) == len(whole) and len(evaluated) == len(whole) + 1


def test_half_a_line_at_the_end_of_a_state_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    whole = search(Journal(path, FACTS), max_trials=12).trials
    path.write_text(path.read_text()[:-9])

    again = search(Journal(path, FACTS), max_trials=12).trials

    assert again == whole
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("cut", [1, 9])
def test_a_state_that_ends_in_its_first_line_is_begun_again(tmp_path: Path, cut: int) -> None:
    """Without its end the next line was put behind it, and all that came after was lost; half of it was refused for good."""
    path = tmp_path / "state.jsonl"
    whole = search(Journal(path, FACTS), max_trials=6).trials
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0][:-cut])

    for _ in range(2):
        assert search(Journal(path, FACTS), max_trials=6).trials == whole
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_two_searches_do_not_write_one_state(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    one, other = Journal(path, FACTS), Journal(path, FACTS)
    one.remember("a", lambda: {"error": 1.0})

    with pytest.raises(UserError, match="another search has written to it; nothing was written"):
        other.remember("b", lambda: {"error": 2.0})
    one.remember("c", lambda: {"error": 3.0})

    assert list(Journal(path, FACTS).known) == ["a", "c"]


def test_a_line_that_is_another_ones_is_damaged(tmp_path: Path) -> None:
    """What was read as a trial and was the error of a product ended in a KeyError."""
    path = tmp_path / "state.jsonl"
    search(Journal(path, FACTS), max_trials=6)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = (json.dumps({"key": json.loads(lines[2])["key"], "error": 1.0}) + "\n").encode()
    path.write_bytes(b"".join(lines))

    with pytest.raises(UserError, match="line 3 is damaged; nothing was written"):
        search(Journal(path, FACTS), max_trials=6)
    assert path.read_bytes() == b"".join(lines)


def test_a_state_of_another_search_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    search(Journal(path, FACTS), max_trials=5)
    before = path.read_bytes()

    with pytest.raises(UserError, match="belongs to another search: its seed is 0, here it is 1"):
        Journal(path, {**FACTS, "seed": 1})
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", [1, 3, -1])
@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"key": 3}', b'{"key": "k"}', b'{"key": "k", "quality": {"error": 1}}', b'{"key": "k", "error": NaN}', b"\xff", b""],
)
def test_a_damaged_line_of_a_state_is_named(tmp_path: Path, line: int, content: bytes) -> None:
    """Errors of json and of dicts left as they were, after everything had been compiled."""
    path = tmp_path / "state.jsonl"
    search(Journal(path, FACTS), max_trials=6)
    lines = path.read_bytes().splitlines()
    lines[line] = content
    path.write_bytes(b"\n".join(lines) + b"\n")
    before = path.read_bytes()

    with pytest.raises(UserError, match=f"line {line % len(lines) + 1} is damaged; nothing was written"):
        Journal(path, FACTS)
    assert path.read_bytes() == before


def test_a_state_is_written_when_there_is_something_to_remember(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state.jsonl", FACTS)

    assert not list(tmp_path.iterdir())
    journal.remember("k", lambda: {"error": 0.5})
    assert Journal(tmp_path / "state.jsonl", FACTS).known == {"k": {"key": "k", "error": 0.5}}


def test_where_a_state_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        Journal(tmp_path / "no" / "s.jsonl", FACTS)
    with pytest.raises(UserError, match="state is a int"):
        Journal(3, FACTS)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["no json\n", '{"kind": "something"}\n', "[1]\n"])
def test_a_file_that_is_no_state_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)

    with pytest.raises(UserError, match="no state of a search"):
        Journal(path, FACTS)
    assert path.read_text() == content


def test_a_folder_is_no_state(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="that is a folder"):
        Journal(tmp_path, FACTS)


def test_time_ends_a_search() -> None:
    now = iter(range(10_000))
    found = Search(
        make_topology(), quality, seconds, Journal(None, FACTS), budget_seconds=10, clock=lambda: float(next(now))
    )

    assert found.run("random") == "budget"
    assert 2 <= len(found.trials) <= 12


def test_an_interruption_before_anything_is_known_is_passed_on() -> None:
    def interrupted(strategy: Strategy) -> Quality:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Search(make_topology(), interrupted, seconds, Journal(None, FACTS)).run()


def test_what_is_measured_holds_both_ends_and_no_strategy_twice() -> None:
    trials = search().trials

    chosen = list(worth_measuring(make_topology(), trials, 4))

    assert chosen[:2] == trials[:2]
    assert len({t.strategy.key for t in chosen}) == len(chosen) <= 10  # two ends, two in 8 bits, four of the front, two near the limits
    small = [t for t in trials if t.strategy.choices == trials[1].strategy.choices]
    assert min(small, key=lambda t: t.quality.loss) in chosen
    assert min((t for t in pareto(trials) if t.quality.is_within_limits), key=lambda t: t.predicted) in chosen


def test_a_front_is_what_no_trial_beats() -> None:
    trials = search(algorithm="random").trials

    front = pareto(trials)

    def beats(a: Trial, b: Trial) -> bool:
        return a.predicted <= b.predicted and a.quality.loss < b.quality.loss

    assert front and all(not any(beats(other, trial) for other in trials) for trial in front)
    assert all(any(t.predicted <= trial.predicted and t.quality.loss <= trial.quality.loss for t in front) for trial in trials)


@pytest.mark.parametrize("count", [0, 1, 24, 25, 53, 400])
def test_steps_of_widening_end_with_all(count: int) -> None:
    steps = widening_steps(count)

    assert steps == sorted(set(steps)) and len(steps) <= WIDENED_STEPS
    assert sorted(coarse_first(steps)) == steps and coarse_first(steps)[:1] == steps[len(steps) // 2 :][:1]
    assert (steps[-1:] or [0]) == [count] and (not steps or steps[0] >= 1)
