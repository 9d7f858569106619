"""Numeric settings: every accepted value survives storing and reading; errors for other values name the setting."""

import math

import numpy as np
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from slackwater.common.validation import check_finite, check_whole
from slackwater.errors import Usage
from slackwater.pipeline.run.options import Options
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.versions import codec
from slackwater.store.versions.manifest import Policy

NUMBERS = st.one_of(
    st.integers(),
    st.integers(2, 1 << 30),
    st.floats(),
    st.floats(1, 1e9),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.sampled_from([np.int64(1 << 21), np.float64(2.5), np.float32(2.5), np.bool_(True), 64e6, 10**400]),
)
UNIVERSAL = ("l0_trigger", "size_ratio", "min_merge_width", "max_merge_width", "max_space_amplification")
LEVELED = ("l0_trigger", "level_base_bytes", "fanout", "max_space_amplification")


@given(
    st.sampled_from(
        [
            *((sw.universal, knob) for knob in (*UNIVERSAL, "target_file_bytes")),
            *((sw.leveled, knob) for knob in (*LEVELED, "target_file_bytes")),
        ]
    ),
    NUMBERS,
)
def test_a_policy_is_refused_or_reads_back_as_declared(which: tuple[type[Policy], str], value: object) -> None:
    declare, knob = which
    try:
        policy = declare(**{knob: value})  # type: ignore[arg-type]
    except Usage:
        return
    assert getattr(policy, knob) == value
    assert codec.decode(codec.encode(policy), Policy, key="p") == policy
    for field in fields(Policy):
        assert field.type not in (int, float) or type(getattr(policy, field.name)) is field.type


@given(NUMBERS, st.integers(0, 3))
def test_only_integers_of_at_least_the_minimum_are_whole_numbers(value: object, least: int) -> None:
    is_count = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
    try:
        assert check_whole("n", value, least) == value
    except Usage:
        assert not is_count
    else:
        assert is_count


def test_a_whole_number_written_as_a_fraction_is_refused_with_a_hint() -> None:
    with pytest.raises(
        Usage, match=r"target_file_bytes is 64000000\.0; expected a whole number, 1048576 to 35184372088832"
    ) as told:
        sw.universal(target_file_bytes=64e6)  # type: ignore[arg-type]
    assert told.value.hint == "write it without a fraction: 64000000"
    with pytest.raises(Usage, match=r"l0_trigger is 4\.5; expected a whole number, 2 to 1048576") as told:
        sw.universal(l0_trigger=4.5)  # type: ignore[arg-type]
    assert not told.value.hint
    with pytest.raises(Usage, match="l0_trigger is True; expected a whole number"):
        sw.universal(l0_trigger=True)


def test_an_infinite_ratio_is_refused_with_an_alternative() -> None:
    with pytest.raises(Usage, match="max_space_amplification is inf; expected a finite number, 0 to 1e") as told:
        sw.universal(max_space_amplification=math.inf)
    assert "1e9" in told.value.hint
    for value in (math.nan, -math.inf, -0.5):
        with pytest.raises(Usage, match="size_ratio is"):
            sw.universal(size_ratio=value)
    with pytest.raises(Usage, match=r"fanout is inf; expected a finite number, 1.1 to 1e\+06"):
        sw.leveled(fanout=math.inf)


def test_a_ratio_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(Usage, match="expected a finite number"):
        check_finite("ratio", 10**400, 0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_records", 0.5),
        ("max_records", 0),
        ("max_unflushed", True),
        ("cache_bytes", 1e9),
        ("cache_bytes", -1),
        ("compaction_threads", 1.0),
        ("patience_s", math.nan),
        ("patience_s", math.inf),
    ],
)
def test_run_options_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(Usage, match=f"{option} is {value}; expected a"):
        Options(store="s", kafka={}, **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["all_ms", "versions", "hourly_ms", "daily_ms"])
def test_a_retention_rule_must_be_a_whole_number(rule: str) -> None:
    for value in (2.5, True, -1, math.nan):
        said = rule.removesuffix("_ms")
        with pytest.raises(Usage, match=f"retention: {said} is {value}; expected a whole number"):
            Retention(**{rule: value})  # type: ignore[arg-type]
