"""The arguments of nats-py's ``connect`` as natsproto's Options."""

from __future__ import annotations

import base64
from collections import UserString
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import ParseResult, urlparse

from natsproto import AuthChallenge, Credentials, Options
from natsproto.compat.nats import errors
from natsproto.errors import NatsError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

FOREVER_S = 10 * 365 * 86400.0
"""The seconds for a time that is unlimited in nats-py and needs a limit in natsproto."""


def parse_url(url: str) -> ParseResult:
    """Parse a server's URL and add the scheme and port. Error for an invalid URL."""
    try:
        parsed = urlparse(url if "://" in url else f"nats://{url}")
        if parsed.port is None and parsed.scheme not in ("ws", "wss"):
            parsed = parsed._replace(netloc=f"{parsed.netloc.rstrip(':')}:4222")
    except (ValueError, TypeError):
        raise errors.Error("nats: invalid connect url option") from None
    if not parsed.hostname or parsed.hostname == "none":
        raise errors.Error("nats: invalid hostname in connect url")
    return parsed


def parse_urls(servers: str | Sequence[str]) -> list[ParseResult]:
    """Parse a URL or a list of URLs. Error for other types, and for a mixture of WebSocket and other URLs."""
    if not isinstance(servers, (str, list, tuple)):
        raise errors.Error("nats: invalid connect url option")
    parsed = [parse_url(url) for url in ([servers] if isinstance(servers, str) else servers)]
    if len({url.scheme in ("ws", "wss") for url in parsed}) > 1:
        raise errors.Error("nats: mixing of websocket and non websocket URLs is not allowed")
    return parsed


def options_from(
    urls: Sequence[ParseResult],
    given: Mapping[str, Any],
    choose: Callable[..., Any] | None,
    on_event: Callable[..., object],
) -> Options:
    """Return the Options for these arguments of ``Client.connect``. ``choose`` picks the server for a reconnect."""
    wait, attempts = float(given["reconnect_time_wait"]), given["max_reconnect_attempts"]
    retry_connect_for = 0.0
    if given["allow_reconnect"]:
        retry_connect_for = FOREVER_S if attempts < 0 else attempts * max(wait, 0.001)
    if attempts > 0:
        # nats-py dials once more, and waits first if the connection was younger than ``wait``. Here the first never
        # waits, and an outage nats-py survives must not be too long.
        attempts += 1 if choose is not None else 2
    prefix = given["inbox_prefix"]
    headers = given["ws_connection_headers"]
    return Options(
        [url.geturl() for url in urls],
        name=given["name"],
        tls=given["tls"],
        tls_hostname=given["tls_hostname"],
        tls_first=given["tls_handshake_first"],
        connect_timeout=given["connect_timeout"],
        allow_reconnect=given["allow_reconnect"],
        retry_connect_for=retry_connect_for,
        max_reconnect_attempts=max(attempts, -1) or -1,
        reconnect_wait=wait,
        reconnect_wait_max=wait,
        jitter=0.0,
        jitter_tls=0.0,
        reconnect_to_server=choose,
        randomize=not given["dont_randomize"],
        ignore_auth_error_abort=True,
        ping_interval=given["ping_interval"],
        max_outstanding_pings=given["max_outstanding_pings"],
        drain_timeout=given["drain_timeout"],
        fail_requests_on_disconnect=False,
        outbox_limit=max(given["pending_size"], 0),
        no_echo=given["no_echo"],
        verbose=given["verbose"],
        pedantic=given["pedantic"],
        inbox_prefix=prefix.decode() if isinstance(prefix, bytes) else prefix,
        websocket_headers=None
        if headers is None
        else {name: value if isinstance(value, str) else ", ".join(value) for name, value in headers.items()},
        on_event=on_event,
        **_credentials(given),
    )


def _credentials(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the credentials. nats-py uses the first of: keys and JWTs (with a token if given), user and password,
    token.
    """
    token = None if given["token"] is None else {"token": given["token"]}
    creds, seed = given["user_credentials"], given["nkeys_seed_str"]
    if isinstance(creds, tuple):
        jwt_file, seed_file = creds
        return {"jwt": Path(jwt_file), "nkey_seed": Path(seed_file), **(token or {})}
    if creds is not None:
        text = str(creds) if isinstance(creds, (str, UserString)) else creds
        return {"creds": text, **(token or {})}
    if seed is not None or given["nkeys_seed"] is not None:
        return {"nkey_seed": seed.strip() if seed is not None else Path(given["nkeys_seed"]), **(token or {})}
    if given["signature_cb"] is not None:
        return {"auth": _signing(given["signature_cb"], given["user_jwt_cb"], given["token"])}
    if given["user"] is not None and given["password"] is not None:
        return {"user": given["user"], "password": given["password"]}
    return token or {}


def _signing(
    sign: Callable[[str], bytes], jwt: Callable[[], bytes | bytearray] | None, token: str | Callable[[], str] | None
) -> Callable[[AuthChallenge], Credentials]:
    """Return an ``auth`` callable: ``signature_cb`` signs the nonce in base64, ``user_jwt_cb`` returns the JWT."""
    if jwt is None:
        raise NotImplementedError(
            "signature_cb without user_jwt_cb: the server is not told whose signature it is. In natsproto: "
            "connect(auth=lambda challenge: Credentials(nkey=..., signer=...))"
        )

    def prove(challenge: AuthChallenge) -> Credentials:
        return Credentials(
            jwt=bytes(jwt()).decode().strip(),
            signer=lambda nonce: base64.b64decode(sign(nonce.decode())),
            token=token() if callable(token) else token,
        )

    return prove


def _without_frames(error: E) -> E:
    """Return an error without the frames that it came through. A cause keeps its own."""
    if error.__cause__ is None:
        error.__context__ = None
    return error.with_traceback(None)


def hide_secrets(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a coroutine function that gets secrets: no frame of its errors contains them."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except Exception as exc:
            error = _without_frames(exc)
            if isinstance(error.__cause__, NatsError):
                error.__cause__ = _without_frames(error.__cause__)  # it came through the same function
        del args, kwargs
        try:
            raise error
        finally:
            del error  # it refers to this frame

    return call


def clean_headers(headers: dict[str, Any]) -> dict[str, str]:
    """Return headers to send, with line breaks in the values replaced."""
    return {name.strip(): value.strip().translate(_LINE_ENDS) for name, value in headers.items() if name.strip()}


_LINE_ENDS = str.maketrans({"\r": " ", "\n": " "})
