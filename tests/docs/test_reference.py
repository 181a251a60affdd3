"""The reference pages are complete: whatever the code offers has its row, and no row is about anything else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import dedup
from dedup import errors
from dedup.amqp091 import properties
from dedup.cli.commands import dedup as root_command
from dedup.config import FIELDS, flag, variable
from dedup.core import identity, judge
from dedup.core.window import Verdict
from dedup.metrics import TABLE
from tests.docs.snippets import PAGES, ROOT

REFERENCE = ROOT / "docs/reference"
#: Of bytes.
_UNITS = {"KiB": 1024, "MiB": 1024**2}


def every_command(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and those below it, each with what is typed."""
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for child in command.list_commands(context):
                below = command.get_command(context, child)
                assert below is not None
                yield from every_command(below, f"{path} {child}")
    else:
        yield path, command


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*found, id=found[0]) for found in every_command(root_command, "dedup")]
)
def test_every_option_is_described(path: str, command: click.Command) -> None:
    """Each command has a section, with its options and no others."""
    page = (REFERENCE / "cli.md").read_text("utf-8")
    section = re.search(rf"^## {path}\b.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, path
    table = "\n".join(line for line in section[0].splitlines() if line.startswith("|"))
    described = set(re.findall(r"`(--[\w-]+)", table))
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert described == options - {"--help"}


def test_every_setting_is_described() -> None:
    """Each key has a row with its default, variable and flag, and no row is about anything else."""
    rows = re.findall(
        r"^\| `(\w+)` \|(.*)$", (REFERENCE / "configuration.md").read_text("utf-8"), re.MULTILINE
    )
    assert [key for key, _ in rows] == list(FIELDS)
    for key, row in rows:
        default = FIELDS[key].default
        cells = [cell.strip() for cell in row.split("|")]
        assert f"`{variable(key)}`" in cells
        assert f"`{flag(key)}`" in cells
        if default not in ("", None, ()):
            shown = f"{default:g}" if isinstance(default, float) else str(default)
            assert cells[0].strip("`") == shown, key


def test_every_limit_in_the_guarantees_is_that_of_the_code() -> None:
    """Where the guarantees give the number of a setting, it is its default."""
    rows = re.findall(
        r"^\| [^|]+ \| ([\d,]+) ?(\w*)[^|]* \| `(\w+)` \|$",
        (ROOT / "docs/guarantees.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) >= 5
    for number, unit, key in rows:
        assert int(number.replace(",", "")) * _UNITS.get(unit, 1) == FIELDS[key].default, key


def test_every_metric_is_described() -> None:
    """Each metric has a row with the values of its label, and no row is about anything else."""
    rows = dict(
        re.findall(r"^\| `(dedup_\w+)` \|(.*)$", (REFERENCE / "metrics.md").read_text("utf-8"), re.MULTILINE)
    )
    wanted = {
        f"dedup_{row.name}" + ("_total" if row.kind.__name__ == "Counter" else ""): row for row in TABLE
    }
    assert set(rows) == set(wanted)
    for metric, row in wanted.items():
        assert set(re.findall(r"`([\w-]+)`", rows[metric].split("|")[0])) == {row.label, *row.values} - {
            ""
        }, metric


def test_metrics_named_elsewhere_exist() -> None:
    """An alert on a metric that is not there never fires."""
    wanted = {f"dedup_{row.name}" + ("_total" if row.kind.__name__ == "Counter" else "") for row in TABLE}
    tables = {"dedup_outbox", "dedup_outbox_state"}
    for page in PAGES:
        named = set(re.findall(r"\bdedup_[a-z_]+\b", page.read_text("utf-8")))
        assert named - tables <= wanted, page


def test_every_log_event_is_described() -> None:
    """Each event that the code can tell has a row."""
    page = (REFERENCE / "metrics.md").read_text("utf-8")
    told = set()
    for file in ROOT.glob("dedup/**/*.py"):
        told |= {
            node.args[0].value
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
            and re.fullmatch(r"dedup\.[a-z_]+", node.args[0].value)
            and not (ROOT / node.args[0].value.replace(".", "/")).exists()
        }
    told -= {"dedup.toml", "dedup.publisher"}
    assert told
    assert {event for event in told if f"`{event}`" not in page} == set()


def test_every_error_is_described() -> None:
    """Each exception has a row that says what else it is; those of the first table are public."""
    page = (REFERENCE / "python-api.md").read_text("utf-8")
    section = page[page.index("\n## Errors") :]
    first, second = section.split("\n| error |")[1:]
    described: dict[str, set[str]] = {}
    for table in (first, second):
        for error, also in re.findall(r"^\| `(\w+Error)` \|([^|]*)\|", table, re.MULTILINE):
            described[error] = set(re.findall(r"`(\w+)`", also))
            assert hasattr(dedup, error) == (table is first), error
    family = {
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.DedupError)
    }
    assert set(described) == {error.__name__ for error in family}
    for error in family - {errors.DedupError}:
        bases = {base.__name__ for base in error.__bases__} - {"DedupError"}
        assert described[error.__name__] == bases, error


def test_everything_public_is_described() -> None:
    """Each name of the package, and each argument of Publisher."""
    page = (REFERENCE / "python-api.md").read_text("utf-8")
    assert [public for public in dedup.__all__ if not re.search(rf"\b{public}\b", page)] == []
    arguments = dedup.Publisher.__init__.__annotations__.keys() - {"return"}
    assert [argument for argument in arguments if f"| `{argument}` |" not in page] == []


def test_every_reason_and_header_is_described() -> None:
    """Whatever the shim may write into a message is in the page about the wire."""
    page = (REFERENCE / "wire.md").read_text("utf-8")
    source = Path(str(properties.__file__)).read_text("utf-8")
    reasons = set(re.findall(r'"((?:properties|headers|publisher)-[a-z0-9]+)"', source))
    reasons |= {
        f"{what}-{how}"
        for what in ("sequence", "attempt", "first-sent")
        for how in ("kind", "range", "repeated")
    }
    answering = (ROOT / "dedup/amqp091/answering.py").read_text("utf-8")
    reasons |= {"ask-kind", *re.findall(r'"(ask-[a-z-]+)"', source + answering)}
    reasons |= {verdict.value for verdict in (Verdict.TOO_OLD, Verdict.UNADMITTED, Verdict.UNTRACKED)}
    reasons |= {Verdict.DUPLICATE.value, judge.REFUSED_BY_BROKER, judge.FENCED, "properties-too-large"}
    reasons.add(identity.NOT_BOUND_TO_USER)
    headers = {value for key, value in vars(identity).items() if key.endswith("_HEADER")}
    assert {word for word in reasons | headers if f"`{word}`" not in page} == set()


def test_the_glossary_is_in_order() -> None:
    """One term, one paragraph, alphabetical."""
    page = (ROOT / "docs/glossary.md").read_text("utf-8")
    terms = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert terms == sorted(terms)
    for paragraphs in re.split(r"^### .+$", page, flags=re.MULTILINE)[1:]:
        assert "\n\n" not in paragraphs.strip()


def test_the_module_map_is_whole() -> None:
    """Each module has its line in the architecture, by itself or with its package."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    mapped = set(re.findall(r"^\| `(dedup/[\w/]+(?:\.py|/))` \|", text, re.MULTILINE))
    assert {path for path in mapped if not (ROOT / path).exists()} == set()
    packages = tuple(path for path in mapped if path.endswith("/"))
    modules = {
        str(file.relative_to(ROOT)) for file in ROOT.glob("dedup/**/*.py") if not file.name.startswith("__")
    }
    assert {module for module in modules - mapped if not module.startswith(packages)} == set()
