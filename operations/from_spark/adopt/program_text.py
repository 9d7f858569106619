"""Generator of a program that declares a stage for a query's state, as a template for the user."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ....errors import Refused
from ....pipeline.source.spark_types import spark_schema_of
from ....state.kinds.due import window_of
from ...attach.protocol import ReadableTable, has_timeout
from .buffers import guess_aggregates

_TODO = "# TODO: the query's steps between its source and its stateful operator."


@dataclass(frozen=True, slots=True)
class _StageDeclaration:
    """Parts of a stage's declaration, as Python source or as names."""

    key: Sequence[str]
    state: str
    columns: Sequence[tuple[str, str]]
    right_columns: Sequence[tuple[str, str]] = ()
    functions: str = ""
    watermark: str = ""
    notes: Sequence[str] = ()
    extra_arguments: str = ""
    computed_columns: Mapping[str, str] | None = None


def program_text(
    tables: Sequence[ReadableTable], topics: Sequence[str], app: str, stage: str, where: str, query: str
) -> str:
    """Return a Python file that declares the stage. Raises `Refused` for state that cannot be adopted."""
    first = tables[0]
    if len(tables) > 1 and first.kind not in ("join", "transform"):
        kinds = ", ".join(f"{state_table.name or first.kind} ({state_table.kind})" for state_table in tables)
        raise Refused(
            f"the query has several stateful operators ({kinds}), but a stage has one state",
            hint="attach the query instead, which makes its tables queryable",
        )
    if first.kind == "transform":
        raise Refused(
            "a class of transformWithState needs no generated state: use state=sw.processor(TheClass(), output, …)",
            hint="write the stage with the class, then check it with adopt --dry-run",
        )
    if first.kind == "session":
        return _text(_session(first, app), topics, app, stage, where, query)
    if first.kind == "join":
        sides = tuple(topics) if len(topics) == 2 else ("left", "right")
        return _text(_join(tables, sides), sides, app, stage, where, query)
    declare = {
        **dict.fromkeys(("aggregate", "window", "total"), _aggregate),
        **dict.fromkeys(("distinct", "distinct-within-watermark"), _distinct),
        "pandas": _pandas,
    }.get(first.kind, _update)
    return _text(declare(first), topics, app, stage, where, query)


def _aggregate(table: ReadableTable) -> _StageDeclaration:
    declared, columns, notes = _aggregates(table.values)
    key, of_key, computed, watermark = _key(table)
    if watermark:
        notes.append('if the query is in append mode, add event_time=sw.event_time(emits="final") and writes=')
    return _StageDeclaration(
        key,
        _call("aggregate", declared),
        [*of_key, *columns],
        watermark=watermark,
        computed_columns=computed,
        notes=notes,
    )


def _aggregates(values: pa.Schema) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    declarations, unknown = guess_aggregates(values)
    if unknown:
        raise Refused(
            f"the query has state that no aggregate of slackwater can continue: {'; '.join(unknown)}",
            hint="attach the query instead, or remove those aggregates and restart it with a new checkpoint",
        )
    declared, columns = [], []
    for number, (function, field, kind) in enumerate(declarations, 1):
        name, of = f"{function}_{number}", f"of_{function}_{number}"
        by = f", by={f'{of}_order'!r}" if function in ("first", "last") else ""
        declared.append(f"{name}=sw.{function}({'' if function == 'count' else repr(of)}{by})")
        if function != "count":
            columns.append((of, _spark(_source_type(function, kind))))
        if by:
            order = values.field(values.get_field_index(field) + 1)
            columns.append((f"{of}_order", "bigint" if pa.types.is_boolean(order.type) else _spark(order.type)))
    has_extremum = any(field.startswith("valueWith") for _, field, _ in declarations)
    return (
        declared,
        columns,
        ["last corresponds to max_by; replace it by first for min_by, whose state looks the same"] * has_extremum,
    )


def _source_type(function: str, kind: pa.DataType) -> pa.DataType:
    if function in ("sum", "mean") and pa.types.is_decimal(kind):
        return pa.decimal128(max(1, kind.precision - 10, kind.scale), kind.scale)
    return kind


def _session(table: ReadableTable, app: str) -> _StageDeclaration:
    begin = table.key.names[-1]
    window, *_ = table.values.names
    declared, columns, notes = _aggregates(pa.schema(list(table.values)[1:]))
    key = [(key_field.name, _spark(key_field.type)) for key_field in table.key if key_field.name != begin]
    computed = {window: 'F.session_window("at", "5 minutes")'}
    return _StageDeclaration(
        [*(name for name, _ in key), window], _call("aggregate", declared), [*key, *columns, ("at", "timestamp")],
        watermark="at", computed_columns=computed,
        extra_arguments=f'writes=sw.sink("{app}-sessions"),\n    event_time=sw.event_time(emits="final"),',
        notes=[*notes, "replace the gap and the watermark by the query's own"],
    )  # fmt: skip


def _distinct(table: ReadableTable) -> _StageDeclaration:
    key, columns, computed, _ = _key(table)
    expires = bool(len(table.values))
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns)
    state_columns = "until timestamp" if expires else "seen boolean"
    state = f'sw.update(first_of_each, state="{state_columns}", emits="{ddl}")'
    value = 'pa.nulls(state.num_rows, pa.timestamp("us", "UTC"))' if expires else "pa.repeat(True, state.num_rows)"
    name = "until" if expires else "seen"
    functions = f'''
        import pyarrow as pa
        import pyarrow.compute as pc


        def first_of_each(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
            """Emit each new key."""
            new = state.filter(pc.is_null(state[{name!r}]))
            return pa.table({{{name!r}: {value}}}), new.select({[name for name, _ in columns]!r})
        '''
    notes = ['until is when a key expires: set it as the query does, and add due="until"'] if expires else []
    return _StageDeclaration(key, state, columns, functions=functions, computed_columns=computed, notes=notes)


def _join(tables: Sequence[ReadableTable], sides: Sequence[str]) -> _StageDeclaration:
    left_columns, right_columns = (
        [(value.name, _spark(value.type)) for value in table.values if value.name != "matched"] for table in tables
    )
    times = [next((name for name, kind in side if kind == "timestamp"), "") for side in (left_columns, right_columns)]
    if not all(times):
        raise Refused("the rows of the query's join have no timestamp column, which slackwater needs to expire them")
    key = [f"key_{number}" for number, _ in enumerate(tables[0].key.names[:-1])]
    computed = {name: f"F.col({column!r})" for name, (column, _) in zip(key, left_columns, strict=False)}
    notes = [
        "set within, how, the key and the watermarks as in the query",
        "keep the columns of each side as in the query's state; their names must be unique",
    ]
    state = f'sw.join({sides[0]!r}, {sides[1]!r}, within="1 hour")'
    return _StageDeclaration(
        key,
        state,
        left_columns,
        right_columns=right_columns,
        watermark=times[0],
        computed_columns=computed,
        notes=notes,
    )


def _pandas(table: ReadableTable) -> _StageDeclaration:
    fields = [(value.name, _spark(value.type)) for value in table.values]
    timed = has_timeout(table.values)
    key, columns, computed, _ = _key(table)
    ddl = ", ".join(f"{name} {kind}" for name, kind in fields[: -2 if timed else None])
    output = ", ".join(f"{name} {kind}" for name, kind in columns)
    functions = '''
        def the_function(key, frames, state):
            """TODO: the query's function."""
            raise NotImplementedError
        '''
    timeout = "ProcessingTimeTimeout" if timed else "NoTimeout"
    state = f'sw.pandas_state(the_function, "{output}", "{ddl}", "{timeout}")'
    return _StageDeclaration(key, state, columns, functions=functions, computed_columns=computed)


def _update(table: ReadableTable) -> _StageDeclaration:
    key, columns, computed, _ = _key(table)
    ddl = ", ".join(f"{value.name} {_spark(value.type)}" for value in table.values)
    functions = '''
        def go_on(rows, state):
            """TODO: the query's function of the rows of each key."""
            raise NotImplementedError
        '''
    return _StageDeclaration(
        key, f'sw.update(go_on, state="{ddl}")', columns, functions=functions, computed_columns=computed
    )


def _key(table: ReadableTable) -> tuple[list[str], list[tuple[str, str]], dict[str, str], str]:
    if table.kind in ("total", "limit"):
        return list(table.key.names), [], dict.fromkeys(table.key.names, 'F.lit(0).cast("long")'), ""
    window = window_of(table.key)
    columns = [
        ("at", "timestamp") if key_field.name == window else (key_field.name, _spark(key_field.type))
        for key_field in table.key
    ]
    computed = {window: 'F.window("at", "1 hour")'} if window else {}
    return table.key.names, columns, computed, "at" if window else ""


def _call(name: str, arguments: Sequence[str]) -> str:
    return (
        f"sw.{name}({', '.join(arguments)})"
        if len(arguments) < 3
        else "sw." + name + "(\n        " + ",\n        ".join(arguments) + ",\n    )"
    )


def _text(declared: _StageDeclaration, topics: Sequence[str], app: str, stage: str, where: str, query: str) -> str:
    reads = [f"sw.topic({topic!r})" for topic in topics]
    key = repr(declared.key[0]) if len(declared.key) == 1 else f"({', '.join(map(repr, declared.key))})"
    names = [_argument(topic, number) for number, topic in enumerate(topics)]
    lines = [
        f'"""The query {query} of {where} as a stage."""',
        "",
        "import slackwater as sw",
        "from pyspark.sql import DataFrame",
        "from pyspark.sql import functions as F",
        *textwrap.dedent(declared.functions).rstrip().splitlines(),
        "",
        f"app = sw.App({app!r})",
        "",
        "",
        *(f"# {note}" for note in declared.notes),
        "@app.stage(",
        f"    name={stage!r},",
        f"    reads={reads[0] if len(reads) == 1 else '(' + ', '.join(reads) + ')'},",
        f"    key={key},",
        f"    state={declared.state},",
        *([f"    {declared.extra_arguments}"] if declared.extra_arguments else []),
        ")",
        f"def {stage.replace('-', '_')}({', '.join(f'{name}: DataFrame' for name in names)})"
        f" -> {'tuple[DataFrame, DataFrame]' if declared.right_columns else 'DataFrame'}:",
        f"    {_TODO}",
    ]
    for number, name in enumerate(names):
        side = declared.right_columns if number and declared.right_columns else declared.columns
        lines += [f"    {name} = {name}.{call}" for call in _calls(declared, side)]
    union = names[0] + "".join(f".unionByName({name})" for name in names[1:])
    lines.append(f"    return {', '.join(names) if declared.right_columns else union}")
    return "\n".join(lines) + "\n"


def _calls(declared: _StageDeclaration, side: Sequence[tuple[str, str]]) -> Iterator[str]:
    ddl = ", ".join(f"`{column}` {kind}" for column, kind in side)
    if side:
        rows = f'F.from_json(F.col("value").cast("string"), "{ddl}").alias("r")'
        yield f'select({rows}).select("r.*")'
    time = declared.watermark
    if declared.right_columns:
        time = next((column for column, kind in side if kind == "timestamp"), "")
    if time:
        yield f'withWatermark({time!r}, "10 minutes")'
    for index, (column, of) in enumerate((declared.computed_columns or {}).items()):
        yield f"withColumn({column!r}, {f'F.col({side[index][0]!r})' if declared.right_columns else of})"


def _argument(topic: str, number: int) -> str:
    name = "".join(character if character.isalnum() else "_" for character in topic.lower()).strip("_")
    return name if name.isidentifier() else f"messages_{number}"


def _spark(kind: pa.DataType) -> str:
    return str(spark_schema_of(pa.schema([pa.field("a", kind)]))[0].dataType.simpleString())
