"""Avro messages in Confluent's wire format, as fastavro writes them."""

from __future__ import annotations

import io
import struct
from copy import deepcopy
from typing import Any

import fastavro


def encoded(schema: Any, number: int, /, **values: Any) -> bytes:
    """A record of the schema, which the registry has under this id."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(deepcopy(schema)), values)
    return b"\0" + struct.pack(">I", number) + out.getvalue()
