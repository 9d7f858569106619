"""Sessions of bisect: the replay of a printed log is the same search."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused, Usage
from slackwater.snapshot.bisect.session import (
    KnownAnswer,
    SearchRequest,
    SearchSession,
    format_log,
    parse_log,
    read_session,
    session_path,
)

from tests.models.profiles import scaled

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1)
marks = st.builds(
    KnownAnswer,
    ref=st.sampled_from(["", *(f"app/s@v{number}" for number in range(1, 9))]),
    answer=st.sampled_from(["good", "bad", "skip"]),
    why=st.one_of(st.just(""), words),
)
asked = st.builds(
    SearchRequest,
    app=st.just("app"),
    where=words,
    good=st.sampled_from(["", "app@before"]),
    bad=st.sampled_from(["", "app@-5m"]),
    edge=st.sampled_from(["", "first", "last"]),
)


@scaled(30)
@given(asked, st.lists(marks, max_size=6, unique_by=lambda mark: mark.ref), words)
def test_a_log_parses_to_the_same_search_and_answers(
    question: SearchRequest, given_marks: list[KnownAnswer], found: str
) -> None:
    session = SearchSession("memory:", question, found=found).with_answers(*given_marks)
    again = parse_log("\n".join(format_log(session)), "memory:")
    assert again.asked == question
    assert again.answers_by_ref == session.answers_by_ref
    assert all(mark.by_hand for mark in again.marks)


@pytest.mark.parametrize("option", ["check", "python", "run"])
def test_a_log_also_names_predicates_that_are_not_sql(option: str) -> None:
    session = SearchSession(
        "memory:", SearchRequest(app="app", **{option: "it's mine"}, **({"table": "t"} if option == "check" else {}))
    )
    assert parse_log("\n".join(format_log(session)), "memory:") == session


def test_the_last_answer_for_a_moment_counts() -> None:
    session = SearchSession("memory:", SearchRequest("app")).with_answers(
        KnownAnswer("app/s@v1", "good"), KnownAnswer("app/s@v2", "bad")
    )
    session = session.with_answers(KnownAnswer("app/s@v1", "skip"))
    assert session.answers_by_ref == {"app/s@v2": "bad", "app/s@v1": "skip"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("git bisect start", "line 1 .* is not a `slackwater bisect` command"),
        ("slackwater bisect start", "names no app"),
        ("slackwater bisect start app --wher x", "expected an option of bisect, found '--wher'"),
        ("slackwater bisect start app --good", "expected an option"),
        ("slackwater bisect start app\n# fine\nslackwater bisect good other app/s@v1", "line 3"),
        ("slackwater bisect start app\nslackwater bisect worse app app/s@v1", "line 2"),
        ("slackwater bisect app --where 'x", "line 1 .* cannot be read"),
    ],
)
def test_a_line_that_is_not_of_a_log_is_named(text: str, words: str) -> None:
    with pytest.raises(Usage, match=words):
        parse_log(text, "memory:")


def test_a_session_is_kept_for_each_app(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    session = SearchSession("memory:", SearchRequest("app"), wanted="app/s@v4").with_answers(
        KnownAnswer("app/s@v8", "bad", took_ms=3)
    )
    session.write(folder)
    assert read_session(folder, "app") == session
    with pytest.raises(NotFound, match="'ap'; the nearest: app"):
        read_session(folder, "ap")
    session_path(folder, "app").write_text("{}")
    with pytest.raises(Refused, match="is not a bisect session in format 1"):
        read_session(folder, "app")
    session_path(folder, "app").write_bytes(session_path(folder, "app").read_bytes()[:-1])
    with pytest.raises(Refused, match="is not a bisect session"):
        read_session(folder, "app")
    with pytest.raises(Refused, match="cannot write the bisect session"):
        session.write(session_path(folder, "app") / "below")
