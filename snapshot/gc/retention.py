"""What of an app's history is worth keeping: all of it for a while, then a moment an hour, then a moment a day.

Pure. As with restic's and borg's policies, each rule keeps something, and what no rule keeps goes. A thinned history
answers for every moment of its window: with the app as it was when the hour (or the day) of that moment began, or
better.
"""

from dataclasses import dataclass

from ...durations import DAY_MS, HOUR_MS
from ...validation import whole


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules for one app. None is no such rule; without any rule everything is kept.

    Raises:
        Usage: a rule is no whole number, or is negative, or keeps no version.
    """

    all_ms: int | None = None
    """Every version this young."""
    versions: int | None = None
    """Every one of the newest so many versions of each stage."""
    hourly_ms: int | None = None
    """Within this age, the app as it was at the end of each hour (UTC)."""
    daily_ms: int | None = None
    """Within this age, the app as it was at the end of each day (UTC)."""

    def __post_init__(self) -> None:
        for name in ("all_ms", "hourly_ms", "daily_ms"):
            value = getattr(self, name)
            if value is not None:
                whole(f"retention: {name}", value, 0)
        if self.versions is not None:
            whole("retention: versions", self.versions, 1)

    @property
    def keeps_everything(self) -> bool:
        """Whether no rule is set."""
        return self == Retention()

    def moments(self, now_ms: int, until_ms: int) -> tuple[tuple[int, str], ...]:
        """The ends of the hours and days whose state stays, up to `until_ms`, oldest first, each with its rule.

        An end is the last millisecond of its hour or day. Of each rule's window the hour or day in which it begins is
        there too: the first moments of the window are answered from it.
        """
        found: dict[int, str] = {}
        for rule, window_ms, period_ms in (("daily", self.daily_ms, DAY_MS), ("hourly", self.hourly_ms, HOUR_MS)):
            if window_ms is not None:
                begin = max(0, now_ms - window_ms) // period_ms * period_ms
                found |= {end - 1: rule for end in range(begin, min(now_ms, until_ms + 1) + 1, period_ms)}
        return tuple(sorted(found.items()))
