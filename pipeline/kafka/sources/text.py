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
    incomplete, unread = b"", list[bytes]()
    """The last line so far, and the complete lines of a record that has more lines; `line` is the record's first."""
    for chunk in chain(read_from(start), (None,)):
        *pieces, incomplete = (incomplete + (chunk or b"")).split(b"\n")
        if chunk is None and incomplete:
            pieces.append(incomplete)
        if not line and not unread and pieces:
            pieces[0] = pieces[0].removeprefix(_BOM)
        pieces = [*unread, *pieces]
        begins, texts, unread = (
            _join_quoted(pieces, is_end=chunk is None) if quoted else (range(len(pieces)), pieces, [])
        )
        numbers = line + np.array(begins, np.int64)
        line += len(pieces) - len(unread)
        low, high = np.searchsorted(numbers, (first, last))
        texts = [text.removesuffix(b"\r") for text in texts[low:high]]
        kept = [row for row, text in enumerate(texts) if text and not text.isspace()]
        if kept:
            yield numbers[low:high][kept], [texts[row] for row in kept] if len(kept) < len(texts) else texts
        if line >= last:
            return


def _join_quoted(lines: Sequence[bytes], *, is_end: bool) -> tuple[list[int], list[bytes], list[bytes]]:
    """Return the first line of each record and its text, and the lines after the last complete record."""
    begins, texts, begin, is_open = list[int](), list[bytes](), 0, False
    for number, line in enumerate(lines):
        is_open ^= bool(line.count(b'"') % 2)
        if not is_open or (is_end and number == len(lines) - 1):
            begins.append(begin)
            texts.append(b"\n".join(lines[begin : number + 1]) if number > begin else line)
            begin = number + 1
    return begins, texts, list(lines[begin:])
