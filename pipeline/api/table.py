"""Options of a stage's table: state partitions, time to live, defaults and compaction.

Options of compaction have the names of RocksDB's.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from ...common.arguments import check_arguments
from ...common.durations import parse_ms
from ...common.validation import check_finite, check_whole
from ...errors import NotFound, Usage
from ...store.versions import limits
from ...store.versions.manifest import Policy, Ttl, is_internal

L0_SLOWDOWN = 20
L0_STOP = 36
"""Number of L0 files at which writes stop (RocksDB's default). Writes slow down at `L0_SLOWDOWN` files."""

_MIB = 1 << 20
_UNIVERSAL = Policy()


@check_arguments
def universal(
    *,
    l0_trigger: int = _UNIVERSAL.l0_trigger,
    size_ratio: float = _UNIVERSAL.size_ratio,
    min_merge_width: int = _UNIVERSAL.min_merge_width,
    max_merge_width: int = _UNIVERSAL.max_merge_width,
    max_space_amplification: float = _UNIVERSAL.max_space_amplification,
    target_file_bytes: int = _UNIVERSAL.target_file_bytes,
) -> Policy:
    """Merge sorted runs of similar size. Few rewrites per row, several runs per look-up. The default compaction.

    Args:
        l0_trigger: Number of sorted runs in a hash range that starts a merge; at least 2. A higher value writes
            less and searches more.
        size_ratio: A run is merged with all newer runs if the run exceeds their total size by at most this ratio; 0.1
            is 10 %.
        min_merge_width: Minimum number of runs merged because they are of similar size; at least 2.
        max_merge_width: Maximum number of runs merged at once, except when all runs are merged.
        max_space_amplification: All runs are merged once the newer runs exceed this multiple of the oldest run's bytes;
            1.0 lets a table take twice its size.
        target_file_bytes: Runs of more bytes are split into several SSTs; at least 1 MiB.

    Raises `Usage` for a number out of range.
    """
    return _checked(
        Policy(
            "universal",
            l0_trigger=l0_trigger,
            size_ratio=size_ratio,
            min_merge_width=min_merge_width,
            max_merge_width=max_merge_width,
            max_space_amplification=max_space_amplification,
            target_file_bytes=target_file_bytes,
        )
    )


@check_arguments
def leveled(
    *,
    l0_trigger: int = 4,
    level_base_bytes: int = 64 * _MIB,
    fanout: float = _UNIVERSAL.fanout,
    max_space_amplification: float = _UNIVERSAL.max_space_amplification,
    target_file_bytes: int = 16 * _MIB,
) -> Policy:
    """Keep levels of growing size, each a sorted run. More rewrites, in small merges, and fewer runs per look-up.

    Args:
        l0_trigger: Number of runs from batches in a hash range that starts a merge into level 1; at least 2.
        level_base_bytes: Maximum bytes of level 1 in each hash range. A good value is the bytes that `l0_trigger`
            batches write to a hash range, or a small multiple of that.
        fanout: Ratio between the maximum bytes of a level and of the level before; at least 1.1.
        max_space_amplification: A hash range is merged completely once the levels between 0 and the last level exceed
            this multiple of the last level's bytes.
        target_file_bytes: Size of an SST, and so of a move from one level to the next; at least 1 MiB. Recommended: at
            most a quarter of `level_base_bytes`, so that a level is merged in parts.

    Raises `Usage` for a number out of range.
    """
    return _checked(
        Policy(
            "leveled",
            l0_trigger=l0_trigger,
            level_base_bytes=level_base_bytes,
            fanout=fanout,
            max_space_amplification=max_space_amplification,
            target_file_bytes=target_file_bytes,
        )
    )


def _checked(policy: Policy) -> Policy:
    runs, sizes = (2, limits.MAX_MERGE_RUNS), (_MIB, limits.MAX_FILE_BYTES)
    counts = dict.fromkeys(("l0_trigger", "min_merge_width", "max_merge_width"), runs)
    counts |= dict.fromkeys(("level_base_bytes", "target_file_bytes"), sizes)
    ratios = dict.fromkeys(("size_ratio", "max_space_amplification"), (0.0, limits.MAX_AMPLIFICATION))
    ratios["fanout"] = (limits.MIN_FANOUT, limits.MAX_FANOUT)
    prefix = f"{policy.kind} compaction: "
    return replace(
        policy,
        **{knob: check_whole(prefix + knob, getattr(policy, knob), *bounds) for knob, bounds in counts.items()},
        **{knob: check_finite(prefix + knob, getattr(policy, knob), *bounds) for knob, bounds in ratios.items()},
    )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a stage's table, created by `table`.

    `ttl` is None if rows never expire, `compaction` None for the default.
    """

    partitions: int
    tasks: int | None
    ttl: Ttl | None
    compaction: Policy | None
    l0_slowdown: int
    l0_stop: int
    defaults: Mapping[str, object] = field(default_factory=dict, hash=False)


@check_arguments
def table(
    *,
    partitions: int = 4,
    tasks: int | None = None,
    ttl: str | None = None,
    ttl_by: str | None = None,
    compaction: Policy | None = None,
    l0_slowdown: int = L0_SLOWDOWN,
    l0_stop: int = L0_STOP,
    defaults: Mapping[str, object] | None = None,
) -> TableOptions:
    """Return options of the table that a stage with state keeps.

    Args:
        partitions: Number of state partitions of a new table: the unit of parallel reads, and the maximum number of
            tasks on the state. An existing table keeps its number; `slackwater rescale` changes it.
        tasks: Maximum number of tasks of a batch on the state, each of which writes at most one SST. Default twice the
            cores of the Spark session, rounded up to a power of two. A batch of few records has fewer. May change with
            each start.
        ttl: Time to live of a row: `"7 days"`. Default forever.
        ttl_by: Timestamp or date column of the table from which `ttl` counts. The current time is then the largest time
            that was written to the column. Default: `ttl` counts from the row's write time, by the wall clock.
        compaction: Compaction of SSTs: `universal(...)` or `leveled(...)`. Default `universal()`, but with
            `l0_trigger=16` if a batch may have 16 or more tasks, because puts by merges would then cost more than
            additional runs. May change with each start.
        l0_slowdown: Number of L0 SSTs in one hash range that delays batches, so that compaction catches up (RocksDB's
            `level0_slowdown_writes_trigger`).
        l0_stop: Number of L0 SSTs in one hash range that stops new batches until compaction has merged them
            (`level0_stop_writes_trigger`).
        defaults: Values of newly added columns in existing rows, by column: `{"late": 0}`. Default null. Defaults apply
            when `slackwater migrate` adds a column, not to keys that are added later.

    Raises `Usage` for a number out of range, an invalid duration, or options that contradict each other.
    """
    lifetime = None
    if ttl is not None:
        total_ms = parse_ms("ttl", ttl)
        if not 0 < total_ms <= limits.MAX_TTL_MS:
            raise Usage(f"ttl {ttl!r} is {total_ms} ms; expected 1 ms to 1,000,000 days")
        lifetime = Ttl(total_ms, ttl_by or "")
    if ttl_by and lifetime is None:
        raise Usage(f"table: ttl_by is {ttl_by!r}, but ttl is missing", hint='ttl="7 days"')
    options = TableOptions(
        check_whole("table: partitions", partitions, 1, limits.MAX_PARTITIONS),
        tasks,
        lifetime,
        compaction,
        check_whole("table: l0_slowdown", l0_slowdown, 2),
        check_whole("table: l0_stop", l0_stop, 2),
        dict(defaults or {}),
    )
    if options.l0_slowdown > options.l0_stop:
        raise Usage(
            f"table: l0_slowdown is {l0_slowdown} and l0_stop is {l0_stop}; expected two numbers of SSTs, the second "
            "not below the first"
        )
    return options


DEFAULT_TABLE = table()


def check_tasks(stage: str, options: TableOptions) -> TableOptions:
    """Return the options with `tasks` as a Python int. Raises `Usage` if it is out of range."""
    if options.tasks is None:
        return options
    hint = f"leave it out for two tasks per core of the Spark session, or write tasks={limits.MAX_TASKS} at most"
    tasks = check_whole(f"stage {stage!r}: tasks of its table", options.tasks, 1, limits.MAX_TASKS, hint=hint)
    return dataclasses.replace(options, tasks=tasks)


def check_ttl(stage: str, declared: Ttl | None, values: pa.Schema) -> None:
    """Raise `NotFound` if a table lacks the column that `ttl` counts from, and `Usage` if the column is not a time."""
    if declared is not None and (column := declared.column):
        visible = [name for name in values.names if not is_internal(name)]
        if column not in visible:
            raise NotFound("value column", column, visible, hint=f"ttl_by of stage {stage!r} is one of them")
        kind = values.field(column).type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            raise Usage(f"stage {stage!r}: ttl_by column {column!r} is {kind}; expected a timestamp or a date")
