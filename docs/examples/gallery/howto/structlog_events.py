"""structlog: the client's log as JSON, with the fields of each event."""

import asyncio
import logging
import sys

from structlog.processors import JSONRenderer
from structlog.stdlib import ProcessorFormatter, add_log_level
from structlog.typing import EventDict

import natsproto
from natsproto.testing import run_server


def event_fields(logger: object, method: str, entry: EventDict) -> EventDict:
    event = getattr(entry["_record"], "nats_event", None)
    if event is not None:
        entry.update({"event": type(event).__name__} | {name: str(value) for name, value in event.fields().items()})
    return entry


def set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stdout)
    render = JSONRenderer(sort_keys=True)
    handler.setFormatter(ProcessorFormatter(render, foreign_pre_chain=[add_log_level, event_fields]))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


async def main() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        await nc.flush()


set_up_logging()
asyncio.run(main())

# origin: how-to guide
# about: It needs `pip install structlog`.
# prints: {"event": "Connected", "level": "info", "server": "127.0.0.1:..."}
# prints: {"event": "Closed", "level": "info", "reason": "None"}
