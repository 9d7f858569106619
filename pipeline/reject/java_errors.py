"""Errors of Spark's JVM as answers: without those that pyspark makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j import protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST, _PIECE = 16_000, 4_000


def raised(target: Any, method: str, *arguments: Any) -> Any:
    """The Java error that a call of a method ends with, as an object of the JVM; None where it ends well.

    Pyspark makes an error of its own of each Java error, with some fifty calls more.
    """
    client = target._gateway_client
    words = "".join(protocol.get_command_part(each, client.gateway_property.pool) for each in arguments)
    called = f"{protocol.CALL_COMMAND_NAME}{target._target_id}\n{method}\n{words}{protocol.END_COMMAND_PART}"
    answer = client.send_command(called)
    try:
        protocol.get_return_value(answer, client, target._target_id, method)
    except protocol.Py4JJavaError as error:
        return error.java_exception
    return None


def shown(spark: SparkSession, error: Any) -> str:
    """What Java shows of an error and of those behind it, up to 16,000 characters.

    An answer of more than 8 KiB takes two packets, the second of which waits 40 ms for the first to be acknowledged.
    """
    jvm: Any = spark._jvm
    text = jvm.java.io.StringWriter()
    error.printStackTrace(jvm.java.io.PrintWriter(text))
    written = text.getBuffer()
    length = min(int(written.length()), _MOST)
    return "".join(str(written.substring(at, min(at + _PIECE, length))) for at in range(0, length, _PIECE))
