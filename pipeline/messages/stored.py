"""Decoding of stored messages for `operations.erasure`, by the formats of a stage's `decode(...)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...common.validation import installing
from ...errors import Refused, SlackwaterError
from .schema import NO_SCHEMA, schema_ids

if TYPE_CHECKING:
    from .decode import Bad
    from .registry import Registry

_PATIENCE_S = 10.0
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StoredFormats:
    """Decodes messages by schemas of a registry."""

    patience_s: float = _PATIENCE_S

    def decoded(self, how: str, messages: pa.Array, /) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        """Return decoded parts with their rows, and error reasons by row; implements `Formats.decoded`.

        Without a subject in the format `how`, each message is decoded by the schema that its id names.
        """
        from .decode import open_reader, read_batch
        from .registry import Registry

        try:
            arguments = json.loads(how)
            client = Registry.of(arguments["registry"], self.patience_s)
            if subject := arguments.get("subject", ""):
                schema = client.latest(subject, arguments.get("version"))
                reader = open_reader(schema, arguments.get("message", ""))
                values, bad = read_batch(messages, reader, schema.kind, client.by_id)
                return [(values, np.arange(len(messages)))], _reasons(bad)
            return self._by_own_schema(client, messages)
        except ImportError as error:
            raise Refused(f"messages cannot be decoded here: {error}", hint=installing("registry")) from None
        except (ValueError, KeyError, TypeError):
            raise Refused(f"unknown message format {how!r}") from None

    def _by_own_schema(
        self, client: Registry, messages: pa.Array
    ) -> tuple[list[tuple[pa.Array, Rows]], Mapping[int, str]]:
        from .decode import open_reader, read_batch

        ids = schema_ids(messages.cast(pa.binary()))
        parts, reasons = list[tuple[pa.Array, Rows]](), dict[int, str]()
        for number in np.unique(ids).tolist():
            at = np.flatnonzero(ids == number)
            try:
                if number == NO_SCHEMA:
                    raise Refused("it has no schema registry header (magic byte 0 and schema id)")
                schema = client.by_id(number)
                values, bad = read_batch(messages.take(pa.array(at)), open_reader(schema), schema.kind, client.by_id)
            except SlackwaterError as error:
                reasons |= dict.fromkeys(at.tolist(), f"schema id {number}: {error.sentence}")
            else:
                parts.append((values, at))
                reasons |= {int(at[row]): why for row, why in _reasons(bad).items()}
        return parts, reasons


def _reasons(bad: tuple[Bad, ...]) -> dict[int, str]:
    return {bad_message.row: bad_message.why for bad_message in bad}
