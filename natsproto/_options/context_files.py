"""Contexts, files and variables of the ``nats`` command line tool (ADR-21), as keyword arguments for Options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import cast

from natsproto import errors
from natsproto._options.rules import AUTH_OPTIONS, CREDS_BLOCK, MAX_FILE, MAX_NAME_LENGTH, TlsFiles, type_name
from natsproto.errors._base import HIDDEN

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SHORT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_GO_DURATION = re.compile(r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+|0")
_GO_PART = re.compile(r"([0-9.]+)(ns|us|µs|μs|ms|s|m|h)")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def expanded(path: str, environ: Mapping[str, str]) -> str:
    """Return the path with ``$NAME``, ``${NAME}`` and a leading ``~`` replaced, as the command line tool does."""
    home = environ.get("HOME") or os.path.expanduser("~")
    variables = {**environ, "HOME": home}
    path = _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), path)
    if path == "~" or path.startswith(("~/", "~\\")):
        path = home + path[1:]
    return path


def read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options of the ``NATS_`` variables, and of the context that one of them names."""
    env = {name: value for name, value in environ.items() if name.startswith("NATS_") and value}
    found = read_context(env["NATS_CONTEXT"], environ) if "NATS_CONTEXT" in env else {}
    if env.keys() & {"NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "NATS_CREDS", "NATS_NKEY"}:
        for name in AUTH_OPTIONS:
            found.pop(name, None)
    for variable, name in (("NATS_USER", "user"), ("NATS_PASSWORD", "password"), ("NATS_TOKEN", "token")):
        if variable in env:
            found[name] = env[variable] if name == "user" else read_secret(variable, env[variable], environ)
    if "NATS_USER" in env and not env.keys() & {"NATS_PASSWORD", "NATS_TOKEN"}:
        found["token"] = read_secret("NATS_USER", env["NATS_USER"], environ)
        del found["user"]
    if "NATS_CREDS" in env:
        found["creds"] = read_creds("NATS_CREDS", env["NATS_CREDS"], environ)
    if "NATS_NKEY" in env:
        found["nkey_seed"] = read_secret("NATS_NKEY", env["NATS_NKEY"], environ, is_path=True)
    for variable, name in (("NATS_URL", "servers"), ("NATS_SOCKS_PROXY", "proxy")):
        if variable in env:
            found[name] = env[variable]
    files = [expanded(env.get(name, ""), environ) for name in ("NATS_CERT", "NATS_KEY", "NATS_CA")]
    if any(files):
        found["tls"] = TlsFiles(cert=files[0], key=files[1], ca=files[2])
    if "NATS_TIMEOUT" in env:
        found["connect_timeout"] = found["request_timeout"] = go_duration("NATS_TIMEOUT", env["NATS_TIMEOUT"])
    return found


def file_path(path: str, environ: Mapping[str, str]) -> os.PathLike[str]:
    """Return the expanded path."""
    from pathlib import Path

    return Path(expanded(path, environ))


def read_secret(name: str, text: str, environ: Mapping[str, str], *, is_path: bool = False) -> str | os.PathLike[str]:
    """Return the secret of a field, or the path of its file, which is read at every attempt.

    ``file://PATH``, ``env://NAME`` and ``data:;base64,TEXT`` are resolved; ConfigError for references of other kinds.
    ``is_path``: any other text is a path, not the secret itself.
    """
    match = _SCHEME.match(text)
    scheme, slashes = (match[1].lower(), match[2]) if match else ("", None)
    rest = text[match.end() :] if match else text
    if scheme == "file" and slashes and rest:
        return file_path(rest, environ)
    if scheme == "env" and slashes and rest:
        return _of_variable(name, rest, environ)
    if scheme == "data":
        return _of_data(name, text[len("data:") :])
    if scheme in ("file", "env"):
        raise errors.ConfigError(name, HIDDEN, "references must be file://PATH, env://NAME or data:;base64,TEXT")
    if scheme in _FOREIGN_SCHEMES or slashes or (scheme and is_path and not os.path.isabs(text)):
        raise errors.ConfigError(name, HIDDEN, f"{scheme}: references are not supported: use file://, env:// or data:")
    return file_path(text, environ) if is_path else text


_FOREIGN_SCHEMES = ("op", "nsc")
"""References that the command line tool resolves with other programs."""


def _of_variable(name: str, variable: str, environ: Mapping[str, str]) -> str:
    value = environ.get(variable)
    if not value:
        shown = variable if _SHORT_NAME.fullmatch(variable) else HIDDEN
        raise errors.ConfigError(
            name, HIDDEN, f"the environment variable {shown} is {'not set' if value is None else 'empty'}"
        )
    return value.rstrip("\r\n")


def _of_data(name: str, reference: str) -> str:
    import base64

    kind, comma, payload = reference.partition(",")
    reason = "" if comma and "base64" in (part.strip() for part in kind.split(";")) else "must be data:;base64,TEXT"
    text = ""
    if not reason:
        try:
            text = base64.b64decode(payload, validate=True).decode().rstrip("\r\n")
            reason = "" if text else "its data is empty"
        except ValueError:  # its text could be the secret
            reason = "its data is not UTF-8 text in base64"
    if reason:
        raise errors.ConfigError(name, HIDDEN, reason)
    return text


def read_creds(name: str, text: str, environ: Mapping[str, str]) -> str | os.PathLike[str]:
    """Return the text or the path of a creds file, which may be given by reference."""
    found = read_secret(name, text, environ, is_path=True)
    if isinstance(found, str) and not CREDS_BLOCK.search(found):
        raise errors.ConfigError(name, HIDDEN, "it refers to something else than the text of a creds file")
    return found


def go_duration(name: str, text: str) -> float:
    """Return the seconds of a duration as Go writes it."""
    if not _GO_DURATION.fullmatch(text):
        raise errors.ConfigError(name, text, "must be a duration like 5s, 500ms or 1m30s")
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
        raise errors.ConfigError("context", name, "is not the name of a context")
    else:
        path = os.path.join(folder, "context", f"{name}.json")
    settings = _settings(name, path)
    for field_name, why in _UNSUPPORTED.items():
        if settings.get(field_name):
            raise errors.ConfigError(f"context {name} field {field_name}", HIDDEN, why)
    if not isinstance(settings.get("tls_first", False), bool):
        raise errors.ConfigError(f"context {name} field tls_first", HIDDEN, "must be true or false")
    texts = {key: _setting(name, settings, key) for key in _TEXT_FIELDS}
    found: dict[str, object] = {option: texts[key] for key, option in _TEXT_FIELDS.items() if option and texts[key]}
    found |= _context_auth(name, texts, environ)
    files = [_certificate_path(f"context {name} field {key}", texts[key], environ) for key in ("cert", "key", "ca")]
    if any(files):
        found["tls"] = TlsFiles(cert=files[0], key=files[1], ca=files[2])
    if settings.get("tls_first"):
        found["tls_first"] = True
    return found


_TEXT_FIELDS = {
    "url": "servers", "inbox_prefix": "inbox_prefix", "jetstream_domain": "jetstream_domain",
    "jetstream_api_prefix": "jetstream_api_prefix", "socks_proxy": "proxy",
    "user": "", "password": "", "token": "", "creds": "", "nkey": "", "user_jwt": "", "user_seed": "",
    "cert": "", "key": "", "ca": "",
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
            name = file.read(MAX_NAME_LENGTH).strip()
    except (OSError, ValueError):
        name = ""
    if not name:
        raise errors.ConfigError("context", None, f"no context given, and none selected in {path}")
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
        raise errors.ConfigError("context", name, f"{path} {reason}")
    return cast("Mapping[str, object]", settings)


def _setting(name: str, settings: Mapping[str, object], key: str) -> str:
    value = settings.get(key) or ""
    if not isinstance(value, str):
        raise errors.ConfigError(f"context {name} field {key}", HIDDEN, f"must be a string, not {type_name(value)}")
    return value


def _certificate_path(name: str, text: str, environ: Mapping[str, str]) -> str:
    match = _SCHEME.match(text)
    if match is None or os.path.isabs(text):
        return expanded(text, environ)
    if match[1].lower() != "file" or not match[2]:
        raise errors.ConfigError(
            name, HIDDEN, f"{match[1].lower()}: references are not supported: give a path or file://PATH"
        )
    return expanded(text[match.end() :], environ)


def _context_auth(name: str, texts: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, object]:
    def secret(key: str, *, is_path: bool = False) -> object:
        return read_secret(f"context {name} field {key}", texts[key], environ, is_path=is_path)

    if texts["user"]:
        return {"user": texts["user"], "password": secret("password")}
    if texts["creds"]:
        return {"creds": read_creds(f"context {name} field creds", texts["creds"], environ)}
    if texts["user_seed"] and not texts["user_jwt"]:
        raise errors.ConfigError(f"context {name} field user_seed", HIDDEN, "needs user_jwt")
    found: dict[str, object] = {}
    if texts["user_jwt"]:
        found["jwt"] = secret("user_jwt")
    if texts["user_seed"]:
        found["nkey_seed"] = secret("user_seed")
    elif texts["nkey"]:
        found["nkey_seed"] = secret("nkey", is_path=True)
    return found or ({"token": secret("token")} if texts["token"] else {})
