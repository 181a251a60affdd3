"""Say what ended a link, a session or a connection, in dedup's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dedup.errors import BrokerUnavailableError, ConfigError, DedupError
from proton_adapter import outcomes

if TYPE_CHECKING:
    from proton_adapter.connection import Connection


def told(condition: Any) -> tuple[int, str]:
    """
    Return the reply code and the text of what the broker closed something with.
    """
    if condition is None:
        return outcomes.reply_code(""), "without a reason"
    text = condition.description or ""
    return outcomes.reply_code(condition.name, text), f"{condition.name}: {text}"


def explain(connection: Connection, where: str) -> DedupError | OSError:
    """
    Say why a connection broke: a wrong setting, or the network.
    """
    condition = connection.condition
    name, text = (condition.name, condition.description or "") if condition is not None else ("", "")
    if "header mismatch" in text:
        return ConfigError(f"{where} does not speak AMQP 1.0; check host, port and whether it wants amqps://")
    if connection.is_open:
        return connection.failure or BrokerUnavailableError(f"{where} cannot be reached: {name}: {text}")
    if name == "amqp:unauthorized-access":
        return ConfigError(f"{where} refused the login; check user and password in the URL ({text})")
    return BrokerUnavailableError(
        f"{where} was lost before the connection was open ({connection.failure or text or 'no reason given'}); if it stays so, "
        "check that the virtual host exists and that the user may enter it"
    )
