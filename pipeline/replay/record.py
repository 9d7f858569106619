"""From a bad commit to the input record behind it: replays of its batch, and of those upstream.

The order is BigSift's (Gulzar et al., 2017): first what provenance leaves, then halving by the user's predicate.
`first.py` finds the record: of all prefixes of the records in the app's order, the shortest bad one ends with it. Here
stands what is told of it: the way from the commit up to it, what it did, and which other records are bad.

Of a change of a key, what is bad is that the row is as it was committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...errors import Gone
from ...fold.culprit import turning_point
from ...moments.cut.graph import Cut
from ...moments.cut.lineage import Window, direct, losses
from ...moments.diff.candidates import changed_keys
from ...moments.diff.key_changes import KeyChanges
from ...moments.query.row_local import differing
from ...search.predicate import Context, OfAllTables, Predicate
from ...search.verdict import Address, CannotProve, Guilty, Hop, SourceMessage, Verdict
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import hash_keys
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..spark.user_errors import reason_of
from .alone import bad_records
from .batches import Choice, Part, why_different
from .first import Found, Search
from .program import LoadedProgram


def find_record(
    program: LoadedProgram, verdict: Verdict, predicate: Predicate, on_hop: Callable[[Hop], None] = lambda _hop: None
) -> Guilty:
    """The record behind a verdict, as far as replays prove it.

    `predicate` is what it was found with; `on_hop` is told of each record on the way up, when all are found. Whatever a
    replay raises is the `reason` why the way ends before.
    """
    return behind(program, predicate, verdict.bad, verdict.stage, verdict.keys, verdict.lineage.direct, on_hop)


def behind(
    program: LoadedProgram,
    predicate: Predicate,
    bad: Cut,
    stage: str,
    changed: KeyChanges | None,
    windows: tuple[Window, ...],
    on_hop: Callable[[Hop], None] = lambda _hop: None,
    *,
    last: bool = False,
) -> Guilty:
    """The record behind the commit that `bad` ends with, which `changed` these keys and read these windows.

    With `last`, that after which nothing changed any more; else the first. Errors are told as by `find_record`.
    """
    hops, reason = list[Hop](), ""
    search: Search | None = None
    found: Found | None = None
    guilty = Guilty((), None, "", windows, None)
    try:
        search = _open(program, predicate, bad, stage, changed, last=last)
        found = search.run()
        if found is None:
            return dataclasses.replace(guilty, reason=_no_record(search), no_record=search.nothing)
        for hop in _hops(search, found):
            hops.append(hop)
            on_hop(hop)
        reason = search.reason
    except Exception as error:
        reason = reason_of(error)
    if search is None or found is None or not hops:
        return dataclasses.replace(guilty, reason=reason)
    message: SourceMessage | None = None
    address = found.part.batch.address(found.number)
    if not reason:
        try:
            message = _message(program, address)
        except Exception as error:
            reason = reason_of(error)
    window = Window(address.topic, address.partition, address.offset, address.offset + 1)
    guilty = Guilty(tuple(hops), message, reason, (window,), None, proved=found.proved, tied=found.tied)
    try:
        keys = search.keys_between(search.cut(found.before), search.cut(found.until))
        guilty = dataclasses.replace(guilty, keys=keys)
        if last:
            reached = search.relevant
            return dataclasses.replace(guilty, of_key=0 if reached is None else len(reached))
        records, is_complete, alone = bad_records(search, found)
        others = None if alone is None else alone - found.alone
        return dataclasses.replace(guilty, records=records, is_complete=is_complete, others=others)
    except Exception as error:
        # The record is proved: what it did cannot be told.
        return dataclasses.replace(guilty, reason=guilty.reason or f"what else it did is not known: {reason_of(error)}")


def _open(
    program: LoadedProgram, predicate: Predicate, bad: Cut, stage: str, changed: KeyChanges | None, *, last: bool
) -> Search:
    """The search, where the batch can be replayed, and gives what was committed. Raises `CannotProve` elsewhere."""
    after = bad.stages[stage]
    if predicate.channels:
        raise CannotProve("the predicate asks for records in flight, which a replay does not have")
    if after.table is None and not after.side_tables:
        raise CannotProve(f"stage {after.stage!r} keeps no table")
    if after.edited is not None:
        raise CannotProve(f"{stage}@v{after.version} is an edit by hand, by {after.edited.by}: {after.edited.what}")
    found = Search.of(program, predicate, bad, stage, changed)
    found.last = last
    replay = found.root.replay
    if replay.shape.bound is not None:
        stored, every = replay.written(), Choice(found.batches, found.everything)
        if different := len(replay.differing_keys(stored, replay.merged(every.rows(found.root))[0])):
            raise CannotProve(
                f"a replay of {stage}@v{after.version} does not give what was committed: {different} of "
                f"{stored.num_rows} keys are different. {why_different(program, after)}"
            )
    if not found.is_bad_at(found.cut(found.everything)):
        raise CannotProve(f"a replay of {stage}@v{after.version} does not come out bad")
    return found


def _no_record(search: Search) -> str:
    """What made it bad with none of its records, in words."""
    nothing = search.nothing
    assert nothing is not None  # noqa: S101
    what = f"{nothing.stage}@v{nothing.version}"
    if (nothing.stage, nothing.version) != (search.root.replay.after.stage, search.root.replay.after.version):
        return f"it was emitted by a row that fell due at {what}, which no record there did"
    if nothing.expired.num_rows:
        return f"rows that expired make {what} bad, whatever records it read"
    if nothing.fell_due.num_rows:
        return f"rows that fell due make {what} bad, whatever records it read"
    return f"{what} is bad whatever records it read"


def _hops(search: Search, found: Found) -> Iterator[Hop]:
    """The records on the way from the commit up to the one that was found, each as what it was received."""
    with_, without = (Choice(search.batches, chosen) for chosen in (found.until, found.before))
    way = _way(search, found.part)
    replays = {part: level.replays for level in search.levels for part in level.parts}
    for part in way:
        is_last = part is found.part
        number = found.number if is_last else _received(search, found, part, with_, without)
        batch = part.batch
        candidates = found.candidates if is_last else _candidates(search, part)
        needs = None if found.needs is None else len(found.needs)
        yield Hop(
            batch.replay.after.stage,
            batch.replay.after.version,
            batch.address(number),
            batch.count,
            candidates,
            replays.get(part, 0),
            found.alone,
            None if found.alone else needs,
            proved=is_last and found.proved,
        )


def _candidates(search: Search, part: Part) -> int:
    some = search.reach(part)
    return len(part.numbers) if some is None else len(some)


def _way(search: Search, end: Part) -> list[Part]:
    """The parts from one of the bad batch up to this one, each sent by the batch of the next."""
    way = [end]
    while (batch := way[0].batch) is not search.root:
        every = (part for level in search.levels for part in level.parts)
        way.insert(0, next(part for part in every if part.sender is batch))
    return way


def _received(search: Search, found: Found, part: Part, with_: Choice, without: Choice) -> int:
    """The record of a part as which the one that was found, or what a state made of it, was received."""
    begun = search.replays
    gained = np.setdiff1d(with_.of_part(part), without.of_part(part))
    if (reached := search.reach(part)) is not None and len(np.intersect1d(gained, reached)):
        gained = np.intersect1d(gained, reached)
    base = without.of_part(part)
    if not len(gained):
        # A state sent other rows than these: of those that were received then, the one with which it turned bad.
        gained, base = part.numbers, part.numbers[:0]
    try:
        if len(gained) == 1:
            return int(gained[0])
        at = turning_point(
            len(gained), lambda count: search.is_bad(search.fixed | {part: np.union1d(base, gained[:count])})
        )
        return int(gained[at])
    finally:
        # What is asked for that is no part of the search.
        search.replays = begun


def _message(program: LoadedProgram, address: Address) -> SourceMessage:
    where = (address.topic, address.partition, address.offset, address.offset + 1)
    for (message,) in program.kafka.read(*where, patience_s=program.patience_s):
        headers = tuple((name, value) for name, value in message.headers() or ())
        return SourceMessage(address, message.timestamp()[1], message.key(), message.value(), headers)
    raise Gone(f"there is no message at {dataclasses.replace(address, row=None)} any more")


def why(program: LoadedProgram, stage: str, version: int, key: pa.Table) -> Guilty:
    """The record with which a key's row became what a version committed, as far as replays prove it.

    Where several records of the batch reach the key (`Guilty.of_key`), it is the last that changed the row. `version`
    wrote the row, or removed it; `key` is one row of key columns, as `parse_key` gives it. Raises `NotFound` where a
    version is gone.
    """
    store, cache, app = program.store, program.cache, program.app.name
    before, after = (history.read(store, app, stage, number) for number in (version - 1, version))
    cut = Cut(app, {stage: after})
    predicate = _IsAsCommitted(
        "the row is what was committed", stage, key, _row(Context(store, cache, cut), after, key)
    )
    keys = changed_keys(store, cache, before, after, key)
    windows = direct(before, after, losses(after))
    return behind(program, predicate, cut, stage, keys, windows, last=True)


@dataclass(frozen=True, slots=True)
class _IsAsCommitted(OfAllTables):
    """A predicate that says of a cut: the key's row, or that it has none, is what one version made of it."""

    stage: str
    key: pa.Table
    row: pa.Table

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        found = _row(at, at.cut.stages[self.stage], self.key)
        return self.key.slice(0, 0 if differing(self.row, found).num_rows else 1)


def _row(at: Context, manifest: Manifest, key: pa.Table) -> pa.Table:
    """The key's row at a version, as it is stored; no row where it has none."""
    table = manifest.table
    if table is None:
        return key.slice(0, 0)
    hashes = hash_keys(key, key.column_names)
    values, present = multi_get(at.store, at.cache, manifest.ssts, table, hashes, key, clock_ms=manifest.clock_ms)
    names = [*key.column_names, *values.column_names]
    return pa.table([*key.columns, *values.columns], names).slice(0, int(present[0]))
