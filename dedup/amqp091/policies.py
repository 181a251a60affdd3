"""
Work out what a queue's or an exchange's arguments and the virtual host's policies come to.

The management API tells the broker's own result five seconds late and of a new queue not at all;
the policies themselves it tells as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import frozen

#: Where several sources limit something, the lowest limit holds (rabbit_queue_type_util, rabbit_policies).
_LOWEST: Final = frozenset({"message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit"})


@frozen
class Setting:
    """
    One setting in force, and who says so.
    """

    value: Any
    #: "argument", "policy NAME" or "operator policy NAME".
    source: str

    def __str__(self) -> str:
        return f"{self.value} by {self.source}"


#: By the policies' names, without "x-".
Settings = Mapping[str, Setting]


class Policies:
    """
    The policies of one virtual host.

    Args:
        users: As the management API lists them.
        operators: The operator policies, which go before the others.
    """

    def __init__(
        self, users: Sequence[Mapping[str, Any]] = (), operators: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._users = users
        self._operators = operators

    def settings(self, name: str, kind: str, arguments: Mapping[str, Any] | None) -> Settings:
        """
        Return what is in force for one queue or exchange.

        Args:
            kind: ``exchanges``, ``classic_queues``, ``quorum_queues`` or another as in "apply-to".
            arguments: What it was declared with.
        """
        found = _best(self._users, name, kind, "policy")
        for key, setting in _best(self._operators, name, kind, "operator policy").items():
            found[key] = _merge(key, setting, found.get(key))
        for argument, value in (arguments or {}).items():
            key = argument.removeprefix("x-")
            found[key] = _merge(key, Setting(value, "argument"), found.get(key))
        return found


def _merge(key: str, stronger: Setting, weaker: Setting | None) -> Setting:
    if weaker is None or key not in _LOWEST:
        return stronger
    values = stronger.value, weaker.value
    if key == "delivery-limit" and min(values) < 0:  # negative: no limit
        return max(stronger, weaker, key=lambda setting: setting.value)
    return min(stronger, weaker, key=lambda setting: setting.value)


def _best(policies: Sequence[Mapping[str, Any]], name: str, kind: str, source: str) -> dict[str, Setting]:
    """
    Return the settings of the one policy that applies: the matching one of the highest priority.
    """
    kinds = {"all", kind} if kind == "exchanges" else {"all", "queues", kind}
    matching = [
        policy for policy in policies if policy["apply-to"] in kinds and _matches(policy["pattern"], name)
    ]
    if not matching:
        return {}
    best = max(matching, key=lambda policy: int(policy.get("priority", 0)))
    return {
        key: Setting(value, f"{source} {best['name']!r}") for key, value in dict(best["definition"]).items()
    }


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # Erlang's expressions know more than Python's: rather take it as meant
        return True
