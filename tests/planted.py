"""The faults that `mutants.py` plants: each one that somebody might make, and the fast tests that should notice.

A fault that does no harm is none: where a line may as well read otherwise, it is not here.
"""

from tests.fault import Fault
from tests.planted_metering import METERING_FAULTS
from tests.planted_snapshots import SNAPSHOT_FAULTS
from tests.planted_store import STORE_FAULTS

__all__ = ["FAULTS"]


LAWS = ("test_chandy_lamport_laws.py",)
"""The protocol alone, under random schedules."""
LAWS_AND_INJECTOR = ("test_chandy_lamport_laws.py", "test_chandy_lamport_injector.py")
CUT = ("test_chandy_lamport_cut.py",)
ARRIVALS = ("test_arrivals.py",)
DIAMOND = ("test_diamond_law.py",)
"""Plans, arrivals, messages and manifests together, under random schedules."""
PLANNER = ("test_planner.py",)
WIRE = ("test_wire.py",)
STAGE = ("test_stage_runner.py",)
REBASE = ("test_rebase.py",)
COMMITTER = ("test_committer.py",)
FLUSH = ("test_async_flush.py",)

_STATE, _PROCESS = "chandy_lamport/state.py", "chandy_lamport/process.py"
_INJECTOR, _CUT = "chandy_lamport/injector.py", "chandy_lamport/cut.py"
_ARRIVALS, _PLANNER, _MARKERS = (
    "pipeline/batch/snapshot_events.py",
    "pipeline/source/planner.py",
    "pipeline/kafka/markers.py",
)
_REBASE, _COMMITTER = "store/compaction/rebase.py", "pipeline/batch/committer.py"
_WIRE, _READERS, _STAGE = "pipeline/kafka/messages.py", "pipeline/source/readers.py", "pipeline/batch/stage_runner.py"

_COMPUTE = "self._compute(rows, folded, clock_ms) if has_rows else ()"
_MARK = (
    "snapshot, channel in outcome.markers:\n            {0}[channel] = "
    "write_markers(self._places.kafka, {0}[channel], snapshot, self._places.patience_s)"
)

FAULTS = (
    # The table.
    Fault(
        "the state is recorded at the last marker, not the first",
        _STATE,
        "Signal.LAST_MARKER: (Phase.FINISHED, (Step.FINISH,)),",
        "Signal.LAST_MARKER: (Phase.FINISHED, (Step.RECORD, Step.FINISH)),",
        LAWS,
    ),
    Fault(
        "the marker is not passed on",
        _STATE,
        "Signal.LAST_MARKER: (Phase.FINISHED, (Step.RECORD, Step.SEND_MARKERS, Step.FINISH)),",
        "Signal.LAST_MARKER: (Phase.FINISHED, (Step.RECORD, Step.FINISH)),",
        LAWS,
    ),
    Fault(
        "the marker is passed on once all have arrived",
        _STATE,
        "Signal.MARKER: (Phase.CAPTURING, (Step.RECORD, Step.SEND_MARKERS)),",
        "Signal.MARKER: (Phase.CAPTURING, (Step.RECORD,)),",
        LAWS,
    ),
    Fault(
        "the marker goes out before the state is recorded",
        _STATE,
        "Signal.MARKER: (Phase.CAPTURING, (Step.RECORD, Step.SEND_MARKERS)),",
        "Signal.MARKER: (Phase.CAPTURING, (Step.SEND_MARKERS, Step.RECORD)),",
        LAWS,
    ),
    Fault(
        "records that come before the marker are not captured",
        _STATE,
        "Signal.RECORDS: (Phase.CAPTURING, (Step.CAPTURE,)),",
        "Signal.RECORDS: (Phase.CAPTURING, ()),",
        LAWS,
    ),
    Fault(
        "records behind the marker are captured too",
        _STATE,
        "Signal.LATER_RECORDS: (Phase.CAPTURING, ()),",
        "Signal.LATER_RECORDS: (Phase.CAPTURING, (Step.CAPTURE,)),",
        LAWS,
    ),
    Fault(
        "the first marker finishes, without waiting for the other inputs",
        _STATE,
        "    return Signal.MARKER if awaited - {channel} else Signal.LAST_MARKER",
        "    return Signal.LAST_MARKER",
        LAWS,
    ),
    Fault(
        "a repeated marker finishes",
        _STATE,
        "        Signal.MARKER: (Phase.CAPTURING, ()),\n        Signal.LAST_MARKER: (Phase.FINISHED, (Step.FINISH,)),\n"
        "        Signal.REPEATED_MARKER: (Phase.CAPTURING, ()),",
        "        Signal.MARKER: (Phase.CAPTURING, ()),\n        Signal.LAST_MARKER: (Phase.FINISHED, (Step.FINISH,)),\n"
        "        Signal.REPEATED_MARKER: (Phase.FINISHED, (Step.FINISH,)),",
        LAWS,
    ),
    Fault(
        "a snapshot is complete while one stage has not answered",
        _STATE,
        "return Signal.ANSWER if awaited - {stage} else Signal.LAST_ANSWER",
        "return Signal.ANSWER if len(awaited - {stage}) > 1 else Signal.LAST_ANSWER",
        LAWS,
    ),
    # What turns its steps into actions.
    Fault(
        "only one output gets a marker",
        _PROCESS,
        "for output in self._outputs)",
        "for output in self._outputs[:1])",
        LAWS,
    ),
    Fault(
        "an arrived marker is awaited still",
        _PROCESS,
        "(phase, awaited - {arrived})",
        "(phase, awaited)",
        LAWS,
    ),
    Fault(
        "a restart forgets which markers are awaited",
        _PROCESS,
        "(Phase.CAPTURING if awaited else Phase.FINISHED, awaited)",
        "(Phase.FINISHED, frozenset())",
        LAWS,
    ),
    Fault(
        "only the newest of two overlapping snapshots captures",
        _PROCESS,
        "for snapshot, awaited in self.recorded.items():",
        "for snapshot, awaited in list(self.recorded.items())[-1:]:",
        LAWS,
    ),
    # The injector and the cut.
    Fault(
        "only one source is asked",
        _INJECTOR,
        "for name in self._sources if",
        "for name in self._sources[:1] if",
        LAWS_AND_INJECTOR,
    ),
    Fault(
        "an answer makes the earlier ones forgotten",
        _INJECTOR,
        "versions = self._open.pop(snapshot, {}) | answer",
        "self._open.pop(snapshot, {})\n        versions = answer",
        LAWS_AND_INJECTOR,
    ),
    Fault(
        "a stage may answer again with a later version",
        _INJECTOR,
        "if before != answer.version:",
        "if before > answer.version:",
        LAWS_AND_INJECTOR,
    ),
    Fault(
        "a network with a circle is accepted",
        _INJECTOR,
        "if stages[name].inputs <= marked}:",
        "if stages[name].inputs <= marked or stages[name].inputs & marked}:",
        LAWS_AND_INJECTOR,
    ),
    Fault(
        "a record both consumed and in flight is no violation",
        _CUT,
        "elif sent != consumed + gone + in_flight:",
        "elif sent > consumed + gone + in_flight:",
        CUT,
    ),
    Fault(
        "one partition of a channel is looked at",
        _CUT,
        "in enumerate(counts):",
        "in list(enumerate(counts))[:1]:",
        CUT,
    ),
    # A batch's events, and what its commit says.
    Fault(
        "a position that stays brings its snapshots again",
        _ARRIVALS,
        "if after[name] == before[name]:",
        "if after[name] == before[name] and not after[name].snapshots:",
        ARRIVALS,
    ),
    Fault(
        "what the recording commit consumed itself is captured",
        _ARRIVALS,
        "*_events(channels, before, after, set(head.recorded))]",
        "*sorted(_events(channels, before, after, set(head.recorded)), key=lambda it: isinstance(it, BatchArrived))]",
        DIAMOND,
    ),
    Fault(
        "one version too many is captured",
        _ARRIVALS,
        "Span(before[name].version, after[name].version)",
        "Span(max(0, before[name].version - 1), after[name].version)",
        DIAMOND,
    ),
    Fault(
        "one version too few is captured",
        _ARRIVALS,
        "Span(before[name].version, after[name].version)",
        "Span(before[name].version, after[name].version - 1)",
        DIAMOND,
    ),
    Fault(
        "only the last of several batches stays captured",
        _ARRIVALS,
        "return Span(earlier.after, later.up_to)",
        "return later",
        DIAMOND,
    ),
    Fault(
        "a gap between captures is accepted",
        _ARRIVALS,
        "if earlier.up_to != later.after:",
        "if earlier.up_to > later.after:",
        ARRIVALS,
    ),
    Fault(
        "the version before is recorded",
        _ARRIVALS,
        "recorded[snapshot] = head.version + 1",
        "recorded[snapshot] = head.version",
        DIAMOND,
    ),
    Fault(
        "the next batch waits for no other input's marker",
        _ARRIVALS,
        "awaited = {snapshot: head.awaited.get(snapshot, ()) for snapshot in head.recorded}",
        "awaited = {snapshot: () for snapshot in head.recorded}",
        DIAMOND,
    ),
    Fault(
        "snapshots that nobody asks for are carried on",
        _ARRIVALS,
        "forgotten = [snapshot for snapshot in head.recorded if snapshot in closed]",
        "forgotten: list[str] = []",
        DIAMOND,
    ),
    Fault(
        "what was captured for a forgotten snapshot stays",
        _ARRIVALS,
        "for snapshot, spans in head.captured.items() if snapshot in recorded}",
        "for snapshot, spans in head.captured.items()}",
        DIAMOND,
    ),
    Fault(
        "a topic's request begins the protocol where channels are read",
        _ARRIVALS,
        "elif not channels and snapshot not in known:",
        "elif snapshot not in known:",
        ARRIVALS,
    ),
    Fault(
        "a marker alone is no reason to commit",
        _ARRIVALS,
        "changed=any(isinstance(event, MarkerArrived | Requested) for",
        "changed=any(isinstance(event, Requested) for",
        ARRIVALS,
    ),
    # Where batches end.
    Fault(
        "a batch goes past the marker",
        _PLANNER,
        "snapshots = tuple(sorted(output.markers))\n                break",
        "snapshots = tuple(sorted(output.markers))",
        DIAMOND,
    ),
    Fault(
        "of two markers in one place one is told",
        _PLANNER,
        "snapshots = tuple(sorted(output.markers))",
        "snapshots = tuple(sorted(output.markers))[:1]",
        PLANNER,
    ),
    Fault(
        "a marker without rows is passed over",
        _PLANNER,
        "if output.rows or output.markers:",
        "if output.rows:",
        PLANNER,
    ),
    Fault(
        "a version that does not fit the limit is left out",
        _PLANNER,
        "rows + output.rows > self.max_records:\n                break",
        "rows + output.rows > self.max_records:\n                continue",
        DIAMOND,
    ),
    Fault(
        "attempts of the last version do not count",
        _PLANNER,
        "for version in range(start + 1, end + 1):",
        "for version in range(start + 1, end):",
        DIAMOND,
    ),
    Fault(
        "a batch starts the count of what was consumed again",
        _PLANNER,
        "return Position(self.channel, output.ends, end.version, output.sent, snapshots)",
        "return Position(self.channel, output.ends, end.version, start.consumed, snapshots)",
        DIAMOND,
    ),
    Fault(
        "a request is brought by every batch until it is answered",
        _PLANNER,
        "            self.handled.update(asked)\n",
        "",
        PLANNER,
    ),
    Fault(
        "a request waits for the trigger interval",
        _PLANNER,
        "if asked:\n            # At once",
        "if asked and self._pace.due():\n            # At once",
        PLANNER,
    ),
    # Ranges and counts.
    Fault(
        "each range begins one offset early",
        _READERS,
        "_Range(topic, partition, first, last, attempts, rows)",
        "_Range(topic, partition, max(0, first - 1), last, attempts, rows)",
        PLANNER,
    ),
    Fault(
        "each range ends one offset early",
        _READERS,
        "_Range(topic, partition, first, last, attempts, rows)",
        "_Range(topic, partition, first, last - 1, attempts, rows)",
        DIAMOND,
    ),
    Fault(
        "each range is said to hold all that was ever sent",
        _READERS,
        "counts = [sent - read for",
        "counts = [sent for",
        DIAMOND,
    ),
    Fault(
        "ranges are not counted",
        _READERS,
        "if end.consumed and start.consumed:",
        "if not end.consumed and start.consumed:",
        PLANNER,
    ),
    Fault(
        "a batch with rows of one input only does not run",
        _STAGE,
        "has_rows = any(_has_rows(",
        "has_rows = all(_has_rows(",
        STAGE,
    ),
    Fault(
        "Spark has work for a marker",
        _STAGE,
        "return sum(end.consumed) > sum(at.passed)",
        "return sum(end.consumed) >= sum(at.passed)",
        STAGE,
    ),
    Fault(
        "a source does not compare what it read",
        _WIRE,
        "check_count(topic, partition, start, end, found, sent)\n\n\ndef _b",
        "check_count(topic, partition, start, end, found, found)\n\n\ndef _b",
        WIRE,
    ),
    # Messages.
    Fault(
        "a zombie's rows are read",
        _WIRE,
        "        if header_of(message) not in attempts:\n            continue\n        address",
        '        if header_of(message)[:6] in ("", "marker"):\n            continue\n        address',
        DIAMOND,
    ),
    Fault(
        "a zombie's rows are captured",
        _WIRE,
        "        if header_of(message) not in attempts:\n            continue\n        rows",
        '        if header_of(message)[:6] in ("", "marker"):\n            continue\n        rows',
        DIAMOND,
    ),
    Fault(
        "one attempt's rows are read twice",
        _WIRE,
        "            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)\n",
        "            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)\n"
        "            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)\n",
        WIRE,
    ),
    Fault(
        "rows are numbered from 1 in their addresses",
        _WIRE,
        "np.arange(rows.num_rows, dtype=np.int32)",
        "np.arange(1, rows.num_rows + 1, dtype=np.int32)",
        WIRE,
    ),
    Fault(
        "a count that is off by one is accepted",
        _WIRE,
        "if sent is not None and found != sent:",
        "if sent is not None and abs(found - sent) > 1:",
        WIRE,
    ),
    Fault(
        "rows that are missing are accepted",
        _WIRE,
        "if sent is not None and found != sent:",
        "if sent is not None and found > sent:",
        WIRE,
    ),
    Fault(
        "a message that was cut short is some other error",
        _WIRE,
        "except (pa.ArrowException, OSError) as error:",
        "except pa.ArrowInvalid as error:",
        WIRE,
    ),
    # Markers in Kafka.
    Fault(
        "one partition gets no marker",
        _MARKERS,
        '    messages = [(partition, b"") for partition in range(len(output.ends))]\n'
        "    ends = send(kafka, output.topic, messages, marker_header(snapshot), patience_s=patience_s)\n",
        '    messages = [(partition, b"") for partition in range(len(output.ends) - 1)]\n'
        "    sent = send(kafka, output.topic, messages, marker_header(snapshot), patience_s=patience_s)\n"
        "    ends = dict(enumerate(output.ends)) | sent\n",
        WIRE,
    ),
    Fault(
        "the version ends before its marker",
        _MARKERS,
        "return replace(output, ends=after,",
        "return replace(output,",
        WIRE,
    ),
    Fault(
        "the manifest names the offset behind the marker",
        _MARKERS,
        "tuple(end - 1 for end in after)",
        "after",
        WIRE,
    ),
    Fault(
        "the marker of a second snapshot takes the place of the first's",
        _MARKERS,
        "markers={**output.markers, snapshot:",
        "markers={snapshot:",
        WIRE,
    ),
    # A batch from its plan to its commit.
    Fault(
        "the marker is written before the last rows",
        _STAGE,
        f"        results = {_COMPUTE}\n        outputs = self._outputs(base, results)\n"
        f"        for {_MARK.format('outputs')}\n",
        f"        marked = self._outputs(base, ())\n        for {_MARK.format('marked')}\n"
        f"        results = {_COMPUTE}\n        outputs = self._outputs(base, results)\n"
        "        outputs = {name: replace(one, markers=marked[name].markers) for name, one in outputs.items()}\n",
        STAGE,
    ),
    Fault(
        "a version ends before its last message",
        _STAGE,
        "ends[partition] = max(ends[partition], written.end)",
        "ends[partition] = max(ends[partition], written.end - 1)",
        STAGE,
    ),
    Fault(
        "rows of one of several attempts are counted",
        _STAGE,
        "sent[partition] += written.rows",
        "sent[partition] = before.sent[partition] + written.rows",
        STAGE,
    ),
    Fault(
        "an attempt that won is not named",
        _STAGE,
        "attempts=tuple(sorted(attempt for attempt, _ in parts)),",
        "attempts=tuple(sorted(attempt for attempt, _ in parts[:1])),",
        STAGE,
    ),
    Fault(
        "a batch with nothing but a marker is dropped",
        _STAGE,
        "if not moved and not outcome.changed:",
        "if not moved:",
        STAGE,
    ),
    Fault(
        "the commit does not say which markers are awaited",
        _STAGE,
        "            awaited=outcome.awaited,\n",
        "",
        STAGE,
    ),
    Fault(
        "the commit does not say what was captured",
        _STAGE,
        "            captured=outcome.captured,\n",
        "",
        STAGE,
    ),
    Fault(
        "the stage's reading of a channel is not counted on",
        _STAGE,
        "version=end.version, rows=rows, consumed=end.consumed)",
        "version=end.version, rows=rows)",
        STAGE,
    ),
    Fault(
        "a batch of two inputs is noted for the first alone",
        _STAGE,
        "_consumed(at[name], end) for name, end in after.items()}",
        "_consumed(at[name], end) for name, end in list(after.items())[:1]}",
        STAGE,
    ),
    *SNAPSHOT_FAULTS,
    *STORE_FAULTS,
    *METERING_FAULTS,
    # Behind a compaction, and ahead of the store.
    Fault(
        "a snapshot is of the number that was lost",
        _REBASE,
        "snapshot: version if at == manifest.version else onto.recorded.get(snapshot, at)",
        "snapshot: onto.recorded.get(snapshot, at)",
        REBASE,
    ),
    Fault(
        "a snapshot of a version that waits before is of the number that was lost",
        _REBASE,
        "else onto.recorded.get(snapshot, at)",
        "else at",
        REBASE,
    ),
    Fault(
        "what the compaction merged is there again",
        _REBASE,
        "ssts=apply((*onto.ssts, *added), merges)",
        "ssts=apply((*{*before.ssts, *onto.ssts}, *added), merges)",
        REBASE,
    ),
    Fault(
        "the result of a merge whose inputs are gone stays",
        _REBASE,
        "known = {*before.ssts, *(sst for done in merges for sst in done.outputs)}",
        "known = {*before.ssts}",
        REBASE,
    ),
    Fault(
        "rows are taken to have the number that they were committed under",
        _REBASE,
        "seq=0 if manifest.row_seq == version else manifest.row_seq,",
        "seq=0,",
        REBASE,
    ),
    Fault(
        "a compaction of another epoch is followed",
        _COMMITTER,
        'found.kind == "compaction" and found.epoch == head.epoch',
        'found.kind == "compaction"',
        COMMITTER,
    ),
    Fault(
        "any version is followed",
        _COMMITTER,
        'found.kind == "compaction" and found.epoch == head.epoch',
        "found.epoch == head.epoch",
        COMMITTER,
    ),
    Fault(
        "a version is committed before its SSTs are uploaded",
        _COMMITTER,
        "        for attempt in range(_REBASES):\n            self._upload(change)\n",
        "        for attempt in range(_REBASES):\n",
        FLUSH,
    ),
    Fault(
        "the next batch is built on what is committed",
        _COMMITTER,
        "return self._unflushed[-1][0].manifest if self._unflushed else self.head",
        "return self.head",
        FLUSH,
    ),
    Fault(
        "one version more may be unflushed",
        _COMMITTER,
        "len(self._unflushed) < self._max_unflushed)",
        "len(self._unflushed) <= self._max_unflushed)",
        FLUSH,
    ),
)
