"""Resources of replays: the user's program, a local Spark, the app's store and Kafka, and a scratch store.

`insert_breakpoints` adds a call of `breakpoint()` to a user's function, so that a debugger stops there.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from ....errors import Refused
from ....pipeline.api.app import App
from ....pipeline.api.stage import Stage
from ....pipeline.batch.rerun import RecordNumbers, Rerun, numbered_records_frame
from ....pipeline.batch.schemas import StageSchemas, derive_schemas
from ....pipeline.kafka.archived import with_archives
from ....pipeline.kafka.protocol import Kafka
from ....pipeline.run.claim import program_of
from ....pipeline.run.program import load_app
from ....pipeline.spark.session import spark_session
from ....snapshot.bisect.verdict import Verdict
from ....store.objects.local import LocalStore
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache

REPLAY_CONF = {
    "spark.ui.enabled": "false",
    # A replay takes about a minute, too short for the JVM's second compiler to pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # A replay is a few thousand rows.
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program with everything that replays of its stages need.

    Attributes:
        app: The declared app, under the name of the app whose history is replayed.
        kafka: Kafka, with the app's input archive as fallback.
        scratch: Temporary store for the output of replays.
        patience_s: Seconds to wait for the broker.
    """

    app: App
    spark: SparkSession
    shapes: Mapping[str, StageSchemas]
    store: ObjectStore
    cache: SstCache
    kafka: Kafka = field(repr=False)
    scratch: LocalStore
    patience_s: float = 60

    def run_function(
        self, stage: str, inputs: Mapping[str, pa.Table], numbers: Mapping[str, RecordNumbers], output: str
    ) -> tuple[pa.Table, bool]:
        """Run a stage's function over records in one Spark job. Returns its rows, and True if they include `RECORD`.

        `numbers` has the number of each record. `output` is the channel to compute; empty for the table.
        """
        with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
            records = [
                numbered_records_frame(self.spark, rows, numbers[name], Path(folder) / name)
                for name, rows in inputs.items()
            ]
            return Rerun(self.app.stages[stage], self.shapes[stage], records, output).to_arrow()


@contextmanager
def open_program(
    app: App, store: ObjectStore, cache: SstCache, kafka: Kafka, *, py_files: Sequence[str] = ()
) -> Iterator[LoadedProgram]:
    """Start Spark for a program, and stop Spark on exit. A session that already runs is used, and not stopped.

    `py_files` are paths of Python files and zips that the program's tasks import. Raises `Refused` if a stage's
    function fails, or Spark does not start, and the errors of `shapes`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-replay-", ignore_cleanup_errors=True) as folder,
        spark_session(f"slackwater replay {app.name}", master="local[*]", conf=REPLAY_CONF, py_files=py_files) as spark,
    ):
        with_archive = with_archives(kafka, store, app.name)
        yield LoadedProgram(
            app, spark, derive_schemas(app, spark), store, cache, with_archive, LocalStore(Path(folder) / "store")
        )


def insert_breakpoints(stage: Stage) -> tuple[str, ...]:
    """Insert a breakpoint before the first line of a stage's function, and of its state's function if any.

    The functions stay changed in this process. Returns the functions' names. Raises `Refused` if a source cannot be
    read.
    """
    functions = (stage.transform, stage.state.function if stage.state is not None else None)
    return tuple(_insert_breakpoint(function) for function in functions if function is not None)


def _insert_breakpoint(function: Callable[..., Any]) -> str:
    if not isinstance(function, FunctionType):
        raise Refused(
            f"{function!r} has no Python source, so no breakpoint can be set",
            hint="declare it with def, or write breakpoint() where it calls code of yours",
        )
    code = function.__code__
    name, line = code.co_name, code.co_firstlineno
    try:
        tree = ast.parse(Path(code.co_filename).read_bytes())
    except (OSError, SyntaxError) as error:
        raise Refused(f"the source of {name!r} cannot be read from {code.co_filename}: {error}") from error
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        if line in (node.lineno, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])):
            # The call is on the line of the `def`, so a debugger stops before the function's first line.
            call = ast.Expr(ast.Call(ast.Name("breakpoint", ast.Load()), [], []))
            node.body.insert(0, ast.fix_missing_locations(ast.copy_location(call, node)))
            call.end_lineno, call.end_col_offset = node.lineno, node.col_offset
    identity = attrgetter("co_qualname", "co_firstlineno", "co_freevars")
    compiled = compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True)
    replacement = next((candidate for candidate in _codes(compiled) if identity(candidate) == identity(code)), None)
    if replacement is None or "breakpoint" not in replacement.co_names:
        raise Refused(
            f"{name!r} is not found at line {line} of {code.co_filename}, so no breakpoint can be set",
            hint="has the file changed? replace a lambda by a function",
        )
    function.__code__ = replacement
    return name


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


@contextmanager
def open_programs(
    store: ObjectStore, cache: SstCache, kafka: Kafka, verdict: Verdict, files: Sequence[str | Path]
) -> Iterator[list[LoadedProgram]]:
    """Load program files for replays of the app in which a bisect found a bad commit.

    The program that ran the bad batch comes first: the file whose checksum is recorded in the bad commit. If no file
    has that checksum, the first file comes first. Raises the errors of `load_app`, `open_program` and `shapes`.
    """
    ran = verdict.bad.stages[verdict.stage].program
    apps = [load_app(str(file), name=verdict.app) for file in files]

    def is_another(app: App) -> bool:
        now = program_of(app)
        return ran is None or now is None or now.checksum != ran.checksum

    first, *other_apps = sorted(apps, key=is_another)
    with open_program(first, store, cache, kafka) as program:
        yield [program, *(replace(program, app=app, shapes=derive_schemas(app, program.spark)) for app in other_apps)]
