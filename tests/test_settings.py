"""Settings of the store, of Kafka and of runs, from options, the environment and the file."""

from pathlib import Path

import pytest
from slackwater.errors import Usage
from slackwater.settings import Settings, load
from slackwater.snapshot.bisect.invariant import Invariant
from slackwater.store.objects.counting import Prices


def write_toml(folder: Path, text: str) -> None:
    (folder / "slackwater.toml").write_text(text, encoding="utf-8")


def test_options_override_the_environment_and_the_environment_overrides_the_file(tmp_path: Path) -> None:
    write_toml(tmp_path, 'store = "s3://file"\nkafka = "file:1"')
    environ = {"SLACKWATER_STORE": "s3://environment", "SLACKWATER_KAFKA": "environment:1"}
    by_flag = load(store="s3://flag", kafka="flag:1", environ=environ, folder=tmp_path)
    by_environment = load(environ=environ, folder=tmp_path)
    by_file = load(environ={}, folder=tmp_path)
    assert (by_flag.store, by_flag.brokers) == ("s3://flag", "flag:1")
    assert (by_environment.store, by_environment.brokers) == ("s3://environment", "environment:1")
    assert (by_file.store, by_file.brokers) == ("s3://file", "file:1")


def test_only_the_nearest_file_upwards_is_read(tmp_path: Path) -> None:
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    write_toml(tmp_path, 'store = "s3://far"\nkafka = "far:1"')
    write_toml(tmp_path / "project", 'store = "s3://near"')
    settings = load(environ={}, folder=inner)
    assert settings.store == "s3://near"
    assert settings.brokers is None


def test_relative_paths_in_the_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    inner = tmp_path / "src"
    inner.mkdir()
    write_toml(tmp_path, 'store = "state"\ncache = "cache"\nhot = "hot"')
    settings = load(environ={}, folder=inner)
    assert settings.hot == str(tmp_path / "hot")
    assert load(environ={"SLACKWATER_HOT": "s3://b--az--x-s3"}, folder=inner).hot == "s3://b--az--x-s3"
    assert load(environ={"SLACKWATER_HOT": ""}, folder=inner).hot == ""
    assert settings.store == str(tmp_path / "state")
    assert settings.cache == str(tmp_path / "cache")


@pytest.mark.parametrize("line", ['store = "{}"', 'cache = "{}"', '[programs]\nflights = "{}"'])
def test_a_path_in_the_home_folder_of_an_unknown_user_is_explained(tmp_path: Path, line: str) -> None:
    write_toml(tmp_path, line.format("~nobody.here/x"))
    with pytest.raises(Usage, match=rf"^{tmp_path}/slackwater\.toml: .* is '~nobody\.here/x'"):
        load(environ={}, folder=tmp_path)


def test_kafka_properties_of_any_toml_type_become_strings(tmp_path: Path) -> None:
    write_toml(
        tmp_path,
        """
        kafka = "broker:9092"
        [kafka_properties]
        "security.protocol" = "SASL_SSL"
        sasl.username = "reader"
        "socket.keepalive.enable" = true
        "socket.timeout.ms" = 5000
        """,
    )
    assert load(environ={}, folder=tmp_path).kafka() == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.username": "reader",
        "socket.keepalive.enable": "true",
        "socket.timeout.ms": "5000",
    }


def test_a_kafka_property_in_the_environment_precedes_the_file(tmp_path: Path) -> None:
    write_toml(tmp_path, 'kafka = "broker:9092"\n[kafka_properties]\n"sasl.password" = "from the file"')
    settings = load(environ={"SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD": "from outside"}, folder=tmp_path)
    assert settings.kafka()["sasl.password"] == "from outside"


def test_a_kafka_property_may_come_from_a_file_whose_path_is_relative_to_the_settings(tmp_path: Path) -> None:
    write_toml(tmp_path, '[kafka]\nbrokers = "b:1"\n[kafka_properties]\n"sasl.password.file" = "secrets/password"')
    assert load(environ={}, folder=tmp_path).kafka() == {
        "bootstrap.servers": "b:1",
        "sasl.password.file": str(tmp_path / "secrets" / "password"),
    }
    by_value = load(environ={"SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD": "hush"}, folder=tmp_path)
    assert by_value.kafka() == {"bootstrap.servers": "b:1", "sasl.password": "hush"}
    write_toml(tmp_path, 'kafka = "b:1"\n[kafka_properties]\n"sasl.password" = "from the file"')
    by_file = load(environ={"SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD_FILE": "password"}, folder=tmp_path)
    assert by_file.kafka() == {"bootstrap.servers": "b:1", "sasl.password.file": str(Path.cwd() / "password")}


def test_a_secret_in_the_home_folder_of_an_unknown_user_is_explained(tmp_path: Path) -> None:
    with pytest.raises(Usage, match=r"Kafka's property sasl\.password\.file is '~nobody\.here/pw'"):
        load(environ={"SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD_FILE": "~nobody.here/pw"}, folder=tmp_path)


def test_the_login_to_kafka_comes_from_the_table_or_from_the_environment(tmp_path: Path) -> None:
    write_toml(tmp_path, 'store = "s3://b"\n[kafka]\nbrokers = "file:1"\nauth = "msk-iam"')
    assert load(environ={}, folder=tmp_path).kafka() == {"bootstrap.servers": "file:1", "slackwater.auth": "msk-iam"}
    environ = {"SLACKWATER_KAFKA": "environment:1", "SLACKWATER_KAFKA_AUTH": "msk-iam"}
    expected = {"bootstrap.servers": "environment:1", "slackwater.auth": "msk-iam"}
    assert load(environ=environ, folder=tmp_path).kafka() == expected
    write_toml(tmp_path, 'store = "s3://b"')
    assert load(environ=environ, folder=tmp_path).kafka() == expected


def test_prices_missing_in_the_file_are_those_of_s3(tmp_path: Path) -> None:
    assert load(environ={}, folder=tmp_path).prices == Prices()
    write_toml(tmp_path, '[prices]\nput_per_1000 = 0.0054\nread_per_gb = 0\ncurrency = "EUR"')
    assert load(environ={}, folder=tmp_path).prices == Prices(put_per_1000=0.0054, read_per_gb=0, currency="EUR")


def test_a_run_prefetches_unless_the_file_disables_it(tmp_path: Path) -> None:
    assert load(environ={}, folder=tmp_path).prefetch
    write_toml(tmp_path, "prefetch = false")
    assert not load(environ={}, folder=tmp_path).prefetch


def test_the_text_of_settings_shows_no_secrets(tmp_path: Path) -> None:
    settings = load(kafka="broker:1", environ={"SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD": "hush"}, folder=tmp_path)
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('stor = "s3://bucket"', "the nearest is 'store'"),
        ("store = 3", "store must be a string"),
        ('store = ""', "store must be a string"),
        ("hot = 5", "hot must be a string, not 5"),
        ("hot = true", "hot must be a string, not True"),
        ('hot = ["a"]', "hot must be a string, not ['a']"),
        ('kafka_properties = "x"', "kafka_properties must be a table"),
        ('[kafka_properties]\n"a.b" = [1]', "'a.b' must be"),
        ('cache_max_bytes = "10 GB"', "cache_max_bytes must be"),
        ("cache_max_bytes = -1", "cache_max_bytes must be"),
        ('[kafka]\nbroker = "b:1"', "kafka.broker, which is not a setting of Kafka; the nearest is 'brokers'"),
        ("[kafka]\nauth = 1", "kafka.auth must be a string"),
        ("kafka = 1", "kafka must be a string"),
        ("prefetch = 1", "prefetch must be true or false"),
        ("store = s3://bucket", "is not TOML"),
        ("prices = 3", "prices must be a table"),
        ("[prices]\nput_per_thousand = 1", "the nearest is 'put_per_1000'"),
        ('[prices]\nput_per_1000 = "0.005"', "prices.put_per_1000 must be a number"),
        ("[prices]\nget_per_1000 = -1", "prices.get_per_1000 must be"),
        ("[prices]\nget_per_1000 = nan", "prices.get_per_1000 must be"),
        ("[prices]\ncurrency = 1", "prices.currency must be"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    write_toml(tmp_path, text)
    with pytest.raises(Usage) as caught:
        load(environ={}, folder=tmp_path)
    assert expected in caught.value.message
    assert str(tmp_path / "slackwater.toml") in caught.value.message


@pytest.mark.parametrize(
    ("ask", "ways"),
    [
        ("store_root", ("--store ROOT", "SLACKWATER_STORE", 'store = "…"')),
        ("kafka", ("--kafka HOST:PORT", "SLACKWATER_KAFKA", 'kafka = "…"')),
    ],
)
def test_the_error_for_a_missing_setting_names_three_ways_to_set_it(
    tmp_path: Path, ask: str, ways: tuple[str, ...]
) -> None:
    settings = load(environ={}, folder=tmp_path)
    with pytest.raises(Usage) as caught:
        getattr(settings, ask)()
    assert all(way in caught.value.hint for way in (*ways, "slackwater.toml"))


def test_each_invariant_has_its_settings_from_the_file(tmp_path: Path) -> None:
    write_toml(
        tmp_path,
        """
        [invariants.no-negative]
        where = "FROM accounts WHERE balance < 0"
        every = "30s"
        on_failure = "./tell.sh"
        app = "bank"
        [invariants.adds-up]
        check = "sum(balance) = 0"
        table = "accounts"
        """,
    )
    found = load(environ={}, folder=tmp_path).invariants
    assert found["no-negative"] == Invariant(
        "no-negative", "FROM accounts WHERE balance < 0", 30_000, "./tell.sh", "bank"
    )
    assert (found["adds-up"].every_ms, found["adds-up"].on_failure, found["adds-up"].app) == (60_000, "", "")
    assert (found["adds-up"].where, found["adds-up"].check) == ("", "sum(balance) = 0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[invariants.x]", "invariants.x must have either check or where"),
        ('[invariants.x]\nwhere = "a"\ncheck = "b"', "invariants.x must have either check or where"),
        ('[invariants.x]\nwere = "a"', "invariants.x.were, which is not a setting of an invariant"),
        ("[invariants.x]\nwhere = 1", "invariants.x.where must be a string that is not empty"),
        ('[invariants.x]\nwhere = "a"\nevery = "often"', "invariants.x.every 'often' is not a span of time"),
        ('[invariants.x]\nwhere = "a"\nevery = "0s"', "every 0 ms is too short"),
        ("invariants = 1", "invariants must be a table"),
        ("[invariants]\nx = 1", "invariants.x must be a table"),
    ],
)
def test_an_invalid_invariant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    write_toml(tmp_path, text)
    with pytest.raises(Usage, match=words):
        load(environ={}, folder=tmp_path)


def test_the_input_archive_has_a_retention_for_all_topics_or_for_each(tmp_path: Path) -> None:
    write_toml(
        tmp_path,
        """
        [retention]
        input = "30d"
        [retention.shop]
        versions = 3
        input = { orders = "2d", clicks = "1h" }
        [retention.staging]
        all = "1d"
        """,
    )
    settings, day_ms = load(environ={}, folder=tmp_path), 86_400_000
    common, shop, staging = (settings.retention_of(app) for app in ("other", "shop", "staging"))
    assert (common.input_ms_of_topic("anything"), common.archives, common.keeps_everything) == (30 * day_ms, True, True)
    assert [shop.input_ms_of_topic(topic) for topic in ("orders", "clicks", "others")] == [2 * day_ms, 3_600_000, None]
    assert (shop.versions, shop.keeps_everything) == (3, False)
    assert (staging.input_ms_of_topic("orders"), staging.archives) == (None, False)
    assert settings.retention_of("staging", input_ms=day_ms).input_ms_of_topic("orders") == day_ms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[retention]\ninput = "soon"', "retention.input 'soon' is not a span of time"),
        ("[retention]\ninput = 3", "retention.input"),
        ('[retention.shop]\ninput = { orders = "soon" }', "retention.shop.input.orders 'soon' is not a span of time"),
        ("[retention.shop]\ninput = { orders = 3 }", "retention.shop.input.orders"),
        ('[retention]\ninput = { "a b" = "1d" }', "topic name 'a b' is not usable"),
        ('[retention]\ninput = "0s"', "expected a whole number, 1 or more"),
    ],
)
def test_an_invalid_retention_of_the_archive_is_refused(tmp_path: Path, text: str, words: str) -> None:
    write_toml(tmp_path, text)
    with pytest.raises(Usage) as caught:
        load(environ={}, folder=tmp_path)
    assert words in caught.value.message


def test_settings_without_a_cache_use_the_users_default_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACKWATER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = Settings(store="memory")
    assert settings.run_options({"bootstrap.servers": "b:1"}).cache_folder == tmp_path / "slackwater" / "sst"


def test_fields_that_lead_to_keys_come_from_the_file_and_from_options(tmp_path: Path) -> None:
    write_toml(tmp_path, '[forget]\npeople = ["who", "$.user.id"]\nregistry = "http://localhost:8081"')
    declared = load(environ={}, folder=tmp_path).declared_fields(["people=orders:key", "carts=id"])
    assert declared.tables == {"people": ["who", "$.user.id", "orders:key"], "carts": ["id"]}
    assert declared.format == '{"registry": "http://localhost:8081"}'
    with pytest.raises(Usage, match="--field 'people' is not TABLE=FIELD"):
        load(environ={}, folder=tmp_path).declared_fields(["people"])
    for text in ('people = "who"', "people = [1]", 'registry = ["x"]'):
        write_toml(tmp_path, f"[forget]\n{text}")
        with pytest.raises(Usage, match=r"forget\.(people|registry) must be"):
            load(environ={}, folder=tmp_path)
