"""Records of texts: those of Python's own readers, at the lines in which they begin, from wherever reading starts."""

import csv
import io
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.kafka.sources.text import index_lines, read_lines

FIELD = st.text(st.sampled_from('ab ,"\né€'), max_size=5)
ROWS = st.lists(st.lists(FIELD, min_size=2, max_size=3), max_size=12)
SIZES = st.integers(1, 12)


def chunks(data: bytes, size: int, start: int = 0) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(start, len(data), size))


def read(data: bytes, size: int, marks: tuple[tuple[int, int], ...], span: range, *, quoted: bool) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    parts = read_lines(lambda start: chunks(data, size, start), marks, span.start, span.stop, quoted=quoted)
    for numbers, texts in parts:
        found |= dict(zip(numbers.tolist(), texts, strict=True))
    return found


@given(st.lists(st.binary(max_size=6), max_size=30), st.booleans(), SIZES, st.integers(1, 5), st.data())
def test_lines_are_those_of_a_plain_split(
    lines: list[bytes], ended: bool, size: int, every: int, data: st.DataObject
) -> None:
    text = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    plain = text.split(b"\n")
    if not plain[-1]:
        plain.pop()
    count, marks = index_lines(chunks(text, size), quoted=False, every=every)
    assert count == len(plain)
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, count)] * 2)))
    expected = {
        n: line.removesuffix(b"\r")
        for n, line in enumerate(plain)
        if first <= n < last and line.strip(b" \t\n\r\x0b\f")
    }
    if 0 in expected:
        expected[0] = expected[0].removeprefix(b"\xef\xbb\xbf")
    assert read(text, size, marks, range(first, last), quoted=False) == expected


@given(ROWS, SIZES, st.integers(1, 4), st.data())
def test_records_of_csv_are_those_of_pythons_reader(
    rows: list[list[str]], size: int, every: int, data: st.DataObject
) -> None:
    """Fields have quotes, commas and line breaks; a record belongs to the range that has its first line."""
    out = io.StringIO()
    writer, begins = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL), []
    for row in rows:
        begins.append(out.getvalue().count("\n"))
        writer.writerow(row)
    text = out.getvalue().encode()
    count, marks = index_lines(chunks(text, size), quoted=True, every=every)
    assert count == out.getvalue().count("\n")
    assert {line for line, _ in marks} <= {*begins, count}
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, count)] * 2)))
    found = read(text, size, marks, range(first, last), quoted=True)
    expected = {n: row for n, row in zip(begins, rows, strict=True) if first <= n < last}
    parsed = {n: next(csv.reader(io.StringIO(record.decode(), newline=""))) for n, record in found.items()}
    assert parsed == expected


@pytest.mark.parametrize("quoted", [False, True])
def test_a_long_line_and_a_long_record_are_read_in_linear_time(quoted: bool) -> None:
    """The time that is allowed is a hundred times what it takes, and a hundredth of what repeated joins would take."""
    data = b'"' + b"x\n" * 200_000 if quoted else b"x" * 8_000_000
    begun_s = time.process_time()
    found = read(data, 100, (), range(1), quoted=quoted)
    assert found == {0: data.removesuffix(b"\n")}
    assert time.process_time() - begun_s < 20
