"""What a benchmark reports. A figure alone says little, so each carries its ratios to something known."""

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured value, and how many times that of each named rival or earlier state it is."""

    metric: str
    value: float
    unit: str
    ratios: dict[str, float] = {}
