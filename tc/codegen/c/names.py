"""Names of C for the names of the IR: each once in a function, none that C or a helper has."""

from __future__ import annotations

import re

_KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
    short signed sizeof static struct switch typedef union unsigned void volatile while bool true false asm main NULL thread any
    begin end context number last max_threads
    class template typename this new delete operator private protected public virtual namespace using try catch throw friend
    half kernel global local constant private read_only write_only uchar ushort uint ulong sampler_t event_t image2d_t size_t
    abs fabs exp exp2 log log2 log1p expm1 tanh erf erfc sin cos tan asin acos atan sinh cosh asinh acosh atanh sqrt rsqrt floor ceil round
    rint trunc sign isnan isinf pow fmod fma min max clamp mix step dot cross length normalize select any all gamma y0 y1 yn j0 j1 jn index
    remainder signbit drem hypot cbrt pow10 exp10 lgamma tgamma nan logb ilogb ldexp frexp modf copysign nextafter fdim fmax fmin div labs
    barrier printf malloc free memcpy memset errno stdin stdout stderr unix linux INFINITY NAN M_PI""".split()
)
_TAKEN = re.compile(
    r"(tc_.*|TC_.*|_.*|[iufm]\d+(x\d+.*)?|.*_t|M_.*|FP_.*|HUGE_.*|u?int\w*|as_.*|convert_.*|get_.*|blockIdx|threadIdx|gridDim|blockDim)$"
)


_LONGEST_COUNTER = 4
_COUNTERS = "ijkuvwabcdefgh"


class Names:
    """The names that are taken in one function."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(taken)
        self._free_counters: set[str] = set()  # of loops that have ended

    def new(self, hint: str) -> str:
        """A name like `hint` that is not taken."""
        base = re.sub(r"[^0-9A-Za-z_]", "_", hint) or "v"
        if not base.isascii() or base[0].isdigit() or base in _KEYWORDS or _TAKEN.match(base):
            base = f"v_{base}" if base[0] != "_" else f"v{base}"
        name, count = base, 1
        while name in self._taken or name in _KEYWORDS:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def counter(self, hint: str) -> str:
        """The name of a loop's variable until `release`: `hint`, or a letter where that is long, which made from those of several loops
        tells nobody anything."""
        short = hint if len(hint) <= _LONGEST_COUNTER else next((c for c in _COUNTERS if self._is_free(c)), "i")
        if short not in self._free_counters:
            return self.new(short)
        self._free_counters.remove(short)
        return short

    def _is_free(self, name: str) -> bool:
        return name not in self._taken or name in self._free_counters

    def release(self, counter: str) -> None:
        """The loop has ended: another one's variable may be called the same."""
        self._free_counters.add(counter)

    def copy(self) -> Names:
        """The same names, taken."""
        return Names(frozenset(self._taken))
