"""The result of a benchmark: figures with their ratios to something known."""

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One measured value, and its ratio to each named competitor or limit."""

    metric: str
    value: float
    unit: str
    ratios: dict[str, float] = {}
