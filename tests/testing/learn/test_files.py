"""In a learned test file, no text of a record or a name gets out of its literal or comment."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.testing import Record
from slackwater.testing.learn.branches import Branch
from slackwater.testing.learn.files import LearnedTest, format_tests, write_tests
from slackwater.testing.learn.learn import _hidden
from slackwater.testing.learn.masking import RecordMask
from slackwater.testing.learn.runs import TopicRecord

HOSTILE = 'a"""\nprint(1)\n"""'
NAMES = st.just(HOSTILE) | st.text(st.sampled_from("a\n\r\f\x85\u2028\0\ud800\\\"'#{}()"), max_size=9)


@given(NAMES, NAMES, st.binary(max_size=9))
def test_the_file_has_only_imports_constants_and_tests(name: str, topic: str, data: bytes) -> None:
    mask = RecordMask((name,), {name: None})
    record = TopicRecord(topic, Record(data, None, data, [(name, data)], 7))
    rows = {topic: [{name: name, "n": 1}, {name: data, "n": 2}]}
    branch = Branch(1, 0, True, f"x == {name!r}")
    test = LearnedTest((record,), frozenset([branch]), frozenset([f"row of {name!r}"]), (rows, rows))
    text = format_tests("flights", f"../{name}.py", [test], _hidden(mask, show_values=False))
    kinds = [type(node) for node in ast.parse(text.encode()).body]
    assert kinds == [ast.Expr, ast.ImportFrom, ast.ImportFrom, ast.Assign, ast.Assign, ast.FunctionDef]
    assert repr(name) in text
    names = {"Record": Record, "APP": None}
    constants = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)][1:]
    exec(compile(ast.Module(constants, []), "learned", "exec"), names)  # noqa: S102  checked above
    assert names["RECORD_1"] == record.record


def test_the_folder_is_created_and_a_file_in_its_place_is_refused_with_the_option(tmp_path: Path) -> None:
    write_tests(tmp_path / "new" / "tests" / "test_a.py", "a", tmp_path / "a.py", [], "")
    assert "'../../a.py'" in (tmp_path / "new" / "tests" / "test_a.py").read_text()
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"test_a\.py cannot be written") as error:
        write_tests(tmp_path / "file" / "test_a.py", "a", tmp_path / "a.py", [], "")
    assert "--out" in error.value.hint
