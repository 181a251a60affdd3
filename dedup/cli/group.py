"""What all commands share: one line for an error, flags from the settings, and commands loaded when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from dedup.config import DEFAULT_FILE, FIELDS, FILE_VARIABLE, flag, load
from dedup.errors import ConfigError, DedupError
from dedup.service.logs import mask_text

Command = Callable[..., None]

#: The command could not do what it was asked for.
FAILED: Final = 1
#: It was asked for something that cannot be.
MISUSED: Final = 2


class Failure(click.ClickException):
    """
    An error of dedup's family as a person sees it: one line, no traceback, no password.
    """

    exit_code = FAILED

    def __init__(self, error: DedupError) -> None:
        super().__init__(mask_text(str(error)))

    def show(self, file: Any = None) -> None:
        """
        Print it.
        """
        click.echo(f"error: {self.message}", err=True, file=file)


class Misuse(Failure):
    """
    The same, of a setting or an argument that cannot be.
    """

    exit_code = MISUSED


class Group(click.Group):
    """
    A group whose commands may be in modules that are imported only when needed.

    Args:
        elsewhere: Name of a command -> "module:attribute".
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._elsewhere = dict(elsewhere or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """
        Return the names of all commands.
        """
        return sorted({*super().list_commands(ctx), *self._elsewhere})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """
        Return a command, imported now if it is elsewhere.
        """
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._elsewhere[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run a command; its errors of dedup's family become one line.
        """
        try:
            return super().invoke(ctx)
        except DedupError as error:
            raise (Misuse if isinstance(error, ConfigError) else Failure)(error) from error


def settings(*names: str) -> Callable[[Command], Command]:
    """
    Give a command ``--config`` and the flags of these settings; it is passed its :class:`dedup.config.Settings` first.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def load_and_call(*, config: Path | None, **options: Any) -> None:
            flags = {name: options.pop(name) for name in names}
            command(load(flags, file=config), **options)

        decorated: Command = load_and_call
        for name in reversed(names):
            decorated = _option(name)(decorated)
        about = f"Settings in TOML; by default {FILE_VARIABLE}, then ./{DEFAULT_FILE}."
        return click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help=about)(
            decorated
        )

    return decorate


def _option(name: str) -> Callable[[Command], Command]:
    attribute = FIELDS[name]
    many = isinstance(attribute.default, tuple)
    about = attribute.metadata["about"] + (" Repeat it for several." if many else "")
    if attribute.default not in ("", None, ()):
        shown = f"{attribute.default:g}" if isinstance(attribute.default, float) else attribute.default
        about += f"  [default: {shown}]"
    return click.option(flag(name), name, metavar=attribute.metadata["kind"].word, multiple=many, help=about)
