"""Settings of a nats-server, and the text of its configuration file.

Owns the settings of ``run_server`` and their spelling in nats-server's configuration. It does no I/O.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from natsproto import errors

HOST = "127.0.0.1"
"""The only address that test servers listen on."""

StrPath = str | os.PathLike[str]


def check_port(port: object) -> None:
    """ConfigError for a port that nothing can listen on."""
    if type(port) is not int or not 0 <= port <= 65535:
        raise errors.ConfigError("port", port, "must be an int from 1 to 65535, or 0 for a free port")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS settings of a test server. Paths are PEM files.

    ``cert`` and ``key`` are the server's own. ``ca`` verifies clients; it is needed with ``verify``, which requires a
    certificate of every client. ``handshake_first`` makes the server wait for the TLS handshake before it sends INFO; a
    string (``"auto"``, ``"300ms"``) is used as it is.
    """

    cert: StrPath
    key: StrPath
    ca: StrPath | None = None
    verify: bool = False
    handshake_first: bool | str = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Cluster settings of one node: the cluster's name, the node's route port and the route ports that it dials.

    ``advertise`` is the route port that other nodes get; None for the node's own.
    """

    name: str
    port: int
    routes: tuple[int, ...]
    advertise: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The checked arguments of ``run_server``; see there."""

    jetstream: bool = False
    config: str = ""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls: ServerTls | None = None
    websocket: bool = False
    port: int | None = None
    name: str | None = None
    store_dir: StrPath | None = None
    args: Sequence[str] = ()
    binary: StrPath | None = None
    start_timeout: float = 10.0
    cluster: ClusterSettings | None = None

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise errors.ConfigError("user", self.user, "give both user and password, or neither")
        if self.user is not None and self.token is not None:
            raise errors.ConfigError("token", "(hidden)", "give user and password or a token, not both")
        if self.tls is not None and self.tls.verify and self.tls.ca is None:
            raise errors.ConfigError("tls.ca", None, "verify=True needs the clients' certificate authority")
        if self.port is not None:
            check_port(self.port)

    def render(
        self, *, config: str, name: str, store: str, port: int, http_port: int, websocket_port: int | None
    ) -> str:
        """Return the configuration file: the settings, then ``config``, which overrides them.

        Nothing is on the command line, because older servers refuse to reload settings given there. ``store`` is
        outside the ``jetstream`` block, so that a ``jetstream`` block in ``config`` does not replace it.
        """
        lines = [
            f"server_name: {_quoted(name)}",
            f'listen: "{HOST}:{port}"',
            f'http: "{HOST}:{http_port}"',
            f"store_dir: {_quoted(store)}",
        ]
        if self.jetstream:
            lines.append("jetstream: enabled")
        if self.user is not None and self.password is not None:
            lines.append(f"authorization {{ user: {_quoted(self.user)}, password: {_quoted(self.password)} }}")
        if self.token is not None:
            lines.append(f"authorization {{ token: {_quoted(self.token)} }}")
        if self.tls is not None:
            lines.append(f"tls {{ {_tls(self.tls, first=self.tls.handshake_first)} }}")
        if websocket_port is not None:
            # Only the plain port has handshake_first: a WebSocket connection starts with the handshake anyway.
            security = f"tls {{ {_tls(self.tls, first=False)} }}" if self.tls is not None else "no_tls: true"
            lines.append(f'websocket {{ listen: "{HOST}:{websocket_port}", {security} }}')
        if self.cluster is not None:
            routes = ", ".join(f'"nats-route://{HOST}:{route}"' for route in self.cluster.routes)
            advertise = f'advertise: "{HOST}:{self.cluster.advertise}", ' if self.cluster.advertise else ""
            lines.append(
                f'cluster {{ name: {_quoted(self.cluster.name)}, listen: "{HOST}:{self.cluster.port}", '
                f"{advertise}routes: [{routes}] }}"
            )
        return "\n".join([*lines, config, ""])


def _tls(tls: ServerTls, *, first: bool | str) -> str:
    fields = {"cert_file": os.path.abspath(tls.cert), "key_file": os.path.abspath(tls.key)}
    if tls.ca is not None:
        fields["ca_file"] = os.path.abspath(tls.ca)
    parts = [f"{key}: {_quoted(path)}" for key, path in fields.items()]
    if tls.verify:
        parts.append("verify: true")
    if first:
        parts.append(f"handshake_first: {'true' if first is True else _quoted(first)}")
    return ", ".join(parts)


def _quoted(text: str) -> str:
    """Quote a string for nats-server's configuration, whose escapes are those of JSON without ``\\u``."""
    return json.dumps(text, ensure_ascii=False)
