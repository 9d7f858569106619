"""The records that made a row, compared with plain Python over the raw input."""

from random import Random

import pytest

from .programs import STATES, explained, fed, one_table, places, program_of, smallest_size

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


IN_GATE = [("sum", 1), ("max and last", 2)]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, marks=[] if (kind, seed) in IN_GATE else pytest.mark.ci)
        for kind in STATES
        for seed in range(20)
    ],
)
def test_the_records_of_a_row_are_those_of_its_key_and_no_smaller_set_gives_it(kind: str, seed: int) -> None:
    fold = STATES[kind][1]
    given = fed(one_table(kind), Random(f"{kind} {seed}"))
    with program_of(given.ran) as program:
        for key in "ab":
            of_key = given.of_key(key)
            found = explained(program, "t", key, minimal=True)
            assert given.ran.row("t", key) == ({**found.key, **found.row} if found.row is not None else None)
            assert found.is_whole
            assert places(found) == {*of_key}
            if not of_key:
                continue
            assert found.row == fold([*of_key.values()])
            assert found.minimal is not None, found.unknown
            chosen = [of_key[str(record)] for record in found.minimal.records]
            assert fold(chosen) == found.row
            assert found.minimal.is_smallest
            assert len(chosen) == smallest_size(of_key.values(), fold, found.row)
