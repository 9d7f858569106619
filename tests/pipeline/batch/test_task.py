"""Rows in a task, before and after the state: grouping by key, and encoding as messages."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Corruption
from slackwater.pipeline.batch.task import OutputTopic, WriteTask
from slackwater.pipeline.kafka.messages import (
    decode_rows,
    encode_rows,
    header_value,
    marker_header,
    split_into_messages,
)
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.step import group_by_key

keys = st.none() | st.sampled_from(["", "a", "b", "é", "é"])
numbers = st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan")])


@given(st.lists(st.tuples(keys, numbers), min_size=1, max_size=20), st.integers(1, 3))
def test_rows_are_grouped_by_key_even_when_hashes_collide(drawn: list[tuple[object, object]], hashes: int) -> None:
    # Hashes so few that different keys share them: equal keys must still share one.
    forms = {}
    for text, number in drawn:
        same = "nan" if number != number else (0.0 if number == 0 else number)
        forms.setdefault((text, same), len(forms))
    labels = [forms[text, "nan" if n != n else (0.0 if n == 0 else n)] for text, n in drawn]
    rows = pa.table(
        {
            "_hash": pa.array([label % hashes for label in labels], pa.int64()),
            "text": pa.array([text for text, _ in drawn], pa.string()),
            "number": pa.array([number for _, number in drawn], pa.float64()),
            "label": pa.array(labels, pa.int64()),
        }
    )
    sorted_rows, groups = group_by_key(rows, ["text", "number"])
    assert groups.num == len(forms)
    by_group = sorted_rows["label"].to_numpy()
    assert all(len(set(by_group[groups.ids == number])) == 1 for number in range(groups.num))
    assert (np.flatnonzero(np.diff(groups.ids, prepend=-1)) == groups.starts).all()


def test_structs_with_the_same_hash_are_grouped_separately() -> None:
    kind = pa.struct([("s", pa.string())])
    keys = [{"s": None}, None, {"s": "a"}, None, {"s": None}]
    rows = pa.table({"_hash": pa.array([42] * 5, pa.int64()), "k": pa.array(keys, kind), "row": range(5)})
    found, groups = group_by_key(rows, ["k"])
    assert groups.num == 3
    by_key = [found["row"].to_pylist()[at:end] for at, end in zip(groups.starts, [*groups.starts[1:], 5], strict=True)]
    assert sorted(by_key) == [[0, 4], [1, 3], [2]]


class Message:
    """The parts of a Kafka message that `decode` reads."""

    def __init__(self, value: bytes, header: bytes) -> None:
        self._value, self._header = value, header

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("other", b"x"), ("slackwater", self._header)]

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 14


@given(st.lists(st.tuples(st.integers(0, 4), st.integers()), max_size=50))
def test_each_row_arrives_once_in_its_partition(rows: list[tuple[int, int]]) -> None:
    schema = pa.schema([("n", pa.int64())])
    numbers = [n % 2**62 for _, n in rows]
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    partitions = np.array([partition for partition, _ in rows], np.int32)
    found: list[tuple[int, int]] = []
    for partition, value in split_into_messages(table, partitions):
        for batch in decode_rows([Message(value, b"mine")], frozenset({"mine"}), schema):  # type: ignore[list-item]
            found += [(partition, n) for n in batch["n"].to_pylist()]
    assert sorted(found) == sorted(zip(partitions.tolist(), numbers, strict=True))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 99)), max_size=30))
def test_each_output_gets_its_own_rows_and_columns(rows: list[tuple[int, int, int]]) -> None:
    # What Spark's union makes of DataFrames (n long), (n long, s string) and (s string).
    columns = ("_0_n", "_1_n", "_1_s", "_2_s")
    cells = [
        {"_0_n": n} if tag == 0 else {"_1_n": n, "_1_s": f"{n}"} if tag == 1 else {"_2_s": f"{n}"} for tag, _, n in rows
    ]
    kinds = {name: pa.int64() if name.endswith("n") else pa.string() for name in columns}
    table = pa.table(
        {name: pa.array([cell.get(name) for cell in cells], kind) for name, kind in kinds.items()}
        | {
            "_input": pa.array([tag for tag, _, _ in rows], pa.int32()),
            "_to": pa.array([to for _, to, _ in rows], pa.int32()),
        }
    )
    schemas = (
        pa.schema([("n", pa.int64())]),
        pa.schema([("n", pa.int64()), ("s", pa.string())]),
        pa.schema([("s", pa.string())]),
    )
    outputs = tuple(OutputTopic(name, name, 4, ("n",)) for name in "abc")
    resources = WorkerResources("a", "s", "store", {}, (Path("cache"), 1), 1)
    parts = WriteTask(resources, "w", 2, outputs, schemas)._rows_by_output(table)
    for tag, (schema, (part, targets)) in enumerate(zip(schemas, parts, strict=True)):
        mine = [(to, n) for number, to, n in rows if number == tag]
        assert part.schema == schema
        assert targets.tolist() == [to for to, _ in mine]
        for name in schema.names:
            assert part[name].to_pylist() == [n if name == "n" else f"{n}" for _, n in mine]


def test_messages_of_unnamed_attempts_and_markers_are_skipped() -> None:
    schema = pa.schema([("n", pa.int64())])
    value = encode_rows(pa.RecordBatch.from_pydict({"n": [1]}, schema=schema))
    zombie, marker = Message(value, b"zombie"), Message(b"", marker_header("s1"))
    assert list(decode_rows([zombie, marker], frozenset({"mine"}), schema)) == []  # type: ignore[list-item]
    assert header_value(marker) == "marker s1"  # type: ignore[arg-type]


def test_an_undecodable_message_is_reported_with_its_address() -> None:
    schema = pa.schema([("n", pa.int64())])
    other = encode_rows(pa.RecordBatch.from_pydict({"m": ["x"]}))
    for value in (other, b"garbage"):
        with pytest.raises(Corruption, match=r"t\[3\]@14"):
            list(decode_rows([Message(value, b"mine")], frozenset({"mine"}), schema))  # type: ignore[list-item]


def test_large_batches_are_split_into_messages_of_a_few_hundred_kilobytes() -> None:
    table = pa.table({"n": pa.array(np.random.default_rng(1).integers(0, 2**60, 400_000))})
    sizes = [len(value) for _, value in split_into_messages(table, np.zeros(400_000, np.int32))]
    assert max(sizes) < 1 << 20
    assert len(sizes) < 20
