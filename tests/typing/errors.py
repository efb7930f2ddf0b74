"""What a type checker knows of errors and events. Never run; mypy --strict reads it."""

from typing import assert_never, assert_type

import natsproto
from natsproto import errors


async def facts(nc: natsproto.Client) -> None:
    try:
        await nc.request("a")
    except errors.NoResponders as error:
        assert_type(error.subject, str)
    except errors.RequestTimeout as error:
        assert_type(error.timeout, float)
        timeout: TimeoutError = error
        print(timeout)
    except errors.PayloadTooLarge as error:
        assert_type(error.limit, int)
    except errors.ConnectFailed as error:
        assert_type(error.attempts, tuple[tuple[str, BaseException], ...])
    except errors.ConfigError as error:
        value: ValueError = error
        print(value)


def every_state_is_known(state: natsproto.State) -> str:
    match state:
        case natsproto.State.CONNECTING | natsproto.State.RECONNECTING:
            return "waiting"
        case natsproto.State.OPEN:
            return "up"
        case natsproto.State.DRAINING | natsproto.State.CLOSED:
            return "ending"
        case _:
            assert_never(state)
