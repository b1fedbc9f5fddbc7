"""How numbers are written for people: one form each, "-" for what is not known."""

import math

UNKNOWN = "-"


def number(value: float | None, digits: int = 2) -> str:
    """A plain number."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.{digits}f}"


def small(value: float | None) -> str:
    """A number whose magnitude matters, such as a log-prob gap."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.1e}"


def count(value: float | None) -> str:
    """A count, with k or M where it is long."""
    if value is None or math.isnan(value):
        return UNKNOWN
    for size, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share 0..1 as per cent."""
    return UNKNOWN if share is None or math.isnan(share) else f"{100 * share:.0f} %"


def part(share: float) -> str:
    """A share 0..1 of a whole whose parts are compared: tenths of per cent, "" for none."""
    return f"{100 * share:.1f} %" if share > 0 else ""


def duration(seconds: float | None) -> str:
    """Seconds as 42 s, 3 min 10 s or 2 h 05 min; tenths below 10 s."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
