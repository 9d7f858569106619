"""Search for the record behind a bad batch of an attached Spark query, among the records that the batch read.

The query's operator is not known, so nothing is replayed. Instead, the user passes a function that converts rows of the
query's source to input rows of its stateful operator. The function's result shows which records have a bad key. If
there are several, the record whose values are nearest to the change is returned as a guess.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from ....common.program_file import load_function as named_function
from ....errors import NotFound
from ....pipeline.batch.rerun import numbered_records_frame
from ....pipeline.kafka.columns import MessageColumns
from ....pipeline.kafka.protocol import Kafka
from ....pipeline.run.program import import_program
from ....pipeline.spark.plans import hide_record_numbers, with_record_numbers
from ....pipeline.spark.session import spark_session
from ....pipeline.spark.user_errors import as_user_error
from ....snapshot.bisect.causes import Cause, TracedCause, unknown_cause
from ....snapshot.bisect.verdict import RecordLocation, RecordPath, UnprovedRecord, Verdict
from ....snapshot.cut.lineage import Window
from ....snapshot.diff.key_changes import KeyChanges
from ....state.failing import RECORD
from ....state.records import ranges, topic_id_in
from ....store.versions.manifest import Manifest
from ..replay.program import REPLAY_CONF
from ..replay.record import read_message

_PATIENCE_S = 60.0
InputFunction = Callable[[DataFrame], DataFrame]


def cause_in_window(kafka: Kafka, verdict: Verdict, code: str) -> TracedCause:
    """Return the cause of a bad batch: a record that the batch read and that has a bad key.

    `code` is `FILE:FUNCTION`; the function converts source rows to rows with the table's key columns.
    """
    guilty = find_record_in_window(kafka, verdict, load_function(code))
    if guilty.source_record is None:
        return TracedCause(unknown_cause(guilty.reason), guilty)
    address = guilty.source_record.location
    description = "the only record of the batch with this key"
    if guilty.of_key > 1:
        description = f"the one of {guilty.of_key:,} records with this key whose numbers are nearest to the change"
    sentence = f"a guess: {address} is the record behind it, {description}; batches of a Spark query cannot be replayed"
    return TracedCause(Cause("record", proved=False, sentence=sentence, record=address, records=(address,)), guilty)


def load_function(code: str) -> InputFunction:
    """Load the function that `FILE:FUNCTION` names.

    Raises `Usage`, `NotFound`, and `Refused` if the file fails.
    """
    meaning = "the function turns rows of the query's source into the input of its stateful operator"
    return named_function(code, meaning, import_program)


def find_record_in_window(kafka: Kafka, verdict: Verdict, function: InputFunction) -> RecordPath:
    """Return the record with a bad key among the records that the bad commit read.

    Raises `Refused` if the function fails.
    """
    stage, windows = verdict.stage, verdict.lineage.direct
    try:
        previous, after = verdict.good.stages.get(stage), verdict.bad.stages[stage]
        if verdict.keys is None or not len(changed := verdict.keys.changed()):
            raise UnprovedRecord(f"it is not known which keys turned bad at {stage}@v{after.version}")
        read = _window(kafka, previous, after)
        if not read.num_rows:
            raise UnprovedRecord(f"{stage}@v{after.version} read no records of a Kafka topic")
        rows = _run_function(read, function)
        candidates, key_row = _match_keys(rows, changed.keys)
        if not len(candidates):
            raise UnprovedRecord("the function returns no record with one of these keys")
    except (UnprovedRecord, NotFound) as error:
        return RecordPath((), None, error.message, windows, None)
    numbers = np.asarray(rows[RECORD])[candidates]
    of_key = len(np.unique(numbers))
    nearest = 0 if of_key == 1 else _nearest_row(rows.take(pa.array(candidates)), key_row, changed)
    if nearest is None:
        some = ", ".join(str(_address(read, int(number))) for number in np.unique(numbers)[:3])
        reason = f"{of_key:,} records of the batch have the key, and no number column tells them apart: {some}, …"
        return RecordPath((), None, reason, windows, None, of_key=of_key)
    number = int(numbers[nearest])
    address = _address(read, number)
    window = Window(address.topic, address.partition, address.offset, address.offset + 1)
    message = read_message(kafka, address, topic_id_in(after, address.topic), _PATIENCE_S)
    return RecordPath((), message, "", (window,), changed.take(key_row[[nearest]]), of_key=of_key)


def _window(kafka: Kafka, previous: Manifest | None, after: Manifest) -> pa.Table:
    parts = list[pa.RecordBatch]()
    for name, end in sorted(after.inputs.items()):
        start = previous.inputs.get(name) if previous is not None else None
        if topic_exists(kafka, end.topic):
            for part in ranges(start.offsets if start is not None else (), end.offsets):
                span = (end.topic, part.partition, part.first, part.last)
                chunks = kafka.read(*span, patience_s=_PATIENCE_S, topic_id=end.topic_id)
                parts += (MessageColumns(messages).to_spark_batch() for messages in chunks)
    return pa.Table.from_batches(parts) if parts else pa.table({})


def topic_exists(kafka: Kafka, topic: str) -> bool:
    try:
        kafka.offset_bounds(topic)
    except NotFound:
        return False
    return True


def _run_function(read: pa.Table, function: InputFunction) -> pa.Table:
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-window-", ignore_cleanup_errors=True) as folder,
        spark_session("slackwater bisect", master="local[*]", conf=REPLAY_CONF) as spark,
    ):
        records = numbered_records_frame(spark, read, np.arange(read.num_rows), Path(folder) / "records")
        shown = hide_record_numbers(records)
        with as_user_error("the function"):
            frame = with_record_numbers(function(shown), [shown])
            if frame is None:
                raise UnprovedRecord("the function mixes records: each row must come from one record, without groupBy")
            return frame.toArrow()


def _match_keys(rows: pa.Table, keys: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    named = {name.casefold(): name for name in rows.column_names}
    shared = [name for name in keys.column_names if name.casefold() in named]
    if not shared:
        raise UnprovedRecord(f"the function's rows have none of the key's columns: {', '.join(keys.column_names)}")
    row_keys = pa.table({name: rows[named[name.casefold()]].cast(keys[name].type) for name in shared})
    numbered_rows = row_keys.append_column("_row", pa.array(np.arange(rows.num_rows)))
    numbered_keys = keys.select(shared).append_column("_key", pa.array(np.arange(keys.num_rows)))
    matches = numbered_rows.join(numbered_keys, keys=shared, join_type="inner").sort_by("_row")
    return np.asarray(matches["_row"]), np.asarray(matches["_key"])


def _nearest_row(rows: pa.Table, key_row: npt.NDArray[np.int64], changed: KeyChanges) -> int | None:
    sides = [np.array([*_numeric_columns(side)]) for side in (changed.before, changed.after)]
    if not sides[0].size:
        return None
    values_before, values_after = np.nan_to_num(sides[0]), np.nan_to_num(sides[1])
    most = np.argmax(np.abs(values_after - values_before) / np.maximum(np.abs(values_before), 1), axis=0)
    was, now = (side[most, np.arange(side.shape[1])][key_row] for side in (values_before, values_after))
    distances = np.full(rows.num_rows, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for values in _numeric_columns(rows):
            for target in (now - was, now):
                distances = np.fmin(distances, np.where(target == 0, np.inf, np.abs(values - target) / np.abs(target)))
    nearest, next_one = np.partition(distances, 1)[:2]
    return int(np.argmin(distances)) if nearest < 0.5 and nearest < 0.5 * next_one else None


def _numeric_columns(rows: pa.Table) -> Iterator[npt.NDArray[np.float64]]:
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = column.type
        if name != RECORD and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            yield np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _address(read: pa.Table, number: int) -> RecordLocation:
    row: Mapping[str, Any] = read.select(["topic", "partition", "offset"]).slice(number, 1).to_pylist()[0]
    return RecordLocation(row["topic"], row["partition"], row["offset"])
