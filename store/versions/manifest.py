"""The manifest: the complete description of one stage at one version.

Values only: `codec` encodes them, `commit` makes them durable. A manifest is immutable. The next version copies all
fields except those about one version alone (`OneVersion`).
"""

from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from ..objects.counting import Stats
from . import limits
from .column_types import Lineage
from .entries.ssts import Ssts
from .kinds import KINDS, Traits, VersionKind

Declaration: TypeAlias = dict[str, Any]
"""Declaration of a kind of state: a JSON object; its `kind` is one of `state.kinds`."""


def is_internal(column: str) -> bool:
    return column.startswith("_")


class Column(Struct, frozen=True):
    """A column of a state table. `type` is named as in `sst.arrow_types`."""

    name: limits.ColumnName
    type: limits.TypeName
    id: limits.Seq = 0
    """Permanent id in SSTs. 0 in a table that was never migrated: the id is then the column's position, from 1."""
    default: limits.Text | None = None
    """Value in rows older than the column, as text that Arrow casts to the type; None for null."""
    since: limits.Seq = 0
    """Version that added the column; 0 for an original column."""


class Policy(Struct, frozen=True):
    """Compaction policy of a table, with the names of RocksDB's options. Each hash range is an LSM tree."""

    kind: Literal["universal", "leveled"] = "universal"
    l0_trigger: limits.MergeRuns = 8
    """`level0_file_num_compaction_trigger`: number of runs (if leveled, of level 0) at which a merge starts."""
    size_ratio: limits.Ratio = 0.1
    """Universal: a run is merged with all newer runs if it exceeds their total size by at most this share."""
    min_merge_width: limits.MergeRuns = 2
    max_merge_width: limits.MergeRuns = 64
    max_space_amplification: limits.Ratio = 1.0
    """Largest total size of the newer runs, as a multiple of the oldest run's size.

    Leveled: largest total size of the levels between 0 and the last, as a multiple of the last level's size.
    """
    level_base_bytes: limits.FileBytes = 64 << 20
    fanout: limits.Fanout = 10.0
    target_file_bytes: limits.FileBytes = 64 << 20


class Ttl(Struct, frozen=True):
    """Time to live of a table's rows. A change affects only rows that are written later."""

    ms: limits.TtlMs
    """Milliseconds from a row's time to its expiry; 0 if the time to live was turned off."""
    column: limits.ColumnOrNone = ""
    """Value column (a timestamp or a date) with a row's time; empty for the time of writing."""
    gone: bool = False
    """True if `column` was removed: expiry stays off, because older rows' expiry times follow another clock."""


class Table(Struct, frozen=True):
    """A stage's keyed state: `key` identifies a row; `values` whose names start with `_` are internal."""

    key: Annotated[tuple[Column, ...], limits.SOME_COLUMNS]
    values: Annotated[tuple[Column, ...], limits.COLUMNS]
    partitions: limits.StatePartitions
    """Number of state partitions, which are equal, ordered ranges of `_hash`."""
    state: Declaration = {}
    """Declaration of the state. A program that changes its meaning is not started."""
    ttl: Ttl | None = None
    compaction: Policy = Policy()
    schema: limits.Seq = 0
    """Number of times that the columns were changed."""
    next_id: limits.Seq = 0
    tasks: limits.Tasks = 0
    """Maximum number of tasks of a batch, as the last claiming program set it; 0 for one per state partition."""

    def __hash__(self) -> int:
        return hash((self.key, self.values, self.partitions, self.ttl, self.schema))

    @property
    def ranges(self) -> int:
        """Number of equal ranges of `_hash`, each of which may cover many state partitions.

        A large batch puts one SST for each range. A small batch puts fewer SSTs, each for several adjacent ranges.
        """
        return min(self.tasks or self.partitions, self.partitions)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.key, *self.values)

    @property
    def added_columns(self) -> dict[str, int]:
        """Version that added each later column, by column name. Internal columns are left out."""
        return {column.name: column.since for column in self.values if column.since and not is_internal(column.name)}

    @property
    def column_ids(self) -> tuple[int, ...]:
        return tuple(column.id or position for position, column in enumerate(self.columns, 1))


class Reset(Struct, frozen=True):
    """A change of the stored offsets of a user's topic, requested by a user."""

    version: limits.Version
    starts: limits.Offsets
    ends: limits.Offsets
    topic_id: limits.ShortText = ""


class Input(Struct, frozen=True):
    """Progress of one input. `offsets[p]` is the next offset to read from Kafka partition p."""

    topic: limits.Topic
    offsets: limits.Offsets
    upstream: limits.NameOrNone = ""
    """Stage that writes this channel; empty for a user's topic."""
    version: limits.Seq = 0
    """Last consumed version of the upstream stage; 0 before the first, and for a user's topic."""
    rows: limits.OneVersion[limits.Count] = 0
    """Number of rows that this version read from the input; of records for a user's topic."""
    consumed: limits.Counts = ()
    """Number of rows of a channel read since the channel began, by Kafka partition."""
    lost: limits.Counts = ()
    """Number of a channel's rows, or a topic's offsets, that Kafka lost and claims skipped, by Kafka partition."""
    watermark_ms: limits.EventMs | None = None
    """Largest event time read, minus the allowed delay, ms since 1970 UTC. Never decreases; None if unknown.

    If the stage declares no watermark for a channel, the value is the watermark of the upstream version.
    """
    resets: Annotated[tuple[Reset, ...], limits.AT_MOST_1000] = ()
    topic_id: limits.ShortText = ""

    @property
    def rows_passed(self) -> tuple[int, ...]:
        """Number of a channel's rows, read or lost, before `offsets`, by Kafka partition. Empty if unknown."""
        if not self.consumed or not self.lost:
            return self.consumed
        return tuple(read + gone for read, gone in zip_longest(self.consumed, self.lost, fillvalue=0))


class LostRecords(Struct, frozen=True):
    """Records of one input that a claim skipped, because Kafka had already deleted them."""

    topic: limits.Topic
    starts: limits.Offsets
    """Offsets before the skipped records, by Kafka partition. `ends` has the offsets after these records."""
    ends: limits.Offsets
    rows: limits.Counts = ()
    """Number of a channel's rows among the skipped records, by Kafka partition; empty for a user's topic.

    Includes rows that Kafka still has, because a reader gets all rows of an upstream version or none.
    """
    after: limits.Seq = 0
    """Skipped upstream versions of a channel: `after` + 1 to `up_to`. Both are 0 for a user's topic."""
    up_to: limits.Seq = 0


class Output(Struct, frozen=True):
    """Messages of one version in one channel."""

    topic: limits.Topic
    ends: limits.Offsets
    """Next offset after this version's last message, in each Kafka partition."""
    sent: limits.Counts
    """Number of rows written since the channel began, by Kafka partition. Readers check that they read as many rows."""
    attempts: limits.OneVersion[tuple[limits.Attempt, ...]] = ()
    rows: limits.OneVersion[limits.Count] = 0
    schema: limits.Text = ""
    markers: limits.OneVersion[dict[limits.Id, limits.Offsets]] = {}
    topic_id: limits.ShortText = ""


SinkKind = Literal["topic", "function", "table"]


class Sink(Struct, frozen=True):
    """Output of one version for one sink, on an internal topic with one partition. Cuts exclude sinks."""

    topic: limits.Topic
    end: limits.Offset
    since: limits.Version
    """Version that began the sink, without rows; the publisher starts there."""
    kind: SinkKind = "topic"
    attempts: limits.OneVersion[tuple[limits.Attempt, ...]] = ()
    rows: limits.OneVersion[limits.Count] = 0
    sent: limits.Count = 0
    topic_id: limits.ShortText = ""
    id: limits.ShortText = ""
    """Id of a table's sink since its last start.

    Without an id, version numbers from before that start could be reused.
    """
    table: limits.ShortText = ""
    """Format and address of a table, as `delta:s3://lake/alerts`."""


class SideTable(Struct, frozen=True):
    """A table beside a stage's own table; readers get it through `side_tables`."""

    table: Table
    ssts: Ssts = Ssts()
    rows: limits.OneVersion[limits.Count] = 0
    total: limits.Count = 0
    waiting: limits.Count = 0
    """Number of rows that are not handled yet, such as rejected records that were not retried."""

    def __post_init__(self) -> None:
        if not isinstance(self.ssts, Ssts):
            force_setattr(self, "ssts", Ssts(self.ssts))


class EventTime(Struct, frozen=True):
    """Event-time progress of a stage."""

    watermark_ms: limits.EventMs | None = None
    """Smallest watermark of the inputs, ms since 1970 UTC: no earlier rows are expected. Never decreases."""
    ahead: limits.OneVersion[limits.Count] = 0
    """Number of this version's rows that were too far ahead of the wall clock to advance the watermark."""
    ahead_total: limits.Count = 0
    late: limits.OneVersion[limits.Count] = 0
    """Number of this version's rows left out of the table: too late, or too far ahead of the wall clock."""
    late_total: limits.Count = 0
    bound_ms: limits.OneVersion[limits.EventMs | None] = None
    """Event time above which rows of this version were too far ahead of the wall clock; None without rows."""
    due_ms: limits.AnyTimeMs | None = None
    """Time up to which rows of the table have fallen due; None if no row can have fallen due."""
    next_due_ms: limits.AnyTimeMs | None = None
    by_clock: bool = False
    """True if rows fall due by the wall clock, False if by the watermark."""
    behind_ms: limits.TtlMs = 0
    """Largest lag of emitted times behind the watermark, for example because rows waited in a join."""
    wall_ms: limits.OneVersion[limits.EventMs | None] = None
    """Wall clock at the batch's start, for state functions and replays, if rows of the table fall due."""

    @property
    def has_unemitted_due_rows(self) -> bool:
        """True if rows fell due by the watermark and may not have been emitted yet."""
        if self.by_clock or self.next_due_ms is None or self.watermark_ms is None:
            return False
        return self.next_due_ms <= self.watermark_ms


class VersionSpan(Struct, frozen=True):
    """Rows of a channel, as the range of upstream versions that sent them: `after` + 1 to `up_to`."""

    after: limits.Seq
    up_to: limits.Seq


class Program(Struct, frozen=True):
    """File that declared a stage at a claim, on the claiming machine."""

    path: limits.ShortText
    checksum: limits.Checksum

    def __str__(self) -> str:
        return f"{self.path} (xxh3_128 {self.checksum})"


class FormerName(Struct, frozen=True):
    """A former name of a stage."""

    stage: limits.Name
    version: limits.Version
    """Last version under this name, which retires the name.

    The history under the next name begins with the same version number.
    """


class Rewind(Struct, frozen=True):
    """A rewind of a stage: it restored an earlier version's content and undid the versions in between."""

    version: limits.Version
    to: limits.Seq
    """Version whose content was restored. 0 if the stage did not exist: it is retired until a claim begins it anew."""
    table_only: bool = False
    """True if only the table was restored, and not the offsets of inputs and outputs."""


class Edit(Struct, frozen=True):
    """A manual change of rows of the table."""

    id: limits.Ulid
    by: limits.ShortText
    what: limits.Text
    message: limits.Text = ""


class Promotion(Struct, frozen=True):
    """Transfer of an app's name and sinks to another app, recorded in all stages of both apps.

    A promotion is open until an outcome with its number is stored (`apps.PROMOTION_OUTCOMES`). The outcome confirms or
    withdraws the promotion.
    """

    name: limits.Name
    number: limits.Version
    to: limits.Name
    """Folder of the app that gets the name."""
    at: dict[limits.Topic, limits.Offsets]
    """Offsets of both apps at the switchover, by user topic. The new app publishes the output of later records."""
    clock_ms: limits.AnyTimeMs | None
    """Wall-clock time up to which rows had fallen due in both apps; None if no row falls due by the wall clock."""
    sinks: dict[limits.Topic, limits.ShortText] | None
    """Sinks that this app publishes after the switchover, with their topics; None for all, as declared."""
    before: dict[limits.Topic, limits.ShortText] | None
    """Sinks that this app published before the switchover; None for all, as declared."""


class FollowedQuery(Struct, frozen=True):
    """Progress of a stage that follows a Spark query or a topic. The stage's tables have the query's state."""

    query: limits.ShortText
    """Id of the query, or name of the topic."""
    next_batch: limits.Seq
    batches: limits.OneVersion[limits.Count] = 0
    """Number of the query's batches in this version; above 1 to catch up, or if state was deleted unread."""
    checkpoint: limits.ShortText = ""
    others: tuple[limits.ShortText, ...] = ()
    """Inputs that are not Kafka topics and cannot be read again."""
    formats: dict[limits.Name, limits.ShortText] = {}
    """Formats of a topic's keys and values, by option of `attach`; empty for a query."""
    read_ms: limits.AnyTimeMs = 0
    """For a topic: time at which it had no records after the offsets, ms since 1970 UTC. Clones and rewinds keep it."""

    @property
    def follows_topic(self) -> bool:
        return bool(self.formats)


class Manifest(Struct, frozen=True):
    """One committed version of one stage."""

    app: limits.Name
    stage: limits.Name
    version: limits.Version
    epoch: limits.Epoch
    writer: limits.ShortText
    """Author's unique id, which distinguishes a lost answer from a lost race."""
    time_ms: limits.TimeMs
    """Wall clock of the commit in ms since 1970 UTC. Increases strictly from version to version."""
    kind: VersionKind
    inputs: dict[limits.Topic, Input] = {}
    outputs: dict[limits.Topic, Output] = {}
    sinks: dict[limits.Topic, Sink] = {}
    table: Table | None = None
    clock_ms: limits.AnyTimeMs = 0
    """Clock of expiry (`sst.ttl`): rows that expire at or before this time are not visible.

    The wall clock at the batch's start, or the largest event time; 0 for a table that never had a time to live.
    """
    ssts: Ssts = Ssts()
    recorded: dict[limits.Id, limits.Version] = {}
    """This stage's version in the cut of each open snapshot, by snapshot id."""
    awaited: dict[limits.Id, tuple[limits.Topic, ...]] = {}
    """Channels from which a recorded snapshot still awaits a marker, by snapshot. Other snapshots are left out."""
    captured: dict[limits.Id, dict[limits.Topic, VersionSpan]] = {}
    """Upstream versions consumed after the recorded version and before the marker, by snapshot and channel."""
    lost: limits.OneVersion[dict[limits.Topic, LostRecords]] = {}
    """Lost records that this claim skipped, by input."""
    duration_ms: limits.OneVersion[limits.Count] = 0
    by: limits.ShortText = ""
    program: Program | None = None
    seq: limits.OneVersion[limits.Seq] = 0
    """`_seq` of the rows that this version wrote; 0 if it equals the version's number.

    It is smaller if a compaction took the batch's number first. The batch is then committed under a later number, with
    SSTs that are already stored.
    """
    stats: limits.OneVersion[Stats | None] = None
    totals: Stats | None = None
    """Sum of `stats` since the stage began: two manifests give the cost of all versions between them."""
    stopped: dict[limits.Topic, Input] = {}
    """Inputs that migrations removed, with their last offsets, at which a later claim may resume."""
    migration: limits.Seq = 0
    """Number of the stage's newest migration; equal in all stages except during a migration."""
    side_tables: dict[limits.Name, SideTable] = {}
    called: limits.NameOrNone = ""
    """New name of a renamed stage, which is retired under the old name for good; else empty."""
    formerly: Annotated[tuple[FormerName, ...], limits.AT_MOST_1000] = ()
    """Former names of the stage, oldest first. Keys of its SSTs may contain them."""
    event_time: EventTime | None = None
    lineage: dict[limits.ShortText, Lineage] = {}
    """Column sources of the table's key (under `""`) and of each channel (by name), over all programs of the stage."""
    rewinds: Annotated[tuple[Rewind, ...], limits.AT_MOST_1000] = ()
    edited: limits.OneVersion[Edit | None] = None
    silent: dict[limits.Topic, SinkKind] = {}
    """Sinks that the program declares but the app does not publish, such as sinks of a clone."""
    promotion: Promotion | None = None
    forgotten: limits.Seq = 0
    """Number of the app's index of forgotten keys (`forgotten`) that the version requires; 0 for none.

    A reader whose cached index is older reads the newest index first.
    """
    attached: FollowedQuery | None = None
    adopted: FollowedQuery | None = None
    """Progress in the adopted query, in versions from before the adoption; else None."""

    def __post_init__(self) -> None:
        # Any iterable of SSTs may be given.
        if not isinstance(self.ssts, Ssts):
            force_setattr(self, "ssts", Ssts(self.ssts))

    @property
    def watermark_ms(self) -> int | None:
        return self.event_time.watermark_ms if self.event_time is not None else None

    @property
    def downstream_watermark_ms(self) -> int | None:
        """Watermark for downstream stages: low enough that rows still to be emitted are not late."""
        times = self.event_time
        at_ms = times.due_ms if times is not None and times.has_unemitted_due_rows else self.watermark_ms
        if times is None or at_ms is None or not times.behind_ms:
            return at_ms
        return max(limits.YEAR_1_MS, at_ms - times.behind_ms)

    @property
    def row_seq(self) -> int:
        """`_seq` of the rows that this version wrote: at most the version's number. Increases with each batch."""
        return self.seq or self.version

    @property
    def rewind(self) -> Rewind | None:
        """Rewind that made this version, or None. A clone's first version has none."""
        last = self.rewinds[-1] if self.rewinds else None
        return last if last is not None and last.version == self.version and not self.starts_history else None

    @property
    def is_before_beginning(self) -> bool:
        """True if the stage was rewound to a moment before its beginning. The next claim begins it anew."""
        return self.retired and not self.inputs

    def base_versions(self, after: int = 0, *, of_rows: bool = False) -> tuple[range, ...]:
        """Return the ranges of versions above `after` on which this version is based, ascending.

        The last range ends with this version.

        Versions undone by a rewind are left out. With `of_rows`, returns the versions whose rows the table may have.
        Without `of_rows`, returns the versions whose input and output are still in effect.
        """
        ranges, up_to = [], self.version
        for rewind in reversed(self.rewinds):
            if rewind.version <= up_to and (of_rows or not rewind.table_only):
                ranges.append(range(max(rewind.version, after + 1), up_to + 1))
                up_to = rewind.to
        return tuple(versions for versions in reversed([*ranges, range(after + 1, up_to + 1)]) if versions)

    @property
    def traits(self) -> Traits:
        return KINDS[self.kind]

    @property
    def starts_history(self) -> bool:
        """True if the stage's history begins at this version with a number above 1: in a clone or a renamed stage."""
        return bool(self.traits.begins)

    @property
    def retired(self) -> bool:
        """True if the stage is retired: cuts, snapshots and lag exclude it, and only a claim may follow."""
        return self.traits.retires

    @property
    def former_name(self) -> str:
        return self.formerly[-1].stage if self.traits.begins == "renamed" else ""

    @property
    def has_read(self) -> bool:
        return self.traits.reads_records and any(read.rows for read in self.inputs.values())

    def is_by_other_program(self, program: Program | None) -> bool:
        """Return True if the version's program and the given program are both known, and differ."""
        return self.program is not None and program is not None and self.program.checksum != program.checksum


class Origin(Struct, frozen=True):
    """Source of a clone."""

    root: limits.ShortText
    """Store root of the source; empty for a deep clone, which does not need its source."""
    app: limits.Name
    snapshot: limits.NameOrNone
    """Snapshot of the source app that pins the shared objects; empty if none are shared."""
    cut: dict[limits.Name, limits.Version]
    """Source version of each stage; empty for a clone that began without state."""
    topics: dict[limits.Topic, limits.Topic] = {}
    sinks: dict[limits.Topic, limits.ShortText] = {}
    """Sinks that the clone publishes, by declared name, with their topics or tables. No other sinks are published."""
    masks: dict[limits.ShortText, limits.ShortText] = {}
    """Masked columns, `table.column`, with the method. Their values differ from the source's."""

    @property
    def is_deep(self) -> bool:
        return not self.root

    @property
    def is_empty(self) -> bool:
        return not self.cut


class AppInfo(Struct, frozen=True):
    """Identity of an app, which never changes."""

    name: limits.Name
    created_ms: limits.TimeMs
    origin: Origin | None = None
    starts: dict[limits.Topic, limits.Offsets] = {}
    """First offsets of users' topics, by declared name, if `init` set them in place of the program's."""
    initialised: limits.NameOrNone = ""
    """Stage whose table `init` or `adopt` fills. The app can run once that stage has a version."""
    owner: limits.ShortText = ""
    reason: limits.Text = ""
    ttl_ms: limits.TtlMs = 0

    @property
    def expires_ms(self) -> int:
        return self.created_ms + self.ttl_ms if self.ttl_ms else 0
