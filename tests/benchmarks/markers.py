"""
Measure what markers of parts cost: the shim drains into a quorum queue with and without them, and beside the shovel.

::

    python -m tests.benchmarks.markers [--messages 20000] [--rounds 5] [--rabbitmq 4.0] [--json]

As the benchmark of forwarding, but into a quorum queue and with confirms. A marker after each message doubles what is
published, and the ledger they go to is a classic queue: so the price is what one transient message costs beside one that a
quorum queue stores. With markers after every tenth message a killed shim leaves up to ten messages marked instead of one.
"""

from __future__ import annotations

import json
from functools import partial

from dedup.testing.servers import RabbitMQ, Redis
from tests.benchmarks import rounds
from tests.benchmarks.forwarding import Bench, Forwarder

#: What the others are compared with.
WITHOUT = "no markers of parts"


def main() -> None:
    """
    Run the rounds and print rates and ratios.
    """
    parser = rounds.parser(__doc__, messages=20_000)
    parser.add_argument("--batch-max", type=int, default=500)
    options = parser.parse_args()
    with (
        RabbitMQ(options.rabbitmq, plugins=("rabbitmq_management", "rabbitmq_shovel")) as rabbitmq,
        Redis() as redis,
    ):
        bench = Bench(rabbitmq, redis, options.batch_max, "quorum")
        marking = partial(bench.shim, management=rabbitmq.management_url)
        forwarders: dict[str, Forwarder] = {
            WITHOUT: bench.shim,
            "one for each message": marking,
            "one for ten messages": partial(marking, marker_every=10),
            "shovel": bench.shovel,
        }
        ways = {
            name: partial(bench.turn, forwarder, options.messages) for name, forwarder in forwarders.items()
        }
        rates = rounds.take_turns(options.rounds, ways)
        bench.connection.close()
    if options.json:
        ratios = {name: rounds.ratio(rates, name, WITHOUT) for name in rates}
        print(json.dumps({"rates": rates, "medians": rounds.medians(rates), "to_none": ratios}))
        return
    rounds.show(rates, base=WITHOUT)


if __name__ == "__main__":
    main()
