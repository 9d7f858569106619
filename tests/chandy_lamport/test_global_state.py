"""Consistency of cuts, and the messages for inconsistent ones."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.chandy_lamport.events import ProtocolError
from slackwater.chandy_lamport.global_state import ChannelCounts, GlobalState, find_violations

Counts = tuple[int, ...]


def cut(sent: Counts, consumed: Counts, in_flight: Counts, lost: Counts = ()) -> GlobalState:
    channel = ChannelCounts("sums", "total", "alert", sent=sent, consumed=consumed, in_flight=in_flight, lost=lost)
    return GlobalState({"total": 5, "alert": 9}, (channel,))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=4))
def test_a_cut_is_consistent_if_every_sent_record_is_consumed_lost_or_in_flight(
    parts: list[tuple[int, int, int]],
) -> None:
    consumed, in_flight, lost = (tuple(part[number] for part in parts) for number in range(3))
    assert find_violations(cut(tuple(map(sum, parts)), consumed, in_flight, lost)) == ()


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_channel_is_consistent_only_if_sent_equals_consumed_plus_lost_plus_in_flight(
    sent: int, consumed: int, in_flight: int, lost: int
) -> None:
    found = find_violations(cut((sent,), (consumed,), (in_flight,), (lost,)))
    assert (found == ()) == (sent == consumed + lost + in_flight)


def test_nothing_is_consumed_that_was_not_sent() -> None:
    assert find_violations(cut(sent=(4, 3), consumed=(4, 5), in_flight=(0, 0))) == (
        "sums[1]: alert at version 9 consumed 5 records, but total at version 5 had sent only 3",
    )


def test_a_record_neither_consumed_nor_in_flight_is_lost() -> None:
    assert find_violations(cut(sent=(4,), consumed=(1,), in_flight=(2,))) == (
        "sums[0]: total at version 5 sent 4 records, but alert at version 9 consumed 1 and 2 are in flight",
    )


def test_messages_count_lost_records_beside_consumed_ones() -> None:
    assert find_violations(cut(sent=(4, 9), consumed=(4, 4), in_flight=(0, 1), lost=(1, 2))) == (
        "sums[0]: alert at version 9 consumed 4, lost 1 records, but total at version 5 had sent only 4",
        "sums[1]: total at version 5 sent 9 records, but alert at version 9 consumed 4, lost 2 and 1 are in flight",
    )


def test_violations_of_two_partitions_do_not_cancel_out() -> None:
    assert len(find_violations(cut(sent=(5, 5), consumed=(6, 4), in_flight=(0, 0)))) == 2


def test_every_channel_is_checked() -> None:
    good = ChannelCounts("good", "a", "b", sent=(1,), consumed=(1,), in_flight=(0,))
    bad = ChannelCounts("bad", "a", "b", sent=(1,), consumed=(0,), in_flight=(0,))
    assert len(find_violations(GlobalState({"a": 1, "b": 1}, (bad, good, bad)))) == 2
    assert find_violations(GlobalState({}, ())) == ()


def test_counts_of_different_partitions_are_refused() -> None:
    expected = "counting channel 'sums': expected the same number of partitions, found 1 sent, 2 consumed, 1 in flight"
    with pytest.raises(ProtocolError, match=f"^{expected}$"):
        cut(sent=(1,), consumed=(1, 0), in_flight=(0,))
    with pytest.raises(ProtocolError, match=r"found 1 sent, 1 consumed, 1 in flight, 2 lost$"):
        cut(sent=(1,), consumed=(1,), in_flight=(0,), lost=(0, 0))


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (((-1,), (0,), (0,)), "-1 sent"),
        (((0,), (-2,), (2,)), "-2 consumed"),
        (((1,), (2,), (-1,)), "-1 in flight"),
        (((1,), (2,), (0,), (-1,)), "-1 lost"),
    ],
)
def test_a_negative_count_is_refused(counts: tuple[tuple[int, ...], ...], found: str) -> None:
    with pytest.raises(ProtocolError, match=f"^counting channel 'sums': expected no count below 0, found {found}$"):
        cut(*counts)


@pytest.mark.parametrize(
    ("versions", "known", "missing"),
    [
        ({"total": 1, "other": 2}, "'other', 'total'", "'alert'"),
        ({"alert": 1}, "'alert'", "'total'"),
        ({}, "no stage", "'total'"),
    ],
)
def test_a_channel_between_stages_without_a_version_is_refused(
    versions: dict[str, int], known: str, missing: str
) -> None:
    channel = ChannelCounts("sums", "total", "alert", sent=(), consumed=(), in_flight=())
    expected = f"cutting channel 'sums': expected versions of {known}, found {missing}"
    with pytest.raises(ProtocolError, match=f"^{re.escape(expected)}$"):
        GlobalState(versions, (channel,))
