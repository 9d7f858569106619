"""A Spark worker opens stores with the driver's S3 settings."""

from pathlib import Path

from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.store.hot.hot_store import open_store
from slackwater.store.hot.places import declare_hot_place
from slackwater.store.objects.s3_settings import S3Settings
from slackwater.store.objects.s3_store import S3Store
from slackwater.store.objects.wrapper import StoreWrapper
from slackwater.store.versions import keys


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


def test_a_worker_puts_ssts_to_the_place_of_the_run_though_the_app_was_removed_meanwhile(tmp_path: Path) -> None:
    root, key = str(tmp_path / "store"), keys.sst("a", "s", f"01A{keys.HOT}")
    for _ in range(2):
        driver = open_store(root)
        place = declare_hot_place(driver, "a", str(tmp_path / "hot"))
        resources = WorkerResources("a", "s", root, {}, (tmp_path / "cache", 1), 1, hot=place.root)
        assert resources.new_sst_name().endswith(keys.HOT)
        resources.open()[1].put(key, b"1")
        assert open_store(root).get(key) == (Path(place.root) / key).read_bytes() == b"1"
        for info in list(driver.list("a/")):
            driver.delete(info.key)
