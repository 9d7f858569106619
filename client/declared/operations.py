"""Options of each operation on an app. Each interface has its own argument for the app, stage or table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from ...common.arguments import Param
from .questions import VerifyOptions, When

Names = Mapping[str, str] | None
DryRun = Annotated[bool, Param("Check everything and show what would change; change nothing.")]
YesReally = Annotated[str, Param("Confirm with the app's name if it is protected. Default: prompt.", "APP")]
Fence = Annotated[bool, Param("Fence a running app; its runner stops.")]
ShowValues = Annotated[bool, Param("Show the values of differing rows.")]
_AT_LEAST_ONE = {"ge": 1}


class GuardedOptions(TypedDict, total=False):
    """Options of all operations that could lose data."""

    yes_really: YesReally
    dry_run: DryRun


class RewindOptions(GuardedOptions, total=False):
    """Roll an app back to an earlier moment.

    Rolls tables, offsets and in-flight records of all stages back atomically, as new versions; the next run continues
    there. The undone state gets a snapshot, so you can rewind the rewind. Rows that sinks published since are not
    withdrawn and are published again; --dry-run shows them.
    """

    before_deploy: Annotated[bool, Param("Roll back to the moment before the current program was deployed.")]
    keep_offsets: Annotated[bool, Param("Roll back only the tables; keep the offsets.")]
    fence: Fence


class ResetOptions(GuardedOptions, total=False):
    """Move an app's offsets, as kafka-consumer-groups does.

    Commits a new version per stage; the next run continues there. Tables are not rolled back (use rewind): re-read
    records are counted again, skipped records are lost; --dry-run shows how many.
    """

    all_topics: Annotated[bool, Param("All topics that the app reads, except its own repartition topics.")]
    to_earliest: Annotated[bool, Param("Continue at the first available offset.")]
    to_latest: Annotated[bool, Param("Continue at the end of the topic.")]
    to_datetime: Annotated[
        When, Param("Continue at the first record from this time on (2026-11-21T07:12Z), or at the end.", "TIME")
    ]
    by_duration: Annotated[str, Param("Continue at the first record of the last SPAN (PT30M or 30m).", "SPAN")]
    shift_by: Annotated[int | None, Param("Move by N offsets; a negative N moves back.", "N")]
    to_offset: Annotated[int | None, Param("Continue at offset N of each partition.", "N")]
    fence: Fence


class PromoteOptions(GuardedOptions, total=False):
    """Blue/green cut-over: give a clone the app's name and sinks.

    Waits until both apps reach the same offsets, and briefly holds them there. The old app publishes the rows up to
    these offsets, the clone the later rows: a read_committed consumer sees each row once. The old app becomes `APP~1`
    and stops.
    """

    back: Annotated[bool, Param("Give the name back to the app that had it before.")]
    timeout_s: Annotated[
        float, Param("How long to wait until both apps reach the same offsets. Default: 10m.", default=600.0)
    ]
    show_values: ShowValues


class EditOptions(GuardedOptions, total=False):
    """Change rows of a table by hand.

    The change is a version of its own. If the app is running, its runner applies the edit between two batches;
    otherwise this command does. Nothing is sent downstream. A repeated command applies the edit only once.
    """

    timeout_s: Annotated[
        float,
        Param("How long to wait for the stage's runner; then the edit is withdrawn. Default: 60s.", default=60.0),
    ]
    again: Annotated[bool, Param("Repeat a statement that was applied in the last ten minutes.")]


class RepairOptions(GuardedOptions, total=False):
    """Remove records from the past of their keys, or replace them.

    Replays the keys' later records without the removed records, in all stages, and commits the rows that differ, one
    version per stage. The tables are then as if the app had never read the records. Sinks with the table's key get the
    new rows, or tombstones. The app may run; it reads no records meanwhile. A repeated command finishes an interrupted
    repair.
    """

    undo: Annotated[bool, Param("Undo the newest repair: its records count again.")]
    since: Annotated[
        When,
        Param(
            "Repair only batches after this moment. After a reset, this takes out the second reading of a record.",
            "REF",
            option="--from",
        ),
    ]
    no_sinks: Annotated[
        bool, Param("Send nothing to sinks, also if they got rows that cannot be corrected; --dry-run shows them.")
    ]
    max_keys: Annotated[
        int, Param("Refuse if more keys of all stages are touched.", "N", default=1_000, limits=_AT_LEAST_ONE)
    ]
    timeout_s: Annotated[float, Param("How long to wait for the app's runner. Default: 60s.", default=60.0)]


class KeysOptions(TypedDict, total=False):
    """Options for keys to forget: files with keys, other values of a key, and record fields that hold a key."""

    files: Annotated[Sequence[Path], Param("File with one TABLE=KEY a line.", "FILE", option="--keys")]
    also: Annotated[
        Sequence[str], Param("Also forget records with this value, which the program turns into the key.", "VALUE")
    ]
    fields: Annotated[
        Sequence[str],
        Param(
            "A record field that holds the table's key and that Spark's plan does not show: "
            "people=$.user.id, or for one topic people=orders:who. [forget] in slackwater.toml keeps such "
            "fields.",
            "TABLE=FIELD",
        ),
    ]


class ForgetOptions(KeysOptions, GuardedOptions, total=False):
    """Delete keys from everything that an app has stored (GDPR).

    Deletes the keys from every version, snapshot, in-flight and rejected record, input archive and clone, by rewriting
    the objects that hold them. No tombstones and no record of the keys remain. A record is deleted if a field from
    which the program takes the key equals the key. The app may be running. --dry-run lists what would be deleted, and
    what is out of reach.
    """


class LookOptions(VerifyOptions, KeysOptions, total=False):
    """Options of a search for forgotten keys: the keys, and whether all objects are read in full."""


class CompactOptions(TypedDict, total=False):
    """Merge the SSTs of an app's tables, by each table's policy.

    Merges are committed as versions that change no row. The app may be running. Runs at low priority.
    """

    threads: Annotated[int, Param("Parallel merges.", "N", default=1, limits=_AT_LEAST_ONE)]
    full: Annotated[
        bool, Param("Merge each hash range into one sorted run, even if no merge is due. Drops tombstones.")
    ]
    dry_run: DryRun


class RetentionOptions(TypedDict, total=False):
    """Delete expired versions and unreferenced objects.

    [retention] in slackwater.toml has the rules; an option overrides the rule of the same name. Deletes versions that
    no rule keeps; without rules, all history is kept. Snapshots, clones, and versions that a stage has not read yet are
    always kept. The app may be running.
    """

    all_ms: Annotated[int | None, Param("Keep every version younger than this.")]
    hourly_ms: Annotated[int | None, Param("Keep one moment per hour up to this age.")]
    daily_ms: Annotated[int | None, Param("Keep one moment per day up to this age.")]
    versions: Annotated[int | None, Param("Keep the newest N versions of each stage.", "N", limits=_AT_LEAST_ONE)]
    input_ms: Annotated[int | None, Param("Keep records in the input archive for this long after they were read.")]


class ExpiredOptions(TypedDict, total=False):
    """Options for removing expired clones."""

    topics: Annotated[bool, Param("Also delete the app's repartition topics and consumer groups in Kafka.")]
    fence: Fence
    dry_run: DryRun


class RemoveCloneOptions(ExpiredOptions, GuardedOptions, total=False):
    """Options for removing a clone."""


class RemoveOptions(RemoveCloneOptions, total=False):
    """Remove an app: tables, history and snapshots.

    This cannot be undone. Refused while a clone uses its files. Your own topics are never touched. The name is free
    afterwards.
    """

    force: Annotated[bool, Param("Remove it even if clones use its files; this damages the clones.")]


class RefreshOptions(GuardedOptions, total=False):
    """Recreate a clone from the newest moment of its source.

    Keeps the name, topics, sinks, masks, owner and purpose. The time to live starts again. Versions that the clone
    committed are lost.
    """

    fence: Fence


class CloneOptions(TypedDict, total=False):
    """Make a new app from a moment of an existing app.

    The clone has the state, the offsets and the in-flight records of that moment. It shares the source's SSTs, which a
    snapshot keeps. It has its own repartition topics, never writes to the source, and publishes nothing without --sink.
    The clone is invisible until complete. --store is the source's root.
    """

    topics: Annotated[
        Names, Param("Read topic OTHER where the app reads NAME.", "NAME=OTHER", pair="flights=flights-corrected")
    ]
    sinks: Annotated[
        Names,
        Param(
            "Publish the sink NAME to a topic or a table. Default: publish nothing.",
            "NAME=TARGET",
            pair="alerts=staging-alerts",
        ),
    ]
    masks: Annotated[
        Names,
        Param(
            "Hide a column: hash, null, or a text in which {} stands for the hash.",
            "TABLE.COLUMN=HOW",
            pair="customers.email=hash",
        ),
    ]
    deep: Annotated[bool, Param("Full copy under the root of --to; independent of the source afterwards.")]
    empty: Annotated[bool, Param("Copy no state; read all topics from the beginning.")]
    owner: Annotated[str, Param("Owner. Default: you, as user@host.", "WHO")]
    reason: Annotated[str, Param("Purpose, shown by clone list.", "TEXT")]


class RenameOptions(TypedDict, total=False):
    """Options that map stored columns and stages to their new names in a changed program."""

    rename: Annotated[
        Names,
        Param(
            "The stored column OLD is called NEW in the program; TABLE.OLD=NEW for one table.",
            "OLD=NEW",
            pair="delay=delay_min",
        ),
    ]
    rename_stage: Annotated[
        Names,
        Param(
            "The stored stage OLD is called NEW in the program and keeps its table.",
            "OLD=NEW",
            pair="carriers=airlines",
        ),
    ]


class MigrateOptions(RenameOptions, total=False):
    """Options of a migration."""

    dry_run: DryRun


class TrialOptions(MigrateOptions, total=False):
    """Run a changed program over past input and show what differs.

    Clones the app at --from, migrates the clone if needed, replays the app's input up to --to, compares, and deletes
    the clone. The app is only read, and nothing is published. Exits with 1 if rows differ.
    """

    allow: Annotated[
        Sequence[str], Param("Expected differences: do not count the rows whose keys this query returns.", "SQL")
    ]
    stages: Annotated[Sequence[str], Param("Only this stage and the stages that it reads. Default: all.", "NAME")]
    keys: Annotated[str, Param("Replay a fixed sample of the keys, such as 1%; exact for these keys.", "SHARE")]
    keep: Annotated[str, Param("Keep the clone, under this name.", "NAME")]


class FailoverOptions(TypedDict, total=False):
    """Fail over to a replica: make it an app in its own store.

    If the original store is reachable, copies the versions that the replica lacks, and fences the app there. Carries
    in-flight records into topics of this Kafka. Topics continue at the app's offsets; a mirror continues after the last
    record that the app had read. Shows the lost versions and records. The app cannot run before the recovery is
    complete.
    """

    mirror: Annotated[
        str | None, Param("MirrorMaker 2's name of the lost cluster, if this Kafka is a mirror of it.", "CLUSTER")
    ]
    topics: Annotated[
        Names, Param("Read topic OTHER where the app reads NAME.", "NAME=OTHER", pair="orders=primary.orders")
    ]
    alone: Annotated[bool, Param("Do not contact the original store, and do not fence the app there.")]


class TokenOptions(TypedDict, total=False):
    """Make a token. It is shown once; the store keeps its hash."""

    tables: Annotated[Sequence[str], Param("Table that the token may read. Default: all.", "TABLE", default=("*",))]
    verbs: Annotated[
        Sequence[str],
        Param("Right of the token: read, sql, bisect, snapshot or values. Default: read.", "VERB", default=("read",)),
    ]
    per_s: Annotated[
        int,
        Param(
            "Request limit per second and instance; 0 is unlimited.",
            "N",
            default=0,
            option="--per-second",
            limits={"ge": 0},
        ),
    ]
    days: Annotated[int, Param("Expire after N days; 0 is never.", "N", default=0, limits={"ge": 0, "le": 36_500})]
    certificate: Annotated[bool, Param("Make no token; grant the rights to client certificates with common name NAME.")]
    dry_run: DryRun


class InitOptions(TypedDict, total=False):
    """Begin a stage's table with imported rows, as version 1.

    The rows need exactly the columns that the program declares, and one row per key. Atomic. The first `slackwater run`
    continues from there. Other stages begin empty, at the given offsets or at the program's.
    """

    sql: Annotated[str, Param("A DuckDB query that returns the rows, instead of FILE.", "SQL")]
    at: Annotated[
        When, Param("Start all other topics at their first record from this time on (2026-11-21T07:12Z, -5m).", "TIME")
    ]
    dry_run: DryRun
