"""A Spark worker opens stores with the driver's S3 settings."""

from pathlib import Path

from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store
from slackwater.store.objects.wrapper import StoreWrapper


def test_s3_settings_apply_to_other_roots_even_if_the_store_is_a_folder(tmp_path: Path) -> None:
    settings = S3Settings(read_timeout_s=7.0, parallel_parts=1)
    resources = WorkerResources("a", "s", str(tmp_path), {}, (tmp_path / "cache", 1), 1, s3_settings=settings)
    _, opened, cache = resources.open()
    cache.close()
    other = opened.at("s3://bucket/x")
    while isinstance(other, StoreWrapper):
        other = other._inner
    assert isinstance(other, S3Store)
    assert other._client_config.settings == settings
