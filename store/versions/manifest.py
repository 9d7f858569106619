"""The manifest: everything that is true of one stage after one version.

Values only: `codec` turns them into bytes, `commit` makes them durable. A manifest is never changed: the next number's
carries on everything but what is of one version alone, fields that are `Own`.
"""

from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from ..objects.stats import Stats
from . import limits
from .column_types import Lineage
from .kinds import KINDS, Traits, VersionKind

Declaration: TypeAlias = dict[str, Any]
"""A kind of state as it was declared: a JSON object, whose `kind` says which; `state.kinds` has them."""


def is_internal(column: str) -> bool:
    """Whether a column is none that users see: the names of such columns begin with `_`."""
    return column.startswith("_")


class Column(Struct, frozen=True):
    """A column of a state table. `type` is Arrow's name for it, as `sst.arrow_types` writes and reads it."""

    name: limits.ColumnName
    type: limits.TypeName
    id: limits.Seq = 0
    """Its name in SSTs, for good; 0 in a table that was never migrated: then its place among all columns, from 1."""
    default: limits.Text | None = None
    """What older rows have in it, as the text that Arrow casts to its type; None for null."""
    since: limits.Seq = 0
    """The version that added it; 0 for a column that the table was born with."""


class Policy(Struct, frozen=True):
    """Which SSTs of a table are merged when, in the words of RocksDB's options; each state partition is an LSM tree."""

    kind: Literal["universal", "leveled"] = "universal"
    """Runs of similar size are merged, or there are levels of growing size, each one run: modules of `compaction`."""
    l0_trigger: limits.MergeRuns = 8
    """`level0_file_num_compaction_trigger`: sorted runs (leveled: of level 0) from which on there is work to do."""
    size_ratio: limits.Ratio = 0.1
    """Universal: how much larger than those before it together a run may be that is merged with them; 0.1 is 10 %."""
    min_merge_width: limits.MergeRuns = 2
    """Universal: fewest runs merged because their sizes are similar."""
    max_merge_width: limits.MergeRuns = 64
    """Universal: most runs merged at once, unless all are."""
    max_space_amplification: limits.Ratio = 1.0
    """Bytes above the oldest run (leveled: of the levels between 0 and the last), over its own, that are tolerated."""
    level_base_bytes: limits.FileBytes = 64 << 20
    """Leveled: `max_bytes_for_level_base`, what level 1 may hold in each state partition."""
    fanout: limits.Fanout = 10.0
    """Leveled: `max_bytes_for_level_multiplier`, how much more each further level may hold."""
    target_file_bytes: limits.FileBytes = 64 << 20
    """`target_file_size_base`: a run of more bytes is several SSTs, side by side in their hashes."""


class Ttl(Struct, frozen=True):
    """How long a table's rows live. Rows keep the time at which they expire as it was when they were written."""

    ms: limits.TtlMs
    """Milliseconds from a row's time to its expiry; 0 when this was turned off and rows live for ever again."""
    column: limits.ColumnOrNone = ""
    """The value column (a timestamp or a date) that is a row's time; empty when that is when it was written."""
    gone: bool = False
    """Whether that was a column that went since: then this stays off, as nobody can count by older rows' times."""


class Table(Struct, frozen=True):
    """A stage's keyed state: `key` identifies a row; `values` whose names start with `_` are internal."""

    key: Annotated[tuple[Column, ...], limits.SOME_COLUMNS]
    values: Annotated[tuple[Column, ...], limits.COLUMNS]
    partitions: limits.StatePartitions
    """State partitions; p holds the p-th equal range of `_hash`. Older SSTs keep to the ranges of their time."""
    state: Declaration = {}
    """How the state was declared: a change of meaning is refused at start."""
    ttl: Ttl | None = None
    """None for a table whose rows never had a time to live: then its SSTs have no `_expires_at`."""
    compaction: Policy = Policy()
    """As the program that claimed the stage last declared it."""
    schema: limits.Seq = 0
    """How often its columns were changed since it was born. SSTs from before are read through `sst.evolution`."""
    next_id: limits.Seq = 0
    """The id of the next column that is added: none is given twice. 0 in a table that was never migrated."""

    def __hash__(self) -> int:
        return hash((self.key, self.values, self.partitions, self.ttl, self.schema))

    @property
    def columns(self) -> tuple[Column, ...]:
        """All its columns, the key first."""
        return (*self.key, *self.values)

    @property
    def added(self) -> dict[str, int]:
        """The columns that migrations added, internal ones left out, and the version that each is there since."""
        return {each.name: each.since for each in self.values if each.since and not is_internal(each.name)}

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of `columns`."""
        return tuple(column.id or place for place, column in enumerate(self.columns, 1))


class Sst(Struct, frozen=True):
    """One immutable Parquet object, rows sorted by (`_hash`, key), of one state partition as it was then."""

    object: limits.Key
    """Key under the store root."""
    partition: limits.StatePartition
    """The state partition it was written for. Where it belongs since a rescale, its hashes say: `sst.sorted_runs`."""
    level: limits.LevelNumber
    """0 as a batch wrote it; what compaction wrote has the level that its policy gave it, 1 or more."""
    rows: limits.Rows
    bytes: limits.Bytes
    checksum: limits.Checksum
    """xxh3_128 of the object's bytes, hexadecimal."""
    hash_min: limits.Hash
    hash_max: limits.Hash
    seq_min: limits.Version
    seq_max: limits.Version
    """`_seq` tells which version wrote a row (`Manifest.row_seq`): the larger wins."""
    footer_bytes: limits.Bytes
    """Bytes at the end of the object: its Parquet footer, and before it the checksums of filters and page indexes."""
    footer_checksum: limits.Checksum
    """xxh3_128 of the footer's bytes, hexadecimal."""
    filter_bytes: limits.Bytes
    """How many bytes before these are filters, one for each row group, and page indexes."""
    tombstones: limits.Bytes = 0
    root: limits.Line = ""
    """The store root that holds the object, when it is not the manifest's own (a clone across roots)."""
    expiring: limits.Bytes = 0
    """Rows that expire at some time. The others never do, or are tombstones."""
    expires_min: limits.SpanMs = 0
    """The range of these times, milliseconds since 1970 UTC; 0 when `expiring` is."""
    expires_max: limits.SpanMs = 0
    unshowable: bool = False
    """Whether it has values for which SQL has none (`sst.showable`)."""


class Reset(Struct, frozen=True):
    """That somebody chose where a user's topic is read on from."""

    version: limits.Version
    """The version that this made."""
    starts: limits.Offsets
    """It stood at these offsets, by Kafka partition, and goes on at `ends`, earlier ones or later ones."""
    ends: limits.Offsets
    topic_id: limits.Line = ""
    """`Input.topic_id` until then, `?` for an unknown one, where another topic has the name since; else empty."""


class Input(Struct, frozen=True):
    """How far one input has been read: `offsets[p]` is the next offset to read in Kafka partition p."""

    topic: limits.Topic
    offsets: limits.Offsets
    upstream: limits.NameOrNone = ""
    """The stage that writes this channel; empty for a user's topic."""
    version: limits.Seq = 0
    """The upstream version consumed up to and with; 0 for a user's topic and before the first."""
    rows: limits.Own[limits.Count] = 0
    """Rows read from this input by this version; of a user's topic, its records."""
    consumed: limits.Counts = ()
    """For a channel: rows read since it began, by Kafka partition. Every one was counted when it was read."""
    lost: limits.Counts = ()
    """What claims passed over, as Kafka had lost it, by Kafka partition: rows, or offsets of a user's topic."""
    watermark_ms: limits.EventMs | None = None
    """How far event time has come here, in ms since 1970 UTC: the largest event time read less the delay; of a channel
    without a watermark of the stage's own, that of the upstream version. It never falls; None for unknown."""
    resets: Annotated[tuple[Reset, ...], limits.RENAMES] = ()
    """Of a user's topic, all that were made up to this version, oldest first: what was read lies in stretches."""
    topic_id: limits.Line = ""
    """Kafka's id, as `state.topics` has it, here and of outputs and sinks; empty where it is not known yet."""

    @property
    def passed(self) -> tuple[int, ...]:
        """For a channel: rows sent before where this stands, by Kafka partition: read or lost. Empty when not known."""
        if not self.consumed or not self.lost:
            return self.consumed
        return tuple(read + gone for read, gone in zip_longest(self.consumed, self.lost, fillvalue=0))


class Lost(Struct, frozen=True):
    """What one claim passed over on one input, because Kafka did not have it any more."""

    topic: limits.Topic
    starts: limits.Offsets
    """It stood at these offsets, by Kafka partition, and goes on at `ends`."""
    ends: limits.Offsets
    rows: limits.Counts = ()
    """For a channel: rows sent in between, by Kafka partition. Those that Kafka still has count too: of an upstream
    version a reader gets all rows or none. Empty for a user's topic, whose offsets are not all records."""
    after: limits.Seq = 0
    """For a channel: the upstream versions `after` + 1 to `up_to` were passed over; both 0 for a user's topic."""
    up_to: limits.Seq = 0


class Output(Struct, frozen=True):
    """What one version wrote to one channel."""

    topic: limits.Topic
    ends: limits.Offsets
    """The next offset after this version's last message, in each Kafka partition (also when it wrote none)."""
    sent: limits.Counts
    """Rows written since the channel began, by Kafka partition: what readers must find."""
    attempts: limits.Own[tuple[limits.Attempt, ...]] = ()
    """The task attempts whose messages count; all others in the range are skipped by readers."""
    rows: limits.Own[limits.Count] = 0
    schema: limits.Text = ""
    """The rows' schema as a Spark DDL string; empty where no stage reads it."""
    markers: limits.Own[dict[limits.Id, limits.Offsets]] = {}
    """Snapshot id to the marker's offset in each partition: the last messages of this version."""
    topic_id: limits.Line = ""


SinkKind = Literal["topic", "function"]
"""Records of a topic, as they are to be published, or rows for a function."""


class Sink(Struct, frozen=True):
    """What one version wrote for one sink, on an internal topic of one partition. It is no channel, so in no cut."""

    topic: limits.Topic
    """The internal topic."""
    end: limits.Offset
    """The next offset after this version's last message (also when it wrote none)."""
    since: limits.Version
    """The version that began the sink, with no rows: where a publisher begins."""
    kind: SinkKind = "topic"
    attempts: limits.Own[tuple[limits.Attempt, ...]] = ()
    """The task attempts whose messages count, as of an output."""
    rows: limits.Own[limits.Count] = 0
    sent: limits.Count = 0
    """Rows written since the sink began: what its publisher must find."""
    topic_id: limits.Line = ""


class SideTable(Struct, frozen=True):
    """A table beside a stage's own, as `side_tables` gives it to readers."""

    table: Table
    ssts: Annotated[tuple[Sst, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    rows: limits.Own[limits.Count] = 0
    """Rows that this version added."""
    total: limits.Count = 0
    """Rows added since the stage began, also in the app that it was cloned from."""
    waiting: limits.Count = 0
    """Of these, the ones with which nothing has been done yet: rejected records that were not retried."""


class EventTime(Struct, frozen=True):
    """How far a stage's event time has come."""

    watermark_ms: limits.EventMs | None = None
    """Rows of an earlier time are no longer expected, ms since 1970 UTC. The smallest of its inputs'; never falls."""
    ahead: limits.Own[limits.Count] = 0
    """Rows of this version whose time was further ahead of the clock than may be, so that they moved nothing."""
    ahead_total: limits.Count = 0
    """The same since the stage began."""
    late: limits.Own[limits.Count] = 0
    """Rows of this version left out of the table: too late for their window, or it is too far ahead of the clock."""
    late_total: limits.Count = 0
    """The same since the stage began."""
    bound_ms: limits.Own[limits.EventMs | None] = None
    """What was too far ahead of the clock at this version: later times than this. None where it read no rows."""
    due_ms: limits.SpanMs | None = None
    """Of a table whose rows fall due: up to when they have. None where none could have yet."""
    next_due_ms: limits.SpanMs | None = None
    """No row falls due before this time; None where none ever does."""
    by_clock: bool = False
    """Whether rows fall due by the wall clock; else by the watermark."""
    behind_ms: limits.TtlMs = 0
    """How much earlier than the watermark the times may be of what the stage still emits: a join's rows have waited."""
    wall_ms: limits.Own[limits.EventMs | None] = None
    """The wall clock at the batch's start, where rows of the table fall due: a state may go by it, and a replay too."""

    @property
    def owed(self) -> bool:
        """Whether the watermark has passed a time at which a row may fall due that has not."""
        if self.by_clock or self.next_due_ms is None or self.watermark_ms is None:
            return False
        return self.next_due_ms <= self.watermark_ms


class Span(Struct, frozen=True):
    """What the upstream versions `after` + 1 to `up_to` sent on one channel."""

    after: limits.Seq
    up_to: limits.Seq


class Program(Struct, frozen=True):
    """The file that declared a stage when it was claimed, on the claimer's machine."""

    path: limits.Line
    checksum: limits.Checksum
    """xxh3_128 of its bytes, hexadecimal."""

    def __str__(self) -> str:
        return f"{self.path} (xxh3_128 {self.checksum})"


class Former(Struct, frozen=True):
    """A name that a stage had before."""

    stage: limits.Name
    version: limits.Version
    """Of the version that retired it under this name, and of the first that it has under the next one."""


class Rewind(Struct, frozen=True):
    """That a stage is, from one version on, what it was at an earlier one: those between are undone."""

    version: limits.Version
    """The version that this made."""
    to: limits.Seq
    """The version whose content it has; 0 where the stage had none then: it is retired, and begins anew."""
    table_only: bool = False
    """Whether only its table is that of then: what was read and sent in between stays read and sent."""


class Edit(Struct, frozen=True):
    """That somebody changed rows of the table by hand."""

    id: limits.Ulid
    """Of the request for it."""
    by: limits.Line
    """user@host of who asked for it."""
    what: limits.Text
    """The statement, or where the rows came from."""
    message: limits.Text = ""
    """Why, in the words of whoever did it."""


class Promotion(Struct, frozen=True):
    """That an app is to have another one's name and sinks: in all stages of both, from their versions of it on.

    It counts once the name's note of this number says so (`apps.NAMES`), and never where that says something else.
    """

    name: limits.Name
    """The name that goes over."""
    number: limits.Version
    """Of the name's promotions, from 1."""
    to: limits.Name
    """The app that has the name from then on, by its folder."""
    at: dict[limits.Topic, limits.Offsets]
    """Where both stand, by users' topic: what comes from there on is the new app's to publish."""
    clock_ms: limits.SpanMs | None
    """Up to when rows have fallen due by the clock in both; None where none ever does."""
    sinks: dict[limits.Topic, limits.Topic] | None
    """What this app publishes from then on, as `Origin.sinks`: None for all, as declared."""
    before: dict[limits.Topic, limits.Topic] | None
    """What it published until then, likewise."""


class Followed(Struct, frozen=True):
    """How far a version has come of a query of Spark's, whose state its tables are."""

    query: limits.Line
    next_batch: limits.Seq
    """The first batch that is not in the version."""
    batches: limits.Own[limits.Count] = 0
    """How many this version brought, up to that: several where all but the last were gone before they were read."""
    checkpoint: limits.Line = ""
    others: tuple[limits.Line, ...] = ()
    """Inputs that are no Kafka topic: their offsets count files or seconds, and cannot be read again."""


class Manifest(Struct, frozen=True):
    """One committed version of one stage."""

    app: limits.Name
    stage: limits.Name
    version: limits.Version
    epoch: limits.Epoch
    writer: limits.Line
    """Unique id of the commit's author; tells a lost answer from a lost race."""
    time_ms: limits.TimeMs
    """Wall clock of the commit, milliseconds since 1970 UTC; strictly greater than the version before."""
    kind: VersionKind
    inputs: dict[limits.Topic, Input] = {}
    """By the name of the topic or channel as declared."""
    outputs: dict[limits.Topic, Output] = {}
    """By the name of the channel as declared; carried on by versions that write nothing."""
    sinks: dict[limits.Topic, Sink] = {}
    """By the sink's name as declared; carried on by versions that write nothing."""
    table: Table | None = None
    clock_ms: limits.SpanMs = 0
    """By which rows of the table expire (`sst.ttl`): those whose time is this or earlier are gone at this version.
    The wall clock at the batch's start, or the largest event time seen; 0 for a table that never had a time to live."""
    ssts: Annotated[tuple[Sst, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    recorded: dict[limits.Id, limits.Version] = {}
    """Open snapshots (by id) and the version of this stage that is its part of their cut."""
    awaited: dict[limits.Id, tuple[limits.Topic, ...]] = {}
    """Of the recorded snapshots, the channels whose marker has not arrived; left out when there is none."""
    captured: dict[limits.Id, dict[limits.Topic, Span]] = {}
    """By recorded snapshot and channel: what was consumed after the recorded version and before the marker."""
    lost: limits.Own[dict[limits.Topic, Lost]] = {}
    """Of a claim that went on without records that were gone: by input, what it passed over."""
    duration_ms: limits.Own[limits.Count] = 0
    """From the batch's plan to this commit."""
    by: limits.Line = ""
    """host:pid of the writer, for messages to people."""
    program: Program | None = None
    """What declares the stage, as its last claim found it; None where that was no file. A replay looks there."""
    seq: limits.Own[limits.Seq] = 0
    """`_seq` of the rows that this version wrote; 0 where it is the version's own number. A batch that lost its number
    to a compaction is committed under a later one, and its SSTs are written by then."""
    stats: limits.Own[Stats | None] = None
    """What was taken since the version before; None where nobody counted."""
    totals: Stats | None = None
    """The sum of `stats` since the stage began, so that two manifests say what all took that lies between them."""
    stopped: dict[limits.Topic, Input] = {}
    """Inputs that migrations took from the stage, where it stopped reading: whoever reads one next goes on there."""
    migration: limits.Seq = 0
    """The newest migration that the stage went through: the same for all stages, but while one is being committed."""
    side_tables: dict[limits.Name, SideTable] = {}
    """Tables beside the stage's own, by what they are called behind its name (`side_tables.REJECTED`)."""
    called: limits.NameOrNone = ""
    """Of a stage that is retired because it was renamed, its name from then on: under this one it never comes back."""
    formerly: Annotated[tuple[Former, ...], limits.RENAMES] = ()
    """The names that the stage had before, the first one first. Its SSTs may lie under these."""
    event_time: EventTime | None = None
    """None of a stage that knows no event time."""
    lineage: dict[limits.Line, Lineage] = {}
    """Of the table's key under `""`, of channels under their names; by all programs that the stage was run with."""
    rewinds: Annotated[tuple[Rewind, ...], limits.RENAMES] = ()
    """All that were made of the stage up to this version, oldest first."""
    edited: limits.Own[Edit | None] = None
    """What an edit did; None of versions of other kinds."""
    silent: dict[limits.Topic, SinkKind] = {}
    """The sinks that the program declares and the app does not publish, as of a clone."""
    promotion: Promotion | None = None
    """The newest that the stage went through; None of an app that never took part in one."""
    forgotten: limits.Seq = 0
    """The number of the app's index of what was forgotten (`forgotten.index`) that it went through, 0 for none: whoever
    reads a manifest with a newer one than is known, reads that first."""
    attached: Followed | None = None
    """None of a stage whose tables are no query's state."""
    adopted: Followed | None = None
    """Of a version that is a query's, which became the stage; None of those that the stage made."""

    @property
    def watermark_ms(self) -> int | None:
        """The stage's watermark at this version, if it has one."""
        return self.event_time.watermark_ms if self.event_time is not None else None

    @property
    def handed_on_ms(self) -> int | None:
        """The watermark for the stages that read this version: the stage's own, less what it owes.

        What rows emit that fall due between the two is still to come, and is not to be late; nor is what waited.
        """
        times = self.event_time
        at_ms = times.due_ms if times is not None and times.owed else self.watermark_ms
        if times is None or at_ms is None or not times.behind_ms:
            return at_ms
        return max(limits.YEAR_1_MS, at_ms - times.behind_ms)

    @property
    def row_seq(self) -> int:
        """`_seq` of the rows that this version wrote. It grows from batch to batch, and is never above the version."""
        return self.seq or self.version

    @property
    def rewind(self) -> Rewind | None:
        """The rewind that made this version, if one did. A clone's first version has its source's number, and none."""
        last = self.rewinds[-1] if self.rewinds else None
        return last if last is not None and last.version == self.version and not self.begins else None

    @property
    def not_begun(self) -> bool:
        """Whether the stage has no past: it was taken back to before it began. Who brings it back begins anew."""
        return self.retired and not self.inputs

    def follows(self, after: int = 0, *, of_rows: bool = False) -> tuple[range, ...]:
        """The numbers above `after` of the versions that this one follows from, up to its own; ascending.

        Those that a rewind undid are left out. `of_rows` asks for the versions whose rows its table may have; else it
        is about what was read and sent.
        """
        found, up_to = [], self.version
        for each in reversed(self.rewinds):
            if each.version <= up_to and (of_rows or not each.table_only):
                found.append(range(max(each.version, after + 1), up_to + 1))
                up_to = each.to
        return tuple(one for one in reversed([*found, range(after + 1, up_to + 1)]) if one)

    @property
    def traits(self) -> Traits:
        """The declaration of its kind."""
        return KINDS[self.kind]

    @property
    def begins(self) -> bool:
        """Whether the stage's history begins here under a number above 1: of a clone, or a stage renamed."""
        return bool(self.traits.begins)

    @property
    def retired(self) -> bool:
        """Whether cuts, snapshots and lag leave the stage out. Only a claim may follow, which brings it back."""
        return self.traits.retires

    @property
    def former_name(self) -> str:
        """The stage's name before this version, which gave it another one; empty for any other version."""
        return self.formerly[-1].stage if self.traits.begins == "renamed" else ""

    @property
    def has_read(self) -> bool:
        """True for a batch that read records, and not only markers."""
        return self.traits.reads_records and any(read.rows for read in self.inputs.values())


class Origin(Struct, frozen=True):
    """What a clone was made from."""

    root: limits.Line
    """The source's store root; empty of a clone that has everything for itself, for which there need be no source."""
    app: limits.Name
    snapshot: limits.NameOrNone
    """Name of the pinned snapshot in the source app; empty where nothing is shared with that."""
    cut: dict[limits.Name, limits.Version]
    """Source version of each stage; empty of a clone that began without state."""
    topics: dict[limits.Topic, limits.Topic] = {}
    """User topics read under another name: source name to this app's name."""
    sinks: dict[limits.Topic, limits.Topic] = {}
    """The sinks that the clone publishes, by their names as declared, and the topic of each. It writes no others."""
    masks: dict[limits.Line, limits.Line] = {}
    """What is hidden, `table.column` to how: its rows have other values there than the source's."""

    @property
    def deep(self) -> bool:
        """Whether it has everything for itself."""
        return not self.root

    @property
    def empty(self) -> bool:
        """True of a clone that began without state, to read all topics from the beginning."""
        return not self.cut


class AppInfo(Struct, frozen=True):
    """An app's identity, written once."""

    name: limits.Name
    created_ms: limits.TimeMs
    origin: Origin | None = None
    starts: dict[limits.Topic, limits.Offsets] = {}
    """Where its stages begin to read users' topics, by declared name: those for which `init` overrides the program."""
    initialised: limits.NameOrNone = ""
    """The stage whose table began with rows from elsewhere, if the app did: it runs once that has a version."""
    owner: limits.Line = ""
    """Of a clone, who has it, user@host or whatever was said."""
    reason: limits.Text = ""
    """Of a clone, what it is for."""
    ttl_ms: limits.TtlMs = 0
    """Of a clone, how long it is wanted; 0 for as long as nobody removes it."""

    @property
    def expires_ms(self) -> int:
        """When the time is over for which it is wanted, milliseconds since 1970 UTC; 0 for never."""
        return self.created_ms + self.ttl_ms if self.ttl_ms else 0
