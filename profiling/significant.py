"""Numbers with some significant digits, for people."""

import math

SMALLEST = 1e-4
"""Below it numbers are written with an exponent, as `1.2e-05`."""


def significant(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits and no zeros at its end, such as `0.25`.

    Digits before the point are never dropped: 10,130.4 is `10,130`, where `format` has `1.013e+04`.
    """
    if not math.isfinite(value) or 0 < abs(value) < SMALLEST:
        return f"{value:.{digits}g}"
    before_point = math.floor(math.log10(abs(value))) + 1 if value else 1
    decimals = max(0, digits - before_point)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
