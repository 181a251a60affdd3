"""Settings come from file, environment and flags, and what is wrong is said precisely."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve

from dedup.config import DEFAULT_FILE, FIELDS, Settings, flag, load, variable
from dedup.core.identity import UserBinding
from dedup.core.settings import RelaySettings
from dedup.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str | Path = DEFAULT_FILE) -> Path:
    """Write a settings file."""
    Path(name).write_text(text)
    return Path(name)


def test_nothing_has_to_be_set() -> None:
    """Without any source every setting has its default, and the relay's are the machine's own."""
    settings = load({}, environ={})

    assert settings == Settings()
    assert settings.shim("orders").relay == RelaySettings()


def test_flags_go_before_the_environment_before_the_file() -> None:
    """Each source overrides the weaker ones, setting by setting."""
    write('window_size = 100\nbatch_max = 100\nprefetch = 100\nqueues = ["file"]\n')
    environ = {"DEDUP_BATCH_MAX": "200", "DEDUP_PREFETCH": "200"}

    settings = load({"prefetch": "300", "queues": (), "window_size": None}, environ=environ)

    assert (settings.window_size, settings.batch_max, settings.prefetch) == (100, 200, 300)
    assert settings.queues == ("file",)


def test_the_file_is_chosen_by_flag_then_variable() -> None:
    """--config goes before DEDUP_CONFIG, which goes before ./dedup.toml; a dash in a name is as good as an underscore."""
    write("window-size = 101\n")
    write("window_size = 102\n", "variable.toml")
    write("window_size = 103\n", "flag.toml")
    environ = {"DEDUP_CONFIG": "variable.toml"}

    assert load({}, environ={}).window_size == 101
    assert load({}, environ=environ).window_size == 102
    assert load({}, file=Path("flag.toml"), environ=environ).window_size == 103


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DEDUP_QUEUES": "a, b"}, {"queues": ("a", "b")}),
        ({"DEDUP_AMQP": "amqp://a"}, {"amqp": "amqp://a"}),
        ({"DEDUP_AMQP_URL": "amqp://a"}, {"amqp": "amqp://a"}),
        ({"DEDUP_AMQP_URL": "amqp://a", "DEDUP_AMQP": "amqp://b"}, {"amqp": "amqp://b"}),
        ({"DEDUP_WINDOW_SIZE": ""}, {}),
        ({"DEDUP_QUEUES_URL": "a", "DEDUP_CACHE": "/x", "DEDUP_TEST_RABBITMQ": "4.3"}, {}),
        ({"DEDUP_PUBLISHER_IDLE_S": "1.5"}, {"publisher_idle_s": 1.5}),
        ({"DEDUP_MANAGEMENT": "off"}, {"management": "off"}),
    ],
)
def test_the_environment(environ: dict[str, str], expected: dict[str, Any]) -> None:
    """Each setting has its variable; an empty one is as if unset; variables of others are not ours to judge."""
    assert load({}, environ=environ) == Settings(**expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windowsize = 5", r"^dedup\.toml: unknown setting 'windowsize'; did you mean window_size\?$"),
        ("quues = []", r"did you mean queues\?"),
        ("zzz = 1", r"unknown setting 'zzz'; there are amqp, redis"),
        ("[dedup]\nqueues = []", r"unknown setting 'dedup'"),
        ("queues = [", r"^dedup\.toml is not TOML: "),
        (
            "window_size = true",
            r"^dedup\.toml: window_size: True is not a whole number from 16 to 1,048,576$",
        ),
        ("window_size = 100.5", "100.5 is not a whole number"),
        ("window_size = 15", "15 is not a whole number from 16"),
        ("window_size = 1_048_577", "1048577 is not a whole number from 16 to 1,048,576"),
        ("publisher_idle_s = nan", "nan is not a number from 1 to"),
        ("publisher_idle_s = [1]", r"\[1\] is not a number"),
        ("prefetch = 65536", "from 1 to 65,535"),
        ("queues = 5", "5 is not a list of queue names"),
        ('queues = ["a", 5]', "not a list of queue names"),
        ('queues = "a,,b"', "has an empty queue name"),
        ('queues = ["a", "b", "a"]', "names a queue twice"),
        ('forwarding = "fast"', "'fast' is not one of auto, exact, confirmed"),
        ("forwarding = 1", "1 is not one of"),
        ('duplicates = "forward"', "not one of drop, park"),
        ('untracked = "drop"', "not one of forward, quarantine"),
        ('listen = "9464"', "not host:port"),
        ('listen = ":9464"', "not host:port"),
        ('listen = "a:65536"', "not host:port"),
        ("redis_prefix = 1", "1 is not a text"),
        ('log_level = "loud"', "not one of debug, info, warning, error"),
        ('log_format = ""', "not one of auto, console, json"),
        ('amqp = "host:5672"', "^dedup.toml: amqp: what it is set to is not a URL$"),
        ('amqp = ["amqp://u:s3cret@h"]', "^dedup.toml: amqp: what it is set to is not a text$"),
        ('redis = {url = "redis://:s3cret@h"}', "^dedup.toml: redis: what it is set to is not a text$"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, message: str) -> None:
    """The message has the file, the setting, the value and what it should be; never the value of a URL."""
    write(text)

    with pytest.raises(ConfigError, match=message) as caught:
        load({}, environ={})

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.toml", "."])
def test_a_named_file_must_be_there(name: str) -> None:
    """Only ./dedup.toml may be missing."""
    with pytest.raises(ConfigError, match="cannot be read: "):
        load({}, file=Path(name), environ={})
    with pytest.raises(ConfigError, match="cannot be read: "):
        load({}, environ={"DEDUP_CONFIG": name})


def test_the_source_of_a_wrong_value_is_named() -> None:
    """A variable or a flag is called by its own name."""
    with pytest.raises(ConfigError, match=r"^DEDUP_BATCH_MAX: '0' is not a whole number from 1 to 20,000$"):
        load({}, environ={"DEDUP_BATCH_MAX": "0"})
    with pytest.raises(ConfigError, match=r"^--queue: \('a', 'a'\) names a queue twice$"):
        load({"queues": ("a", "a")}, environ={})


@pytest.mark.parametrize("field", FIELDS.values(), ids=list(FIELDS))
def test_every_setting_is_checked_and_described(field: attrs.Attribute[Any]) -> None:
    """No setting takes what it is not, also when the class is used directly, and each has words for the help."""
    wrong: dict[str, Any] = {field.name: object()}
    with pytest.raises(ConfigError, match=f"^{field.name}: "):
        Settings(**wrong)
    assert field.metadata["about"].endswith(".")
    assert (flag(field.name), variable(field.name)) == (
        "--queue" if field.name == "queues" else "--" + field.name.replace("_", "-"),
        "DEDUP_" + field.name.upper(),
    )


def test_no_repr_has_a_password() -> None:
    """Passwords are masked in the settings' repr and in that of what a shim is told."""
    settings = Settings(
        amqp="amqp://u:s3cret@a,amqp://u:s3cret@b", redis="redis://:s3cret@c", management="http://u:s3cret@d"
    )

    assert "u:***@a" in repr(settings)
    assert "s3cret" not in repr(settings) + repr(settings.shim("orders")) + repr(settings.management_api())


def test_what_is_missing_is_named_with_each_place() -> None:
    """A required setting can be given in three places, and the message has them all."""
    with pytest.raises(
        ConfigError, match=r"^queues is not set: give --queue, DEDUP_QUEUES, or queues in dedup\.toml$"
    ):
        Settings(amqp="amqp://a").require("amqp", "queues")


def test_a_shim_is_told_everything() -> None:
    """Every setting reaches the shim or its relay, none is forgotten on the way."""
    settings = Settings(
        amqp="amqp://a",
        redis="redis://a",
        forwarding="confirmed",
        window_size=100,
        publishers_max=101,
        publisher_idle_s=102,
        batch_max=103,
        batch_bytes_max=104,
        prefetch=105,
        untracked="message-id",
        message_id_header="x-deduplication-header",
        message_ids_max=1060,
        message_id_keep_s=106,
        without_message_id="quarantine",
        check_bodies="on",
        duplicates="park",
        bind_publisher_to_user="prefix",
        redis_prefix="prefix",
    )

    told = settings.shim("orders")

    assert told.relay == RelaySettings(
        window_size=100,
        publishers_max=101,
        publisher_idle_s=102,
        batch_max=103,
        batch_bytes_max=104,
        quarantine_untracked=True,
        by_message_id=True,
        message_id_header="x-deduplication-header",
        message_ids_max=1060,
        message_id_keep_s=106,
        check_bodies=True,
        park_duplicates=True,
        bind_publisher_to_user=UserBinding.PREFIX,
    )
    assert (told.amqp, told.redis, told.queue) == ("amqp://a", "redis://a", "orders")
    assert (told.forwarding, told.prefetch, told.redis_prefix) == ("confirmed", 105, "prefix")


def test_message_ids_are_enough_for_what_a_killed_shim_leaves_in_flight() -> None:
    """Were one of them forgotten, its message would be doubled."""
    settings = Settings(untracked="message-id", message_ids_max=2_499)
    with pytest.raises(
        ConfigError, match=r"message_ids_max is 2499.* known: 2500 \(two prefetch and a batch\)"
    ):
        settings.shim("orders")
    assert evolve(settings, batch_max=499).shim("orders").relay.by_message_id
    # Without them it limits re-entries of dead letters, and nobody is bothered with it.
    assert evolve(settings, untracked="forward").shim("orders").relay.message_ids_max == 2_500


@pytest.mark.parametrize("given", [{"message_id_header": "x-id"}, {"without_message_id": "quarantine"}])
def test_settings_of_message_ids_alone_are_a_mistake(given: dict[str, Any]) -> None:
    """Somebody who names a header wants it to be looked at."""
    with pytest.raises(ConfigError, match='for untracked = "message-id"; set that too'):
        Settings(**given).shim("orders")


def test_the_real_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument it is the process's own environment."""
    monkeypatch.setitem(os.environ, "DEDUP_WINDOW_SIZE", "77")

    assert load({}).window_size == 77


def test_rules_are_listed_in_every_source(tmp_path: Path) -> None:
    """An array in the file, semicolons in a variable, and the flag again and again."""
    file = tmp_path / "dedup.toml"
    file.write_text('obituary_severity = ["page queue=orders*", "silent"]\n')
    wanted = ("page queue=orders*", "silent")
    assert load({}, file=file, environ={}).obituary_severity == wanted
    assert (
        load({}, environ={"DEDUP_OBITUARY_SEVERITY": "page queue=orders*; silent;"}).obituary_severity
        == wanted
    )
    assert load({"obituary_severity": wanted}, environ={}).obituary_severity == wanted


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("obituary_severity", "wake queue=x", "'wake' is no severity"),
        ("obituary_severity", ["page nonsense"], "is none of queue=PATTERN"),
        ("protobuf_types", "shop.Order body=x", "is none of queue=PATTERN"),
        ("protobuf_types", [1], "is not a list of texts"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(name: str, value: object, complaint: str) -> None:
    """Where it is read, and not when the first message dies."""
    with pytest.raises(ConfigError, match=f"{flag(name)}: .*{complaint}"):
        load({name: value}, environ={})


def test_nothing_of_a_webhook_is_shown() -> None:
    """Its path is a secret as well as its password."""
    url = "https://user:word@hooks.example.org/T0/s3cret"
    assert load({"obituary_webhook": url}, environ={}).obituary_webhook == url
    assert "hooks" not in repr(load({"obituary_webhook": url}, environ={}))
    with pytest.raises(ConfigError) as caught:
        load({"obituary_webhook": "hooks.example.org/s3cret"}, environ={})
    assert "s3cret" not in str(caught.value)
