"""Launches drawn at random: threads that read what others stored, in loops, conditions and lets that are the same for all threads."""

from __future__ import annotations

import random

from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module

PLACES = (
    "{t}",
    "7 - {t}",
    "{t} * 2",
    "{t} * 2 + 1",
    "{t} + 8",
    "({t} * 3) % 16",
    "({t} + 5) % 16",
    "{t} // 2 * 4 + {t} % 2",
    "{t} % 4 * 4 + {t} // 4",
)
"""Places of a buffer of 16 elements, another one for each of 8 threads."""

TURNING = ("({t} + {k}) % 16", "{k} % 2 * 8 + {t}", "({k} + 1) % 2 * 8 + {t}", "({t} * 3 + {k}) % 16")
"""Such places that depend on the iteration of a loop."""

READ = (*PLACES, "0", "{t} // 2", "({t} * {t}) % 16", "15 - {t}", "min({t}, 3)")
BUFFERS = ("S", "R", "G", "L")


def random_launch(seed: int) -> PrimFunc:
    """A PrimFunc of A and G, f32[2, 16] each, by two blocks of eight threads or fewer."""
    rng = random.Random(seed)
    maker = _Maker(rng)
    body = maker.body(2, None)
    head = [
        "outputs(1)",
        "for b in bound(2, 'block.x'):",
        "    with alloc(f32[16], scope='shared') as S:",
        "        with alloc(f32[16], scope='shared') as R:",
        "            with alloc(f32[16], scope='local') as L:",
    ]
    stores = [f"{name}{{b}}{{t}} + {k * 8}] = A[b, {{t}} + {k * 8}] * {k + 2}.0" for k in range(2) for name in BUFFERS]
    start = maker.region(stores, None, full=True)
    lines = [f"    {line}" for line in head] + [" " * 20 + line for line in [*start, *body, *maker.last()]]
    text = "@loops\ndef f(A: f32[2, 16], G: f32[2, 16]):\n" + "\n".join(lines) + "\n"
    return parse_module(text).prim_funcs[0]


class _Maker:
    """Lines of a program. Names are numbered."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def name(self, base: str) -> str:
        self.count += 1
        return f"{base}{self.count}"

    def body(self, depth: int, k: str | None) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 3)):
            kind = self.rng.choice(["region"] * 4 + ["for", "if", "let", "single"]) if depth else "region"
            if kind == "for":
                inner = self.name("k")
                lines += [f"for {inner} in range({self.rng.choice([0, 1, 2, 3])}):", *_indented(self.body(depth - 1, inner))]
            elif kind == "if":
                condition = f"{k} < {self.rng.randint(0, 2)}" if k else f"A[b, {self.rng.randint(0, 15)}] < 0.0"
                lines += [f"if {condition}:", *_indented(self.body(depth - 1, k))]
                if self.rng.random() < 0.5:
                    lines += ["else:", *_indented(self.body(depth - 1, k))]
            elif kind == "let":
                name = self.name("v")
                lines += [f"with let({self.rng.choice('SR')}[{self.rng.randint(0, 15)}]) as {name}:"]
                lines += _indented(self.region([f"S{{b}}{self.place('{t}', k)}] = {name} + A[b, {{t}}]"], k))
            elif kind == "single":
                lines += [f"{self.rng.choice('SR')}[{self.rng.randint(0, 15)}] = A[b, {self.rng.randint(0, 15)}]"]
            else:
                lines += self.region([self.store(k)], k)
        return lines

    def place(self, t: str, k: str | None) -> str:
        chosen = self.rng.choice(TURNING if k and self.rng.random() < 0.5 else PLACES)
        return chosen.format(t=t, k=k)

    def store(self, k: str | None) -> str:
        """One store of each thread, at a place of its own, of what is there and what is elsewhere."""
        target = self.rng.choice(BUFFERS)
        if target == "L":
            place = self.rng.choice(["{t}", "{t} + 8"])
            source = self.rng.choice("SRG")
        else:
            place = self.place("{t}", k)
            source = self.rng.choice([name for name in "SRG" if name != target])
        read = self.rng.choice(READ if k is None or self.rng.random() < 0.5 else TURNING).format(t="{t}", k=k)
        own = self.rng.choice(["{t}", "{t} + 8"])
        return f"{target}{{b}}{place}] = {target}{{b}}{place}] * 0.5 + {source}{{b}}{read}] + L[{own}]"

    def region(self, stores: list[str], k: str | None, full: bool = False) -> list[str]:
        t, extent = self.name("t"), 8 if full else self.rng.choice([8, 8, 8, 4, 5])
        lines = [_with_row(store).replace("{t}", t) for store in stores]
        guard = "" if full else self.rng.choice(["", "", f"if {t} < 3:", f"if 0 < {t}:", f"if A[b, {t}] < 0.5:"])
        inner = [guard, *_indented(lines)] if guard else lines
        return [f"for {t} in bound({extent}, 'thread.x'):", *_indented(inner)]

    def last(self) -> list[str]:
        return self.region(["G{b}{t}] = G{b}{t}] + S{b}15 - {t}] + R{b}{t} * 2] + L[{t}] + L[{t} + 8]"], None, full=True)


def _with_row(text: str) -> str:
    """`G{b}` is a row of the result, the others are the block's own."""
    return text.replace("G{b}", "G[b, ").replace("{b}", "[")


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
