"""How numbers, spans of time and windows of offsets are written, short enough for the columns of a table."""

import shlex
from collections.abc import Iterable, Sequence

from ...common.durations import rounded

MOST_SHOWN = 10
"""Of a list that may be long, what people are shown: keys, rows of a channel."""
_BAR_WIDTH = 40


def count(number: int | None) -> str:
    """1234567 as `1,234,567`; `?` for a number that is not known."""
    return "?" if number is None else f"{number:,}"


def plural(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: int) -> str:
    """Bytes in decimal units with at most one digit after the point: `930 B`, `12.4 MB`."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def duration(milliseconds: int) -> str:
    """A span of time, rounded to what a person reads: `85 ms`, `2.4 s`, `3 min`."""
    return f"{milliseconds / 1000:.1f} s" if 1000 <= milliseconds < 60_000 else rounded(milliseconds)


def at_most(rows: int) -> str:
    """What a query of Spark's has read: its checkpoint has offsets, of which not each has a record."""
    return f"≤{rows:,}"


def windows(texts: Iterable[str]) -> str:
    """Windows of offsets in one line, each topic named once: `flights[0] 3..9, [1] 2..7`."""
    shown, last = [], None
    for text in texts:
        topic, bracket, rest = text.rpartition("[")
        shown.append(text if topic != last else bracket + rest)
        last = topic
    return ", ".join(shown)


def offsets(by_topic: Iterable[tuple[str, Sequence[int]]]) -> str:
    """An offset of each partition of topics, as `windows`: `flights[0] 120, [1] 98`."""
    return windows(f"{topic}[{partition}] {at}" for topic, each in by_topic for partition, at in enumerate(each))


def between(topic: str, starts: Sequence[int], ends: Sequence[int]) -> str:
    """What lies between two offsets of each partition, as `windows`; partitions without anything are left out."""
    pairs = enumerate(zip(starts, ends, strict=False))
    return windows(f"{topic}[{partition}] {start}..{end}" for partition, (start, end) in pairs if start < end)


def bar(done: int, total: int) -> str:
    """A bar of 40 characters, full where `done` is `total` or more."""
    full = min(_BAR_WIDTH, _BAR_WIDTH * done // max(total, 1))
    return f"{'━' * full}{'─' * (_BAR_WIDTH - full)}"


def in_folder(called: str, folder: str) -> str:
    """What an app is called, and its folder where that has another name."""
    return folder if called == folder else f"{called} (folder {folder})"


def store_flag(root: str | None) -> str:
    """The `--store` to type for a root; empty for None."""
    return f" --store {shlex.quote(root)}" if root else ""
