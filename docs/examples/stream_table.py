"""A table of a million rows in flat memory, although the reader is slower than the database; on a server started here.

Run it with ``python docs/examples/stream_table.py`` where ``natsproto[server]`` is installed. A part holds a thousand
rows: a message for each would cost more than the row.
"""

import asyncio
import json
import resource
import sqlite3
from collections.abc import AsyncIterator

import natsproto
from natsproto.service import Request
from natsproto.testing import run_server

ROWS = 1_000_000
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?) SELECT i, i * i FROM n"


def memory_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main() -> None:
    """Serve the query, and add up one column of its answer."""
    async with (
        run_server() as server,
        natsproto.connect(server.url) as database,
        natsproto.connect(server.url) as nc,
        database.add_service("table", "1.0.0") as service,
    ):

        @service.endpoint("rows")
        async def rows(request: Request) -> AsyncIterator[bytes]:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
            try:
                cursor = connection.execute(NUMBERS, (int(request.data),))
                while batch := await asyncio.to_thread(cursor.fetchmany, 1000):
                    yield json.dumps(batch).encode()
            finally:
                connection.close()

        await database.flush()
        await nc.request_many("rows", b"1", sentinel="empty").__anext__()
        before = memory_mib()
        count = total = 0
        async with nc.stream("rows", b"%d" % ROWS, window=256 * 1024) as parts:
            async for part in parts:
                for number, square in part.json():
                    count += 1
                    total += square - number
                if parts.received % 100 == 0:
                    await asyncio.sleep(0.01)  # the database waits for this
        print(f"{count:,} rows, {total:,}")
        print(f"flat memory: {memory_mib() - before < 16}")


if __name__ == "__main__":
    asyncio.run(main())

# prints: 1,000,000 rows, 333,333,333,333,000,000
# prints: flat memory: True
