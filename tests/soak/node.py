"""`python -m sapo_edge` whose memories of what it has seen are small, so that they are full before memory is compared.

Each of them is bounded, but takes hours to fill: 32,768 digests of rollouts, 4,096 keys, pages of the journal. While
they fill, memory grows by megabytes an hour, and a leak of that size could not be told from it. Nothing else is
changed.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

SMALLER = 16
"""By what the memories are divided."""
SMALLER_OF_PEERS = 4
"""By what those of peers are: attackers bring names, and members have to stay in them."""
SQLITE_KIBIBYTES = 2000
"""Pages that SQLite keeps of a database unless it is told otherwise."""


def shrink() -> None:
    """Divide the bounds; what has to remember more than what others still hold and send still does."""
    from sapo_edge.swarm.joining import identity

    keys: Any = identity.public_key_of
    # Before others import it by name.
    replace(identity, public_key_of=lru_cache(keys.cache_parameters()["maxsize"] // SMALLER)(keys.__wrapped__))

    from sapo_edge.pool import authors, pool
    from sapo_edge.recent import Recent
    from sapo_edge.swarm.finding import dialing, directory, peerbook
    from sapo_edge.swarm.host import places
    from sapo_edge.swarm.judging import admission, external, freshness, records, reputation

    for module, names in {
        authors: ["MAX_AUTHORS"], places: ["MAX_NETWORKS"], external: ["MAX_SCORED"], freshness: ["MAX_CLOCKS"],
        admission: ["REMEMBERED_DIGESTS", "REMEMBERED_REPEATS"], records: ["MAX_RECORDS", "MAX_RECORDS_OF_AUTHOR"],
        reputation: ["MAX_NEWCOMERS", "MAX_ESTABLISHED"],
    }.items():  # fmt: skip
        replace(module, **{name: getattr(module, name) // SMALLER for name in names})
    for module in (dialing, directory):
        replace(module, Recent=lambda size: Recent(size // SMALLER_OF_PEERS))
    replace(peerbook, MAX_PEERS=peerbook.MAX_PEERS // SMALLER_OF_PEERS)
    limits = pool.PoolLimits()
    less: dict[str, Any] = {"rollouts": limits.rollouts // SMALLER, "remembered": limits.remembered // SMALLER}
    replace(pool, PoolLimits=partial(pool.PoolLimits, **less))
    connect = sqlite3.connect

    def with_few_pages(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        connection.execute(f"PRAGMA cache_size = -{SQLITE_KIBIBYTES // SMALLER}")
        return connection

    replace(sqlite3, connect=with_few_pages)


def replace(module: ModuleType, **values: object) -> None:
    for name, value in values.items():
        assert hasattr(module, name), name
        setattr(module, name, value)


if __name__ == "__main__":
    shrink()
    from sapo_edge.cli.main import main

    main()
