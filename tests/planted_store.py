"""Faults in committing, merging, rescaling, reading and collecting, for `planted.py`."""

from tests.fault import Fault

__all__ = ["STORE_FAULTS"]

MODEL = ("test_state_model.py",)
"""Everything that can be done to a store, beside a dictionary."""
DAMAGE = ("test_damage.py",)
RETIRE = ("test_retire.py",)

_COMMIT, _COMPACTION, _RUNS, _INDEX = (
    "store/versions/commit.py",
    "store/compaction/plan.py",
    "store/sst/sorted_runs.py",
    "store/read/multi_get.py",
)
_MERGING, _UNIVERSAL = "store/compaction/merge.py", "store/compaction/universal.py"
_SHADOWS, _GC, _LITTER, _SURVEY = (
    "store/read/visible_rows.py",
    "snapshot/gc/collect.py",
    "snapshot/gc/orphans.py",
    "snapshot/gc/inventory.py",
)
_TTL, _PICKING, _REBASE, _RELATION = (
    "store/sst/ttl.py",
    "store/compaction/picker.py",
    "store/compaction/rebase.py",
    "store/read/duckdb_view.py",
)
_RANGED, _CACHE, _CODEC = "store/read/remote_sst.py", "store/read/mapped_file.py", "store/versions/codec.py"
_SNAPSHOTS, _RESCALE = "snapshot/take/snapshots.py", "snapshot/maintain/rescale.py"

STORE_FAULTS = (
    # Committing.
    Fault(
        "a version is overwritten by whoever comes later",
        _COMMIT,
        "        store.put_if_absent(keys.manifest(manifest.app",
        "        store.put(keys.manifest(manifest.app",
        MODEL,
    ),
    Fault(
        "one's own write is taken for another's when its answer was lost",
        _COMMIT,
        "    if existing == manifest:  # created",
        "    if existing is manifest:  # created",
        MODEL,
    ),
    Fault("a claim has the epoch of the former writer", _COMMIT, "epoch=head.epoch + 1", "epoch=head.epoch", MODEL),
    Fault(
        "a number that was collected is given out again",
        _COMMIT,
        "    if limit is not None and not limit.allows(manifest.stage, manifest.version):",
        "    if limit is not None and manifest.version > limit.first.get(manifest.stage, 0):",
        MODEL,
    ),
    Fault(
        "a batch follows on the version that retires its stage",
        _COMMIT,
        '    if head.retired and kind != "claim":',
        '    if head.retired and kind == "rescale":',
        RETIRE,
    ),
    Fault(
        "a writer that was asleep writes to an app that was removed",
        _COMMIT,
        '    if manifest.version > 1 and manifest.kind != "clone":',
        "    if manifest.version > 1 and limit is not None:",
        ("test_removal.py",),
    ),
    Fault(
        "an app is removed from under the runner that holds it",
        "snapshot/maintain/removal.py",
        "    while (left_s := ",
        "    while False and (left_s := ",
        ("test_removal.py",),
    ),
    Fault(
        "a stage that was claimed while its app is removed goes with it",
        "snapshot/maintain/removal.py",
        "        if head is not None and not head.retired:",
        "        if head is not None and head.version == 0:",
        ("test_removal.py",),
    ),
    Fault(
        "a clone of a clone loses what the first app keeps for it",
        "snapshot/take/dependents.py",
        "            if objects & kept:",
        "            if objects < kept:",
        ("test_removal.py",),
    ),
    Fault(
        "a retired stage holds up the history of its senders",
        "snapshot/gc/reachable.py",
        "        if heads[receiver].retired:\n            continue\n",
        "",
        RETIRE,
    ),
    Fault(
        "a version is committed that nobody can read",
        _CODEC,
        "        same = _decoder(type(value)).decode(body) == value",
        "        same = True",
        ("test_commit.py",),
    ),
    # Merging.
    Fault(
        "the oldest row of a key is kept",
        _MERGING,
        "    rows = pa.concat_tables(parts)",
        "    rows = pa.concat_tables(parts[::-1])",
        MODEL,
    ),
    Fault(
        "tombstones are dropped that an older run needs",
        _UNIVERSAL,
        "policy, drops_tombstones=end == len(runs)),)",
        "policy, drops_tombstones=True),)",
        ("test_compaction.py",),
    ),
    Fault(
        "what an input has in later partitions is lost",
        _MERGING,
        "            if other != compaction.partition:",
        "            if other < compaction.partition:",
        MODEL,
    ),
    Fault(
        "a merge that nobody expected to fail is under way for ever",
        "pipeline/batch/compactor.py",
        "                if made is None:\n                    self._busy.discard(one)\n                else:",
        "                if made is not None:",
        ("test_compactor.py",),
    ),
    Fault(
        "a merge lands though its result was collected",
        "snapshot/maintain/stage_compactor.py",
        "        return [one for one in done if gone.isdisjoint(one.outputs)]",
        "        return done",
        ("test_compact.py",),
    ),
    # Expiring.
    Fault(
        "a slice of rows that never expire has no column for when",
        _MERGING,
        "        parts = [with_expiry_column(part) for part in parts]",
        "        parts = [with_expiry_column(part) for part in parts] if len(parts) > 1 else parts",
        ("test_ttl.py",),
    ),
    Fault(
        "an expired row goes from storage that hides an older one",
        _MERGING,
        "        gone = expired(rows, clock_ms)\n        keep = keep if",
        "    gone = expired(rows, clock_ms)\n    if True:\n        keep = keep if",
        MODEL,
    ),
    Fault(
        "what is expired as a whole goes unread also where it hides rows of another partition",
        _TTL,
        " and len(touched(inputs[end - 1], partitions)) == 1",
        "",
        ("test_ttl.py",),
    ),
    Fault(
        "merges of what is picked forget nothing that expired",
        _PICKING,
        "    return replace(one, clock_ms=clock_ms, moves",
        "    return replace(one, clock_ms=None, moves",
        MODEL,
    ),
    Fault("a look-up finds expired rows", _INDEX, "gone = expired(rows, self._clock_ms)", "gone = None", MODEL),
    Fault("a query shows expired rows", _RELATION, "IS NULL OR {EXPIRES} > {clock_ms})", "IS NULL OR true)", MODEL),
    Fault(
        "a table's clock goes back where the machine's is behind",
        _TTL,
        "        return max(now_ms, head.clock_ms)",
        "        return now_ms",
        MODEL,
    ),
    Fault(
        "a claim begins the clock of event times anew",
        _TTL,
        "    had = before is not None and before.ttl is not None",
        "    had = False",
        MODEL,
    ),
    Fault(
        "a batch behind a compaction has the clock of that",
        _REBASE,
        "        table=onto.table,\n",
        "        table=onto.table,\n        clock_ms=onto.clock_ms,\n",
        MODEL,
    ),
    Fault(
        "the stamps of an SST are those of the batch's clock whatever the column says",
        "store/sst/expiry.py",
        "event_ms(rows.column(ttl.column)) if ttl.column else",
        "pa.scalar(clock_ms, pa.int64()) if ttl.column else",
        MODEL,
    ),
    # Rescaling.
    Fault(
        "an SST belongs where it was written, whatever the number of partitions is now",
        _RUNS,
        "        for partition in touched(sst, partitions):\n            found",
        "        for partition in (sst.partition,):\n            found",
        MODEL,
    ),
    Fault(
        "SSTs that lay side by side are runs that come after each other",
        _RUNS,
        "        if groups and sst.seq_max >= oldest:",
        "        if groups and sst.seq_max > oldest + 100:",
        MODEL,
    ),
    Fault(
        "a rescale forgets the newest SST",
        _RESCALE,
        "replace(draft, table=replace(draft.table, partitions=partitions))",
        "replace(draft, table=replace(draft.table, partitions=partitions), ssts=draft.ssts[1:])",
        MODEL,
    ),
    # Reading.
    Fault("look-ups begin with the oldest run", _INDEX, "run.seq_max, reverse=True", "run.seq_max", MODEL),
    Fault(
        "a query hides the newer of two rows",
        _SHADOWS,
        "            if other.seq_max > sst.seq_max and other.hash_min",
        "            if other.seq_max < sst.seq_max and other.hash_min",
        MODEL,
    ),
    Fault(
        "a query shows rows that only an older run has deleted",
        _SHADOWS,
        "by = [None, *newer] if sst.tombstones else newer",
        "by = newer",
        MODEL,
    ),
    Fault(
        "a query shows rows that a newer SST hides behind a block of other keys",
        _SHADOWS,
        "                break  # the next block",
        "                return  # the next block",
        ("test_shadows.py",),
    ),
    # Damage.
    Fault(
        "pages of another SST are taken for this one's",
        _RANGED,
        "        self._check_hashes(groups, rows.column(HASH).to_numpy())\n",
        "",
        DAMAGE,
    ),
    Fault(
        "a cache file is read under any name",
        _CACHE,
        "    digest.update(file_name(sst).encode())\n",
        "",
        DAMAGE,
    ),
    Fault(
        "nobody looks at the checksum of a manifest",
        _CODEC,
        "    if checksum:",
        '    if checksum == "-":',
        DAMAGE,
    ),
    Fault(
        "a manifest is believed whatever its fields say of each other",
        _CODEC,
        "    for wrong in checks.relations(value):\n        raise _unreadable(",
        "    for wrong in ():\n        raise _unreadable(",
        ("test_hostile_values.py",),
    ),
    Fault(
        "an object of any size is read into memory",
        _CODEC,
        "    data = store.get_range(key, 0, MAX_OBJECT_BYTES + 1)",
        "    data = store.get_range(key, 0, 1 << 40)",
        ("test_hostile_values.py",),
    ),
    Fault(
        "an SST may lie anywhere",
        "store/versions/checks.py",
        '        not keys.sst_pattern(stage).fullmatch("\\n".join((*objects, "")))',
        "        (not objects and ssts)",
        ("test_hostile_values.py",),
    ),
    # Collecting.
    Fault(
        "versions of the last hour go",
        _SURVEY,
        "info.modified_ms > clock_ms - MIN_AGE_MS",
        "info.modified_ms > clock_ms",
        MODEL,
    ),
    Fault(
        "what a removed snapshot pinned is taken though the proposal promised it",
        _SURVEY,
        "for snapshot in (*self.known.snapshots, *list_snapshots(",
        "for snapshot in (*(), *list_snapshots(",
        ("test_gc.py",),
    ),
    Fault(
        "nobody looks for snapshots once more before the boundary is final",
        _GC,
        "        final = reachable(seen.again(), retention, seen.read)",
        "        final = plan",
        MODEL,
    ),
    Fault(
        "a cut is pinned though it is about to be collected",
        _SNAPSHOTS,
        "    return _not_collected(store, written)\n",
        "    return written\n",
        MODEL,
    ),
    Fault(
        "what a snapshot pins goes when any of it is not there",
        "snapshot/gc/reachable.py",
        "_pinned(snapshot), read) if there else None",
        "_pinned(snapshot), read) if len(there) == len(snapshot.stages) else None",
        ("test_gc.py",),
    ),
    Fault(
        "SSTs go that only a pinned version names",
        _GC,
        "for version in plan.versions(stage) if version not in done)",
        "for version in plan.versions(stage) if version not in done and version >= plan.first(stage))",
        MODEL,
    ),
    Fault(
        "SSTs go before the batch that will name them",
        _LITTER,
        "        if info.key not in named and info.modified_ms <= before_ms:",
        "        if info.key not in named:",
        MODEL,
    ),
    Fault(
        "doomed versions are never deleted",
        _GC,
        "        _delete(store, [info for each in doomed.values() for info in each.versions])\n",
        "",
        MODEL,
    ),
    Fault(
        "the snapshot that a clone lives from can be removed",
        _SNAPSHOTS,
        '    if snapshot.kind == "clone" and not force and clone_lives(store, snapshot):',
        '    if snapshot.kind == "clone" and not force and not snapshot.stages:',
        MODEL,
    ),
    Fault(
        "far years are counted in cycles that are not the calendar's",
        "store/sst/python_values.py",
        "_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400",
        "_CYCLE_DAYS, _CYCLE_YEARS = 146_100, 400",
        ("test_python_values.py",),
    ),
)
