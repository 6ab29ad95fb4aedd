"""What a Winograd convolution costs, by an estimate of seconds: for the pass that chooses it, and for the rule that schedules it."""

from __future__ import annotations

from dataclasses import dataclass

from tc.cost.rates import rates_of_core
from tc.schedule.rules.common import divisors
from tc.schedule.rules.tiling import TileSpace
from tc.target.table import GENERIC, CoreRates

NEAR_BYTES = 16 << 20
"""What is near: of a third-level cache that cores and programs share, no more is counted on."""

TILES_OF_L2, WEIGHTS_OF_L2 = 0.5, 0.6
"""The parts of the second-level cache that transformed tiles and transformed weights may take."""


@dataclass(frozen=True)
class WinogradShape:
    """A convolution by tiles of `tile` x `tile` results: `samples` planes of `rows` x `across` tiles; channels in blocks of `block`, which
    are one vector unless `lanes` says how many f32 a vector of the core has. `weights_stay`: from run to run, in the second-level cache."""

    tile: int
    samples: int
    inputs: int
    outputs: int
    rows: int
    across: int
    block: int
    lanes: int = 0
    machine: CoreRates = GENERIC
    weights_stay: bool = False

    @property
    def places(self) -> int:
        return (self.tile + 2) ** 2

    @property
    def row_bytes(self) -> int:
        """Of one row of transformed tiles, before and after the products."""
        return 4 * self.places * self.across * (self.inputs + self.outputs) * self.block

    @property
    def weight_bytes(self) -> int:
        return 4 * self.places * self.inputs * self.outputs * self.block**2

    @property
    def heights(self) -> list[int]:
        """How many rows of tiles may go through all stages at a time: equal parts of a plane, or those of all planes, each stage before
        the next."""
        return [*dict.fromkeys((*divisors(self.rows), self.all_rows))]

    @property
    def all_rows(self) -> int:
        return self.samples * self.rows

    def best_height(self, l2_bytes: int, registers: int, cores: int) -> int:
        """The fastest of `heights`, of those that take the same time the least."""
        return min(self.heights, key=lambda height: self.seconds(height, l2_bytes, registers, cores))

    def seconds(self, height: int, l2_bytes: int, registers: int, cores: int = 1) -> float:
        """With so many rows of tiles at a time, for the core that has most to do, times `cores`."""
        reached = rates_of_core(self.machine, self.lanes or self.block)
        tiles = min(height, self.rows) * self.across
        space = TileSpace(tiles, 1, self.outputs, self.block, registers, machine=self.machine, vector_bytes=4 * self.block)
        full = tiles * self.outputs / self.machine.fma_per_cycle  # cycles, were all register tiles full
        flops = 2.0 * self.weight_bytes / 4 * self.all_rows * self.across
        products = flops * space.cycles(space.best()) / full / reached.flops_per_second
        bands = self.all_rows // height
        whole = height == self.all_rows
        held = height * self.row_bytes
        rate = reached.far_bytes_per_second
        if held <= NEAR_BYTES:
            rate = reached.near_bytes_per_second
        if held <= TILES_OF_L2 * l2_bytes:
            rate = reached.l2_bytes_per_second
        moved = self.all_rows * self.row_bytes / rate
        stay = whole or self.weight_bytes <= WEIGHTS_OF_L2 * l2_bytes
        read = reached.l2_bytes_per_second if self.weights_stay and stay else reached.weight_bytes_per_second
        weights = self.weight_bytes / read
        if not stay:
            again = (bands - 1) * self.weight_bytes
            if self.weight_bytes <= NEAR_BYTES:  # fetched from a cache while products are made of others
                products = products / bands + max(products * (bands - 1) / bands, again / reached.near_bytes_per_second)
            else:
                weights += again / read
        shares = cores if whole else bands / -(-bands // cores)  # cores at work
        return (products + moved) * cores / shares + weights
