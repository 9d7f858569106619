"""Derives the schemas of each stage's rows and of each repartition topic.

The user's functions are applied to empty streams once, upstream first. Rows that cannot be stored or sent are refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from msgspec import structs
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ...common.whole_file import temporary_folder
from ...errors import NotFound, Refused, Usage
from ...state.event_time import TimeRules, Watermark
from ...state.fits import check_default, declare_parts
from ...state.kinds.due import window_of
from ...state.kinds.kind import BoundState, DueBy, Kind, key_of_table, with_input_metadata
from ...state.multi_input import tagged_name
from ...store.sst.arrow_types import from_arrow, schema_from_ddl, to_arrow
from ...store.sst.hashing import hash_keys
from ...store.sst.schema import HASH
from ...store.versions import keys
from ...store.versions.column_types import FieldSource, Lineage, quote_for_spark
from ...store.versions.manifest import Column, Policy, Table, is_internal
from ...store.versions.side_tables import REJECTED, table_name
from ..api.app import App
from ..api.sink import Sink
from ..api.stage import Stage
from ..api.table import check_ttl
from ..api.table_sink import TableSink, check_table_rows
from ..api.topic import Repartition, Topic
from ..messages import outgoing
from ..messages.registry import clear_latest_schemas
from ..source.data_source import TOPIC_SCHEMA, TOPIC_SCHEMA_WITH_HEADERS
from ..source.spark_types import arrow_schema_of, spark_schema_of
from ..spark.user_errors import as_user_error
from .column_sources import merge_lineages, trace_sources
from .task import IS_PROBE
from .transform import AppliedFunction, apply_to_streams, has_frame_per_output

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PARTITION_COLUMN = re.compile(r"_to(_\d+)?", re.IGNORECASE)
_SESSION_METADATA = "spark.sessionWindow"


@dataclass(frozen=True, slots=True)
class StageSchemas:
    """The schemas of one stage, and its rules of event time.

    Attributes:
        inputs: Schema of the rows that the function gets, by the input's declared name.
        emits: Schema of the rows that are written to the stage's outputs, by the output's name.
        key: Key columns of the state; empty without state.
        table: The stage's table; None without state.
        bound: The state, bound to the columns that it needs from the function's rows; None without state.
        output_schemas: Without state: schema of each output's rows; empty if all outputs get equal rows.
        watermarks: Watermarks that the function declares.
        inputs_with_watermark: Inputs whose watermark is declared by this stage, or by the stage that writes the input.
        lateness_columns: Columns of a batch's rows that decide if a row is late; empty if no row can be late.
        late_columns: Columns of late rows that are sent on, each with its name in the output.
        lineage: Source fields of the columns, in the form of `Manifest.lineage`.
    """

    inputs: dict[str, StructType]
    emits: dict[str, StructType]
    key: tuple[str, ...]
    table: Table | None
    bound: BoundState | None
    output_schemas: tuple[pa.Schema, ...] = ()
    watermarks: tuple[Watermark, ...] = ()
    inputs_with_watermark: frozenset[str] = frozenset()
    lateness_columns: tuple[str, ...] = ()
    late_columns: Mapping[str, str] = field(default_factory=dict)
    lineage: Mapping[str, Lineage] = field(default_factory=dict)

    @property
    def due_by(self) -> DueBy | None:
        return self.bound.due_by if self.bound is not None else None

    @property
    def parts(self) -> dict[str, Table]:
        """Tables of parts that the state declares, by side-table name."""
        return declare_parts(self.bound, self.table) if self.bound is not None and self.table is not None else {}

    @property
    def time_rules(self) -> TimeRules:
        behind_ms = self.bound.behind_ms if self.bound is not None else 0
        return TimeRules(self.watermarks, self.inputs_with_watermark, self.due_by, behind_ms)

    @property
    def inputs_with_declared_watermark(self) -> frozenset[str]:
        return frozenset(name for watermark in self.watermarks for name in watermark.inputs)


def derive_schemas(app: App, spark: SparkSession) -> dict[str, StageSchemas]:
    """Return the schemas of all stages of an app, by name, upstream first. Raises the errors of `schemas_of`."""
    with temporary_folder() as empty:

        def apply(stage: Stage, inputs: Mapping[str, StructType]) -> AppliedFunction:
            # A stream over an empty folder is the cheapest: it needs no process and is never started.
            read = spark.readStream
            streams = {name: read.schema(schema).parquet(f"file:{empty}") for name, schema in inputs.items()}
            applied = apply_to_streams(stage, streams)
            topics = [name for name, source in stage.inputs.items() if isinstance(source, Topic)]
            return replace(applied, lineages=tuple(trace_sources(frame, streams, topics) for frame in applied.frames))

        return schemas_of(app, apply)


def schemas_of(
    app: App, apply: Callable[[Stage, Mapping[str, StructType]], AppliedFunction]
) -> dict[str, StageSchemas]:
    """Return the schemas of all stages of an app, by name, upstream first.

    `apply` calls a stage's function on empty inputs with the given schemas.

    Raises `NotFound` if a key or a state names a column that the function does not return; `Refused` if a function
    fails, returns no DataFrame, or keeps state in Spark; and `Usage` if a key column has different types in the inputs.
    """
    result: dict[str, StageSchemas] = {}
    clear_latest_schemas()
    for stage in app.stages_in_order():
        inputs = {
            name: spark_schema_of(
                schema_from_ddl(TOPIC_SCHEMA_WITH_HEADERS if source.include_headers else TOPIC_SCHEMA)
            )
            if isinstance(source, Topic)
            else result[app.writer_of(source).name].emits[source]
            for name, source in stage.inputs.items()
        }
        applied = apply(stage, inputs)
        key = app.key_of(stage) if stage.state is not None else ()
        watermarks = _watermarks(stage, key, applied)
        shape = replace(_derive_stage_schemas(stage, key, inputs, applied), watermarks=watermarks)
        timed = shape.inputs_with_declared_watermark | {
            name for name in stage.channels if result[app.writer_of(name).name].inputs_with_watermark
        }
        late_by: tuple[str, ...] = ()
        if timed and stage.event_time.late != "keep" and shape.table is not None and shape.bound is not None:
            columns = pa.schema([(column.name, to_arrow(column.type)) for column in shape.table.key])
            late_by = shape.bound.lateness_columns(window_of(columns))
        shape = replace(shape, inputs_with_watermark=timed, lateness_columns=late_by)
        if shape.due_by == "watermark" and not timed:
            raise Refused(
                f"stage {stage.name!r} has rows that fall due at the watermark, but no watermark",
                hint='call withWatermark where the topic is read, or use update(..., due_by="clock")',
            )
        shape = _add_late_output(stage, shape, applied)
        result[stage.name] = replace(shape, lineage=_lineage(stage, shape, applied))
    _check_part_tables(result)
    return result


def _check_part_tables(shapes: Mapping[str, StageSchemas]) -> None:
    names = {name: f"the table of stage {name!r}" for name in shapes}
    names |= {table_name(name, REJECTED): f"the table of rejected records of stage {name!r}" for name in shapes}
    for stage, shape in shapes.items():
        for side, parts in shape.parts.items():
            name, what = table_name(stage, side), f"the parts of {parts.values[0].name!r} of stage {stage!r}"
            if (other := names.setdefault(name, what)) != what:
                raise Refused(
                    f"{what} are rows of table {name!r}, which is also {other}",
                    hint="give the state variable or the stage another name",
                )


def _lineage(stage: Stage, shape: StageSchemas, applied: AppliedFunction) -> dict[str, Lineage]:
    lineages = applied.lineages
    rows = merge_lineages(lineages)
    channels = [channel.name for channel in stage.repartitions]
    if stage.state is None:
        sent = zip(stage.writes, lineages if len(lineages) > 1 else lineages * len(stage.writes), strict=True)
        return {output.name: columns for output, columns in sent if output.name in channels}
    key = {name: rows[name] for name in shape.key if name in rows}
    anything = tuple(FieldSource(name) for name in stage.inputs)
    lineage: dict[str, Lineage] = {"": key}
    for channel in channels:
        lineage[channel] = {}
        for name in shape.emits[channel].names:
            carried = name if name in key or name in shape.late_columns else stage.state.copied_column(name)
            lineage[channel][name] = rows.get(carried, anything) if carried else () if carried == "" else anything
    return lineage


def _add_late_output(stage: Stage, shape: StageSchemas, applied: AppliedFunction) -> StageSchemas:
    if stage.late_output is None:
        return shape
    if shape.bound is not None and shape.lateness_columns and (late := shape.bound.late_rows) is not None:
        _check_output(stage.late_output, late[0])
        return replace(
            shape, emits=shape.emits | {stage.late_output.name: spark_schema_of(late[0])}, late_columns=late[1]
        )
    if not shape.lateness_columns:
        lacks = (
            "a window (F.window) in the key of a table"
            if shape.inputs_with_watermark
            else "a watermark (withWatermark)"
        )
        raise Refused(
            f"stage {stage.name!r} has an output for late rows, but lacks {lacks}: no row can be late",
            hint="remove late= from its event_time(...)",
        )
    if len(applied.frames) > 1:
        raise Refused(
            f"stage {stage.name!r} has an output for late rows, but returns {len(applied.frames)} DataFrames",
            hint="return their union, or remove late= from its event_time(...)",
        )
    rows = applied.frames[0].schema
    _check_output(stage.late_output, arrow_schema_of(rows))
    columns = StructType()
    for column in rows:
        # Late rows are no longer merged into sessions.
        metadata = {name: value for name, value in column.metadata.items() if name != _SESSION_METADATA}
        columns.add(column.name, column.dataType, column.nullable, metadata)
    emits = shape.emits | {stage.late_output.name: columns}
    return replace(shape, emits=emits, late_columns={name: name for name in rows.names})


def _watermarks(stage: Stage, key: Sequence[str], applied: AppliedFunction) -> tuple[Watermark, ...]:
    declared = [
        (number, watermark.column, watermark.delay_ms)
        for number, watermark in enumerate(applied.watermarks)
        if watermark is not None
    ]
    names, single = tuple(stage.inputs), len(applied.frames) == 1
    columns = {
        number: column if single or column in key else tagged_name(number, column) for number, column, _ in declared
    }
    if declared and (single or has_frame_per_output(stage, applied.frames)):
        # Both DataFrames have rows of the same input, so the rows do not show which DataFrame they came from.
        return (Watermark(tuple(columns.values()), max(delay_ms for *_, delay_ms in declared), names),)
    # All DataFrames share a key column.
    return tuple(
        Watermark((columns[at],), delay_ms, (names[at],), at if not single and column in key else None)
        for at, column, delay_ms in declared
    )


def ddl_of(rows: StructType) -> str:
    """Return the columns of a repartition topic as DDL, the form that manifests store."""
    return ", ".join(f"{quote_for_spark(field.name)} {_ddl(field.dataType)}" for field in rows)


def _ddl(kind: DataType) -> str:
    match kind:
        case StructType():
            names = [name if _WORD.fullmatch(name) else quote_for_spark(name) for name in kind.names]
            types = [_ddl(field.dataType) for field in kind]
            return f"struct<{','.join(f'{name}:{ddl}' for name, ddl in zip(names, types, strict=True))}>"
        case ArrayType():
            return f"array<{_ddl(kind.elementType)}>"
        case MapType():
            return f"map<{_ddl(kind.keyType)},{_ddl(kind.valueType)}>"
    return kind.simpleString()


def _derive_stage_schemas(
    stage: Stage, key: tuple[str, ...], inputs: dict[str, StructType], applied: AppliedFunction
) -> StageSchemas:
    rows = [frame.schema for frame in applied.frames]
    if stage.state is None:
        return _derive_stateless_schemas(stage, inputs, rows)
    arrow = [arrow_schema_of(schema) for schema in rows]
    _check_key(stage, key, inputs, arrow)
    state = _session_state(stage, stage.state, key, rows)
    bound = _bound(stage, state, key, arrow, applied)
    key = key_of_table(key, bound.values.names)
    emits = _emitted(stage, bound)
    keys.check_columns(f"stage {stage.name!r}", [*key, *bound.values.names])
    keys.check_key(f"stage {stage.name!r}", key)
    if stage.table.ttl is not None and state.no_ttl[0]:
        why, instead = state.no_ttl
        raise Refused(f"stage {stage.name!r} has a ttl, but {why}", hint=f"remove ttl= from its table(...): {instead}")
    check_ttl(stage.name, stage.table.ttl, bound.values)
    table = Table(
        key=tuple(Column(name, from_arrow(arrow[0].field(name).type)) for name in key),
        values=_values(stage, bound.values),
        partitions=stage.table.partitions,
        state=state.stored,
        compaction=stage.table.compaction or Policy(),
        ttl=stage.table.ttl,
    )
    return StageSchemas(inputs, emits, key, table, bound)


def _derive_stateless_schemas(stage: Stage, inputs: dict[str, StructType], rows: list[StructType]) -> StageSchemas:
    if len(rows) > 1 and not has_frame_per_output(stage, rows):
        raise Refused(
            f"stage {stage.name!r} returned {len(rows)} DataFrames, but has no state to combine them",
            hint="return their union: a.unionByName(b, allowMissingColumns=True)",
        )
    sent = rows if len(rows) > 1 else rows * len(stage.writes)
    emits = {output.name: schema for output, schema in zip(stage.writes, sent, strict=True)}
    for output in stage.writes:
        _check_output(output, arrow_schema_of(emits[output.name]))
    return StageSchemas(inputs, emits, (), None, None, tuple(map(arrow_schema_of, rows)) if len(rows) > 1 else ())


def _bound(
    stage: Stage, state: Kind, key: tuple[str, ...], arrow: list[pa.Schema], applied: AppliedFunction
) -> BoundState:
    times = [watermark.column if watermark else None for watermark in applied.watermarks]
    marked = [with_input_metadata(*arguments) for arguments in zip(arrow, stage.inputs, times, strict=False)]
    with as_user_error(f"the state of stage {stage.name!r}"):
        bound = state.bind(marked, key)
    for schema in arrow:
        # With several DataFrames, a batch has all columns.
        used = {name.casefold() for name in (schema.names if len(arrow) > 1 else (*key, *bound.needed_columns))}
        names = [name for name in schema.names if name.casefold() in used]
        keys.check_columns(f"stage {stage.name!r}", names, (HASH, IS_PROBE))
    return bound


def _check_key(stage: Stage, key: tuple[str, ...], inputs: dict[str, StructType], arrow: list[pa.Schema]) -> None:
    for schema in arrow:
        _check_columns(f"stage {stage.name!r}", key, schema)
    read = {name: arrow_schema_of(inputs[name]) for name in stage.channels}
    _check_same_types(stage, key, read if not stage.key else {})
    _check_same_types(stage, key, dict(zip(stage.inputs, arrow, strict=True)) if len(arrow) > 1 else {})


def _session_state(stage: Stage, state: Kind, key: Sequence[str], rows: Sequence[StructType]) -> Kind:
    """Return `state`, converted to a state of sessions if the key has a session window (`F.session_window`).

    Raises `Refused` if the key has several session windows or no other column, or if sessions are emitted before they
    end.
    """
    sessions = list(
        dict.fromkeys(name for name in key for schema in rows if _SESSION_METADATA in schema[name].metadata)
    )
    if not sessions:
        return state
    session, problem = sessions[0], f"stage {stage.name!r} has the session window {sessions[0]!r} in its key"
    if len(sessions) > 1:
        raise Refused(f"{problem}, and also {sessions[1]!r}", hint="remove one of them")
    if len(key) == 1:
        raise Refused(
            f"{problem}, but no other column",
            hint="add a column to the key, such as the user whose events form a session",
        )
    if (by_session := state.by_session(session)) is None:
        raise Refused(
            f"{problem}, but emits sessions before they have ended. An emitted session could not be withdrawn when it "
            "merges with another one",
            hint='use writes=... and event_time=slackwater.event_time(emits="final"); a later stage can store sessions',
        )
    return by_session


def _values(stage: Stage, values: pa.Schema) -> tuple[Column, ...]:
    defaults, visible = stage.table.defaults, [name for name in values.names if not is_internal(name)]
    for name in defaults:
        if name not in visible:
            raise NotFound("value column", name, visible, hint=f"defaults= of stage {stage.name!r} names some of them")
    columns = [Column(field.name, from_arrow(field.type)) for field in values]
    return tuple(
        structs.replace(column, default=check_default(stage.name, column.name, default, to_arrow(column.type)))
        if (default := defaults.get(column.name)) is not None
        else column
        for column in columns
    )


def _emitted(stage: Stage, bound: BoundState) -> dict[str, StructType]:
    """Return the schema of each output's rows, by output.

    Raises `Refused` if the state declares several schemas, but not one for each output.
    """
    if len(bound.emitted_schemas) > 1 and len(bound.emitted_schemas) != len(stage.emits_to):
        raise Refused(
            f"stage {stage.name!r}: its state emits rows for {len(bound.emitted_schemas)} outputs, but writes= has "
            f"{len(stage.emits_to)}",
            hint="give emits= one schema for each of writes=, in that order, or one for all",
        )
    schemas = bound.emitted_schemas if len(bound.emitted_schemas) > 1 else bound.emitted_schemas * len(stage.emits_to)
    emitted = list(zip(stage.emits_to, schemas, strict=True))
    for output, rows in emitted:
        _check_output(output, rows)
    return {output.name: spark_schema_of(rows) for output, rows in emitted}


def _check_same_types(stage: Stage, key: tuple[str, ...], rows: Mapping[str, pa.Schema]) -> None:
    """Raise `Usage` if a key column has different types in two inputs: equal keys would get different hashes."""
    for column in key:
        types = {name: str(schema.field(column).type) for name, schema in rows.items()}
        if len(set(types.values())) > 1:
            shown = ", ".join(f"{kind} in {name!r}" for name, kind in types.items())
            raise Usage(
                f"stage {stage.name!r}: key column {column!r} is {shown}: rows of the same key would not meet",
                hint=f"cast it to one type where {column!r} is written",
            )


def _check_output(output: Repartition | Sink, rows: pa.Schema) -> None:
    if isinstance(output, Repartition):
        reserved = [name for name in rows.names if _PARTITION_COLUMN.fullmatch(name)]
        keys.check_columns(f"repartition topic {output.name!r}", rows.names, reserved)
        _check_columns(f"repartition topic {output.name!r}", output.key, rows)
    elif isinstance(output, TableSink):
        check_table_rows(output, rows)
    elif output.encoding is not None:
        outgoing.check_encoding(f"sink {output.name!r}", output.encoding, rows)


def _check_columns(owner: str, key: tuple[str, ...], rows: pa.Schema) -> None:
    for name in key:
        if name not in rows.names:
            raise NotFound("key column", name, rows.names, hint=f"{owner} is keyed by it")
    # Hashing an empty table checks that the types can be hashed.
    hash_keys(rows.empty_table(), key)
