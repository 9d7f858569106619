"""Records of text files: lines of JSON, or CSV in the form of RFC 4180, whose records may have quoted line breaks.

A record's offset within its file is the number of the line in which it begins, so that messages can name the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

Marks = tuple[tuple[int, int], ...]
MARK_LINES, _MARK_BYTES = 50_000, 32 << 20
"""Number of lines, or of bytes, after which a mark is set."""
_BREAK, _QUOTE = 10, 34
_BOM = b"\xef\xbb\xbf"


def index_lines(chunks: Iterable[bytes], *, quoted: bool, every: int = MARK_LINES) -> tuple[int, Marks]:
    """Return the number of lines, and marks: lines at which a record begins, with byte offsets.

    With `quoted`, no record begins after a line break between quotes.
    """
    marks: list[tuple[int, int]] = []
    lines = size = quotes = 0
    last = _BREAK
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        ends = breaks = np.flatnonzero(data == _BREAK)
        numbers = lines + 1 + np.arange(len(breaks))
        if quoted:
            at = np.flatnonzero(data == _QUOTE)
            is_end = (quotes + np.searchsorted(at, breaks)) % 2 == 0
            ends, numbers, quotes = breaks[is_end], numbers[is_end], quotes + len(at)
        while True:
            line, start = marks[-1] if marks else (0, 0)
            far = np.searchsorted(numbers, line + every), np.searchsorted(ends, start + _MARK_BYTES - size)
            if (row := int(min(far))) >= len(numbers):
                break
            marks.append((int(numbers[row]), size + int(ends[row]) + 1))
        lines, size = lines + len(breaks), size + len(chunk)
        last = chunk[-1] if chunk else last
    return lines + (last != _BREAK), tuple(marks)


def read_lines(
    read_from: Callable[[int], Iterable[bytes]], marks: Marks, first: int, last: int, *, quoted: bool
) -> Iterator[tuple[npt.NDArray[np.int64], list[bytes]]]:
    """Yield the records that begin in lines `first` to `last` - 1, in chunks of line numbers and texts.

    `read_from` returns the file's content from a byte offset on. Blank lines are no records.
    """
    line, start = max((mark for mark in marks if mark[0] <= first), default=(0, 0))
    incomplete, record = list[bytes](), list[bytes]()
    """Chunks of the last line so far, and complete lines of a record that has more; `line` is the record's first."""
    for chunk in chain(read_from(start), (None,)):
        if chunk is not None and b"\n" not in chunk:
            incomplete.append(chunk)
            continue
        *pieces, rest = b"".join([*incomplete, chunk or b""]).split(b"\n")
        incomplete = [rest]
        if chunk is None and rest:
            pieces.append(rest)
        if not line and not record and pieces:
            pieces[0] = pieces[0].removeprefix(_BOM)
        begins: Sequence[int] = range(line, line + len(pieces))
        texts, count = pieces, len(record) + len(pieces)
        if quoted:
            begins, texts = _join_quoted(record, pieces, line, is_end=chunk is None)
        numbers = np.array(begins, np.int64)
        line += count - len(record)
        low, high = np.searchsorted(numbers, (first, last))
        texts = [text.removesuffix(b"\r") for text in texts[low:high]]
        kept = [row for row, text in enumerate(texts) if text and not text.isspace()]
        if kept:
            yield numbers[low:high][kept], [texts[row] for row in kept] if len(kept) < len(texts) else texts
        if line >= last:
            return


def _join_quoted(
    record: list[bytes], lines: Sequence[bytes], line: int, *, is_end: bool
) -> tuple[Sequence[int], list[bytes]]:
    """Return the first line of each record and its text.

    `record` has the lines of a record that is not complete yet, from the line with the number `line` on.
    """
    begins, texts, is_open = list[int](), list[bytes](), bool(record)

    def end() -> int:
        begins.append(line)
        texts.append(b"\n".join(record))
        count = len(record)
        record.clear()
        return line + count

    for text in lines:
        record.append(text)
        is_open ^= bool(text.count(b'"') % 2)
        line = line if is_open else end()
    if is_end and record:
        end()
    return begins, texts
