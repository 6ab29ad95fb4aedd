"""Layouts: linear maps over bits, from where data is held to what is held there.

One type says which elements of a matrix a lane of a warp holds in which register, where in shared memory an element lies when bits of
its row are mixed into its column, and how an instruction wants its operands packed. A layout maps named dims, whose sizes are powers
of two, to named dims; each bit of an output is the exclusive or of some bits of the inputs. All else follows by linear algebra:
composition, inverses, whether elements are held twice, and how many banks an access meets.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Union

import numpy as np

from tc.errors import ParseError, ScheduleError, ShapeError
from tc.ir.arith import Facts
from tc.ir.bits import bit_xor
from tc.ir.cached import cached_property
from tc.ir.expr import Expr, add, const, floordiv, floormod, mul
from tc.ir.gf2 import Elimination, bits_of, eliminate, product

BitDim = tuple[str, int]
"""A name, and how many values there are: a power of two."""

Point = tuple[int, ...]
"""A value of each output."""

Source = tuple[str, int]
"""A bit of an input."""

Coordinate = Union[int, np.ndarray]


@dataclass(frozen=True)
class BitLayout:
    """A linear map over GF(2): the image of a number is the exclusive or of the images of its bits, and those of several inputs too.

    `outputs` are dims. `images` has, for each input, its name and the images of its bits, the lowest first; the input has 2**n values
    when it has n bits. Two layouts are equal when they have the same dims in the same order and the same images.
    """

    outputs: tuple[BitDim, ...]
    images: tuple[tuple[str, tuple[Point, ...]], ...] = field(default=())

    def __post_init__(self) -> None:
        for names in ([name for name, _ in self.outputs], [name for name, _ in self.images]):
            for name in names:
                if not name.isidentifier() or keyword.iskeyword(name) or names.count(name) > 1:
                    raise ShapeError(f"layout: {name!r} is no name of a dim, or that of two")
        for name, size in self.outputs:
            _bit_count(name, size)
        sizes = [size for _, size in self.outputs]
        for name, points in self.images:
            for point in points:
                if len(point) != len(sizes) or any(x < 0 or x >= size for x, size in zip(point, sizes)):
                    raise ShapeError(f"layout: an image of {name} is {point}, which is not in {_dims(self.outputs)}")

    # -- facts

    @property
    def inputs(self) -> tuple[BitDim, ...]:
        """The dims that the layout maps."""
        return tuple((name, 1 << len(points)) for name, points in self.images)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The matrix: the images of all bits of the inputs, each as one number, the outputs side by side and the first one lowest."""
        return tuple(_packed(point, self.outputs) for _, points in self.images for point in points)

    @cached_property
    def elimination(self) -> Elimination:
        """Of the matrix."""
        return eliminate(self.columns)

    @property
    def is_injective(self) -> bool:
        """Whether nothing is held twice."""
        return not self.elimination.kernel

    @property
    def is_surjective(self) -> bool:
        """Whether everything is held somewhere."""
        return self.elimination.rank == sum(_bit_count(*dim) for dim in self.outputs)

    @property
    def is_invertible(self) -> bool:
        return self.is_injective and self.is_surjective

    def contiguous(self, name: str) -> int:
        """How many first values of an input are mapped to the values 0, 1, 2 ... of the last output, the other outputs being 0.

        As many elements from a multiple of this number on follow each other, wherever the other inputs are.
        """
        count = 0
        points = dict(self.images)[name]
        for place, point in enumerate(points):
            if point[-1] != 1 << place or any(point[:-1]):
                break
            count += 1
        below = (1 << count) - 1
        others = [point for other, rest in self.images for point in (rest if other != name else points[count:])]
        return 1 << _trailing_zeros(reduce(int.__or__, (point[-1] & below for point in others), 1 << count))

    def duplicates(self) -> tuple[dict[str, int], ...]:
        """Inputs that are mapped to 0, a basis of all: to change these bits of the inputs is to stay at the same element."""
        return tuple(_unpacked(number, self.inputs) for number in self.elimination.kernel)

    # -- use

    def __call__(self, **coordinates: Coordinate) -> tuple[Coordinate, ...]:
        """The value of each output, of ints or of arrays of integers, element by element. Inputs that are not given are 0."""
        sizes = dict(self.inputs)
        for name, value in coordinates.items():
            self._check_input(name)
            low, high = (value, value) if isinstance(value, int) else (np.min(value, initial=0), np.max(value, initial=0))
            if low < 0 or high >= sizes[name]:
                raise ShapeError(f"layout: {name} is {value}; it must be from 0 to {sizes[name] - 1}")
        return tuple(self._value(place, coordinates) for place in range(len(self.outputs)))

    def _value(self, place: int, coordinates: Mapping[str, Coordinate]) -> Coordinate:
        total: Coordinate = 0
        for name, points in self.images:
            value = coordinates.get(name, 0)
            for bit, point in enumerate(points):
                total = total ^ ((value >> bit & 1) * point[place])
        return total

    def exprs(self, **coordinates: Expr) -> tuple[Expr, ...]:
        """The value of each output as an expression of those of the inputs, all of which are in range. Inputs not given are 0.

        Bits of one input that follow each other in an output too are one term; where bits of several meet, it is an exclusive or:

            row     =  register // 2 * 8 + lane // 4
            offset  =  row * 64 + bit_xor(column // 8, row % 8) * 8 + column % 8
        """
        for name in coordinates:
            self._check_input(name)
        return tuple(self._expr(place, coordinates) for place in range(len(self.outputs)))

    def _expr(self, place: int, coordinates: Mapping[str, Expr]) -> Expr:
        widths = {name: len(points) for name, points in self.images}
        terms: list[Expr] = []
        for first, sources in self._segments(place, coordinates):
            parts = [_bits(coordinates[name], low, len(sources), widths[name]) for name, low in sources[0]]
            terms.append(mul(bit_xor(*parts) if len(parts) > 1 else parts[0], const(1 << first)))
        total: Expr = const(0)
        for term in reversed(terms):
            total = add(total, term)
        return total

    def _segments(self, place: int, names: Iterable[str]) -> list[tuple[int, list[tuple[Source, ...]]]]:
        """Runs of bits of an output of which each is made from the bits beside those that the one below is made from: the first bit,
        and what each is made from. Bits that are always 0 are left out."""
        segments: list[tuple[int, list[tuple[Source, ...]]]] = []
        for bit in range(_bit_count(*self.outputs[place])):
            sources = tuple((name, k) for name in names for k, point in enumerate(dict(self.images)[name]) if point[place] >> bit & 1)
            if segments and segments[-1][0] + len(segments[-1][1]) == bit and sources == _next(segments[-1][1][-1]):
                segments[-1][1].append(sources)
            elif sources:
                segments.append((bit, [sources]))
        return segments

    def facts(self, facts: Facts | None = None, **coordinates: Expr) -> Facts:
        """Also that variables are in the range of these inputs."""
        facts = facts if facts is not None else Facts()
        for name, size in self.inputs:
            if name in coordinates:
                facts = facts.with_range(coordinates[name], const(size))  # type: ignore[arg-type]
        return facts

    def _check_input(self, name: str) -> None:
        if name not in dict(self.images):
            raise ShapeError(f"layout: there is no input {name}; the inputs are {_dims(self.inputs)}")

    # -- layouts from layouts

    def then(self, after: BitLayout) -> BitLayout:
        """`after` of this: the outputs of this are the inputs of `after`, in any order."""
        if dict(self.outputs) != dict(after.inputs):
            raise ShapeError(f"layout: {_dims(self.outputs)} cannot be mapped by a layout of {_dims(after.inputs)}")
        places = [[name for name, _ in self.outputs].index(name) for name, _ in after.inputs]

        def moved(point: Point) -> Point:
            number = _packed([point[place] for place in places], after.inputs)
            return tuple(_unpacked(product(after.columns, number), after.outputs).values())

        return self._with(after.outputs, {name: tuple(map(moved, points)) for name, points in self.images})

    def __mul__(self, blocks: BitLayout) -> BitLayout:
        """Blocks of this layout, laid out by `blocks`: of dims of one name, the lower bits are those of this.

        A layout of dims of other names stands beside this one.
        """
        mine, sizes = dict(self.outputs), dict(blocks.outputs)
        outputs = tuple((name, mine.get(name, 1) * sizes.get(name, 1)) for name in dict.fromkeys((*mine, *sizes)))

        def point_of(layout: BitLayout, point: Point, scale: Mapping[str, int]) -> Point:
            known = dict(zip((name for name, _ in layout.outputs), point, strict=True))
            return tuple(known.get(name, 0) * scale.get(name, 1) for name, _ in outputs)

        images: dict[str, tuple[Point, ...]] = {name: () for name, _ in (*self.images, *blocks.images)}
        for layout, scale in ((self, {}), (blocks, mine)):
            for name, points in layout.images:
                images[name] += tuple(point_of(layout, point, scale) for point in points)
        return self._with(outputs, images)

    def inverse(self) -> BitLayout:
        """The layout that maps each element to the one place where it is held. ScheduleError when it is held twice, or nowhere."""
        if not self.is_injective:
            raise ScheduleError(f"{self} has no inverse: it maps {self.duplicates()[0]} to 0, so each element is held more than once")
        return self.right_inverse()

    def right_inverse(self) -> BitLayout:
        """A layout that maps each element to a place where it is held: the one that needs the fewest, and the first, bits of inputs.

        ScheduleError when an element is held nowhere.
        """
        if not self.is_surjective:
            raise ScheduleError(f"{self} has no inverse: it does not reach all of {_dims(self.outputs)}")
        points = [
            (name, [tuple(int(k == place) << bit for k in range(len(self.outputs))) for bit in range(_bit_count(name, size))])
            for place, (name, size) in enumerate(self.outputs)
        ]
        return self._with(self.inputs, {name: tuple(map(self._holder, each)) for name, each in points})

    def _holder(self, point: Point) -> Point:
        chosen = self.elimination.solve(_packed(point, self.outputs))
        assert chosen is not None
        return tuple(_unpacked(chosen, self.inputs).values())

    def restrict(self, **sizes: int) -> BitLayout:
        """The same for the first so many values of some inputs."""
        for name, size in sizes.items():
            self._check_input(name)
            if _bit_count(name, size) > len(dict(self.images)[name]):
                raise ShapeError(f"layout: {name} of {_dims(self.inputs)} has no {size} values")
        cut = {name: points[: _bit_count(name, sizes[name])] if name in sizes else points for name, points in self.images}
        return self._with(self.outputs, cut)

    def without(self, *names: str) -> BitLayout:
        """The same where these inputs are 0; it no longer has them."""
        for name in names:
            self._check_input(name)
        return self._with(self.outputs, {name: points for name, points in self.images if name not in names})

    def only(self, *names: str) -> BitLayout:
        """These outputs alone, in this order."""
        places = [[name for name, _ in self.outputs].index(name) for name in names]
        outputs = tuple(self.outputs[place] for place in places)
        return self._with(
            outputs, {name: tuple(tuple(p[place] for place in places) for p in points) for name, points in self.images}
        )

    def rename(self, **names: str) -> BitLayout:
        """The same with other names of some dims, whether inputs or outputs."""
        outputs = tuple((names.get(name, name), size) for name, size in self.outputs)
        return BitLayout(outputs, tuple((names.get(name, name), points) for name, points in self.images))

    def _with(self, outputs: tuple[BitDim, ...], images: Mapping[str, tuple[Point, ...]]) -> BitLayout:
        return BitLayout(outputs, tuple(images.items()))

    # -- text

    def __str__(self) -> str:
        """Text that `parse_layout` reads: the outputs with their sizes, and the images of the bits of each input.

        layout((row, 16), (column, 8), register=[(0, 1), (8, 0)], lane=[(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)])
        """
        outputs = [f"({name}, {size})" for name, size in self.outputs]
        inputs = [f"{name}=[{', '.join(map(_point_text, points))}]" for name, points in self.images]
        return f"layout({', '.join((*outputs, *inputs))})"


def layout(outputs: Mapping[str, int], **images: Sequence[int | Point]) -> BitLayout:
    """A layout by the images of the bits of its inputs; an image in one output may be a plain number."""
    points = {name: tuple((each,) if isinstance(each, int) else tuple(each) for each in bits) for name, bits in images.items()}
    return BitLayout(tuple(outputs.items()), tuple(points.items()))


def identity(**sizes: int) -> BitLayout:
    """Dims as they are."""
    return reduce(BitLayout.__mul__, (row_major(name, **{name: size}) for name, size in sizes.items()), BitLayout(()))


def row_major(output: str, /, **sizes: int) -> BitLayout:
    """The number of an element of an array of these sizes, of which the last varies fastest."""
    images: dict[str, list[int]] = {}
    stride = 1
    for name, size in reversed(sizes.items()):
        images[name] = [stride << bit for bit in range(_bit_count(name, size))]
        stride *= size
    return layout({output: stride}, **{name: images[name] for name in sizes})


# -- text


def parse_layout(text: str) -> BitLayout:
    """The layout whose text this is. ParseError when it is none."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ParseError(f"a layout was expected, not {text!r}") from error
    return layout_of_node(node)


def layout_of_node(node: ast.expr) -> BitLayout:
    """The layout that a piece of parsed text says. ParseError when it says none."""
    match node:
        case ast.Call(func=ast.Name(id="layout"), args=args, keywords=keywords):
            outputs = tuple(map(_parsed_dim, args))
            return BitLayout(outputs, tuple((str(each.arg), _parsed_points(each.value)) for each in keywords))
    raise ParseError(f"a layout was expected, not {ast.unparse(node)!r}")


def _parsed_dim(node: ast.expr) -> BitDim:
    match node:
        case ast.Tuple(elts=[ast.Name(id=name), ast.Constant(value=int(size))]):
            return name, size
    raise ParseError(f"a dim as (name, size) was expected, not {ast.unparse(node)!r}")


def _parsed_points(node: ast.expr) -> tuple[Point, ...]:
    if not isinstance(node, ast.List):
        raise ParseError(f"a list of images was expected, not {ast.unparse(node)!r}")
    return tuple(map(_parsed_point, node.elts))


def _parsed_point(node: ast.expr) -> Point:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    values = [part.value for part in parts if isinstance(part, ast.Constant) and type(part.value) is int]
    if len(values) != len(parts):
        raise ParseError(f"integers were expected, not {ast.unparse(node)!r}")
    return tuple(values)


def _point_text(point: Point) -> str:
    return str(point[0]) if len(point) == 1 else str(point)


def _dims(dims: Iterable[BitDim]) -> str:
    return ", ".join(f"{name} of {size}" for name, size in dims) or "no dims"


# -- bits


def _bit_count(name: str, size: int) -> int:
    """The bits of a dim. ShapeError unless its size is a power of two."""
    if size < 1 or size & (size - 1):
        raise ShapeError(f"layout: {name} has {size} values, which is no power of two")
    return size.bit_length() - 1


def _packed(point: Sequence[int], dims: Sequence[BitDim]) -> int:
    total, stride = 0, 1
    for value, (_, size) in zip(point, dims, strict=True):
        total += value * stride
        stride *= size
    return total


def _unpacked(number: int, dims: Sequence[BitDim]) -> dict[str, int]:
    values = {}
    for name, size in dims:
        values[name] = number % size
        number //= size
    return values


def _trailing_zeros(number: int) -> int:
    return bits_of(number)[0]


def _bits(expr: Expr, low: int, count: int, width: int) -> Expr:
    """`count` bits from bit `low` on of an expression of `width` bits."""
    shifted = floordiv(expr, const(1 << low))
    return shifted if low + count == width else floormod(shifted, const(1 << count))


def _next(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    return tuple((name, bit + 1) for name, bit in sources)
