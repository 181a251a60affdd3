"""Take the state of a queue that is guarded no longer out of Redis."""

from __future__ import annotations

from contextlib import closing

from dedup.store.client import KEY_PREFIX
from dedup.store.redis import RedisStore


def forget(url: str, *, vhost: str, queue: str, prefix: str = KEY_PREFIX) -> bool:
    """
    Delete the state of *queue*, and say whether there was one; only when no shim can write it any more.

    Raises:
        ConfigError: *url* cannot be used, or not by this user.
        StoreUnavailableError: Redis does not answer.
    """
    with closing(RedisStore(url, vhost=vhost, queue=queue, prefix=prefix, timeout_s=5.0)) as store:
        return store.forget()
