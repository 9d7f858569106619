"""Output of results: plain tables, values, files, numbers and times."""

import json
import re
import shlex
from datetime import UTC, date, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from slackwater.client.show import formats, values
from slackwater.client.show.document import TableBlock
from slackwater.client.show.maintenance import _record_lifetime
from slackwater.client.show.shown import format_plain as as_plain
from slackwater.client.show.shown import render_for_terminal as as_rich
from slackwater.common import instants
from slackwater.errors import Refused, Usage
from slackwater.operations.erasure.reach import OutOfReach

EVERYTHING = pa.table(
    {
        "name": ["a,b", None],
        "count": [1, 2_000_000],
        "sum": [Decimal(10), Decimal(-3)],
        "price": [Decimal("1.50"), None],
        "mean": [0.5, float("nan")],
        "is_late": [True, False],
        "day": [date(2013, 1, 1), None],
        "at": [datetime(2013, 1, 1, 6, tzinfo=UTC), None],
        "raw": [b"\x00\xff", None],
        "list": [[1, 2], None],
        "struct": [{"x": 1}, None],
    }
)


def test_bytes_inside_nested_values_are_hexadecimal_too() -> None:
    kind = pa.struct([("b", pa.binary()), ("l", pa.list_(pa.binary())), ("m", pa.map_(pa.string(), pa.binary()))])
    rows = pa.table({"s": pa.array([{"b": b"\xff", "l": [b"\0", None], "m": [("k", b"\x01")]}, None], kind)})
    shown = {"b": "ff", "l": ["00", None], "m": [("k", "01")]}
    assert values.rows_as_dicts(rows) == [{"s": shown}, {"s": None}]
    assert [row for (row,) in values.grid(rows).rows] == ['{"b":"ff","l":["00",null],"m":[["k","01"]]}', r"\N"]


def test_plain_columns_are_aligned_and_complete() -> None:
    long = "x" * 500
    grid = TableBlock.from_rows(("stage", ">rows"), [("legs", "1,200"), (long, "3")])
    heading, first, second = as_plain(grid).splitlines()
    assert heading == "stage" + " " * 497 + " rows"
    assert first == "legs" + " " * 496 + "  1,200"
    assert second == f"{long}      3"


def test_lines_have_no_trailing_blanks() -> None:
    assert as_plain(TableBlock.from_rows(("a", "b"), [("1", ""), ("2", "long")])) == "a  b\n1\n2  long\n"


def test_wide_characters_count_as_two_columns() -> None:
    assert as_plain(TableBlock.from_rows(("a", "b"), [("日本", "1"), ("ab", "2")])).splitlines()[1:] == [
        "日本  1",
        "ab    2",
    ]


def test_brackets_are_printed_literally_on_a_terminal() -> None:
    drawn = StringIO()
    Console(file=drawn, width=80).print(as_rich(TableBlock.from_rows(("read",), [("flights[red] 1..2",)]), 80))
    assert "flights[red] 1..2" in drawn.getvalue()


@given(st.lists(st.lists(st.text("abc ", max_size=60), min_size=3, max_size=3), max_size=4), st.integers(30, 120))
def test_values_are_not_truncated_on_a_terminal(rows: list[list[str]], width: int) -> None:
    drawn = StringIO()
    Console(file=drawn, width=width).print(as_rich(TableBlock.from_rows(("x", ">y", "z"), rows), width))
    letters = sorted(letter for row in rows for cell in row for letter in cell.replace(" ", ""))
    shown = drawn.getvalue().partition("\n")[2]
    assert sorted(shown.replace(" ", "").replace("\n", "")) == letters


def test_narrow_columns_keep_their_lines_and_wide_ones_fold() -> None:
    drawn = StringIO()
    grid = TableBlock.from_rows(("committed", "read"), [("2026-11-21T08:46:16Z (25 min ago)", "x" * 100)])
    Console(file=drawn, width=80).print(as_rich(grid, 80))
    assert "2026-11-21T08:46:16Z (25 min ago)  xxx" in drawn.getvalue()


def test_offset_ranges_name_each_topic_once() -> None:
    windows = ("flights[0] 1..2", "flights[1] 3..4", "other[0] 5..6")
    assert formats.join_ranges(windows) == "flights[0] 1..2, [1] 3..4, other[0] 5..6"


def test_how_values_of_each_type_are_shown() -> None:
    grid = values.grid(EVERYTHING)
    assert grid.rows[0] == (
        "a,b", "1", "10", "1.50", "0.5", "true", "2013-01-01", "2013-01-01 06:00:00+00:00", "00ff", "[1,2]",
        '{"x":1}',
    )  # fmt: skip
    assert grid.rows[1][:5] == (r"\N", "2000000", "-3", r"\N", "nan")
    assert grid.right_aligned[:6] == (False, True, True, True, True, False)


def rows_of(table: pa.Table) -> Any:
    return json.loads(bytes(values.table_data(table)["rows"]))


def test_json_has_numbers_for_decimals_and_null_for_values_without_json() -> None:
    first, second = rows_of(EVERYTHING)
    assert (first["sum"], first["price"], first["raw"], first["list"]) == (10, 1.5, "00ff", [1, 2])
    assert (second["mean"], second["name"]) == (None, None)
    assert rows_of(EVERYTHING.slice(0, 0)) == []


FAR = pa.table(
    {
        "at": pa.array([1_700_000_000, 1_700_000_000_000], pa.int64()).cast(pa.timestamp("s")),
        "on": pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()),
        "in": pa.array([[-800_000], None], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
    }
)
"""Times that Python cannot represent, such as milliseconds read as seconds."""


def test_times_beyond_the_year_9999_are_shown(tmp_path: Path) -> None:
    near, far = values.grid(FAR).rows
    assert near == ("2023-11-14 22:13:20", "1970-01-01", '["-0221-09-04"]')
    assert far == ("55840-11-08 22:13:20", "5881580-07-11", r"\N")
    assert rows_of(FAR) == [
        {"at": "2023-11-14T22:13:20", "on": "1970-01-01", "in": ["-0221-09-04"]},
        {"at": "55840-11-08 22:13:20", "on": "5881580-07-11", "in": None},
    ]
    values.write_table(FAR, tmp_path / "far.csv")
    assert [line.replace('"', "") for line in (tmp_path / "far.csv").read_text().splitlines()] == [
        "at,on,in",
        "2023-11-14 22:13:20,1970-01-01,[-0221-09-04]",
        "55840-11-08 22:13:20,5881580-07-11,",
    ]


def test_a_file_format_that_cannot_hold_a_column_is_refused_and_no_file_stays(tmp_path: Path) -> None:
    with duckdb.connect() as con:
        spans = con.sql("SELECT INTERVAL 3 MONTH AS span").to_arrow_table()
    with pytest.raises(Refused, match=r"cannot hold these columns: .*interval") as caught:
        values.write_table(spans, tmp_path / "out.parquet")
    assert "VARCHAR" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    values.write_table(spans, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == '"span"\n"[3,0,0]"\n'


def test_columns_of_the_same_name_are_numbered() -> None:
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_1"])
    assert rows_of(table) == [{"a": 1, "a_1": 2, "a_1_1": 3}]


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json", ".CSV"])
def test_duckdb_reads_a_written_file_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    values.check_ending(path)
    values.write_table(EVERYTHING, path)
    read = duckdb.sql(f"SELECT count, name, is_late, sum FROM '{path}' ORDER BY count").fetchall()
    assert read == [(1, "a,b", True, 10), (2_000_000, None, False, -3)]
    assert list(tmp_path.iterdir()) == [path]


def test_the_error_for_an_unknown_file_ending_names_the_three_known(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"\.parquet, \.csv or \.json"):
        values.check_ending(tmp_path / "out.xlsx")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be written"):
        values.write_table(EVERYTHING, tmp_path / "missing" / "out.csv")
    (tmp_path / "taken.csv").mkdir()
    with pytest.raises(Refused, match="cannot be written"):
        values.write_table(EVERYTHING, tmp_path / "taken.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.csv"]


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (10**16, "10000.0 TB")],
)
def test_sizes(num_bytes: int, words: str) -> None:
    assert formats.size(num_bytes) == words


ANY_TIME = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.time64("us"), pa.time64("ns"), pa.date32(), pa.time32("s"), pa.time32("ms")),
]


@pytest.mark.parametrize("kind", ANY_TIME, ids=str)
@given(st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**12), 10**12) | st.just(1_700_000_000_000))
def test_any_time_is_the_same_in_text_json_and_csv(kind: pa.DataType, ticks: int) -> None:
    bits = kind.bit_width
    number = (ticks + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    column = pa.array([number, None], pa.int32() if bits == 32 else pa.int64()).view(kind)
    table = pa.table({"at": column})
    (word,), null = values.grid(table).rows
    assert null == (r"\N",)
    (shown, _) = (row["at"] for row in json.loads(bytes(values.table_data(table)["rows"])))
    assert "range" not in str(shown)
    with TemporaryDirectory() as folder:
        values.write_table(table, Path(folder, "a.csv"))
        name, written, *_ = Path(folder, "a.csv").read_text().splitlines()
    assert name == '"at"'
    if not pa.types.is_duration(kind):
        # CSV and text have a blank where ISO has a T. Arrow's CSV has a Z where Python has +00:00, and all digits.
        plain = [str(text).strip('"').replace("T", " ").replace("+00:00", "Z") for text in (word, shown, written)]
        assert len({re.sub(r"\.?0*Z?$", "", text) if "." in text else text.rstrip("Z") for text in plain}) == 1, plain
    else:
        assert written.strip('"') == word


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**14), 10**14))
def test_a_time_of_any_year_is_formatted(time_ms: int) -> None:
    text = str(np.datetime64(time_ms, "ms")) if time_ms > -(2**63) else str(np.datetime64(time_ms + 1, "ms"))[:-1] + "2"
    year, rest = text[: text.index("-", 1)], text[text.index("-", 1) :]
    padded = f"-{year[1:]:0>4}" if year.startswith("-") else f"{year:0>4}"
    assert instants.format_iso(time_ms, "milliseconds") == f"{padded}{rest}Z"


def test_bytes_that_are_not_utf8_are_shown_as_hex() -> None:
    assert values.format_bytes("größer".encode()) == "größer"
    assert values.format_bytes(b"\xff\x00") == "not valid UTF-8, as hex: ff00"
    assert values.format_bytes(b"\xff" * 9, 4, "…") == "not valid UTF-8, as hex: ffff…"
    assert values.format_bytes(b"") == ""


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
@example("FROM input('flights')")
@example("it's $HOME")
def test_a_quoted_word_is_one_word_for_a_shell(word: str) -> None:
    quoted = formats.quote_word(word)
    assert shlex.split(quoted) == [word]
    # Within double quotes, a shell expands text that begins with these characters.
    assert quoted == shlex.quote(word) or not {*word} & {*'"$`\\!'}


@pytest.mark.parametrize("retention_ms", [None, -1])
def test_rows_of_files_expire_never(retention_ms: int | None) -> None:
    assert _record_lifetime(OutOfReach("input", "files:in", retention_ms)) == "never: delete them in the files"
