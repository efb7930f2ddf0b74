"""How a task of Spark reaches NATS: a value that travels with the plan, and secrets that do not.

Owns ``SparkNats``, which is pickled into every task, and ``SecretRef``, which says where a secret is to be found and
is looked up on the machine that connects, at every attempt. Neither opens a connection or imports Spark.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import ClassVar, cast

from natsproto._options import DEFAULT_SERVER, OptionArgs, Options, Text
from natsproto._value import Value
from natsproto.errors import HIDDEN, ConfigError, InvalidCredentials
from natsproto.protocol.pool import parse_servers

_PROVIDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class SecretRef(Value):
    """Where a secret is found. It is no secret itself: it may stand in code, plans and logs.

    Made by ``env``, ``file``, ``spark_file`` and ``provider``, or from its text by ``parse``; ``str()`` gives the text
    back. It is looked up by the process that connects, an executor's most of the time, at every attempt to connect:
    what is rotated is picked up.
    """

    kind: str
    where: str

    @classmethod
    def env(cls, name: str) -> SecretRef:
        """The value of an environment variable. ConfigError for what is no name of one."""
        return cls(kind="env", where=name)

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> SecretRef:
        """The content of a file; a line end behind it does not count. ConfigError unless the path is absolute."""
        return cls(kind="file", where=os.fspath(path))

    @classmethod
    def spark_file(cls, name: str) -> SecretRef:
        """The content of a file sent along with ``--files`` or ``SparkContext.addFile``. ConfigError for paths."""
        return cls(kind="spark_file", where=name)

    @classmethod
    def provider(cls, function: str) -> SecretRef:
        """What ``"module:function"`` returns (a str, a path, or an awaitable of one) when called without arguments.

        The module has to be importable where it is looked up. ConfigError for any other form.
        """
        return cls(kind="provider", where=function)

    @classmethod
    def parse(cls, text: str) -> SecretRef:
        """From ``env:NAME``, ``file:/PATH``, ``spark_file:NAME`` or ``provider:MODULE:FUNCTION``.

        InvalidCredentials, which does not repeat the text: it could be the secret itself.
        """
        kind, _, where = text.partition(":")
        if kind not in _RULES:
            raise InvalidCredentials("reference", "must begin with env:, file:, spark_file: or provider:")
        return cls(kind=kind, where=where)

    @property
    def is_file(self) -> bool:
        """Whether it names a file."""
        return self.kind in ("file", "spark_file")

    def source(self) -> Text | Awaitable[Text]:
        """The secret, the path of the file that holds it, or what awaits either. InvalidCredentials when there is none.

        This is what the options of a client call: see ``natsproto._options.Secret``.
        """
        if self.is_file:
            return self.path()
        if self.kind == "env":
            value = os.environ.get(self.where, "")
            if not value:
                raise InvalidCredentials(str(self), "is not set in the environment of this process")
            return value
        module, _, name = self.where.partition(":")
        try:
            function = getattr(import_module(module), name)
        except (ImportError, AttributeError) as exc:
            raise InvalidCredentials(str(self), f"cannot be imported here: {type(exc).__name__}") from exc
        return cast("Callable[[], Text | Awaitable[Text]]", function)()

    def path(self) -> Path:
        """Where the file is on this machine. ConfigError when it names none."""
        if self.kind == "file":
            return Path(self.where)
        if self.kind == "spark_file":
            from pyspark import SparkFiles

            return Path(SparkFiles.get(self.where))
        raise ConfigError("reference", str(self), "does not name a file")

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}"

    def __repr__(self) -> str:
        return f"SecretRef.{self.kind}({self.where!r})"

    def _check(self) -> None:
        if self.kind not in _RULES:
            raise ConfigError("reference", self.kind, "must be of the kind env, file, spark_file or provider")
        if problem := _RULES[self.kind](self.where):
            # Not repeated: whoever mixes the two up gives the secret here.
            raise ConfigError(f"{self.kind} reference", HIDDEN, problem)


_RULES: dict[str, Callable[[str], str]] = {
    "env": lambda where: "" if _VARIABLE.fullmatch(where) else "must be the name of an environment variable",
    "file": lambda where: "" if os.path.isabs(where) else "must be an absolute path",
    "spark_file": lambda where: "" if where and "/" not in where else "must be the name of a file, without its path",
    "provider": lambda where: "" if _PROVIDER.fullmatch(where) else 'must be "module:function"',
}


class SparkNats(Value):
    """How the tasks of a job connect. Frozen, hashable, and pickled into every task; its ``repr`` shows no secret.

    ``servers``: one URL, a comma list or a sequence, as they are reached from the executors. ``user`` is a name or a
    SecretRef; ``password``, ``token``, ``jwt``, ``nkey_seed`` and ``creds`` are SecretRefs. A secret that is written
    out, user information in a URL included, is refused with InvalidCredentials unless ``allow_literal_secrets``: it
    would travel in every task and lie where those are kept.

    ``tls`` demands TLS, and so do ``tls_ca``, ``tls_cert`` and ``tls_key``: absolute paths on the executors, or
    SecretRefs that name files. ``tls_first`` and ``tls_hostname``, ``connect_timeout``, ``request_timeout`` and
    ``ping_interval`` (seconds), ``inbox_prefix``, ``jetstream_domain``, ``jetstream_api_prefix`` and ``name`` are those
    of ``natsproto.Options``. ConfigError for what breaks their rules, when it is made: on the driver.
    """

    servers: str | Sequence[str] = DEFAULT_SERVER
    name: str = "natsproto.spark"
    user: str | SecretRef | None = None
    password: str | SecretRef | None = None
    token: str | SecretRef | None = None
    jwt: str | SecretRef | None = None
    nkey_seed: str | SecretRef | None = None
    creds: str | SecretRef | None = None
    tls: bool = False
    tls_first: bool = False
    tls_hostname: str | None = None
    tls_ca: str | SecretRef | None = None
    tls_cert: str | SecretRef | None = None
    tls_key: str | SecretRef | None = None
    connect_timeout: float = 5.0
    request_timeout: float = 5.0
    ping_interval: float = 120.0
    inbox_prefix: str = "_INBOX"
    jetstream_domain: str | None = None
    jetstream_api_prefix: str | None = None
    allow_literal_secrets: bool = False

    SECRETS: ClassVar[tuple[str, ...]] = ("password", "token", "jwt", "nkey_seed", "creds")
    """The fields that hold secrets."""

    def _check(self) -> None:
        if not isinstance(self.servers, str):
            self.__dict__["servers"] = tuple(self.servers)  # a list could not be hashed
        if not self.allow_literal_secrets:
            for name in self.SECRETS:
                self._refuse_literal(name)
        for name in ("tls_ca", "tls_cert", "tls_key"):
            self._check_file(name)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert", self.tls_cert, "must be given together with tls_key")
        self.options()

    def _refuse_literal(self, name: str) -> None:
        if isinstance(getattr(self, name), str):
            raise InvalidCredentials(
                name,
                "is written out and would travel in every task: give a SecretRef (env, file, spark_file or provider), "
                "or allow_literal_secrets",
            )

    def _check_file(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, SecretRef):
            fits = value.is_file
        else:
            fits = value is None or (isinstance(value, str) and os.path.isabs(value))
        if not fits:
            raise ConfigError(name, HIDDEN, "must be an absolute path or a SecretRef that names a file")

    def options(self) -> Options:
        """The options of a client. Secrets are looked up when it connects, by that process."""
        if not self.allow_literal_secrets:
            for address in parse_servers(self.servers):
                if (address.user, address.password, address.token) != (None, None, None):
                    raise InvalidCredentials(
                        "servers", "hold user information: give user and password or token as SecretRef"
                    )
        given = {name: getattr(self, name) for name in _AS_THEY_ARE}
        for name in ("user", *self.SECRETS):
            value = getattr(self, name)
            given[name] = value.source if isinstance(value, SecretRef) else value
        if self.tls_ca is not None or self.tls_cert is not None:
            given["tls"] = self._tls_context
        elif self.tls:
            given["tls"] = True
        return Options(self.servers, **cast("OptionArgs", given))

    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=_path(self.tls_ca))
        if (cert := _path(self.tls_cert)) is not None:
            context.load_cert_chain(cert, _path(self.tls_key))
        return context

    def __repr__(self) -> str:
        shown = [f"servers={', '.join(map(str, parse_servers(self.servers)))!r}"]
        for name in self._fields:
            value = getattr(self, name)
            if name != "servers" and value != getattr(SparkNats, name):
                secret = name in self.SECRETS and isinstance(value, str)
                shown.append(f"{name}={HIDDEN if secret else repr(value)}")
        return f"SparkNats({', '.join(shown)})"


_AS_THEY_ARE = (
    "name",
    "tls_first",
    "tls_hostname",
    "connect_timeout",
    "request_timeout",
    "ping_interval",
    "inbox_prefix",
    "jetstream_domain",
    "jetstream_api_prefix",
)


def _path(file: str | SecretRef | None) -> str | None:
    return str(file.path()) if isinstance(file, SecretRef) else file
