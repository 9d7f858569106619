"""Moments as Python says them: text, datetimes, dates, and spans back from now."""

from datetime import date, datetime, timedelta

from ..common.durations import format_ms

When = str | date | timedelta
"""What stands behind the `@` of a ref; a `datetime`; a `date`, whose first instant is meant; or so long ago."""


def in_words(moment: When) -> str:
    """What stands behind the `@` of a ref for that moment.

    Nothing is known of the future, so a `timedelta` is so long ago whatever its sign.
    """
    if isinstance(moment, timedelta):
        # Of a thousandth of a second or more: less is now.
        span_ms = round(abs(moment) / timedelta(milliseconds=1))
        return f"-{format_ms(span_ms)}" if span_ms else "now"
    return moment.isoformat() if isinstance(moment, datetime | date) else moment
