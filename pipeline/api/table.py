"""What a program says of a stage's table: state partitions, time to live, defaults and how it is compacted.

The words of compaction are those of RocksDB's options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from ...common.argument_types import checked
from ...common.durations import parse_ms
from ...common.validation import finite, whole
from ...errors import NotFound, Usage
from ...store.versions import limits
from ...store.versions.manifest import Policy, Ttl, is_internal

L0_SLOWDOWN = 20
L0_STOP = 36
"""RocksDB's defaults."""

_MIB = 1 << 20
_UNIVERSAL = Policy()


@checked
def universal(
    *,
    l0_trigger: int = _UNIVERSAL.l0_trigger,
    size_ratio: float = _UNIVERSAL.size_ratio,
    min_merge_width: int = _UNIVERSAL.min_merge_width,
    max_merge_width: int = _UNIVERSAL.max_merge_width,
    max_space_amplification: float = _UNIVERSAL.max_space_amplification,
    target_file_bytes: int = _UNIVERSAL.target_file_bytes,
) -> Policy:
    """Merge sorted runs of similar size: each row is rewritten seldom, and looked for in several runs. The default.

    Args:
        l0_trigger: Sorted runs of a state partition from which on some are merged; at least 2. More of it: less is
            written, more is searched.
        size_ratio: How much larger than all newer ones together a run may be that is merged with them; 0.1 is 10 %.
        min_merge_width: Fewest runs merged because they are of similar size; at least 2.
        max_merge_width: Most runs merged at once, unless all are.
        max_space_amplification: Once the newer runs take more than so many times the bytes of the oldest, all are
            merged; 1.0 lets a table take twice its size.
        target_file_bytes: A run of more bytes is several SSTs; at least 1 MiB.

    Raises `Usage` where a number is not one that could work.
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


@checked
def leveled(
    *,
    l0_trigger: int = 4,
    level_base_bytes: int = 64 * _MIB,
    fanout: float = _UNIVERSAL.fanout,
    max_space_amplification: float = _UNIVERSAL.max_space_amplification,
    target_file_bytes: int = 16 * _MIB,
) -> Policy:
    """Keep levels of growing size, each one sorted run: more is rewritten, in small merges, and less is searched.

    Args:
        l0_trigger: Runs that batches wrote to a state partition from which on they go down to level 1; at least 2.
        level_base_bytes: What level 1 may hold in each state partition: best about what `l0_trigger` batches write to
            one, or some times as much.
        fanout: How much more than the level above it each further level may hold; at least 1.1.
        max_space_amplification: Once the levels between 0 and the last take more than so many times the bytes of the
            last, all of a state partition is merged.
        target_file_bytes: How large an SST becomes, and so how much is moved from one level to the next at once; at
            least 1 MiB. Best a quarter of `level_base_bytes` or less, so that a level goes down in parts.

    Raises `Usage` where a number is not one that could work.
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
    ratios = dict.fromkeys(("size_ratio", "max_space_amplification"), (0.0, limits.AMPLIFICATION_MOST))
    ratios["fanout"] = (limits.FANOUT_LEAST, limits.FANOUT_MOST)
    what = f"{policy.kind} compaction: "
    return replace(
        policy,
        **{knob: whole(what + knob, getattr(policy, knob), *bounds) for knob, bounds in counts.items()},
        **{knob: finite(what + knob, getattr(policy, knob), *bounds) for knob, bounds in ratios.items()},
    )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a stage's table, as `table` takes them. `ttl` is None where rows live for ever."""

    partitions: int
    ttl: Ttl | None
    compaction: Policy
    l0_slowdown: int
    l0_stop: int
    defaults: Mapping[str, object] = field(default_factory=dict, hash=False)


@checked
def table(
    *,
    partitions: int = 4,
    ttl: str | None = None,
    ttl_by: str | None = None,
    compaction: Policy | None = None,
    l0_slowdown: int = L0_SLOWDOWN,
    l0_stop: int = L0_STOP,
    defaults: Mapping[str, object] | None = None,
) -> TableOptions:
    """Options of the table that a stage with state keeps.

    Args:
        partitions: State partitions the table is born with: tasks that work on the state at once, and SSTs a version
            writes at most. Of a table that there is already, the stored number counts and this one does not;
            `slackwater rescale` changes it.
        ttl: How long a row lives: `"7 days"`. Default for ever.
        ttl_by: A value column of the table, timestamp or date, from which that counts, by the largest such time that
            the table was given; default from when the row was written, by the wall clock.
        compaction: How SSTs are merged: `universal(...)`, the default, or `leveled(...)`. It may be another one from
            one start to the next.
        l0_slowdown: L0 SSTs in one state partition from which on batches are delayed, so that compaction catches up
            (RocksDB's `level0_slowdown_writes_trigger`).
        l0_stop: L0 SSTs in one state partition from which on no batch starts before compaction has merged them
            (`level0_stop_writes_trigger`).
        defaults: By value column, what rows have in it that were written before the column was there: `{"late": 0}`.
            Default null. It counts when the column is added (`slackwater migrate`), and not for keys that come later.

    Raises `Usage` where a number is not one that could work, `ttl` is no span of time, or they contradict each other.
    """
    lifetime = None
    if ttl is not None:
        total_ms = parse_ms("ttl", ttl)
        if not 0 < total_ms <= limits.MAX_TTL_MS:
            raise Usage(f"ttl {ttl!r} is {total_ms} ms; expected 1 ms to 1,000,000 days")
        lifetime = Ttl(total_ms, ttl_by or "")
    if ttl_by and lifetime is None:
        raise Usage(f'table: ttl_by is {ttl_by!r} and there is no ttl; say how long, ttl="7 days"')
    made = TableOptions(
        whole("table: partitions", partitions, 1, limits.MAX_PARTITIONS),
        lifetime,
        compaction or Policy(),
        whole("table: l0_slowdown", l0_slowdown, 2),
        whole("table: l0_stop", l0_stop, 2),
        dict(defaults or {}),
    )
    if made.l0_slowdown > made.l0_stop:
        raise Usage(
            f"table: l0_slowdown is {l0_slowdown} and l0_stop is {l0_stop}; expected two numbers of SSTs, the second "
            "not below the first"
        )
    return made


DEFAULT_TABLE = table()


def check_ttl(stage: str, declared: Ttl | None, values: pa.Schema) -> None:
    """Raise `NotFound` where a table has not the value column by which rows expire, `Usage` where that is no time."""
    if declared is not None and (column := declared.column):
        visible = [name for name in values.names if not is_internal(name)]
        if column not in visible:
            raise NotFound("value column", column, visible, hint=f"ttl_by of stage {stage!r} is one of them")
        kind = values.field(column).type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            raise Usage(f"stage {stage!r}: ttl_by column {column!r} is {kind}; expected a timestamp or a date")
