"""The cause of a batch of a query of Spark's: a record of its window, as a guess, for nothing of it is replayed."""

from __future__ import annotations

from ....pipeline.kafka.protocol import Kafka
from ....snapshot.bisect.causes import Behind, Cause, unknown
from ....snapshot.bisect.verdict import Verdict
from ..replay.window_record import find_in_window, function_of


def cause_in_window(kafka: Kafka, verdict: Verdict, code: str) -> Behind:
    """The record of the bad batch's window that has its keys, by the function that `code` names.

    Raises as `function_of` and `find_in_window`.
    """
    guilty = find_in_window(kafka, verdict, function_of(code))
    if guilty.message is None:
        return Behind(unknown(guilty.reason), guilty)
    address = guilty.message.address
    which = "the only record of the batch with this key"
    if guilty.of_key > 1:
        which = f"of {guilty.of_key:,} records of the batch with this key the one nearest to what changed"
    sentence = f"a guess: {address} is the record behind it, {which}; nothing of a query of Spark's is replayed"
    return Behind(Cause("record", proved=False, sentence=sentence, record=address, records=(address,)), guilty)
