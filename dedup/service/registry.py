"""Make the registry that a process serves, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dedup.amqp091.parameters import connection_parameters
from dedup.amqp091.registry import RegistryServer
from dedup.config import Settings
from dedup.core.identity import UserBinding
from dedup.core.steps import Report
from dedup.metrics import RegistryMetrics
from dedup.store.registry import RedisRegistry


def open_registry(settings: Settings) -> RedisRegistry:
    """
    Return what the registry of the virtual host remembers.
    """
    return RedisRegistry(
        settings.redis,
        vhost=str(connection_parameters(settings.amqp, name="dedup")[0].virtual_host),
        prefix=settings.redis_prefix,
        publishers_max=settings.registrations_max,
        idle_s=settings.registration_idle_s,
    )


def make_registry(
    settings: Settings,
    metrics: RegistryMetrics,
    _queue: str,
    _report: Callable[[Report], None],
    notice: Callable[[str, dict[str, Any]], None],
) -> RegistryServer:
    """
    Return a server that a worker can run.
    """
    return RegistryServer(
        connection_parameters(settings.amqp, name="dedup registry"),
        open_registry(settings),
        binding=UserBinding(settings.bind_publisher_to_user),
        count=metrics.count,
        notice=notice,
    )
