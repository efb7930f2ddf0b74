"""References to secrets, and the operator's list of those that options of the data source may use.

``SecretRef`` names a secret, which is looked up on the machine that connects, at every attempt. Python code may use
any. Options may come from SQL, whose author need not have the rights of the cluster: ``OptionRef`` is looked up only if
``AllowList`` has it. That list is read from the environment of driver and executors, never from Spark's configuration,
which SQL can SET.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from natsproto import errors
from natsproto._options.options import Text
from natsproto._value import Value
from natsproto.errors._base import HIDDEN
from natsproto.protocol.addresses import ServerAddress, parse_servers

SECRET_REFS_VARIABLE = "NATSPROTO_SPARK_SECRET_REFS"
SERVERS_VARIABLE = "NATSPROTO_SPARK_SERVERS"
DEFAULT_SECRET_REFS = "env:NATS_*"

_PROVIDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ENTRY = re.compile(r"(?P<ref>(?:env|file|spark_file|provider):.+?)(?:=(?P<server>(?:nats|tls|ws|wss)://.+))?")
_SERVER = re.compile(r"(?P<scheme>nats|tls|ws|wss)://(?P<host>\[[0-9a-f:.%*]+\]|[a-z0-9_.*-]+)(?::(?P<port>\d+|\*))?")
_OPERATOR = "the operator sets it in the environment of the driver and of the executors"


class SecretRef(Value):
    """The location of a secret. It is not secret itself: it may appear in code, plans and logs.

    Made by ``env``, ``file``, ``spark_file`` and ``provider``, or from its text by ``parse``; ``str()`` returns the
    text. The process that connects, mostly an executor, looks it up at every attempt to connect, so rotated secrets
    are picked up.
    """

    kind: str
    """``env``, ``file``, ``spark_file`` or ``provider``."""
    location: str
    """The name of a variable, a path, or ``module:function``, by ``kind``."""

    @classmethod
    def env(cls, name: str) -> SecretRef:
        """The value of an environment variable. ConfigError for an invalid name.

        Args:
            name: The name of the environment variable.
        """
        return cls(kind="env", location=name)

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> SecretRef:
        """The content of a file, without its final line end. ConfigError unless the path is absolute.

        Args:
            path: An absolute path on the machine that connects.
        """
        return cls(kind="file", location=os.fspath(path))

    @classmethod
    def spark_file(cls, name: str) -> SecretRef:
        """The content of a file sent along with ``--files`` or ``SparkContext.addFile``. ConfigError for paths.

        Args:
            name: The name of the file, without a directory.
        """
        return cls(kind="spark_file", location=name)

    @classmethod
    def provider(cls, function: str) -> SecretRef:
        """The result of ``"module:function"``, called without arguments: a str, a path, or an awaitable of one.

        The module must be importable where the secret is looked up. ConfigError for any other form.

        Args:
            function: A function without arguments, as "module:function", importable where the secret is looked up.
        """
        return cls(kind="provider", location=function)

    @classmethod
    def parse(cls, text: str) -> SecretRef:
        """From ``env:NAME``, ``file:/PATH``, ``spark_file:NAME`` or ``provider:MODULE:FUNCTION``.

        InvalidCredentials for other text; the error does not repeat it, as it could be the secret itself.

        Args:
            text: ``env:NAME``, ``file:/PATH``, ``spark_file:NAME`` or ``provider:MODULE:FUNCTION``.
        """
        kind, _, where = text.partition(":")
        if kind not in _RULES:
            raise errors.InvalidCredentials("reference", "must begin with env:, file:, spark_file: or provider:")
        return cls(kind=kind, location=where)

    @property
    def is_file(self) -> bool:
        """True if it names a file."""
        return self.kind in ("file", "spark_file")

    def source(self) -> Text | Awaitable[Text]:
        """The secret, the path of its file, or an awaitable of either. InvalidCredentials if there is none.

        The options of a client call it at every attempt to connect.
        """
        if self.is_file:
            return self.path()
        if self.kind == "env":
            value = os.environ.get(self.location, "")
            if not value:
                raise errors.InvalidCredentials(str(self), "is not set in the environment of this process")
            return value
        module, _, name = self.location.partition(":")
        try:
            function = getattr(import_module(module), name)
        except (ImportError, AttributeError) as exc:
            raise errors.InvalidCredentials(str(self), f"cannot be imported here: {type(exc).__name__}") from exc
        return cast("Callable[[], Text | Awaitable[Text]]", function)()

    def path(self) -> Path:
        """The path of the file on this machine. ConfigError if it names no file."""
        if self.kind == "file":
            return Path(self.location)
        if self.kind == "spark_file":
            from pyspark import SparkFiles

            return Path(SparkFiles.get(self.location))
        raise errors.ConfigError("reference", str(self), "does not name a file")

    def __str__(self) -> str:
        return f"{self.kind}:{self.location}"

    def __repr__(self) -> str:
        return f"SecretRef.{self.kind}({self.location!r})"

    def _check(self) -> None:
        if self.kind not in _RULES:
            raise errors.ConfigError("reference", self.kind, "must be of the kind env, file, spark_file or provider")
        if problem := _RULES[self.kind](self.location):
            # Not repeated: by mistake it may be the secret itself.
            raise errors.ConfigError(f"{self.kind} reference", HIDDEN, problem)


_RULES: dict[str, Callable[[str], str]] = {
    "env": lambda where: "" if _VARIABLE.fullmatch(where) else "must be the name of an environment variable",
    "file": lambda where: "" if os.path.isabs(where) else "must be an absolute path",
    "spark_file": lambda where: "" if where and "/" not in where else "must be the name of a file, without its path",
    "provider": lambda where: "" if _PROVIDER.fullmatch(where) else 'must be "module:function"',
}


# ---------------------------------------------------------------- the operator's list


class OptionRef(SecretRef):
    """A reference in the options of the data source: looked up if the list of this process allows it for ``servers``.

    ``servers`` are the URLs of the same options.
    """

    servers: tuple[str, ...]

    def check(self) -> None:
        """InvalidCredentials unless the environment of this process allows it."""
        AllowList.of_environment().check_ref(self, self.servers)

    def source(self) -> Text | Awaitable[Text]:
        """See SecretRef; InvalidCredentials if it is not allowed here."""
        self.check()
        return super().source()

    def path(self) -> Path:
        """See SecretRef; InvalidCredentials if it is not allowed here."""
        self.check()
        return super().path()


class AllowList:
    """The references and servers that options may name. ``*`` stands for any characters.

    ``refs`` has entries ``REFERENCE`` or ``REFERENCE=SERVER``, ``servers`` has entries ``SERVER``, or is None: any.
    Both are comma lists; an empty one allows nothing. A ``SERVER`` is ``scheme://host:port``, or without a port, which
    means the default one of the scheme. ConfigError for other entries.
    """

    def __init__(self, refs: str = DEFAULT_SECRET_REFS, servers: str | None = None) -> None:
        self._refs: list[tuple[re.Pattern[str], _ServerPattern | None]] = []
        for entry in _entries(refs):
            found = _ENTRY.fullmatch(entry)
            if found is None:
                raise errors.ConfigError(
                    SECRET_REFS_VARIABLE, entry, "must be like env:NATS_*, or env:NATS_*=tls://*.nats.example"
                )
            server = found["server"]
            pattern = None if server is None else _ServerPattern(server, SECRET_REFS_VARIABLE)
            self._refs.append((_wildcard(found["ref"]), pattern))
        self._servers: list[_ServerPattern] | None = None
        if servers is not None:
            self._servers = [_ServerPattern(entry, SERVERS_VARIABLE) for entry in _entries(servers)]

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> AllowList:
        """The list of this process."""
        return cls(environ.get(SECRET_REFS_VARIABLE, DEFAULT_SECRET_REFS), environ.get(SERVERS_VARIABLE))

    def check_servers(self, urls: Sequence[str]) -> None:
        """ConfigError unless all these servers may be named."""
        if self._servers is None:
            return
        for address in parse_servers(urls):
            if not any(pattern.matches(address) for pattern in self._servers):
                raise errors.ConfigError("option servers", address.url, f"is not in {SERVERS_VARIABLE}: {_OPERATOR}")

    def check_ref(self, ref: SecretRef, urls: Sequence[str]) -> None:
        """InvalidCredentials unless ``ref`` may be sent to all these servers."""
        self.check_servers(urls)
        if ref.kind == "file" and os.path.normpath(ref.location) != ref.location:
            raise errors.InvalidCredentials(f"option {ref}", "must be a path without . and .. and double slashes")
        servers = [server for pattern, server in self._refs if pattern.fullmatch(str(ref))]
        for address in parse_servers(urls):
            if not any(server is None or server.matches(address) for server in servers):
                where = f" for {address.url}" if servers else ""
                raise errors.InvalidCredentials(
                    f"option {ref}", f"is not in {SECRET_REFS_VARIABLE}{where}: {_OPERATOR}"
                )


class _ServerPattern:
    """A server with ``*`` in its host or port."""

    def __init__(self, text: str, variable: str) -> None:
        found = _SERVER.fullmatch(text.lower())
        if found is None:
            raise errors.ConfigError(variable, text, "must be like tls://*.nats.example or tls://*.nats.example:4222")
        self._scheme = found["scheme"]
        self._host = _wildcard(found["host"].strip("[]"))
        self._port = found["port"] or str(parse_servers(f"{self._scheme}://host")[0].port)

    def matches(self, address: ServerAddress) -> bool:
        """True if the address fits."""
        fits = address.scheme == self._scheme and self._port in ("*", str(address.port))
        return fits and self._host.fullmatch(address.host) is not None


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _wildcard(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
