"""Store roots as people write them."""

import subprocess
import sys
from pathlib import Path

import pytest
from slackwater.errors import Usage
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.open import open_store


def test_a_path_is_a_folder_wherever_it_is_said_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for said, meant in (
        ("state", tmp_path / "state"),
        ("./a/../state/", tmp_path / "state"),
        ("~/state", tmp_path / "home" / "state"),
        (str(tmp_path / "with space"), tmp_path / "with space"),
        ((tmp_path / "with space").as_uri(), tmp_path / "with space"),
        ("file://localhost/var/state", Path("/var/state")),
    ):
        store = open_store(said)
        assert isinstance(store, LocalStore)
        assert store.url == str(meant)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("S3://my.bucket-1/p", "s3://my.bucket-1/p"),
    ],
)
def test_an_s3_root_is_a_bucket_and_a_prefix(said: str, url: str) -> None:
    assert open_store(said).url == url


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "is not usable"),
        ("  ", "is not usable"),
        ("a\0b", "is not usable"),
        ("s3://", "has no valid bucket name"),
        ("s3:///prefix", "has no valid bucket name"),
        ("s3:/bucket", "has no valid bucket name"),
        ("s3://b?x/prefix", "has no valid bucket name"),
        ("s3://bucket/a//b", "has an empty, '.' or '..' name"),
        ("s3://bucket/../b", "has an empty, '.' or '..' name"),
        ("gs://bucket/p", "gs:// is not supported; expected s3://bucket/prefix or a local folder"),
        ("abfs://box@account/p", "abfs:// is not supported"),
        ("https://bucket.s3.amazonaws.com/p", "https:// is not supported"),
        ("file://elsewhere/p", "names the host 'elsewhere'"),
        ("~nobody-of-that-name/p", "home directory"),
    ],
)
def test_a_root_that_cannot_be_understood_is_told_with_what_can(said: str, words: str) -> None:
    with pytest.raises(Usage) as caught:
        open_store(said)
    assert words in str(caught.value)


def test_hadoop_s_name_for_s3_is_corrected() -> None:
    with pytest.raises(Usage) as caught:
        open_store("s3a://bucket/prefix")
    assert caught.value.hint == "write s3://bucket/prefix"


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Usage, match="is a file"):
        open_store(str(tmp_path / "file"))


def test_nobody_waits_for_libraries_that_a_folder_does_not_need() -> None:
    script = (
        "import sys, slackwater.store\n"
        "from slackwater.store.objects.open import open_store\n"
        "from slackwater.store.versions import apps, commit, history\n"
        "open_store('.')\n"
        "print(sorted({'boto3', 'botocore', 'pyarrow', 'duckdb', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
