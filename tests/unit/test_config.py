"""Settings come from file, environment and flags, and what is wrong is said precisely."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

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
        untracked="quarantine",
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
        park_duplicates=True,
        bind_publisher_to_user=UserBinding.PREFIX,
    )
    assert (told.amqp, told.redis, told.queue) == ("amqp://a", "redis://a", "orders")
    assert (told.forwarding, told.prefetch, told.redis_prefix) == ("confirmed", 105, "prefix")


def test_the_real_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument it is the process's own environment."""
    monkeypatch.setitem(os.environ, "DEDUP_WINDOW_SIZE", "77")

    assert load({}).window_size == 77
