"""The base of all errors, and the errors of arguments and options.

Constructors take facts, which become fields, and format the message from them.
"""

from __future__ import annotations


class NatsError(Exception):
    """Base of all errors that natsproto raises on purpose. Pickling keeps the fields."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (type(self), self.args, self.__dict__)


class ConfigError(NatsError, ValueError):
    """An argument or option is invalid; nothing was sent.

    ``name`` is its name, ``value`` is the value given, ``rule`` the rule it breaks.
    """

    name: str
    value: object
    rule: str

    def __init__(self, name: str, value: object, rule: str) -> None:
        self.name, self.value, self.rule = name, value, rule
        super().__init__(f"{name} {shown(value)}: {rule}")


class InvalidSubject(ConfigError):
    """A subject, reply subject, queue group or other name breaks its rule (ADR-6); nothing was sent."""


class InvalidHeader(ConfigError):
    """A header name or value is invalid (ADR-4); nothing was sent."""


class InvalidCredentials(ConfigError):
    """Credentials cannot be read or used. The value is never part of the message."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(name, HIDDEN, rule)
        if " file " in name:  # the name of a file is no secret
            self.args: tuple[str, ...] = (f"{name}: {rule}",)


class RequestTimeout(NatsError, TimeoutError):
    """No response came within ``timeout`` seconds; the request may or may not have been handled."""

    operation: str
    timeout: float

    def __init__(self, operation: str, timeout: float) -> None:
        self.operation, self.timeout = operation, timeout
        super().__init__(f"{operation}: no answer within {timeout:g} s")


def _unpickle(kind: type[NatsError], args: tuple[object, ...], fields: dict[str, object]) -> NatsError:
    """Rebuild a pickled error without calling its constructor, which takes facts instead of ``args``."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


HIDDEN = "(hidden)"
"""Replaces the value in a ConfigError when the value may be a secret."""


def shown(value: object) -> str:
    """The repr of a value, cut to 80 characters."""
    if value is HIDDEN:
        return HIDDEN
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
