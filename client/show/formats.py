"""Formatting of numbers, time spans and offset ranges as short text for table cells."""

import re
import shlex
from collections.abc import Iterable, Sequence

from ...common.durations import format_rounded

MAX_SHOWN = 10
_BAR_WIDTH = 40
_IN_DOUBLE_QUOTES = re.compile(r'["$`\\!]')
"""Characters that have a special meaning within double quotes of a shell."""


def count(number: int | None) -> str:
    """Format a number with commas, such as `1,234,567`; `?` for None."""
    return "?" if number is None else f"{number:,}"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: `1 row`, `2 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: int) -> str:
    """Format bytes in decimal units with at most one decimal: `930 B`, `12.4 MB`."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def duration(milliseconds: int) -> str:
    """Format milliseconds for people: `85 ms`, `2.4 s`, `3 min`."""
    return f"{milliseconds / 1000:.1f} s" if 1000 <= milliseconds < 60_000 else format_rounded(milliseconds)


def upper_bound(rows: int) -> str:
    """Format a number of offsets, which is an upper bound of the number of records: `≤1,234`."""
    return f"≤{rows:,}"


def join_ranges(texts: Iterable[str]) -> str:
    """Join offset ranges in one line, naming each topic once: `flights[0] 3..9, [1] 2..7`."""
    shown, last = [], None
    for text in texts:
        topic, bracket, range_text = text.rpartition("[")
        shown.append(text if topic != last else bracket + range_text)
        last = topic
    return ", ".join(shown)


def format_offsets(by_topic: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Format one offset per partition in a line: `flights[0] 120, [1] 98`."""
    return join_ranges(
        f"{topic}[{partition}] {at}" for topic, topic_offsets in by_topic for partition, at in enumerate(topic_offsets)
    )


def offset_ranges(topic: str, starts: Sequence[int], ends: Sequence[int]) -> str:
    """Format the offset range of each partition of a topic, in one line, without empty ranges."""
    pairs = enumerate(zip(starts, ends, strict=False))
    return join_ranges(f"{topic}[{partition}] {start}..{end}" for partition, (start, end) in pairs if start < end)


def progress_bar(done: int, total: int) -> str:
    """Return a progress bar of 40 characters, full if `done` is `total` or more."""
    full = min(_BAR_WIDTH, _BAR_WIDTH * done // max(total, 1))
    return f"{'━' * full}{'─' * (_BAR_WIDTH - full)}"


def name_with_folder(called: str, folder: str) -> str:
    """Format an app's name, followed by the name of its folder if that differs."""
    return folder if called == folder else f"{called} (folder {folder})"


def quote_word(word: str) -> str:
    """Return a word of a command line, quoted for a shell if needed. A word with single quotes gets double quotes."""
    return f'"{word}"' if "'" in word and not _IN_DOUBLE_QUOTES.search(word) else shlex.quote(word)


def store_flag(root: str | None) -> str:
    return f" --store {shlex.quote(root)}" if root else ""
