"""The door of hints: names and keywords that a class does not have, and the errors that say what is meant.

The public packages call ``attach`` once; ``GUESSES`` has the hints of each class. The classes themselves know nothing
of them, and neither do type checkers. Nothing is looked at before Python has found that a name or a keyword is missing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import CO_VARKEYWORDS, Parameter, iscoroutinefunction
from types import MappingProxyType
from typing import NamedTuple, NoReturn, ParamSpec, TypeVar, cast

from natsproto._help import nats_py_names as words

P = ParamSpec("P")
T = TypeVar("T")

NOTHING: Mapping[str, str] = MappingProxyType({})


class Guesses(NamedTuple):
    """The hints of one class."""

    names: Mapping[str, str] = NOTHING
    """Attributes that it lacks, and what to use."""
    per_message: bool = False
    """Each name gets a descriptor: ``__getattr__`` would make the attributes slower that are read for every message."""
    keywords: Mapping[str, Mapping[str, str] | str] = MappingProxyType({})
    """Methods, with the keywords that they lack, or what to name when values are given without names."""
    misuses: Mapping[str, str] = NOTHING
    """Special methods that it lacks, and what to do."""


def blocking(old: Mapping[str, str]) -> Mapping[str, str]:
    """The hints for the blocking client: without ``async``, ``await`` and callbacks."""
    hints = dict(old)
    for left_out, replacement in (("async ", ""), ("await natsproto.", "sync."), ("await ", ""), ("consume, ", "")):
        hints = {name: text.replace(left_out, replacement) for name, text in hints.items()}
    return hints


_NO_DICT = {
    "__getitem__": "a bucket cannot be indexed: use kv.get(key)",
    "__setitem__": "a bucket cannot be indexed: use kv.put(key, value)",
    "__delitem__": "a bucket cannot be indexed: use kv.delete(key)",
    "__contains__": "a bucket cannot be searched with in: use kv.get(key), which raises KeyNotFound",
    "__iter__": "a bucket is not iterable: use kv.keys()",
}
"""Every access of a bucket is a request."""

_READ_CONSUMER = (
    "a consumer is not iterable: use async with consumer.messages() as messages, and then async for message in messages"
)
_NO_TYPED = {"typed": "the blocking client has no typed values: encode and decode with natsproto.codecs"}
_NO_CALLBACKS = {"consume": "only pull consumers have it here: iterate messages(), in a thread if need be"}
_NAME_SUBJECTS = "name the fields: subjects=['orders.>']"
_NAME_FILTER = "name the fields: filter_subject='orders.eu'"
_NAME_BUCKET_FIELDS = "name the fields: ttl=60"

GUESSES: Mapping[str, Mapping[str, Guesses]] = {
    "natsproto": {
        "Client": Guesses(words.CLIENT),
        "Connection": Guesses(
            keywords={
                "__init__": "use nc = await natsproto.connect(url), or async with natsproto.connect(url) as nc",
                "request": words.REQUEST,
                "request_many": words.REQUEST_MANY,
                "subscribe": words.SUBSCRIBE,
            }
        ),
        "Message": Guesses(words.MESSAGE, per_message=True),
        "Subscription": Guesses(words.SUBSCRIPTION),
    },
    "natsproto.retry": {
        "Retry": Guesses(keywords={"__init__": "Retry(js, policy) publishes dead letters with js = nc.jetstream()"})
    },
    "natsproto.jetstream": {
        "JetStream": Guesses(
            words.JETSTREAM,
            keywords={
                **dict.fromkeys(("create_stream", "create_or_update_stream"), _NAME_SUBJECTS),
                **dict.fromkeys(("create_key_value", "create_or_update_key_value"), _NAME_BUCKET_FIELDS),
                **dict.fromkeys(("create_object_store", "create_or_update_object_store"), _NAME_BUCKET_FIELDS),
            },
            misuses={"__await__": "jetstream() sends nothing and cannot be awaited: use js = nc.jetstream()"},
        ),
        "JsMessage": Guesses(words.JS_MESSAGE, per_message=True),
        "OrderedConsumer": Guesses(
            keywords={"consume": words.CONSUME, "fetch": words.FETCH, "messages": words.MESSAGES},
            misuses={"__aiter__": _READ_CONSUMER},
        ),
        "PushConsumer": Guesses(keywords={"consume": words.CONSUME}),
        "Consumer": Guesses(words.CONSUMER, misuses={"__aiter__": _READ_CONSUMER}),
        "PullConsumer": Guesses(
            keywords={
                "consume": words.CONSUME,
                "consume_batches": words.CONSUME_BATCHES,
                **dict.fromkeys(("fetch", "fetch_available"), words.FETCH),
                "messages": words.MESSAGES,
                "next": words.FETCH,
            }
        ),
        "Stream": Guesses(
            words.STREAM,
            keywords={
                **dict.fromkeys(("create_consumer", "create_or_update_consumer", "create_push_consumer"), _NAME_FILTER),
                "get_batch": words.GET_BATCH,
                "purge": words.PURGE,
            },
        ),
        "StreamInfo": Guesses(words.STREAM_INFO),
    },
    "natsproto.jetstream.kv": {
        "KeyValue": Guesses(
            words.KEY_VALUE,
            keywords={
                **dict.fromkeys(("create", "put"), words.KV_PUT),
                **dict.fromkeys(("delete", "get", "history", "purge", "update"), words.KV_READ),
                "lock": words.KV_LOCK,
                "watch": words.KV_WATCH,
            },
            misuses=_NO_DICT,
        ),
        "KeyValueEntry": Guesses(words.ENTRY, per_message=True),
    },
    "natsproto.jetstream.objectstore": {
        "ObjectStore": Guesses(
            words.OBJECT_STORE,
            keywords={
                **dict.fromkeys(("get_bytes", "get_file", "put", "put_file"), words.PUT_OBJECT),
                "get": words.OBJECT_GET,
            },
        ),
    },
    "natsproto.sync": {
        "Client": Guesses({**blocking(words.CLIENT), **_NO_TYPED}),
        "JetStream": Guesses({**blocking(words.JETSTREAM), **_NO_TYPED}),
        "KeyValue": Guesses({**blocking(words.KEY_VALUE), **_NO_TYPED}, misuses=_NO_DICT),
        **dict.fromkeys(("OrderedConsumer", "PushConsumer"), Guesses(_NO_CALLBACKS)),
        "Stream": Guesses(blocking(words.STREAM)),
        "Subscription": Guesses(blocking(words.SUBSCRIPTION)),
    },
}
"""The hints of the classes of each package."""


def attach(package: str) -> None:
    """Give the classes of a package their hints. For the end of its ``__init__``."""
    for name, guesses in GUESSES[package].items():
        kind: type[object] = getattr(sys.modules[package], name)
        if guesses.per_message:
            for missing, advice in guesses.names.items():
                setattr(kind, missing, WrongName(missing, advice))
        elif guesses.names:
            kind.__getattr__ = _explain_missing(guesses.names)  # type: ignore[attr-defined]
        for method, hints in guesses.keywords.items():
            owner = next(one for one in kind.__mro__ if method in vars(one))
            refuse = wrong_keywords(hints) if isinstance(hints, str) else wrong_keywords(**hints)
            setattr(owner, method, refuse(vars(owner)[method]))
        for method, text in guesses.misuses.items():
            setattr(kind, method, _misused(method, text))


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def wrong_keywords(named: str = "", /, **hints: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that the TypeError for a keyword that it lacks has the hint, or the keywords that it has.

    Too many positional arguments raise one that says what to name: ``named``, or the keywords of the function. Nothing
    is looked at before a TypeError was raised.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def refused(name: str, advice: str) -> TypeError:
            return TypeError(f"{function.__name__}() has no argument {name!r}: {advice}")

        def explained(args: tuple[object, ...], kwargs: Mapping[str, object]) -> TypeError | None:
            parameters = inspect.signature(shown).parameters.values()
            kinds = {one.kind for one in parameters}
            positional = [one for one in parameters if one.kind in _POSITIONAL]
            keywords = [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
            names = [*(one.name for one in positional), *keywords]
            for name in kwargs:
                if name in hints or not (Parameter.VAR_KEYWORD in kinds or name in names):
                    advice = hints.get(name) or f"it has {', '.join(one for one in names if one != 'self')}"
                    return refused(name, advice)
            missing = [
                one.name for one in positional[len(args) :] if one.default is one.empty and one.name not in kwargs
            ]
            if missing and named:
                return TypeError(f"{', '.join(missing)} is missing: {named}")
            if len(args) > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
                own = len(positional) - (names[0] == "self")
                advice = named or f"name {', '.join(f'{name}=' for name in keywords)}"
                return TypeError(f"{function.__name__}() takes {own} argument without its name; {advice}")
            return None

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError:
                if (error := explained(args, kwargs)) is None:
                    raise
            raise error

        @wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> object:
            coroutine = cast("Awaitable[object]", call(*args, **kwargs))
            try:
                return await coroutine
            except TypeError:  # perhaps for one of its ``**options``
                if not (known := [name for name in kwargs if name in hints]):
                    raise
            raise refused(known[0], hints[known[0]])

        shown: Callable[P, T] = call  # its signature may be completed later
        if iscoroutinefunction(function):
            # Python 3.11 cannot mark a function that returns a coroutine.
            if sys.version_info >= (3, 12) and not function.__code__.co_flags & CO_VARKEYWORDS:
                shown = inspect.markcoroutinefunction(call)
            else:
                shown = cast("Callable[P, T]", call_async)
        return shown

    return decorate


class WrongName:
    """The descriptor of an attribute that is meant by another name: reading it raises an AttributeError with a hint."""

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice

    def __get__(self, instance: object, owner: type[object]) -> NoReturn:
        text = f"{owner.__name__!r} object has no attribute {self._name!r}: {self._advice}"
        raise AttributeError(text, name=self._name, obj=instance)


def explain_publish(error: BaseException | None) -> None:
    """Say in a TypeError that came from a call of publish what to use instead of an unknown argument.

    For the end of the block of a client, and for handlers: in publish itself, a check would take 4 % of each call.
    """
    if isinstance(error, TypeError):
        _, found, name = str(error).partition(".publish() got an unexpected keyword argument ")
        if advice := words.CORE_PUBLISH.get(name.strip("'")) if found else None:
            note = f"publish() of a client has no argument {name}: {advice}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


def _explain_missing(old: Mapping[str, str]) -> Callable[[object, str], NoReturn]:
    """Make a ``__getattr__`` that raises AttributeError with a hint for old names."""

    def __getattr__(self: object, name: str) -> NoReturn:
        text = f"{type(self).__name__!r} object has no attribute {name!r}{words.hint(name, old)}"
        raise AttributeError(text, name=name, obj=self)

    return __getattr__


def _misused(name: str, text: str) -> Callable[..., NoReturn]:
    """Make a special method, such as ``__aiter__``, that raises a TypeError with this text."""

    def method(self: object, *_: object) -> NoReturn:
        raise TypeError(text)

    method.__name__ = method.__qualname__ = name
    return method
