"""Laws for every snapshot of every network under every schedule.

A failing case prints the network and the bytes of its schedule; to replay the case, add them to the law as an
`@example`.
"""

import os
from collections.abc import Callable
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st
from slackwater.chandy_lamport.global_state import StageChannels, find_violations

from tests.chandy_lamport.bank import DEPOSIT, Account
from tests.chandy_lamport.network import Network, Recording
from tests.models.profiles import SEARCHES


@st.composite
def networks(draw: st.DrawFn, *, fan_in: bool = True) -> dict[str, StageChannels]:
    """Draw up to 8 stages. A stage writes one channel per reader, or one channel that all its readers share."""
    names = "abcdefgh"[: draw(st.integers(1, 8))]
    shared = draw(st.sets(st.sampled_from(names)))
    inputs: dict[str, set[str]] = {name: set() for name in names}
    outputs: dict[str, set[str]] = {name: set() for name in names}
    for number, reader in enumerate(names[1:], start=1):
        if fan_in:
            mask = draw(st.integers(0, 2**number - 1))
            writers = [writer for bit, writer in enumerate(names[:number]) if mask >> bit & 1]
        else:
            writers = [draw(st.sampled_from(names[:number]))]
        for writer in writers:
            channel = f"{writer}-all" if writer in shared else f"{writer}-{reader}"
            outputs[writer].add(channel)
            inputs[reader].add(channel)
    return {name: StageChannels(frozenset(inputs[name]), frozenset(outputs[name])) for name in names}


Law = Callable[[Network], None]

TIMES = float(os.environ.get("SLACKWATER_SCHEDULES", "1" if SEARCHES else "0.5"))
"""Factor for the number of schedules. The gate runs half of the usual number, `make soak` about 100,000 in all."""


def runs(*, fan_in: bool = True, num_examples: int = 200) -> Callable[[Law], Callable[..., None]]:
    """Return a decorator that runs a law on finished networks."""

    def decorate(law: Law) -> Callable[..., None]:
        def check(choices: bytes, num_partitions: int, stages: dict[str, StageChannels]) -> None:
            law(Network(stages, num_partitions, choices).run())

        check.__name__ = check.__qualname__ = law.__name__
        check.__module__ = law.__module__
        given_runs = given(
            # Long, because a snapshot of 8 stages takes a while and several snapshots have to overlap.
            choices=st.binary(min_size=300, max_size=1000).map(lambda choices: choices.rstrip(b"\0")),
            num_partitions=st.integers(1, 3),
            stages=networks(fan_in=fan_in),
        )
        return settings(max_examples=round(num_examples * TIMES), deadline=None)(given_runs(check))

    return decorate


@runs()
def test_every_snapshot_that_is_not_cancelled_completes_once_and_is_then_forgotten(network: Network) -> None:
    complete = [recording.snapshot for recording in network.recordings]
    assert sorted(complete) == [snapshot for snapshot in network.taken if snapshot not in network.cancelled]
    assert not any(process.recorded for process in network.processes.values())
    assert not any(network.head(name).recorded for name in network.names)


@runs()
def test_a_cut_has_exactly_the_transfers_sent_before_it(network: Network) -> None:
    for recording in network.recordings:
        for flow in recording.flows:
            for sent, consumed, captured in zip(flow.sent, flow.consumed, flow.captured, strict=True):
                assert consumed + captured == sent, (recording.snapshot, flow.channel, flow.reader)
        assert find_violations(recording.cut) == ()


@runs()
def test_every_cut_preserves_the_sum_of_money(network: Network) -> None:
    in_the_end = sum(network.head(name).account.balance for name in network.names)
    assert in_the_end == DEPOSIT * sum(network.head(name).num_deposits for name in network.names)
    for recording in network.recordings:
        recorded = sum(commit.account.balance for commit in recording.commits.values())
        in_flight = sum(transfer.amount for transfer in recording.in_flight())
        later = sum(network.head(name).num_deposits - commit.num_deposits for name, commit in recording.commits.items())
        assert recorded + in_flight + later * DEPOSIT == in_the_end, recording.snapshot


@runs()
def test_replaying_the_captured_transfers_gives_the_result_of_the_uninterrupted_run(network: Network) -> None:
    uninterrupted = network.bank.settle(
        {name: Account() for name in network.names},
        chain.from_iterable(network.bank.deposits(name, 0, network.head(name).num_deposits) for name in network.names),
    )
    assert {name: network.head(name).account for name in network.names} == uninterrupted
    for recording in network.recordings:
        assert replayed(network, recording) == uninterrupted, recording.snapshot


def replayed(network: Network, recording: Recording) -> dict[str, Account]:
    later = [
        transfer
        for name, commit in recording.commits.items()
        for transfer in network.bank.deposits(name, commit.num_deposits, network.head(name).num_deposits)
    ]
    accounts = {name: commit.account for name, commit in recording.commits.items()}
    return network.bank.settle(accounts, recording.in_flight() + later)


@runs(fan_in=False, num_examples=100)
def test_a_cut_has_no_records_in_flight_if_every_stage_has_one_input(network: Network) -> None:
    assert all(recording.in_flight() == [] for recording in network.recordings)
