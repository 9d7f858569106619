"""A record as the guessed cause, for an attached Spark query whose batches cannot be replayed."""

from __future__ import annotations

from ....pipeline.kafka.protocol import Kafka
from ....snapshot.bisect.causes import Behind, Cause, unknown
from ....snapshot.bisect.verdict import Verdict
from ..replay.window_record import find_in_window, function_of


def cause_in_window(kafka: Kafka, verdict: Verdict, code: str) -> Behind:
    """Return the record of the bad batch's window that has its keys, according to the function that `code` names."""
    guilty = find_in_window(kafka, verdict, function_of(code))
    if guilty.message is None:
        return Behind(unknown(guilty.reason), guilty)
    address = guilty.message.address
    description = "the only record of the batch with this key"
    if guilty.of_key > 1:
        description = f"the one of {guilty.of_key:,} records with this key whose numbers are nearest to the change"
    sentence = f"a guess: {address} is the record behind it, {description}; batches of a Spark query cannot be replayed"
    return Behind(Cause("record", proved=False, sentence=sentence, record=address, records=(address,)), guilty)
