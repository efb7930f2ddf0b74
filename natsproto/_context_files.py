"""Context files and file settings of the ``nats`` command line tool (ADR-21), as keyword arguments for Options."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import cast

from natsproto._option_rules import MAX_NAME
from natsproto._value import Value
from natsproto.errors import ConfigError
from natsproto.errors._base import HIDDEN

MAX_FILE = 1 << 20
"""Bytes that are read of a file."""

_REFERENCE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_GO_DURATION = re.compile(r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+|0")
_GO_PART = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def type_name(value: object) -> str:
    """Return the name of a type, for errors."""
    return type(value).__name__


class TlsFiles(Value):
    """A ``tls`` callable for certificate files, which it reads at every attempt."""

    cert: str
    key: str
    ca: str

    def _check(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("TLS certificate", self.cert or self.key, "cert and key must be given together")

    def __call__(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key)
        return context


def expanded(path: str, environ: Mapping[str, str]) -> str:
    """Return the path with ``~``, ``$HOME`` and ``${HOME}`` replaced, as the command line tool does."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if path == "~" or path.startswith(("~/", "~\\")):
        path = home + path[1:]
    return path.replace("${HOME}", home).replace("$HOME", home)


def file_path(path: str, environ: Mapping[str, str]) -> os.PathLike[str]:
    """Return the expanded path."""
    from pathlib import Path

    return Path(expanded(path, environ))


def go_duration(name: str, text: str) -> float:
    """Return the seconds of a duration as Go writes it."""
    if not _GO_DURATION.fullmatch(text):
        raise ConfigError(name, text, "must be a duration like 5s, 500ms or 1m30s")
    return sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text))


def read_context(name: str | None, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the keyword arguments for ``Options`` from a context."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a context must be a str, not {type_name(name)}")
    folder = os.path.join(environ.get("XDG_CONFIG_HOME") or expanded("~/.config", environ), "nats")
    if name is None:
        name = _selected(os.path.join(folder, "context.txt"))
    if os.path.isabs(name):
        path = name
    elif not name or ".." in name or "/" in name or os.sep in name or "\0" in name:
        raise ConfigError("context", name, "is not the name of a context")
    else:
        path = os.path.join(folder, "context", f"{name}.json")
    settings = _settings(name, path)
    for field_name, why in _UNSUPPORTED.items():
        if settings.get(field_name):
            raise ConfigError(f"context {name} field {field_name}", HIDDEN, why)
    if not isinstance(settings.get("tls_first", False), bool):
        raise ConfigError(f"context {name} field tls_first", HIDDEN, "must be true or false")
    texts = {key: _setting(name, settings, key) for key in _TEXT_FIELDS}
    found: dict[str, object] = {option: texts[key] for key, option in _TEXT_FIELDS.items() if option and texts[key]}
    found |= _context_auth(name, texts, environ)
    files = [expanded(texts[key], environ) for key in ("cert", "key", "ca")]
    if any(files):
        found["tls"] = TlsFiles(cert=files[0], key=files[1], ca=files[2])
    if settings.get("tls_first"):
        found["tls_first"] = True
    return found


_TEXT_FIELDS = {
    "url": "servers", "inbox_prefix": "inbox_prefix", "jetstream_domain": "jetstream_domain",
    "jetstream_api_prefix": "jetstream_api_prefix", "socks_proxy": "proxy",
    "user": "", "password": "", "token": "", "creds": "", "nkey": "", "user_jwt": "", "cert": "", "key": "", "ca": "",
}  # fmt: skip
"""The fields of a context, and the option for each that needs no conversion."""

_UNSUPPORTED = {
    "nsc": "profiles of nsc are not supported: export a creds file and name it in the field creds",
    **dict.fromkeys(
        ("windows_cert_store", "windows_cert_match", "windows_cert_match_by", "windows_ca_certs_match"),
        "the Windows certificate store is not supported: use cert, key and ca",
    ),
}


def _selected(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            name = file.read(MAX_NAME).strip()
    except (OSError, ValueError):
        name = ""
    if not name:
        raise ConfigError("context", None, f"no context given, and none selected in {path}")
    return name


def _settings(name: str, path: str) -> Mapping[str, object]:
    import json

    try:
        with open(path, "rb") as file:
            settings = json.loads(file.read(MAX_FILE))
        reason = "" if isinstance(settings, dict) else "is not a JSON object"
    except OSError as exc:
        reason = f"cannot be read: {exc.strerror or type_name(exc)}"
    except (ValueError, RecursionError):
        reason = "is not JSON"  # the error of the JSON module holds the text, secrets included
    if reason:
        raise ConfigError("context", name, f"{path} {reason}")
    return cast("Mapping[str, object]", settings)


def _setting(name: str, settings: Mapping[str, object], key: str) -> str:
    value = settings.get(key) or ""
    if not isinstance(value, str):
        raise ConfigError(f"context {name} field {key}", HIDDEN, f"must be a string, not {type_name(value)}")
    return value


def _context_auth(name: str, texts: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, object]:
    for key in ("creds", "nkey"):
        reference = texts[key]
        if _REFERENCE.match(reference) and not os.path.isabs(reference):
            raise ConfigError(f"context {name} field {key}", HIDDEN, "must be a path; references are not supported")
    if texts["user"]:
        return {"user": texts["user"], "password": texts["password"]}
    if texts["creds"]:
        return {"creds": file_path(texts["creds"], environ)}
    found: dict[str, object] = {}
    if texts["user_jwt"]:
        found["jwt"] = texts["user_jwt"]
    if texts["nkey"]:
        found["nkey_seed"] = file_path(texts["nkey"], environ)
    return found or ({"token": texts["token"]} if texts["token"] else {})
