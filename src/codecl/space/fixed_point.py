"""Moments as whole numbers modulo 2⁶⁴, so that their sum is exact in any order and masks can hide them.

A number is counted in units of 2⁻²⁴. The sum of N agents fits into 64 bits with its sign if none is 2³⁹ / N or more.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from codecl.errors import RunFailed

FRACTION = 24  # bits behind the point
UNIT = 2.0**-FRACTION
SLACK = 1e-4  # of a layer's energy: what rounding may do to the part of it that is kept, at most


def limit(agents: int) -> float:
    """What every number stays below. Law: the sum of so many agents' does not overflow."""
    return 2.0 ** (63 - FRACTION) / agents


def fixed(rows: Mapping[str, Tensor], agents: int) -> dict[str, Tensor]:
    """Packed moments (growth.packed) as whole numbers of units, int64; refused where they do not fit.

    Law: floating(fixed(rows)) is within half a unit of the rows."""
    out = {}
    for name, row in rows.items():
        layer, energy = name.rpartition("/")[0], float(row.flatten()[-1])
        largest = float(row.abs().max())
        if not largest < limit(agents) - 1:  # one that is not a number too
            raise RunFailed(
                f"growth.pool: masked sums of {agents} agents hold numbers below {limit(agents):.3g}, and a moment of"
                f" layer {layer!r} is {largest:.3g}; use plain, or fewer growth.images"
            )
        side = len(row) - 1 if row.ndim == 2 else int((2 * (len(row) - 1)) ** 0.5)
        if 0 < energy < side * UNIT / 2 / SLACK:
            raise RunFailed(
                f"growth.pool: masked sums count in units of {UNIT:.2g}, and the energy of layer {layer!r} is only"
                f" {energy:.3g} in {side} directions; use plain, or scale the inputs up"
            )
        out[name] = (row.double() / UNIT).round().to(torch.int64)
    return out


def floating(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a sum of such numbers stands for."""
    return {name: row.double() * UNIT for name, row in rows.items()}
