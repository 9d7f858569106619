"""Output of `history --why`: a record is called the cause only if it is the only one."""

import pytest
from slackwater.client.show.history import format_key_record
from slackwater.client.show.verdict import record_data
from slackwater.snapshot.bisect.verdict import Hop, RecordLocation, RecordPath

HOPS = (
    Hop("carriers", 7, RecordLocation("by-carrier", 0, 4, 1), 300, 240, 8, True),
    Hop("legs", 5, RecordLocation("flights", 2, 91), 300, 240, 0, True),
)


@pytest.mark.parametrize(
    ("of_key", "shown"),
    [
        (1, "flights[2]@91"),
        (240, "flights[2]@91 (the last of 240 records of this key)"),
        (0, "flights[2]@91 (the last that changed it)"),
    ],
)
def test_a_record_that_is_one_of_several_of_its_key_is_shown_with_their_number(of_key: int, shown: str) -> None:
    guilty = RecordPath(HOPS, None, "", (), None, of_key=of_key)
    assert format_key_record(guilty) == shown
    data = record_data(guilty)
    assert data is not None
    assert data["of_key"] == of_key


def test_a_change_without_a_record_names_none() -> None:
    assert format_key_record(None) == format_key_record(RecordPath((), None, "rows expired", (), None)) == "-"
