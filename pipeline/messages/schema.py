"""A registered schema, and what each of the three formats makes of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import SlackwaterError

HEAD_BYTES = 5
"""Before each message: the byte 0, and the schema's id in four, largest first."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it.

    Attributes:
        kind: `AVRO`, `PROTOBUF` or `JSON`.
        text: As it was registered.
        references: What it names of other subjects: the name, and that schema.
    """

    kind: str
    text: str
    references: tuple[tuple[str, Schema], ...] = ()


class BadMessage(SlackwaterError):
    """Bytes that are no message of the schema that they name."""


class Reader(Protocol):
    """Reads messages into the columns of one schema, the reader's."""

    type: pa.DataType
    """What comes out; null for a message that is null."""

    def read(self, writer: Schema, messages: pa.BinaryArray) -> pa.Array:
        """Messages of one writer's schema, each with its head of `HEAD_BYTES`, none of them null.

        Returns:
            As many values of `type`.

        Raises:
            BadMessage: One of them is none.
            Refused: The writer's schema cannot be read as the reader's.
        """
        ...

    def likely(self, writer: Schema, messages: pa.BinaryArray) -> npt.NDArray[np.bool_]:
        """Which of such messages may be what they say: the others are none. For a batch that has bad ones."""
        ...
