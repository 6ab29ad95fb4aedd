"""What a target can execute, as data: for each operator the combinations of operand types, and what each costs.

`descriptions.json` holds those that come with tc; a file of one's own has the same form. A cost is the time of an operation over that in
f32 on the same target (1): it orders guesses before anything is measured, and stands for what cannot be measured here.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tc.errors import QuantizationError
from tc.target import Target

_SHIPPED = Path(__file__).parent / "descriptions.json"

INTEGERS = {"u8": (0, 255), "s8": (-128, 127), "s16": (-32768, 32767)}
"""Integer types of activations and the numbers they hold. u8 has a zero point; s8 and s16 are symmetric, their zero point is 0."""

DTYPES = (*INTEGERS, "bf16", "f32")


@dataclass(frozen=True)
class Combination:
    """Types of the operands that an operator can execute (one: the same for all of them), and the time over that in f32."""

    operands: tuple[str, ...]
    cost: float

    def operand(self, index: int) -> str:
        """The type of an operand by its place."""
        return self.operands[min(index, len(self.operands) - 1)]

    @property
    def is_float(self) -> bool:
        """Whether no operand is an integer."""
        return not any(dtype in INTEGERS for dtype in self.operands)

    @property
    def label(self) -> str:
        """`u8 x s8`; one type alone where all are the same."""
        return self.operands[0] if len(set(self.operands)) == 1 else " x ".join(self.operands)


@dataclass(frozen=True)
class HardwareDescription:
    """`features`: sets of features of targets that it describes, one of which a target must have; none where it is of no target of tc's.
    `is_power_of_two`: of all scales. `shared`: operators whose operands have one scale. Combinations stand in the order of preference:
    the first is what "all in 8 bits" means, the last is f32."""

    name: str
    title: str
    features: tuple[tuple[str, ...], ...]
    is_power_of_two: bool
    shared: frozenset[str]
    operators: tuple[tuple[str, tuple[Combination, ...]], ...]

    def describes(self, target: Target) -> bool:
        """Whether what is measured on the target is what the description is about."""
        return any(all(target.has(feature) for feature in features) for features in self.features)

    def combinations(self, op_type: str) -> tuple[Combination, ...]:
        """Of an operator; those of "*" where it has no line of its own; none where it cannot be quantized at all."""
        table = dict(self.operators)
        return table.get(op_type, () if op_type in ("Conv", "Gemm", "MatMul") else table.get("*", ()))


def describe_hardware(description: str | os.PathLike[str] | HardwareDescription | None, target: Target) -> HardwareDescription:
    """The description by its name or file, or the first of those that come with tc whose features `target` has.

    UserError for a name that is not known, or a file that is none.
    """
    if isinstance(description, HardwareDescription):
        return description
    if description is None:
        table = _read(_SHIPPED)
        for name, entry in table.items():
            found = _parse(name, entry, _SHIPPED)
            if found.describes(target):
                return found
        raise AssertionError("the last description needs no feature")
    if not isinstance(description, (str, os.PathLike)):
        raise QuantizationError(f"hardware is a {type(description).__name__}, must be a name or a file")
    table = _read(_SHIPPED)
    if str(description) in table:
        return _parse(str(description), table[str(description)], _SHIPPED)
    path = Path(description)
    if not path.is_file():
        raise QuantizationError(
            f"hardware: there is no description {str(description)!r}, nor a file of that name; there are {', '.join(table)}"
        )
    own = _read(path)
    if len(own) != 1:
        raise QuantizationError(f"hardware {path}: holds {len(own)} descriptions, must hold one")
    ((name, entry),) = own.items()
    return _parse(name, entry, path)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise QuantizationError(f"hardware {path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(entry, dict) for entry in data.values()):
        raise QuantizationError(f"hardware {path}: must be an object of descriptions by name")
    return data


def _parse(name: str, entry: dict[str, Any], path: Path) -> HardwareDescription:
    where = f"hardware {path}: {name}"
    scales = entry.get("scales", "any")
    if scales not in ("any", "power_of_two"):
        raise QuantizationError(f"{where}: scales is {scales!r}, must be 'any' or 'power_of_two'")
    operators = []
    for names, rows in dict(entry.get("operators", {})).items():
        combinations = tuple(_combination(row, where) for row in rows)
        if not combinations or combinations[-1].operands[0] != "f32":
            raise QuantizationError(f"{where}: the last combination of {names} must be f32: what is not quantized runs in it")
        operators += [(op, combinations) for op in names.split()]
    if not operators:
        raise QuantizationError(f"{where}: has no operators")
    shared = frozenset(entry.get("shared", ()))
    features = tuple(tuple(map(str, group)) for group in entry.get("features", ()))
    return HardwareDescription(name, str(entry.get("title", name)), features, scales == "power_of_two", shared, tuple(operators))


def _combination(row: object, where: str) -> Combination:
    if not isinstance(row, dict) or not isinstance(row.get("operands"), list) or not row["operands"]:
        raise QuantizationError(f"{where}: {row!r} is no combination; it must have operands and a cost")
    for dtype in row["operands"]:
        if dtype not in DTYPES:
            raise QuantizationError(f"{where}: {dtype!r} is none of the types {', '.join(DTYPES)}")
    cost = row.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 < cost < math.inf:
        raise QuantizationError(f"{where}: the cost {cost!r} of {row['operands']} must be a number above 0")
    return Combination(tuple(row["operands"]), float(cost))
