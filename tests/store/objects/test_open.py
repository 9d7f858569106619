"""Opening a store by its root, in all forms that people write."""

import subprocess
import sys
from pathlib import Path

import pytest
from slackwater.errors import Usage
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.open import open_store


def test_a_path_in_any_form_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("gcs://bucket/p", "gcs:// is not supported; expected s3://bucket/prefix, gs://bucket/prefix, az://"),
        ("abfs://box@account/p", "abfs:// is not supported"),
        ("https://bucket.s3.amazonaws.com/p", "https:// is not supported"),
        ("file://elsewhere/p", "names the host 'elsewhere'"),
        ("~nobody-of-that-name/p", "no home folder of that user"),
    ],
)
def test_an_invalid_root_is_refused_with_the_valid_forms(said: str, words: str) -> None:
    with pytest.raises(Usage) as caught:
        open_store(said)
    assert words in str(caught.value)


def test_hadoops_scheme_for_s3_is_corrected() -> None:
    with pytest.raises(Usage) as caught:
        open_store("s3a://bucket/prefix")
    assert caught.value.hint == "write s3://bucket/prefix"


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Usage, match="is a file"):
        open_store(str(tmp_path / "file"))


def test_opening_a_folder_imports_no_unneeded_libraries() -> None:
    script = (
        "import sys, slackwater.store\n"
        "from slackwater.store.objects.open import open_store\n"
        "from slackwater.store.versions import apps, commit, history\n"
        "open_store('.')\n"
        "print(sorted({'boto3', 'botocore', 'pyarrow', 'duckdb', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
