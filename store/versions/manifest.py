"""The manifest: the whole state of one stage at one version.

Values only: `codec` encodes them, `commit` makes them durable. A manifest is immutable: the next version carries on all
fields except those about one version alone (`Own`).
"""

from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from ..objects.counting import Stats
from . import limits
from .column_types import Lineage
from .kinds import KINDS, Traits, VersionKind

Declaration: TypeAlias = dict[str, Any]
"""Declaration of a kind of state: a JSON object, whose `kind` is one of `state.kinds`."""


def is_internal(column: str) -> bool:
    """Return True if users do not see the column: its name begins with `_`."""
    return column.startswith("_")


class Column(Struct, frozen=True):
    """A column of a state table. `type` is its name in Arrow, as in `sst.arrow_types`."""

    name: limits.ColumnName
    type: limits.TypeName
    id: limits.Seq = 0
    """Permanent id of the column in SSTs; 0 (in a table that was never migrated) for its position, from 1."""
    default: limits.Text | None = None
    """Value in older rows, as text that Arrow casts to the type; None for null."""
    since: limits.Seq = 0
    """Version that added the column; 0 for an original column of the table."""


class Policy(Struct, frozen=True):
    """Compaction policy of a table, named like RocksDB's options; each state partition is an LSM tree."""

    kind: Literal["universal", "leveled"] = "universal"
    """Universal merges runs of similar size; leveled has levels of growing size, each one run."""
    l0_trigger: limits.MergeRuns = 8
    """`level0_file_num_compaction_trigger`: number of sorted runs (leveled: of level 0) that starts a merge."""
    size_ratio: limits.Ratio = 0.1
    """Universal: share by which a run may exceed all newer runs together and be merged with them; 0.1 is 10 %."""
    min_merge_width: limits.MergeRuns = 2
    """Universal: fewest runs merged because their sizes are similar."""
    max_merge_width: limits.MergeRuns = 64
    """Universal: most runs merged at once, unless all runs are merged."""
    max_space_amplification: limits.Ratio = 1.0
    """Tolerated bytes of the other runs, as a multiple of the oldest run's. Leveled: tolerated bytes of the
    levels between 0 and the last, as a multiple of the last level's.
    """
    level_base_bytes: limits.FileBytes = 64 << 20
    """Leveled: `max_bytes_for_level_base`, size limit of level 1 in each state partition."""
    fanout: limits.Fanout = 10.0
    """Leveled: `max_bytes_for_level_multiplier`, ratio of the size limits of consecutive levels."""
    target_file_bytes: limits.FileBytes = 64 << 20
    """`target_file_size_base`: a larger run is several SSTs with disjoint hash ranges."""


class Ttl(Struct, frozen=True):
    """Time to live of a table's rows. A change does not affect rows that are already written."""

    ms: limits.TtlMs
    """Milliseconds from a row's time to its expiry; 0 if the time to live was turned off."""
    column: limits.ColumnOrNone = ""
    """Value column (a timestamp or a date) with a row's time; empty for the time of writing."""
    gone: bool = False
    """True if `column` was removed: expiry then stays off, because older rows' expiry times follow another clock."""


class Table(Struct, frozen=True):
    """A stage's keyed state: `key` identifies a row; `values` whose names start with `_` are internal."""

    key: Annotated[tuple[Column, ...], limits.SOME_COLUMNS]
    values: Annotated[tuple[Column, ...], limits.COLUMNS]
    partitions: limits.StatePartitions
    """Number of state partitions, which are equal ranges of `_hash`, in order. Older SSTs keep their ranges."""
    state: Declaration = {}
    """Declaration of the state: a change of its meaning is refused at start."""
    ttl: Ttl | None = None
    """Time to live; None if rows never had one: then SSTs have no `_expires_at`."""
    compaction: Policy = Policy()
    """Policy that the last claiming program declared."""
    schema: limits.Seq = 0
    """Number of changes of its columns. Older SSTs are read through `sst.schema`."""
    next_id: limits.Seq = 0
    """Id of the next added column; ids are never reused. 0 in a table that was never migrated."""
    tasks: limits.Tasks = 0
    """Maximum number of tasks of a batch, as the last claiming program set it; 0 for one per state partition."""

    def __hash__(self) -> int:
        return hash((self.key, self.values, self.partitions, self.ttl, self.schema))

    @property
    def ranges(self) -> int:
        """Number of equal ranges of `_hash` that batches write and compaction merges, each range for itself.

        A batch puts one SST for each range that it changes, however many state partitions the range covers.
        """
        return min(self.tasks or self.partitions, self.partitions)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, the key first."""
        return (*self.key, *self.values)

    @property
    def added(self) -> dict[str, int]:
        """Columns that migrations added, except internal ones, with the version that added each."""
        return {column.name: column.since for column in self.values if column.since and not is_internal(column.name)}

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(column.id or position for position, column in enumerate(self.columns, 1))


class Sst(Struct, frozen=True):
    """One immutable Parquet object with rows of one state partition when written, sorted by (`_hash`, key)."""

    object: limits.Key
    """Key under the store root."""
    partition: limits.StatePartition
    """State partition at the time of writing. After a rescale, its hashes decide: see `sst.sorted_runs`."""
    level: limits.LevelNumber
    """0 for an SST written by a batch; 1 or more, as the policy says, for one written by a compaction."""
    rows: limits.Rows
    bytes: limits.Bytes
    checksum: limits.Checksum
    """xxh3_128 of the object's bytes, hexadecimal."""
    hash_min: limits.Hash
    hash_max: limits.Hash
    seq_min: limits.Version
    seq_max: limits.Version
    """Largest `_seq` (`Manifest.row_seq`) of the rows. Of two rows of a key, the one with the larger `_seq` wins."""
    footer_bytes: limits.Bytes
    """Bytes at the object's end: the Parquet footer, and the checksums of filters and page indexes before it."""
    footer_checksum: limits.Checksum
    """xxh3_128 of the footer's bytes, hexadecimal."""
    filter_bytes: limits.Bytes
    """Bytes of the filters and page indexes of all row groups, just before the bytes of `footer_bytes`."""
    tombstones: limits.Bytes = 0
    root: limits.Line = ""
    """Store root of the object, if it differs from that of the manifest (in a clone across roots); else empty."""
    expiring: limits.Bytes = 0
    """Number of rows that expire. Other rows never do, or are tombstones."""
    expires_min: limits.SpanMs = 0
    """Earliest expiry time of the rows, milliseconds since 1970 UTC; 0 if no row expires."""
    expires_max: limits.SpanMs = 0
    unshowable: bool = False
    """True if it has values that SQL cannot represent (`arrow_types.showable`)."""


class Reset(Struct, frozen=True):
    """A change of a user topic's offsets by the user."""

    version: limits.Version
    """Version that made the change."""
    starts: limits.Offsets
    """Offsets before the change, by Kafka partition; `ends` has the offsets after it, earlier or later."""
    ends: limits.Offsets
    topic_id: limits.Line = ""
    """Previous `Input.topic_id` (`?` if unknown) if the topic was re-created; else empty."""


class Input(Struct, frozen=True):
    """Progress of one input: `offsets[p]` is the next offset to read in Kafka partition p."""

    topic: limits.Topic
    offsets: limits.Offsets
    upstream: limits.NameOrNone = ""
    """Stage that writes this channel; empty for a user's topic."""
    version: limits.Seq = 0
    """Last upstream version that was consumed; 0 for a user's topic and before the first."""
    rows: limits.Own[limits.Count] = 0
    """Number of rows that this version read from the input; for a user's topic, of records."""
    consumed: limits.Counts = ()
    """For a channel: rows read since it began, by Kafka partition."""
    lost: limits.Counts = ()
    """Rows (of a user's topic: offsets) that claims skipped because Kafka had lost them, by Kafka partition."""
    watermark_ms: limits.EventMs | None = None
    """Event-time progress of the input, ms since 1970 UTC: the largest event time read, minus the delay. For a channel
    without a watermark of the stage's own, that of the upstream version. Never decreases; None for unknown."""
    resets: Annotated[tuple[Reset, ...], limits.RENAMES] = ()
    """For a user's topic: all resets up to this version, oldest first, which split what was read into ranges."""
    topic_id: limits.Line = ""
    """Kafka's topic id, as in `state.records`, here and in outputs and sinks; empty if unknown."""

    @property
    def passed(self) -> tuple[int, ...]:
        """Number of a channel's rows, read or lost, before `offsets`, by Kafka partition. Empty if unknown."""
        if not self.consumed or not self.lost:
            return self.consumed
        return tuple(read + gone for read, gone in zip_longest(self.consumed, self.lost, fillvalue=0))


class Lost(Struct, frozen=True):
    """Records that one claim skipped on one input, because Kafka had deleted them."""

    topic: limits.Topic
    starts: limits.Offsets
    """Offsets before the gap, by Kafka partition; `ends` has the offsets after it."""
    ends: limits.Offsets
    rows: limits.Counts = ()
    """For a channel: rows sent in the gap, by Kafka partition; empty for a user's topic. Includes rows that Kafka still
    has, because a reader gets all rows of an upstream version or none. Offsets of a user's topic are not all
    records."""
    after: limits.Seq = 0
    """For a channel: the upstream versions `after` + 1 to `up_to` were skipped; both 0 for a user's topic."""
    up_to: limits.Seq = 0


class Output(Struct, frozen=True):
    """Messages of one version in one channel."""

    topic: limits.Topic
    ends: limits.Offsets
    """Next offset after this version's last message, in each Kafka partition, also in those without a new message."""
    sent: limits.Counts
    """Rows written since the channel began, by Kafka partition: readers must find as many."""
    attempts: limits.Own[tuple[limits.Attempt, ...]] = ()
    """Task attempts whose messages count; readers skip all others in the range."""
    rows: limits.Own[limits.Count] = 0
    schema: limits.Text = ""
    """Schema of the rows as a Spark DDL string; empty if no stage reads them."""
    markers: limits.Own[dict[limits.Id, limits.Offsets]] = {}
    """Offset of the marker in each partition, by snapshot id; markers are the last messages of this version."""
    topic_id: limits.Line = ""


SinkKind = Literal["topic", "function"]
"""Kind of a sink: records for a topic, or rows for a function."""


class Sink(Struct, frozen=True):
    """Output of one version for one sink, on an internal topic of one partition. No cut includes sinks."""

    topic: limits.Topic
    """Name of the internal topic."""
    end: limits.Offset
    """Next offset after this version's last message (also if it wrote none)."""
    since: limits.Version
    """Version that began the sink, without rows; its publisher starts there."""
    kind: SinkKind = "topic"
    attempts: limits.Own[tuple[limits.Attempt, ...]] = ()
    """Task attempts whose messages count."""
    rows: limits.Own[limits.Count] = 0
    sent: limits.Count = 0
    """Rows written since the sink began: its publisher must find as many."""
    topic_id: limits.Line = ""


class SideTable(Struct, frozen=True):
    """A table beside a stage's own; readers get it through `side_tables`."""

    table: Table
    ssts: Annotated[tuple[Sst, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    rows: limits.Own[limits.Count] = 0
    """Rows that this version added."""
    total: limits.Count = 0
    """Rows added since the stage began, including in the app that it was cloned from."""
    waiting: limits.Count = 0
    """Rows not yet handled, such as rejected records that were not retried."""


class EventTime(Struct, frozen=True):
    """Event-time progress of a stage."""

    watermark_ms: limits.EventMs | None = None
    """Time before which no rows are expected, ms since 1970 UTC: the least watermark of the inputs. Never decreases."""
    ahead: limits.Own[limits.Count] = 0
    """Number of this version's rows too far ahead of the clock, which therefore did not advance the watermark."""
    ahead_total: limits.Count = 0
    """Rows since the stage began that were too far ahead of the clock."""
    late: limits.Own[limits.Count] = 0
    """Number of this version's rows left out of the table: their window was over, or too far ahead."""
    late_total: limits.Count = 0
    """Rows since the stage began that were left out as late."""
    bound_ms: limits.Own[limits.EventMs | None] = None
    """Time beyond which rows of this version were too far ahead of the clock. None if it read no rows."""
    due_ms: limits.SpanMs | None = None
    """Time up to which rows of the table have fallen due. None if no row can have fallen due yet."""
    next_due_ms: limits.SpanMs | None = None
    """Earliest time at which a row may fall due; None if none ever does."""
    by_clock: bool = False
    """True if rows fall due by the wall clock, False if by the watermark."""
    behind_ms: limits.TtlMs = 0
    """Most by which emitted times may lag behind the watermark, for example of rows that waited in a join."""
    wall_ms: limits.Own[limits.EventMs | None] = None
    """Wall clock at the batch's start, for state functions and replays, if rows of the table fall due."""

    @property
    def owed(self) -> bool:
        """True if rows that fell due by the watermark may not have been emitted yet."""
        if self.by_clock or self.next_due_ms is None or self.watermark_ms is None:
            return False
        return self.next_due_ms <= self.watermark_ms


class Span(Struct, frozen=True):
    """Rows that the upstream versions `after` + 1 to `up_to` sent on one channel."""

    after: limits.Seq
    up_to: limits.Seq


class Program(Struct, frozen=True):
    """File that declared a stage when it was claimed, on the claimer's machine."""

    path: limits.Line
    checksum: limits.Checksum
    """xxh3_128 of the file's bytes, hexadecimal."""

    def __str__(self) -> str:
        return f"{self.path} (xxh3_128 {self.checksum})"


class Former(Struct, frozen=True):
    """A former name of a stage."""

    stage: limits.Name
    version: limits.Version
    """Version that retired the stage under this name, and the first under the next name."""


class Rewind(Struct, frozen=True):
    """A rewind of a stage: it restored the content of an earlier version, and undid the versions in between."""

    version: limits.Version
    """Version that made the rewind."""
    to: limits.Seq
    """Version whose content was restored; 0 if the stage had no version then: it is retired, and begins anew."""
    table_only: bool = False
    """True if only the table was restored: what was read and sent in between stays read and sent."""


class Edit(Struct, frozen=True):
    """A manual change of rows of the table."""

    id: limits.Ulid
    by: limits.Line
    what: limits.Text
    """The statement, or the source of the rows."""
    message: limits.Text = ""
    """Reason, as given by the user."""


class Promotion(Struct, frozen=True):
    """Transfer of an app's name and sinks to another app; recorded in all stages of both.

    In effect when the name's note of this number confirms it (`apps.NAMES`), and withdrawn if the note says otherwise.
    """

    name: limits.Name
    number: limits.Version
    to: limits.Name
    """Folder of the app that has the name from then on."""
    at: dict[limits.Topic, limits.Offsets]
    """Offsets of both apps at the transfer, by users' topic: the new app publishes the output of later records."""
    clock_ms: limits.SpanMs | None
    """Time up to which rows have fallen due by the clock in both apps; None if no rows ever do."""
    sinks: dict[limits.Topic, limits.Topic] | None
    """Sinks that this app publishes after the transfer, with their topics; None for all, as declared."""
    before: dict[limits.Topic, limits.Topic] | None
    """Sinks that this app published until the transfer; None for all, as declared."""


class Followed(Struct, frozen=True):
    """Progress in a Spark query that the stage follows; the stage's tables are the state of the query."""

    query: limits.Line
    next_batch: limits.Seq
    """First batch of the query that is not in the version."""
    batches: limits.Own[limits.Count] = 0
    """Number of batches in this version; above 1 if state was deleted before each batch could be read."""
    checkpoint: limits.Line = ""
    others: tuple[limits.Line, ...] = ()
    """Inputs that are no Kafka topics: their offsets count files or seconds, and cannot be read again."""


class Manifest(Struct, frozen=True):
    """One committed version of one stage."""

    app: limits.Name
    stage: limits.Name
    version: limits.Version
    epoch: limits.Epoch
    writer: limits.Line
    """Unique id of the commit's author, which distinguishes a lost answer from a lost race."""
    time_ms: limits.TimeMs
    """Wall clock of the commit, milliseconds since 1970 UTC; strictly increasing."""
    kind: VersionKind
    inputs: dict[limits.Topic, Input] = {}
    """Progress of each input, by the declared name of the topic or channel."""
    outputs: dict[limits.Topic, Output] = {}
    """Output channels, by declared name; carried on by versions that write nothing."""
    sinks: dict[limits.Topic, Sink] = {}
    """Sinks, by declared name; carried on by versions that write nothing."""
    table: Table | None = None
    clock_ms: limits.SpanMs = 0
    """Clock by which rows expire (`sst.ttl`): rows whose expiry time is this or earlier are not visible. The wall clock
    at the batch's start, or the largest event time seen; 0 for a table that never had a time to live."""
    ssts: Annotated[tuple[Sst, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    recorded: dict[limits.Id, limits.Version] = {}
    """Open snapshots (by id), with the version of this stage in their cut."""
    awaited: dict[limits.Id, tuple[limits.Topic, ...]] = {}
    """Channels whose marker has not arrived, by recorded snapshot; snapshots that wait for none are left out."""
    captured: dict[limits.Id, dict[limits.Topic, Span]] = {}
    """By recorded snapshot and channel: what was consumed after the recorded version and before the marker."""
    lost: limits.Own[dict[limits.Topic, Lost]] = {}
    """For a claim that skipped lost records: the skipped records, by input."""
    duration_ms: limits.Own[limits.Count] = 0
    """Duration from the batch's plan to this commit."""
    by: limits.Line = ""
    """host:pid of the writer, for messages to people."""
    program: Program | None = None
    """File that declared the stage at its last claim, for replays; None if the program was not in a file."""
    seq: limits.Own[limits.Seq] = 0
    """`_seq` of the rows that this version wrote; 0 for the version's own number. They differ if a batch lost its
    number to a compaction: it is committed under a later number, with SSTs already written."""
    stats: limits.Own[Stats | None] = None
    """Requests and bytes since the previous version; None if the writer did not count."""
    totals: Stats | None = None
    """Sum of `stats` since the stage began, so that two manifests give the cost of all versions between them."""
    stopped: dict[limits.Topic, Input] = {}
    """Inputs that migrations removed, with their last offsets; a stage that reads one again continues there."""
    migration: limits.Seq = 0
    """Number of the newest migration of the stage; equal in all stages unless a migration is being committed."""
    side_tables: dict[limits.Name, SideTable] = {}
    """Tables beside the stage's own, by the suffix of their name (`side_tables.REJECTED`)."""
    called: limits.NameOrNone = ""
    """For a renamed stage, which is retired under this name for good: its new name."""
    formerly: Annotated[tuple[Former, ...], limits.RENAMES] = ()
    """Former names of the stage, oldest first. Its SSTs may have keys with these names."""
    event_time: EventTime | None = None
    """Event-time progress; None for a stage without event time."""
    lineage: dict[limits.Line, Lineage] = {}
    """Sources of the table's key (under `""`) and of channels (by name), over all programs that ran the stage."""
    rewinds: Annotated[tuple[Rewind, ...], limits.RENAMES] = ()
    """All rewinds of the stage up to this version, oldest first."""
    edited: limits.Own[Edit | None] = None
    """The manual edit that made this version; None for other kinds."""
    silent: dict[limits.Topic, SinkKind] = {}
    """Sinks that the program declares and the app does not publish, such as sinks of a clone."""
    promotion: Promotion | None = None
    """Newest promotion of the stage; None if the app never took part in one."""
    forgotten: limits.Seq = 0
    """Number of the app's index of forgotten keys (`forgotten`) that the version includes, 0 for none. A reader
    with an older cached index reads the index first."""
    attached: Followed | None = None
    """Progress of the followed query; None for a stage whose tables are not a query's state."""
    adopted: Followed | None = None
    """Progress of the adopted query, for the versions made before the stage adopted it; else None."""

    @property
    def watermark_ms(self) -> int | None:
        """The stage's watermark at this version, or None."""
        return self.event_time.watermark_ms if self.event_time is not None else None

    @property
    def handed_on_ms(self) -> int | None:
        """Watermark for the stages that read this version: the stage's own, minus what is still to be emitted.

        Rows that have fallen due and are not emitted yet must not be late downstream; nor must rows that waited in a
        join.
        """
        times = self.event_time
        at_ms = times.due_ms if times is not None and times.owed else self.watermark_ms
        if times is None or at_ms is None or not times.behind_ms:
            return at_ms
        return max(limits.YEAR_1_MS, at_ms - times.behind_ms)

    @property
    def row_seq(self) -> int:
        """`_seq` of the rows that this version wrote. Increases from batch to batch, and is at most the version."""
        return self.seq or self.version

    @property
    def rewind(self) -> Rewind | None:
        """Rewind that made this version, or None. A clone's first version, which has its source's number, has none."""
        last = self.rewinds[-1] if self.rewinds else None
        return last if last is not None and last.version == self.version and not self.begins else None

    @property
    def not_begun(self) -> bool:
        """True if the stage was rewound to before its beginning. A claim begins the stage anew."""
        return self.retired and not self.inputs

    def follows(self, after: int = 0, *, of_rows: bool = False) -> tuple[range, ...]:
        """Return the ranges of versions above `after` on which this version is based, up to itself; ascending.

        Versions that a rewind undid are left out. With `of_rows`, returns the versions whose rows the table may
        have; without it, those whose input and output count.
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
    def begins(self) -> bool:
        """True if the stage's history begins here under a number above 1: a clone, or a renamed stage."""
        return bool(self.traits.begins)

    @property
    def retired(self) -> bool:
        """True if the stage is retired: cuts, snapshots and lag leave it out, and only a claim may follow."""
        return self.traits.retires

    @property
    def former_name(self) -> str:
        """Name of the stage before the version that renamed it; empty for any other version."""
        return self.formerly[-1].stage if self.traits.begins == "renamed" else ""

    @property
    def has_read(self) -> bool:
        """True for a batch that read records, and not only markers."""
        return self.traits.reads_records and any(read.rows for read in self.inputs.values())


class Origin(Struct, frozen=True):
    """Source of a clone."""

    root: limits.Line
    """Store root of the source; empty for a deep clone, which does not need its source."""
    app: limits.Name
    snapshot: limits.NameOrNone
    """Pinned snapshot in the source app; empty if nothing is shared with the source."""
    cut: dict[limits.Name, limits.Version]
    """Source version of each stage; empty for a clone that began without state."""
    topics: dict[limits.Topic, limits.Topic] = {}
    """User topics that are read under another name: source name to this app's name."""
    sinks: dict[limits.Topic, limits.Topic] = {}
    """Sinks that the clone publishes, by declared name, with the topic of each; other sinks are not published."""
    masks: dict[limits.Line, limits.Line] = {}
    """Masked columns, `table.column` to the method: their values differ from the source's."""

    @property
    def deep(self) -> bool:
        """True if the clone shares no objects with its source."""
        return not self.root

    @property
    def empty(self) -> bool:
        """True for a clone that began without state, to read all topics from the beginning."""
        return not self.cut


class AppInfo(Struct, frozen=True):
    """Identity of an app, written once."""

    name: limits.Name
    created_ms: limits.TimeMs
    origin: Origin | None = None
    starts: dict[limits.Topic, limits.Offsets] = {}
    """First offsets of users' topics, by declared name, where `init` overrides the program."""
    initialised: limits.NameOrNone = ""
    """Stage whose table `init` or `adopt` filled, if any: the app can run once that stage has a version."""
    owner: limits.Line = ""
    """For a clone: its owner, user@host or as given."""
    reason: limits.Text = ""
    """For a clone: its purpose."""
    ttl_ms: limits.TtlMs = 0
    """For a clone: its time to live; 0 for no limit."""

    @property
    def expires_ms(self) -> int:
        """Expiry time of the clone, milliseconds since 1970 UTC; 0 for never."""
        return self.created_ms + self.ttl_ms if self.ttl_ms else 0
