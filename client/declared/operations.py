"""Operations on an app: what may be said of each besides the app, its stage or its table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from ...common.parameters import Param
from .questions import VerifyOptions, When

Names = Mapping[str, str] | None
DryRun = Annotated[bool, Param("Check everything, say what would be done; change nothing.")]
YesReally = Annotated[str, Param("The app's name once more, where it is protected: else it is asked for.", "APP")]
Fence = Annotated[bool, Param("Also while a runner has the app: that stops.")]
ShowValues = Annotated[bool, Param("Show the values of the rows that differ.")]
_AT_LEAST_ONE = {"ge": 1}


class GuardedOptions(TypedDict, total=False):
    """What all operations have that could lose something."""

    yes_really: YesReally
    dry_run: DryRun


class RewindOptions(GuardedOptions, total=False):
    """Take an app back to an earlier moment of its own.

    Tables, offsets, and what was on the way between stages become what they were, of all stages or of none, as new
    versions: the history stays, and what is undone keeps a name, to which one more rewind leads. The next run
    reads on from there. Rows that sinks were given since cannot be unsent, and come once more; --dry-run says which.
    """

    before_deploy: Annotated[bool, Param("To the moment before the program that the app has now.")]
    keep_offsets: Annotated[bool, Param("Only the tables: the app goes on reading where it is.")]
    fence: Fence


class ResetOptions(GuardedOptions, total=False):
    """Have an app read topics of yours on from other offsets.

    In the words of kafka-consumer-groups --reset-offsets; a new version of each stage says it, and the next run reads
    on from there. Tables stay: what is read twice counts twice, and what is skipped never does. --dry-run says how
    much that is. To take the tables back as well, rewind the app.
    """

    all_topics: Annotated[bool, Param("All topics of yours that the app reads.")]
    to_earliest: Annotated[bool, Param("Read on from the first offset that there is.")]
    to_latest: Annotated[bool, Param("Read on from the end.")]
    to_datetime: Annotated[When, Param("From the first record of this time (2026-11-21T07:12Z) or later.", "TIME")]
    by_duration: Annotated[str, Param("The same, so long ago (PT30M, or 30m).", "SPAN")]
    shift_by: Annotated[int | None, Param("By so many offsets, back where it is below 0.", "N")]
    to_offset: Annotated[int | None, Param("From this offset of each partition.", "N")]
    fence: Fence


class PromoteOptions(GuardedOptions, total=False):
    """Give an app's name and sinks to a clone: blue/green cut-over.

    Waits until both stand at the same offsets of their topics, and holds them there for a moment. What comes after goes
    to the sinks from the clone: a read_committed reader sees each row once. The app that had the name stays, as
    APP~1, and stops. An interrupted promotion is finished by the same command.
    """

    back: Annotated[bool, Param("Instead, give the name back to the app that had it before.")]
    timeout_s: Annotated[
        float, Param("How long to wait until both stand at the same offsets. Default: 10m.", default=600.0)
    ]
    show_values: ShowValues


class EditOptions(GuardedOptions, total=False):
    """Change rows of a table by hand.

    The change is a version of its own, which log, history and bisect tell of. It is shown key by key, as it would be
    with --dry-run. While the app runs, its runner does it between two batches, so none works on rows of before; else
    this command does. Nothing is sent on for it. An interrupted edit is finished by the same command, and done once.
    """

    timeout_s: Annotated[float, Param("How long a runner that has the stage has for it. Default: 60s.", default=60.0)]
    again: Annotated[bool, Param("Also when the same statement was done in the last ten minutes.")]


class KeysOptions(TypedDict, total=False):
    """Keys that are forgotten, besides those that are named one by one."""

    files: Annotated[Sequence[Path], Param("A file with a TABLE=KEY on each line.", "FILE", option="--keys")]
    also: Annotated[Sequence[str], Param("Another value of the same keys, of which the program makes them.", "VALUE")]
    fields: Annotated[
        Sequence[str],
        Param(
            "A field of records that leads to a table's key, where only the program knows: people=$.user.id, or of one "
            "topic people=orders:who; [forget] in slackwater.toml has them for good.",
            "TABLE=FIELD",
        ),
    ]


class ForgetOptions(KeysOptions, GuardedOptions, total=False):
    """Take keys out of all that an app has stored (GDPR erasure).

    Out of the newest version and of every kept one, of snapshots, records in flight, rejected records and the input
    archive, and of clones: SSTs are written anew without them, and versions are read with these. A record goes where a
    field that leads to the key equals it. No tombstone stays, and nothing says which keys they were. The app may run
    meanwhile. --dry-run lists what goes, by topic and field; what is out of reach, and what cannot be told, is listed,
    too. An interrupted forget is finished by the same command.
    """


class LookOptions(VerifyOptions, KeysOptions, total=False):
    """Keys that were forgotten, and how each object is looked at."""


class CompactOptions(TypedDict, total=False):
    """Merge the SSTs of an app's tables, as each table's policy says.

    What is merged is committed as versions of their own, which change no row. The app may run meanwhile; when a batch
    is committed first, the result is put into the version after it. This process gives way to others on the machine.
    """

    threads: Annotated[int, Param("Merges that go on at once.", "N", default=1, limits=_AT_LEAST_ONE)]
    full: Annotated[bool, Param("Merge everything of each state partition into one run, due or not.")]
    dry_run: DryRun


class RetentionOptions(TypedDict, total=False):
    """Delete versions that retention lets go, and unnamed objects.

    The rules are in slackwater.toml, under [retention]; an option here takes the place of the rule of its name.
    Each rule keeps something, what no rule keeps goes, and without any rule the whole history stays. Snapshots,
    clones, and what a stage has not read yet always stay. The app may run meanwhile.
    """

    all_ms: Annotated[int | None, Param("Keep every version this young.")]
    hourly_ms: Annotated[int | None, Param("Within this age, keep a moment an hour.")]
    daily_ms: Annotated[int | None, Param("Within this age, keep a moment a day.")]
    versions: Annotated[int | None, Param("Keep the newest N versions of each stage.", "N", limits=_AT_LEAST_ONE)]
    input_ms: Annotated[int | None, Param("Keep in the input archive what was read within this time.")]


class ExpiredOptions(TypedDict, total=False):
    """How clones are removed whose time is over."""

    topics: Annotated[bool, Param("Also its repartition topics and consumer groups in Kafka.")]
    fence: Annotated[bool, Param("Also when a runner holds it: that stops.")]
    dry_run: DryRun


class RemoveCloneOptions(ExpiredOptions, GuardedOptions, total=False):
    """How a clone is removed."""


class RemoveOptions(RemoveCloneOptions, total=False):
    """Remove an app: its tables, its history, its snapshots.

    Nothing of it can be brought back. It is refused while a clone lives from it. Whatever interrupts it, the same
    command finishes it; the name is free after that. Topics of yours are never touched.
    """

    force: Annotated[bool, Param("Also when clones live from it: these are damaged then.")]


class RefreshOptions(GuardedOptions, total=False):
    """Make a clone anew from the newest moment of its source.

    It keeps its name, topics, sinks, masks, owner, reason and time to live, which begins again. What it has done since
    is gone. Whatever interrupts it, the same command goes on with it.
    """

    fence: Annotated[bool, Param("Also when a runner holds it: that stops.")]


class CloneOptions(TypedDict, total=False):
    """Make a new app from a moment of another one.

    The clone has the source's state, its offsets, and the records that were on the way between its stages. No
    state is copied, however large: the clone points at the source's SSTs, and a snapshot of the source
    keeps them. The clone has repartition topics of its own and never writes to the source's. It publishes
    nothing unless --sink says where to. An interrupted clone is finished by the same command, and is there for nobody
    before. --store is where the source is, --to where the clone goes.
    """

    topics: Annotated[
        Names,
        Param(
            "Let the clone read topic OTHER where the app says NAME.", "NAME=OTHER", pair="flights=flights-corrected"
        ),
    ]
    sinks: Annotated[
        Names,
        Param(
            "Let the clone publish its sink NAME to this topic. Default: nothing.",
            "NAME=TOPIC",
            pair="alerts=staging-alerts",
        ),
    ]
    masks: Annotated[
        Names,
        Param(
            "Hide a column: hash, null, or a text with {} where the hash is to stand.",
            "TABLE.COLUMN=HOW",
            pair="customers.email=hash",
        ),
    ]
    deep: Annotated[bool, Param("Copy everything into that other root, after which the source may vanish.")]
    empty: Annotated[bool, Param("Take no state: the clone reads its topics from the beginning.")]
    owner: Annotated[str, Param("Who has it. Default: you, as user@host.", "WHO")]
    reason: Annotated[str, Param("What it is for.", "TEXT")]


class RenameOptions(TypedDict, total=False):
    """What is called otherwise in a changed program."""

    rename: Annotated[
        Names,
        Param(
            "A stored column has this name in the program; TABLE.OLD=NEW for one table.",
            "OLD=NEW",
            pair="delay=delay_min",
        ),
    ]
    rename_stage: Annotated[
        Names,
        Param(
            "A stored stage has this name in the program: its table goes on under that.",
            "OLD=NEW",
            pair="carriers=airlines",
        ),
    ]


class MigrateOptions(RenameOptions, total=False):
    """How an app goes on with a changed program."""

    dry_run: DryRun


class TrialOptions(MigrateOptions, total=False):
    """Run a changed program over past input, and show what differs.

    A clone of the app at one moment is migrated where the program asks for that, reads what the app read up to another
    moment, and goes again; it publishes nothing, and the app is only read. Shown are the rows of tables, and of what
    sinks are given, that come out different. Exits with 0 where nothing does, with 1 where something does.
    """

    allow: Annotated[
        Sequence[str], Param("Differences that are meant, by their keys, as this query returns them.", "SQL")
    ]
    stages: Annotated[Sequence[str], Param("Try this stage, with what it reads from. Default: all.", "NAME")]
    keys: Annotated[str, Param("Try a fixed share of the keys, such as 1%: exact for these.", "SHARE")]
    keep: Annotated[str, Param("Let the clone stay, under this name.", "NAME")]


class FailoverOptions(TypedDict, total=False):
    """Make an app of its replica, ready to run where that lies.

    Where the app ran is fenced, as far as it can be reached: its runner stops, and what it had committed since is
    copied. What was on the way between stages is carried into topics of this Kafka, and topics are read on where the
    app stood; in a mirror with other offsets by the records that it had read last. Says what is lost, in seconds and
    offsets. An interrupted recovery is finished by the same command, and nobody can run the app before.
    """

    mirror: Annotated[str | None, Param("Kafka is a mirror of the cluster that MirrorMaker 2 calls so.", "CLUSTER")]
    topics: Annotated[
        Names, Param("Read topic OTHER where the app says NAME.", "NAME=OTHER", pair="orders=primary.orders")
    ]
    alone: Annotated[bool, Param("Leave where the app ran alone: neither look there nor fence.")]


class TokenOptions(TypedDict, total=False):
    """Make a token. It is shown once; the store keeps its hash."""

    tables: Annotated[Sequence[str], Param("May read this table. Default: all.", "TABLE", default=("*",))]
    verbs: Annotated[
        Sequence[str],
        Param("May do this: read, sql, bisect, snapshot, values. Default: read.", "VERB", default=("read",)),
    ]
    per_s: Annotated[
        int,
        Param(
            "Requests a second that each instance answers; 0 for any number.",
            "N",
            default=0,
            option="--per-second",
            limits={"ge": 0},
        ),
    ]
    days: Annotated[
        int, Param("It ends after so many days; 0 for never.", "N", default=0, limits={"ge": 0, "le": 36_500})
    ]
    certificate: Annotated[bool, Param("For whoever comes with a certificate of this common name, instead.")]
    dry_run: DryRun


class InitOptions(TypedDict, total=False):
    """Begin a stage's table with rows from elsewhere, its version 1.

    The rows have the columns that the program declares, and one row of each key; otherwise nothing is changed. One
    commit: before it nobody sees anything, and a call that was interrupted is made good by the same call. The first
    `slackwater run` goes on from it; the app's other stages begin empty, at these offsets or where the program says.
    """

    sql: Annotated[str, Param("A query that returns the rows, in the place of FILE.", "SQL")]
    at: Annotated[
        When, Param("Begin all other topics at their first record of this time (2026-11-21T07:12Z, -5m).", "TIME")
    ]
    dry_run: DryRun
