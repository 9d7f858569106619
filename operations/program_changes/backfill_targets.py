"""Which columns that migrations added can be computed over the past, from where to where; or why not.

What a stage had read before the migration is known to the offset, and what its columns have since is of all that came
later. So the past is read up to just there, and both are merged (`fill`). What a user's function keeps cannot be
merged: of that no past is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import xxhash

from ...errors import Refused
from ...snapshot.cut.graph import Cut, order
from ...snapshot.cut.moments import version_of
from ...state.fits import ANOTHER_STAGE, Declared, visible
from ...state.kinds.kind import kind_of
from ...store.objects.protocol import ObjectStore
from ...store.sst.arrow_types import schema_of
from ...store.sst.evolution import default_of
from ...store.versions import history
from ...store.versions.manifest import Column, Manifest, Table
from ...store.versions.side_tables import rejected_of
from .backfill_windows import ChannelRange, beginnings, channel, positions, read_through

_LONGEST_NAME = 63
_WITHOUT_PAST = (
    "migrate without --backfill: rows from before have null, or the default with which a column is added "
    "(table(defaults={…})); or run the program under a new app name, which reads its topics from the start "
    "(`slackwater run FILE --app NAME`)"
)


@dataclass(frozen=True, slots=True)
class BackfillTarget:
    """Columns of one table that one migration added, and what they are computed from."""

    app: str
    stage: str
    since: int
    """The stage's version of that migration."""
    columns: tuple[str, ...]
    """Their names; internal ones are left out."""
    ids: tuple[int, ...]
    """Of all of them."""
    starts: Mapping[str, tuple[int, ...]]
    """What is to be read, by user's topic as declared: from these offsets on. 0 where nobody knows where the stage
    began: from the first one that Kafka has."""
    ends: Mapping[str, tuple[int, ...]]
    """Up to these, which the stage had reached with that version."""
    begins: bool
    """Whether the stage itself began at `starts`, with nothing."""
    channels: Mapping[str, ChannelRange] = field(default_factory=dict)
    """Of what is read, the repartition topics of stages with state."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """`Input.topic_id` of what was read, by topic as declared."""

    @property
    def scratch(self) -> str:
        """The app that computes them: the same name whoever asks."""
        name = f"{self.app}-backfill-{self.stage}-v{self.since}"
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[: _LONGEST_NAME - 9]}-{xxhash.xxh32_hexdigest(name.encode())}"

    @property
    def writers(self) -> dict[str, str]:
        """By channel, the stage that stands for its writer in the app that computes them."""
        free = (name for name in map("sent-{}".format, count(1)) if name != self.stage)
        return dict(zip(sorted(self.channels), free, strict=False))

    @property
    def records(self) -> int:
        """How many records are to be read, by their offsets."""
        return self.records_from(self.starts)

    def records_from(self, starts: Mapping[str, tuple[int, ...]]) -> int:
        """The same from these offsets on; of channels, rows, which need not begin there."""
        offsets = sum(sum(ends) - sum(starts[name]) for name, ends in self.ends.items() if name not in self.channels)
        return offsets + sum(each.rows for each in self.channels.values())

    def is_whole(self, starts: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether what is read from these offsets on is all that the stage ever read."""
        return self.begins and starts == dict(self.starts)


@dataclass(frozen=True, slots=True)
class Left:
    """Columns that stay as they are."""

    stage: str
    columns: tuple[str, ...]
    why: str
    hint: str = ""


class Backfillable(NamedTuple):
    """What there is to compute over the past, upstream first."""

    targets: tuple[BackfillTarget, ...]
    left: tuple[Left, ...]


def backfillable(
    store: ObjectStore, heads: Mapping[str, Manifest], declared: Declared, *, since: Cut | None = None
) -> Backfillable:
    """The columns that migrations added, and that were not backfilled yet. Raises `Unavailable`.

    `heads` are the newest versions, or those that a migration to the program would make of them; `since` is a moment of
    the app from which on the columns are computed, None for all that the stages have read.
    """
    targets, left = [], []
    for name in order(heads):
        head = heads[name]
        if head.table is None or head.retired or name not in declared.stages:
            continue
        # The columns that have no values of the past, by the version that added them.
        added: dict[int, list[Column]] = {}
        done = {number for each in head.backfills for number in each.columns}
        for column in head.table.values:
            if column.since and column.id not in done:
                added.setdefault(column.since, []).append(column)
        for version, columns in added.items():
            try:
                _check_table(head.table, columns)
                _check_event_time(name, heads, declared)
                targets.append(_target(store, head, version, columns, declared, since))
            except Refused as error:
                left.append(Left(name, visible(columns), error.message, error.hint))
    return Backfillable(tuple(targets), tuple(left))


def _target(
    store: ObjectStore, head: Manifest, version: int, columns: list[Column], declared: Declared, since: Cut | None
) -> BackfillTarget:
    migrated = head if head.version == version else version_of(store, head, version)
    if migrated is None:
        raise Refused(
            f"v{version} of {head.stage}, which added the columns, was collected: nobody knows what it had read",
            hint=ANOTHER_STAGE,
        )
    _check_in_flight(store, migrated, declared)
    _check_rejected(store, migrated)
    read_by = positions(store, migrated)
    if since is None:
        begun, begins = beginnings(store, migrated) or ({}, False)
    elif head.stage not in since.stages:
        hint = "name a later moment, or none, for all that Kafka has"
        raise Refused(f"{since.ref} has no version of {head.stage}", hint=hint)
    else:
        begun, begins = positions(store, since.stages[head.stage]), False
    found = {name: channel(store, head.app, name, begun.get(name), at) for name, at in read_by.items() if at.upstream}
    channels = {name: each for name, (each, _) in found.items()}
    ends = {name: each.offsets for name, each in read_by.items()}
    first = begun | {name: each.start for name, each in channels.items()}
    starts = {
        topic: ((first[topic].offsets if topic in first else ()) + (0,) * len(at))[: len(at)]
        for topic, at in ends.items()
    }
    if beyond := sorted(topic for topic, at in ends.items() if any(map(int.__gt__, starts[topic], at))):
        raise Refused(
            f"{since.ref if since else 'the beginning'} is later than the migration: "
            f"{head.stage} had read {', '.join(beyond)} less far by then",
            hint="name an earlier moment, or none, for all that Kafka has",
        )
    known = {topic: len(at.resets) for topic, at in begun.items()}
    for topic, at in sorted(read_by.items()):
        if len(at.resets) > known.get(topic, 0):
            raise Refused(
                f"{topic} was reset before the migration (`slackwater reset`): {head.stage} has read records of it "
                "twice, or not at all",
                hint=f"with --from, name a moment after that; else {ANOTHER_STAGE}",
            )
    return BackfillTarget(
        app=head.app,
        stage=head.stage,
        since=version,
        columns=visible(columns),
        ids=tuple(column.id for column in columns),
        starts=starts,
        ends=ends,
        topic_ids={topic: at.topic_id for topic, at in read_by.items()},
        begins=begins and all(whole for _, whole in found.values()),
        channels=channels,
    )


def _check_table(table: Table, columns: list[Column]) -> None:
    """See that what the past gives can be brought together with what the rows have since."""
    state = kind_of(table.state)
    kind = state.core
    if kind.past == "rows":
        return
    if kind.past == "function":
        raise Refused("only a function of the program could tell the values of the past", hint=_WITHOUT_PAST)
    if kind.past != "parts" or not any(column.name in kind.columns for column in columns):
        raise Refused(
            f"its state is {state}: what it keeps of earlier records cannot be brought together with what it "
            "keeps of later ones",
            hint=ANOTHER_STAGE,
        )
    if table.ttl is not None:
        why = "its rows expire: which records a row that came back has lost, Kafka does not know"
        raise Refused(why, hint=ANOTHER_STAGE)
    for column in columns:
        default = default_of(column).as_py()
        if default is None or (column.name in kind.columns and kind.is_neutral(column.name, default)):
            continue
        raise Refused(
            f"rows from before the migration have {column.default} in {column.name}, which went into what came later",
            hint="leave it out of defaults= when the column is added; under another name it is a new column",
        )


def _check_event_time(stage: str, heads: Mapping[str, Manifest], declared: Declared) -> None:
    """See that no row of the past was too late: which are, depends on where batches end."""
    for name in (stage, *filter(None, declared.stages[stage].inputs.values())):
        if name != stage and declared.stages[name].table is not None:
            # Its rows are read as it sent them.
            continue
        head = heads.get(name)
        if head is not None and head.event_time is not None:
            why = f"{name} knows event time: which rows come too late depends on where batches end"
            raise Refused(why, hint=ANOTHER_STAGE)
        if name != stage:
            _check_event_time(name, heads, declared)


def _check_rejected(store: ObjectStore, migrated: Manifest) -> None:
    """See that each record that waited to be retried has offsets, by which it can be left out: a channel's row has not.

    Whoever retries one later adds it to all columns: of those that were computed over the past it must not be a part.
    """
    for each in read_through(store, migrated):
        if (waiting := rejected_of(each).waiting) and any(source.upstream for source in each.inputs.values()):
            raise Refused(
                f"{waiting:,} rows that {each.stage} rejected waited to be retried when the app was migrated, and of "
                "which records in the topics these are nobody knows",
                hint=f"before the next such migration, have them retried: slackwater rejected {each.app} --retry; now "
                f"{ANOTHER_STAGE}",
            )


def _check_in_flight(store: ObjectStore, migrated: Manifest, declared: Declared) -> None:
    """See that no row was on its way in other columns when the app was migrated: such a row counts as a later one."""
    for name, source in migrated.inputs.items():
        if not source.upstream:
            continue
        at = history.find(store, migrated.app, source.upstream, source.version) if source.version else None
        sent = at.outputs.get(name) if at is not None else None
        if at is None or sent is None or schema_of(sent.schema) == schema_of(declared.stages[at.stage].outputs[name]):
            continue
        later = history.after(store, migrated.app, source.upstream, source.version)
        for one in later:
            if one.migration >= migrated.migration:
                break
            if (output := one.outputs.get(name)) is not None and output.rows:
                raise Refused(
                    f"rows were on their way in {name!r} when the app was migrated, without the columns that are new",
                    hint="before the next such migration, let the old program read them: slackwater run OLD "
                    f"--until-caught-up; now {ANOTHER_STAGE}",
                )


def nothing(left: Sequence[Left], app: str) -> Refused | None:
    """The error for columns none of which can be computed; None where there are none."""
    if not left:
        return None
    reasons = "; ".join(f"{each.stage} ({', '.join(each.columns)}): {each.why}" for each in left)
    return Refused(f"nothing of {app} can be computed over the past: {reasons}", hint=left[0].hint)
