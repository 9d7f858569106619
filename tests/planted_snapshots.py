"""Faults in completing snapshots, keeping records in flight, and finding moments, for `planted.py`."""

from tests.fault import Fault

__all__ = ["SNAPSHOT_FAULTS"]

COMPLETER = ("test_completer.py",)
DIAMOND = ("test_diamond_law.py",)
LOSSES = ("test_losses.py",)
FAN_OUT = ("test_clone_fan_out.py",)
RACES = ("test_clone_races.py",)
TAKING = ("test_taking.py",)
THINNED = ("test_thinned_refs.py",)
TTL_MOMENTS = ("test_ttl_moments.py",)

_COMPLETER = "pipeline/run/snapshot_completer.py"
_TAKING, _CAPTURE, _IN_FLIGHT = "snapshot/take/taking.py", "snapshot/take/capture.py", "snapshot/cut/in_flight.py"
_CARRY, _SNAPSHOTS = "snapshot/clone/channels.py", "snapshot/take/snapshots.py"
_CUT, _LINE, _MOMENTS = "snapshot/cut/resolve.py", "snapshot/cut/line.py", "snapshot/cut/moments.py"
_LOSSES, _ENTRIES = "snapshot/cut/losses.py", "pipeline/batch/entries.py"

SNAPSHOT_FAULTS = (
    # Going on without records that are gone.
    Fault(
        "a version that lies partly in a gap is read on at its end",
        _LOSSES,
        "if begin < there[partition]}",
        "if output.ends[partition] <= there[partition]}",
        LOSSES,
    ),
    Fault(
        "a snapshot whose marker is passed over waits for ever",
        _LOSSES,
        "return frozenset(awaited | (gap.markers - recorded.keys()))",
        "return frozenset(awaited)",
        LOSSES,
    ),
    Fault(
        "a stage goes on capturing for a snapshot across a gap",
        _ENTRIES,
        "losses.forget(draft, broken),",
        "losses.forget(draft, ()),",
        LOSSES,
    ),
    Fault(
        "what a claim passes over is not counted",
        _LOSSES,
        "consumed=consumed if known else (), lost=total)",
        "consumed=consumed if known else ())",
        LOSSES,
    ),
    # Completing.
    Fault(
        "a snapshot is completed while a stage awaits a marker",
        _TAKING,
        "if request.id not in head.recorded or head.awaited.get(request.id):",
        "if request.id not in head.recorded:",
        TAKING,
    ),
    Fault(
        "stages that have not answered are left out",
        _TAKING,
        "        for stage, head in heads.items()\n    }\n    try:",
        "        for stage, head in heads.items()\n        if request.id in head.recorded\n    }\n    try:",
        TAKING,
    ),
    Fault(
        "the head is taken for the recorded version",
        _TAKING,
        "StageFinished(request.id, stage, head.recorded[request.id])",
        "StageFinished(request.id, stage, head.version)",
        TAKING,
    ),
    Fault(
        "nobody compares what was captured with the cut",
        _TAKING,
        "    _check_captures(heads, cut, flights, request)\n",
        "",
        TAKING,
    ),
    Fault(
        "any capture will do",
        _TAKING,
        "if found != due:",
        "if found is None:",
        TAKING,
    ),
    Fault(
        "without a reader, a snapshot goes without its records in flight",
        _TAKING,
        "    if flights and reader is None:\n        return None\n",
        "",
        TAKING,
    ),
    Fault(
        "a request that was withdrawn meanwhile gives a snapshot",
        _TAKING,
        "    if all(other.id != request.id",
        "    if not heads and all(other.id != request.id",
        TAKING,
    ),
    Fault(
        "a withdrawn request leaves its objects behind",
        _TAKING,
        "        discard(store, kept)\n        return _written",
        "        return _written",
        TAKING,
    ),
    Fault(
        "a completer that comes second leaves its objects behind",
        _TAKING,
        "    if written.channels != kept:\n        discard(store, kept)\n",
        "",
        TAKING,
    ),
    Fault(
        "a completer that comes second deletes the first's objects",
        _TAKING,
        "    if written.channels != kept:\n        discard(store, kept)\n",
        "    if written.channels != kept:\n        discard(store, written.channels)\n",
        TAKING,
    ),
    Fault(
        "what somebody asks for is said to be nobody's",
        _COMPLETER,
        "return frozenset(recorded - asked.keys())",
        "return frozenset(recorded)",
        COMPLETER,
    ),
    Fault(
        "a snapshot that can never be complete stays asked for",
        _COMPLETER,
        "                requests.cancel(self._store, self._app, request)\n",
        "",
        COMPLETER,
    ),
    Fault(
        "a snapshot is given up when Kafka is away for a moment",
        _COMPLETER,
        "            except Unavailable as error:\n",
        "            except Unavailable as error:\n                requests.cancel(self._store, self._app, request)\n",
        COMPLETER,
    ),
    Fault(
        "a snapshot waits for a stage that is retired",
        _TAKING,
        "if head is not None and not head.retired}",
        "if head is not None}",
        ("test_retire.py",),
    ),
    Fault(
        "moments after a stage was retired have it still",
        _MOMENTS,
        "for stage, manifest in found.items() if not manifest.retired}",
        "for stage, manifest in found.items()}",
        ("test_retire.py",),
    ),
    Fault(
        "records that a retired stage has not read are kept for nobody",
        _IN_FLIGHT,
        "    if channel.input is None and _given_up(store, cut, channel):",
        "    if channel.input is None and False:",
        ("test_retire.py",),
    ),
    # Records in flight.
    Fault(
        "the last records in flight are not kept",
        _CAPTURE,
        "    if kept:\n        yield pa.concat_tables(kept)\n",
        "",
        DIAMOND,
    ),
    Fault(
        "records in flight are kept twice where there are many",
        _CAPTURE,
        "            yield pa.concat_tables(kept)\n            kept = []\n",
        "            yield pa.concat_tables(kept)\n",
        TAKING,
    ),
    Fault(
        "one partition hides what another lacks",
        _CAPTURE,
        "if flight.counts and found != flight.counts:",
        "if flight.counts and sum(found) != sum(flight.counts):",
        TAKING,
    ),
    Fault(
        "a capture that fails leaves its objects behind",
        _CAPTURE,
        "        with suppress(Unavailable):\n            _delete(store, kept)\n        raise",
        "        raise",
        TAKING,
    ),
    Fault(
        "damaged records in flight are given out",
        _CAPTURE,
        "if xxhash.xxh3_128_hexdigest(data) != each.checksum:",
        "if not data:",
        TAKING,
    ),
    Fault(
        "attempts of the sender's last version are not in flight",
        _IN_FLIGHT,
        "for version in range(after + 1, up_to + 1)",
        "for version in range(after + 1, up_to)",
        DIAMOND,
    ),
    Fault(
        "all that was ever sent is said to be in flight",
        _IN_FLIGHT,
        "tuple(to - at for to, at in",
        "tuple(to for to, at in",
        DIAMOND,
    ),
    Fault(
        "a single record in flight is none",
        _IN_FLIGHT,
        "if flight.attempts)",
        "if flight.rows > 1)",
        DIAMOND,
    ),
    # Carrying them into a clone.
    Fault(
        "readers that stand before one version are taken by their names",
        _CARRY,
        "(reader.input.version, reader.input.offsets) if",
        "(reader.input.version,) if",
        FAN_OUT,
    ),
    Fault(
        "nothing lies between two readers that stand before one version",
        _IN_FLIGHT,
        "until.version + within",
        "until.version",
        FAN_OUT,
    ),
    Fault(
        "what a snapshot keeps for one reader is given to another who is further behind",
        _SNAPSHOTS,
        " and spans and _reaches(kept, flight):",
        " and spans:",
        FAN_OUT,
    ),
    Fault(
        "a clone that is not to be seen from here is taken to be gone",
        _SNAPSHOTS,
        "        if elsewhere and next(iter(",
        "        if not elsewhere and next(iter(",
        ("test_snapshots.py",),
    ),
    Fault(
        "a pin counts as left over though its clone lives",
        _SNAPSHOTS,
        " and not _clone_lives(store, each):",
        ":",
        ("test_clone.py",),
    ),
    Fault(
        "a clone that runs is taken for one of the present",
        "snapshot/clone/clone.py",
        "not (ref.moves and has_run(target, found))",
        "True",
        ("test_clone.py",),
    ),
    Fault(
        "nobody looks whether a snapshot is still there when its records are shared",
        _SNAPSHOTS,
        "        _still_kept(store, keeper)\n",
        "        pass\n",
        RACES,
    ),
    Fault(
        "a pin that keeps nothing does for a clone of a snapshot that does",
        _SNAPSHOTS,
        " or not set(shared) <= set(written.channels):",
        ":",
        RACES,
    ),
    # Finding moments.
    Fault(
        "queries show what has expired since the newest version",
        _CUT,
        "        return _as_seen(cut_at(store, ref), ref, now_ms), None",
        "        return cut_at(store, ref), None",
        TTL_MOMENTS,
    ),
    Fault(
        "a time in a thinned history may name a later moment",
        _MOMENTS,
        "return _of_moment(store, app, limit.at(time_ms), time_ms)",
        "return _of_moment(store, app, limit.at(time_ms + 3_600_000), time_ms)",
        THINNED,
    ),
    Fault(
        "a version of a stage that stands still needs a moment that was kept",
        _MOMENTS,
        "    raised = _held(store, raise_senders({**found.stages, **firsts}, _reader(store, app)), commit)\n",
        "    raised = found.stages\n",
        THINNED,
    ),
    Fault(
        "another moment of a thinned history passes for the one that was asked for",
        _MOMENTS,
        "    same = moment.time_ms <= asked_ms <= moment.until_ms\n",
        "    same = moment.time_ms <= asked_ms\n",
        ("test_thinned_refs.py",),
    ),
    Fault(
        "a sender whose clock is ahead is not pulled forward to its receivers",
        _LINE,
        "        return min(each.time_ms for each in earliest.values())\n",
        "        return commit.time_ms\n",
        ("test_line.py",),
    ),
    Fault(
        "of one instant receivers come before their senders",
        _LINE,
        "(of_then if each < rank else earlier)",
        "(of_then if each > rank else earlier)",
        ("test_line.py",),
    ),
    Fault(
        "the log follows each commit's own time",
        _LINE,
        "        return min(commit.time_ms, last_ms), ranks[commit.stage]\n",
        "        return commit.time_ms, ranks[commit.stage]\n",
        ("test_line.py",),
    ),
    Fault(
        "a list that is named as the key breaks bisect",
        "snapshot/bisect/changed_keys.py",
        "    except pa.ArrowException:",
        "    except pa.ArrowInvalid:",
        ("test_bisect.py",),
    ),
    Fault(
        "a writer's versions that sent nothing count as lag",
        "snapshot/status/lag.py",
        "    if messages == 0:\n",
        "    if messages is None:\n",
        ("test_lag.py",),
    ),
    Fault(
        "a runner that was taken over runs the stage still",
        "snapshot/status/roster.py",
        "if runner.stages.get(head.stage) == head.epoch",
        "if head.stage in runner.stages",
        ("test_lag.py",),
    ),
)
