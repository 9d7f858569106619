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


class RewindOptions(TypedDict, total=False):
    """What of an app is taken back."""

    before_deploy: Annotated[bool, Param("To the moment before the program that the app has now.")]
    keep_offsets: Annotated[bool, Param("Only the tables: the app goes on reading where it is.")]
    fence: Fence
    yes_really: YesReally
    dry_run: DryRun


class ResetOptions(TypedDict, total=False):
    """Where topics are read on: just one of the scenarios of kafka-consumer-groups."""

    all_topics: Annotated[bool, Param("All topics of yours that the app reads.")]
    to_earliest: Annotated[bool, Param("Read on from the first offset that there is.")]
    to_latest: Annotated[bool, Param("Read on from the end.")]
    to_datetime: Annotated[When, Param("From the first record of this time (2026-11-21T07:12Z) or later.", "TIME")]
    by_duration: Annotated[str, Param("The same, so long ago (PT30M, or 30m).", "SPAN")]
    shift_by: Annotated[int | None, Param("By so many offsets, back where it is below 0.", "N")]
    to_offset: Annotated[int | None, Param("From this offset of each partition.", "N")]
    fence: Fence
    yes_really: YesReally
    dry_run: DryRun


class PromoteOptions(TypedDict, total=False):
    """How a clone takes over."""

    back: Annotated[bool, Param("Instead, give the name back to the app that had it before.")]
    timeout_s: Annotated[
        float, Param("How long to wait until both stand at the same offsets. Default: 10m.", default=600.0)
    ]
    show_values: ShowValues
    yes_really: YesReally
    dry_run: DryRun


class EditOptions(TypedDict, total=False):
    """How rows are changed by hand."""

    timeout_s: Annotated[float, Param("How long a runner that has the stage has for it. Default: 60s.", default=60.0)]
    again: Annotated[bool, Param("Also when the same statement was done in the last ten minutes.")]
    yes_really: YesReally
    dry_run: DryRun


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
    """Keys that are to be forgotten."""


class LookOptions(VerifyOptions, KeysOptions, total=False):
    """Keys that were forgotten, and how each object is looked at."""


class CompactOptions(TypedDict, total=False):
    """How SSTs are merged."""

    threads: Annotated[int, Param("Merges that go on at once.", "N", default=1, limits=_AT_LEAST_ONE)]
    full: Annotated[bool, Param("Merge everything of each state partition into one run, due or not.")]
    dry_run: DryRun


class RetentionOptions(TypedDict, total=False):
    """Rules for what is kept, in the place of those of the settings."""

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


class RemoveCloneOptions(ExpiredOptions, total=False):
    """How a clone is removed."""

    yes_really: YesReally


class RemoveOptions(RemoveCloneOptions, total=False):
    """How an app is removed."""

    force: Annotated[bool, Param("Also when clones live from it: these are damaged then.")]


class RefreshOptions(TypedDict, total=False):
    """How a clone is made anew."""

    fence: Annotated[bool, Param("Also when a runner holds it: that stops.")]
    yes_really: YesReally
    dry_run: DryRun


class CloneOptions(TypedDict, total=False):
    """What a clone reads, publishes, hides and copies, and for whom it is."""

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
    """What of an app's past a changed program is tried on."""

    allow: Annotated[
        Sequence[str], Param("Differences that are meant, by their keys, as this query returns them.", "SQL")
    ]
    stages: Annotated[Sequence[str], Param("Try this stage, with what it reads from. Default: all.", "NAME")]
    keys: Annotated[str, Param("Try a fixed share of the keys, such as 1%: exact for these.", "SHARE")]
    keep: Annotated[str, Param("Let the clone stay, under this name.", "NAME")]


class FailoverOptions(TypedDict, total=False):
    """In which Kafka an app goes on, and what of the place where it ran is touched."""

    mirror: Annotated[str | None, Param("Kafka is a mirror of the cluster that MirrorMaker 2 calls so.", "CLUSTER")]
    topics: Annotated[
        Names, Param("Read topic OTHER where the app says NAME.", "NAME=OTHER", pair="orders=primary.orders")
    ]
    alone: Annotated[bool, Param("Leave where the app ran alone: neither look there nor fence.")]


class TokenOptions(TypedDict, total=False):
    """What a token allows."""

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
