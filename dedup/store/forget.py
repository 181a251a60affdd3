"""Take the state of a queue that is guarded no longer out of Redis."""

from __future__ import annotations

import redis

from dedup.errors import StoreUnavailableError
from dedup.store.redis import KEY_PREFIX, RedisStore, open_client


def forget(url: str, *, vhost: str, queue: str, prefix: str = KEY_PREFIX) -> bool:
    """
    Delete the state of *queue*, and say whether there was one; only when no shim can write it any more.

    Raises:
        ConfigError: *url* cannot be used.
        StoreUnavailableError: Redis does not answer.
    """
    store = RedisStore(url, vhost=vhost, queue=queue, prefix=prefix)
    store.close()
    client = open_client(url, timeout_s=5.0)
    try:
        return bool(client.delete(store.key))
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailableError(f"Redis at {store.url} cannot forget {queue!r}: {error}") from error
    finally:
        client.close()
