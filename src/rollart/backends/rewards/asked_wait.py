"""How long a platform asks its callers to wait: one reading of Retry-After for all of them."""

import math
import re
from email.utils import parsedate_to_datetime

from rollart.core.scoring.judge_calls import MOST_ASKED_S

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


def asked_wait(value: str | None, *, now: float) -> float | None:
    """Seconds that a Retry-After asks for, as seconds or as a date (RFC 9110, 10.2.3).

    They are 0 to `MOST_ASKED_S`: a longer wish would end the platform for the whole run.

    Args:
        now: Unix time.

    Returns:
        None where it asks for nothing, or for nothing that can be read.
    """
    text = "" if value is None else value.strip()
    if _SECONDS.fullmatch(text):
        asked_s = float(text)
    else:
        try:
            asked_s = parsedate_to_datetime(text).timestamp() - now
        except (TypeError, ValueError, OverflowError, OSError):
            return None
    return None if math.isnan(asked_s) else min(max(asked_s, 0.0), MOST_ASKED_S)
