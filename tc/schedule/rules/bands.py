"""Rows of a product in bands, for each of which the padded or packed part of an operand is made that stays in the cache."""

from __future__ import annotations

import math
from dataclasses import replace

from tc.cost.typical import USUAL_DIM
from tc.ir.expr import Const
from tc.schedule.analysis import Contraction
from tc.schedule.rules.common import buffer_bytes, divisors, extent_value
from tc.schedule.rules.roles import Operands, Roles, TiledProduct, Tiles
from tc.schedule.rules.tile import cut, cut_overlapped, cut_tiles, even_sizes, is_at_least, is_peeled, largest
from tc.schedule.step import Schedule
from tc.target import Target

LEAST_BAND_ROWS = 3
"""Bands are not made lower only to have enough of them: each pads a few rows of its own."""

MOST_BAND_ROWS = 16
"""Rows of a band at most where the height of the image is symbolic."""

IMAGE_DIMS = 4
"""Of images [n, c, h, w]. Those of volumes are not padded in bands: each plane would be padded once for each tap along depth."""

BAND_BYTES_OF_L2 = 0.4
"""How much of the second-level cache the padded input of one band of rows may take."""

PACKED_BYTES_OF_L2 = 0.25
"""The same for rows that are packed: they are read once for each tile of columns, which comes from behind that cache."""


def in_bands_of_images(schedule: Schedule, product: TiledProduct, tiles: Tiles) -> Tiles:
    """With padding: cut the rows of the image into bands whose padded input fits the cache."""
    s, cores = schedule, product.target.cores
    tiles = replace(tiles, is_banded=True)
    rows = extent_value(s, tiles.bands[-1]) if tiles.bands else None
    if rows is None and product.roles.images:
        band = cut(s, tiles.bands[-1], _usual_height(product))
        return replace(tiles, bands=[band.around], band_rows=[band.inside])
    if rows is None or rows == 1 or is_peeled(s, tiles.bands[-1]):
        return tiles
    image = product.contraction.rhs.buffer
    image_bytes = buffer_bytes(image, image.shape[1:]) if product.roles.images else product.lhs_bytes
    most = max(1, int(product.target.l2_bytes * BAND_BYTES_OF_L2) // max(1, image_bytes // rows))
    heights = divisors(rows)
    if product.roles.images and 2 * largest(heights, most) <= min(most, rows):
        heights = even_sizes(rows)
    height = largest(heights, most)
    if -(-rows // height) < cores and (product.roles.images or not product.rhs_is_larger):  # bands are what runs in parallel
        height = max((h for h in heights if -(-rows // h) >= cores and h >= LEAST_BAND_ROWS), default=height)
    height = s.choose(product.name, "band_rows", heights, height)
    band = (cut_overlapped if rows % height else cut)(s, tiles.bands[-1], height)
    return replace(tiles, bands=[band.around], band_rows=[band.inside])


def with_rows_of_image(schedule: Schedule, product: TiledProduct, operands: Operands) -> TiledProduct:
    """With padding of an image that is the rhs, and larger than the cache: its rows apart from other loops, to be cut into bands."""
    roles, row = product.roles, padded_row(product.contraction, product.roles, operands)
    if row is None:
        return product
    least = least_of_far(schedule, product.contraction, roles, row, product.target)
    if not all(is_at_least(schedule, *each) for each in least):
        return product
    return replace(product, roles=replace(roles, others=[loop for loop in roles.others if loop != row], images=(row,)))


def padded_row(contraction: Contraction, roles: Roles, operands: Operands) -> str | None:
    """The loop over rows of an image that is the rhs, and padded for the sum; None where it is no such image."""
    rows = [loop for loop in roles.others if loop in roles.columns]
    is_padded = operands.lhs and not operands.rhs and not operands.is_copied and len(roles.rows) <= 1 and roles.blocks is None
    return rows[-1] if is_padded and rows and len(contraction.rhs.buffer.shape) == IMAGE_DIMS else None


def least_of_far(schedule: Schedule, contraction: Contraction, roles: Roles, row: str, target: Target) -> list[tuple[str, int]]:
    """Loops over rows and columns of an image that is the rhs, each with the iterations from which on it does not stay in the second-level
    cache while it is padded."""
    rows, columns = (extent_value(schedule, loop) for loop in (row, roles.lane))
    pixels = target.l2_bytes // 2 // _pixel_bytes(contraction) + 1
    if rows is not None:
        return [(roles.lane, -(-pixels // max(rows, 1)))]
    if columns is not None:
        return [(row, max(-(-pixels // max(columns, 1)), MOST_BAND_ROWS))]
    side = max(math.isqrt(pixels), MOST_BAND_ROWS)
    return [(row, side), (roles.lane, side)]


def _pixel_bytes(contraction: Contraction) -> int:
    """Of all channels of an image that is the rhs."""
    image = contraction.rhs.buffer
    return max(buffer_bytes(image, image.shape[1:2]), 1)


def _usual_height(product: TiledProduct) -> int:
    """Rows of a band of an image that is the rhs, which has a symbolic number of them."""
    width = product.contraction.rhs.buffer.shape[-1]
    row_bytes = _pixel_bytes(product.contraction) * (int(width.value) if isinstance(width, Const) else 2 * USUAL_DIM)
    return max(1, min(int(product.target.l2_bytes * BAND_BYTES_OF_L2) // row_bytes, MOST_BAND_ROWS))


def in_bands(schedule: Schedule, product: TiledProduct, tiles: Tiles) -> Tiles:
    """Cut the loop over tiles of rows so that the packed rows of one band fit the cache."""
    (loop,) = tiles.rows
    found = extent_value(schedule, loop)
    if found is None:
        return replace(tiles, bands=[loop], rows=[], is_banded=True)
    count = max(1, found - is_peeled(schedule, loop))  # whole tiles: one that is cut short is peeled, and a band of its own
    tile_bytes = product.tile.rows * max(1, product.lhs_bytes // max(1, count * product.tile.rows))
    most = max(1, min(int(product.target.l2_bytes * PACKED_BYTES_OF_L2) // tile_bytes, count // product.target.cores))
    sizes = even_sizes(count)
    size = schedule.choose(product.name, "band_tiles", sizes, max(size for size in sizes if size <= most))
    band = cut_tiles(schedule, loop, size)
    return replace(tiles, bands=[band.around], rows=[band.inside], is_banded=True)
