"""What a finding is, and how its numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]

#: The gravest first.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """Two numbers that collide.

    `code` names the rule and `severity` how much it matters. `have` is what there is, `need` what is wanted of it, in
    the unit that `message` names; None is unlimited or unbounded. `remedy` says what to change to which value and what
    that costs.
    """

    code: str
    severity: Severity
    have: float | None
    need: float | None
    message: str
    remedy: str

    @property
    def ratio(self) -> float | None:
        """`need` / `have`, None where one of them is no positive number."""
        if self.have is None or self.need is None or self.have <= 0:
            return None
        return self.need / self.have


def shown(figure: float | None) -> str:
    """A figure as a person writes it: no exponent, at most two decimals."""
    if figure is None or math.isinf(figure):
        return "unlimited"
    if float(figure).is_integer():
        return str(int(figure))
    return f"{figure:.2f}".rstrip("0").rstrip(".")


def proportion(ratio: float) -> str:
    """A ratio as `2.0:1`, `5.12:1`."""
    return f"{f'{ratio:.2f}'.removesuffix('0')}:1"


def finite(figure: float | None) -> float | None:
    """`figure`, or None where it is infinite: JSON has no infinity."""
    return None if figure is None or math.isinf(figure) else figure
