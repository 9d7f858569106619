"""A network of simulated processes, driven by a schedule.

It guarantees what the runner guarantees to the protocol: atomic commits, logs with partitions, readers that skip
records that no commit names, and batches that end at markers. It does not know the protocol itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from slackwater.chandy_lamport.events import (
    Action,
    BatchArrived,
    Capture,
    Event,
    MarkerArrived,
    RecordState,
    SendMarker,
    SnapshotEnded,
    SnapshotRequested,
)
from slackwater.chandy_lamport.global_state import ChannelCounts, GlobalState, StageChannels, completed_cut
from slackwater.chandy_lamport.process import Process

from tests.chandy_lamport.bank import Account, Bank, Transfer

MOST_SNAPSHOTS = 4
BUDGETS = (-1, 0, 0, 0, 1, 1, 2, 4)
"""Maximum number of transfers that a batch reads from a partition; negative for no limit."""

Offsets = tuple[int, ...]
"""One offset per partition."""
Records = tuple[tuple[Transfer, ...], ...]
"""Records by partition, in order."""


class Schedule:
    """Choices read from a string of bytes. When the bytes are used up, every choice is 0, which is always fair."""

    def __init__(self, choices: bytes) -> None:
        self._choices = iter(choices)
        self.ended = not choices

    def choose(self, num_options: int) -> int:
        choice = next(self._choices, None)
        self.ended = choice is None
        return (choice or 0) % num_options


class Marker(NamedTuple):
    snapshot: str


class Message(NamedTuple):
    attempt: int
    content: Transfer | Marker


@dataclass(frozen=True, slots=True)
class Commit:
    """Content of a manifest."""

    version: int
    attempt: int
    account: Account
    num_deposits: int
    positions: Mapping[str, Offsets]
    ends: Mapping[str, Offsets]
    recorded: Mapping[str, int]
    awaited: Mapping[str, frozenset[str]]
    captures: tuple[Capture, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """State of one channel for one reader, at a cut."""

    channel: str
    reader: str
    sent: Records
    consumed: Records
    captured: Records

    def counted(self, writer: str) -> ChannelCounts:
        counts = (tuple(map(len, records)) for records in (self.sent, self.consumed, self.captured))
        return ChannelCounts(self.channel, writer, self.reader, *counts)


@dataclass(frozen=True, slots=True)
class Recording:
    """A complete snapshot."""

    snapshot: str
    cut: GlobalState
    commits: Mapping[str, Commit]
    flows: tuple[Flow, ...]

    def in_flight(self) -> list[Transfer]:
        """Return the captured transfers. If readers share a channel, only transfers addressed to the reader count."""
        return [
            transfer
            for flow in self.flows
            for transfer in chain.from_iterable(flow.captured)
            if transfer.receiver == flow.reader
        ]


class Network:
    """Simulated network. `run` follows the schedule, and then continues fairly until nothing is left to do."""

    def __init__(self, stages: Mapping[str, StageChannels], num_partitions: int, choices: bytes) -> None:
        none = (0,) * num_partitions
        self.stages = stages
        self.names = sorted(stages)
        self.bank = Bank(stages)
        self.schedule = Schedule(choices)
        self.num_attempts = 0
        self.committed: set[int] = set()
        self.logs: dict[str, tuple[list[Message], ...]] = {
            channel: tuple([] for _ in none) for channel in self.bank.writer
        }
        self.processes = {name: Process(stage.inputs, stage.outputs) for name, stage in stages.items()}
        self.history = {
            name: [
                Commit(
                    version=0,
                    attempt=0,
                    account=Account(),
                    num_deposits=0,
                    positions=dict.fromkeys(stage.inputs, none),
                    ends=dict.fromkeys(stage.outputs, none),
                    recorded={},
                    awaited={},
                    captures=(),
                )
            ]
            for name, stage in stages.items()
        }
        self.seen_requests: dict[str, list[str]] = {name: [] for name in stages}
        self.taken: list[str] = []
        self.open: set[str] = set()
        self.cancelled: set[str] = set()
        self.recordings: list[Recording] = []

    def head(self, name: str) -> Commit:
        return self.history[name][-1]

    def run(self) -> "Network":
        operations = [self.batch] * 10 + [self.complete] * 2
        operations += [self.take, self.cancel, self.zombie]
        while not self.schedule.ended:
            operations[self.schedule.choose(len(operations))](self.any_stage())
        if not self.taken:
            self.take()
        for _ in range(100):
            before = [self.head(name).version for name in self.names], self.open.copy()
            for name in self.names:
                self.batch(name)
                self.complete()
            if before == ([self.head(name).version for name in self.names], self.open):
                return self
        raise AssertionError("the network does not come to rest")

    def any_stage(self) -> str:
        return self.names[self.schedule.choose(len(self.names))]

    def any_snapshot(self) -> str:
        return f"s{self.schedule.choose(MOST_SNAPSHOTS)}"

    # What happens to snapshots.

    def take(self, _: str = "") -> None:
        if len(self.taken) < MOST_SNAPSHOTS:
            snapshot = f"s{len(self.taken)}"
            self.taken.append(snapshot)
            self.open.add(snapshot)

    def cancel(self, _: str) -> None:
        snapshot = self.any_snapshot()
        if self.schedule.choose(2) and snapshot in self.open:
            self.open.remove(snapshot)
            self.cancelled.add(snapshot)

    def complete(self, _: str = "") -> None:
        """Read all heads, and complete finished snapshots."""
        for snapshot in sorted(self.open):
            heads = [(name, self.head(name)) for name in self.names]
            done = {name: head.recorded[snapshot] for name, head in heads if head.awaited.get(snapshot) == frozenset()}
            if versions := completed_cut(self.stages, done):
                self.open.remove(snapshot)
                self.recordings.append(self.recording(snapshot, versions))

    def recording(self, snapshot: str, versions: Mapping[str, int]) -> Recording:
        none = (0,) * len(next(iter(self.logs.values()), ()))
        commits = {name: self.history[name][version] for name, version in versions.items()}
        flows: list[Flow] = []
        for channel, writer in self.bank.writer.items():
            for reader in self.bank.readers[channel]:
                captured: Records = tuple(() for _ in none)
                for commit in self.history[reader][versions[reader] :]:
                    for capture in commit.captures:
                        if (capture.snapshot, capture.channel) == (snapshot, channel):
                            late = self.read(channel, *capture.records)
                            captured = tuple(a + b for a, b in zip(captured, late, strict=True))
                sent = self.read(channel, none, commits[writer].ends[channel])
                consumed = self.read(channel, none, commits[reader].positions[channel])
                flows.append(Flow(channel, reader, sent, consumed, captured))
        channels = tuple(flow.counted(self.bank.writer[flow.channel]) for flow in flows)
        return Recording(snapshot, GlobalState(versions, channels), commits, tuple(flows))

    # What happens to a stage.

    def zombie(self, name: str) -> None:
        """Let a fenced writer write transfers and markers, which no commit names."""
        self.num_attempts += 1
        marker = Marker(self.any_snapshot())
        for channel in sorted(self.stages[name].outputs):
            for log in self.logs[channel][self.schedule.choose(2) :]:
                log.append(Message(self.num_attempts, Transfer("bogus", name, 1)))
                log.append(Message(self.num_attempts, marker))

    def batch(self, name: str) -> None:
        """Run one micro-batch: read, compute, call the process, write, and commit unless the process crashes first."""
        stage, head, process = self.stages[name], self.head(name), self.processes[name]
        choose = self.schedule.choose
        forgotten: list[str] = []
        if not choose(4):
            self.seen_requests[name] = [] if stage.inputs else [known for known in self.taken if known in self.open]
            forgotten = [snapshot for snapshot in process.recorded if snapshot not in self.open]
        num_deposits = head.num_deposits + (0 if stage.inputs else choose(4))
        transfers = self.bank.deposits(name, head.num_deposits, num_deposits)
        positions = dict(head.positions)
        arrived: list[Event] = []
        markers: list[Event] = []
        for channel in sorted(stage.inputs):
            start = positions[channel]
            end, marker = self.plan(channel, start)
            records = chain.from_iterable(self.read(channel, start, end))
            transfers += (transfer for transfer in records if transfer.receiver == name)
            if end != start:
                arrived.append(BatchArrived(channel, (start, end)))
            if marker:
                markers.append(MarkerArrived(marker.snapshot, channel))
            positions[channel] = tuple(offset + 1 for offset in end) if marker else end
        if choose(2):
            markers.reverse()
        if stage.inputs and choose(4) == 3:
            # A marker of a snapshot that was withdrawn may arrive at any time.
            late = [known for known in self.taken if known not in self.open | process.recorded.keys()]
            markers += (MarkerArrived(snapshot, min(stage.inputs)) for snapshot in late)
        requests = [SnapshotRequested(snapshot) for snapshot in self.seen_requests[name]]
        events = [*map(SnapshotEnded, forgotten), *arrived, *markers, *requests]
        actions = tuple(action for event in events for action in process.receive(event))
        self.repeat(process, [*markers, *requests])
        if not (transfers or arrived or markers or forgotten or actions):
            return

        self.num_attempts += 1
        account, sent = self.bank.apply(head.account, transfers)
        for channel, transfer in sent:
            partition = crc32(transfer.name.encode()) % len(self.logs[channel])
            self.logs[channel][partition].append(Message(self.num_attempts, transfer))
        draft = replace(
            head,
            version=head.version + 1,
            attempt=self.num_attempts,
            account=account,
            num_deposits=num_deposits,
            positions=positions,
            recorded={known: version for known, version in head.recorded.items() if known not in forgotten},
        )
        commit = self.obey(actions, draft, process)
        if choose(8) == 7:
            self.processes[name] = Process(stage.inputs, stage.outputs, head.awaited)
        else:
            self.committed.add(self.num_attempts)
            self.history[name].append(commit)

    def repeat(self, process: Process, events: list[Event]) -> None:
        """Deliver requests and markers a second time, which must change nothing."""
        before = process.recorded
        for event in events:
            assert process.receive(event) == (), event
        assert process.recorded == before

    def obey(self, actions: tuple[Action, ...], draft: Commit, process: Process) -> Commit:
        """Carry out the process's actions: write the markers after the records; put everything else into the commit."""
        recorded, captures = dict(draft.recorded), []
        for action in actions:
            match action:
                case RecordState(snapshot):
                    assert snapshot not in recorded, f"{snapshot} was recorded twice"
                    recorded[snapshot] = draft.version
                case SendMarker(snapshot, channel):
                    assert recorded.get(snapshot) == draft.version, f"{snapshot}: marker before state"
                    for log in self.logs[channel]:
                        log.append(Message(draft.attempt, Marker(snapshot)))
                case Capture():
                    captures.append(action)
        assert recorded.keys() == process.recorded.keys()
        return replace(
            draft,
            ends={channel: tuple(map(len, self.logs[channel])) for channel in draft.ends},
            recorded=recorded,
            awaited=process.recorded,
            captures=tuple(captures),
        )

    # What lies in a channel.

    def plan(self, channel: str, start: Offsets) -> tuple[Offsets, Marker | None]:
        """Return a batch's end offset, never beyond a marker; and the marker, if every partition has reached it."""
        limits = self.head(self.bank.writer[channel]).ends[channel]
        end: list[int] = []
        markers: set[Marker | None] = set()
        for log, first, limit in zip(self.logs[channel], start, limits, strict=True):
            budget = BUDGETS[self.schedule.choose(len(BUDGETS))]
            offset, marker = first, None
            while offset < limit and budget and not marker:
                attempt, content = log[offset]
                if attempt not in self.committed:
                    offset += 1
                elif isinstance(content, Marker):
                    marker = content
                else:
                    offset += 1
                    budget -= 1
            end.append(offset)
            markers.add(marker)
        assert len(markers - {None}) <= 1, "the partitions of a channel are at different markers"
        return tuple(end), None if None in markers else markers.pop()

    def read(self, channel: str, start: Offsets, end: Offsets) -> Records:
        """Return the transfers in a range of offsets, except those that no commit names."""
        return tuple(
            tuple(
                content
                for attempt, content in log[first:limit]
                if attempt in self.committed and isinstance(content, Transfer)
            )
            for log, first, limit in zip(self.logs[channel], start, end, strict=True)
        )
