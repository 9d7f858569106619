"""Messages of a table's library, which may contain options that the program gave."""

import traceback

import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.common.redact import without_secrets
from slackwater.pipeline.kafka.protocol import TransactionFailed
from slackwater.pipeline.publish.tables.open import open_table
from slackwater.pipeline.publish.tables.protocol import secrets, table_errors


@pytest.mark.parametrize(
    "options",
    [
        {"type": "sqlSECRET"},
        {"type": "sql", "uri": "postgres//u:SECRET@h/db"},
        {"uri": "ftp://u:SECRET@h/db"},
        {"type": "rest", "uri": "http://u:SECRET@127.0.0.1:1/?sig=SECRET"},
        {"type": "sql", "uri": "mysql+nosuch://u:SECRET@h/db", "token": "SECRET"},
    ],
)
def test_errors_of_a_catalog_have_no_values_of_options(options: dict[str, str]) -> None:
    sink = sw.iceberg("lake.a.b", options=options)
    with pytest.raises(TransactionFailed, match=r"^table lake\.a\.b: ") as failed:
        open_table(sink, sink.address).load("", "")
    assert "SECRET" not in "".join(traceback.format_exception(failed.value))
    assert failed.value.error is not None
    assert "SECRET" not in failed.value.error.message


Secrets = st.text(
    st.characters(codec="ascii", categories=("L", "N", "P", "S"), exclude_characters="*"), min_size=4, max_size=20
)


@given(Secrets, st.sampled_from(["{}", "key {}: denied", "-----BEGIN\n{}\n-----END", "GET https://h/a?sig={}"]))
def test_no_message_has_a_secret(secret: str, shape: str) -> None:
    sink = sw.delta(
        "/lake/out", options={"key": secret, "uri": f"s3://me:{secret}@b/x", "pem": f"begin\n{secret}\nend"}
    )
    for text in (shape.format(secret), f"cannot open s3://me:{secret}@b/x", f'"me:{secret}@b" has no answer'):
        assert secret not in without_secrets(text, secrets(sink))


def test_urls_keep_what_is_not_secret() -> None:
    text = "POST https://me:pass@catalog.example.com:8080/v1/config?token=a%20b&x=1 failed: did you log in?"
    expected = "POST https://***@catalog.example.com:8080/v1/config?*** failed: did you log in?"
    assert without_secrets(text) == expected


def test_a_lost_race_has_no_cause_that_may_tell_secrets() -> None:
    with pytest.raises(TransactionFailed) as failed, table_errors(sw.delta("/lake/out"), "/lake/out", ValueError):
        raise ValueError("SECRET")
    assert "SECRET" not in "".join(traceback.format_exception(failed.value))
