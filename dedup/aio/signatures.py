"""Write the arguments of a method down once, and let another one take the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def takes(
    like: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """
    Give a method the arguments of *like*, for type checkers and for ``help()``: they are written down once.
    """

    def decorate(method: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        signature = inspect.signature(like)
        vars(method)["__signature__"] = signature.replace(
            return_annotation=inspect.signature(method).return_annotation
        )
        return method

    return decorate
