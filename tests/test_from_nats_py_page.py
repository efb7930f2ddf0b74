"""The pages for those who come from nats-py are true on both sides.

What stands on the right is run, as lines of an example; calls on the left exist in the nats-py that is installed, with
these arguments; options, defaults and errors are those of both.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import nats.errors
import nats.js.api
import nats.js.errors
import nats.micro
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore
from nats.micro.request import Request
from nats.micro.service import Group, Service

import natsproto
from natsproto import errors, jetstream, service
from natsproto._options.options import OptionArgs
from natsproto.jetstream import JetStream, kv, objectstore

DOCS = Path(__file__).parent.parent / "docs"
PAGE = "\n".join((DOCS / name).read_text() for name in ("from-nats-py.md", "nats-py-names.md"))
EXAMPLE = (DOCS / "examples/coming_from_nats_py.py").read_text()
THEIRS: dict[str, object] = {
    "nats": nats,
    "nc": Client,
    "js": JetStreamContext,
    "sub": Subscription,
    "msg": Msg,
    "psub": JetStreamContext.PullSubscription,
    "kv": KeyValue,
    "watcher": KeyValue.KeyWatcher,
    "store": ObjectStore,
    "service": Service,
    "group": Group,
    "request": Request,
}


OURS: dict[str, object] = {
    "natsproto": natsproto,
    "nc": natsproto.Client,
    "js": JetStream,
    "stream": jetstream.Stream,
    "consumer": jetstream.PullConsumer,
    "push": jetstream.PushConsumer,
    "sub": natsproto.Subscription,
    "msg": natsproto.Message,
    "jsmsg": jetstream.JsMessage,
    "kv": kv.KeyValue,
    "watcher": kv.KeyWatcher,
    "store": objectstore.ObjectStore,
    "service": service.Service,
    "group": service.Group,
    "request": service.Request,
}


def public_names(*kinds: type[object], of: str = "") -> set[str]:
    """The public names of their classes, and those that they are given when they are made."""
    inside = {name for kind in kinds for name in {*dir(kind), *inspect.get_annotations(kind)}}
    return {of + name for name in inside if not name.startswith("_")}


def classes(module: ModuleType) -> set[str]:
    """The public classes of a module that are nats-py's own."""
    found = {name: value for name, value in vars(module).items() if inspect.isclass(value) and name[0] != "_"}
    return {name for name, value in found.items() if value.__module__.startswith("nats.")}


METADATA = {"Metadata", "Metadata.SequencePair", "Metadata.domain"}
STATUS = {"BucketStatus", *public_names(KeyValue.BucketStatus, of="BucketStatus.")}
SECTIONS: dict[str, set[str]] = {
    "nats, NATS, Client": {"connect", "nats.connect", "NATS", "Client", *public_names(Client)},
    "Subscription": public_names(Subscription),
    "Msg": public_names(Msg) - {"Metadata"} | METADATA,
    "JetStreamContext": public_names(JetStreamContext),
    "PullSubscription and PushSubscription": public_names(
        JetStreamContext.PullSubscription, JetStreamContext.PushSubscription
    ),
    "KeyValue": public_names(KeyValue) | STATUS | public_names(KeyValue.KeyWatcher, of="KeyWatcher."),
    "ObjectStore": public_names(ObjectStore)
    | {"ObjectResult.data"}
    | public_names(ObjectStore.ObjectWatcher, of="ObjectWatcher."),
    "nats.micro": {"add_service", "ServiceConfig", "Service", "Group", "Request"}
    | public_names(Service, of="Service.")
    | public_names(Group, of="Group.")
    | public_names(Request, of="Request."),
    "nats.js.api": classes(nats.js.api),
}
"""The public names of nats-py, by the title of their table."""


def table_rows(title: str) -> list[list[str]]:
    """The cells of the table of a section, without its head."""
    section = re.split(r"\n##+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[1:]]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


CODE = [
    row
    for title in ("Messaging", "Streams", "Consumers", "Key/value and objects", "Services")
    for row in table_rows(title)
]


def test_there_is_a_row_for_everyday_things() -> None:
    assert len(CODE) >= 80


@pytest.mark.parametrize("code", [code for _, right in CODE for code in spans(right)])
def test_right_column_is_run_by_the_example(code: str) -> None:
    assert code in EXAMPLE


@pytest.mark.parametrize("code", [code for left, _ in CODE for code in spans(left)])
def test_left_column_calls_nats_py(code: str) -> None:
    for node in ast.walk(compile(code, "left", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
        if not isinstance(node, ast.Call):
            continue
        first, *path = ast.unparse(node.func).split(".")
        if (found := THEIRS.get(first)) is None:
            continue  # list() and the like
        for name in path:
            found = getattr(found, name)
        assert callable(found)
        known = inspect.signature(found).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            assert {word.arg for word in node.keywords} <= set(known)


def test_nats_py_options_with_both_defaults() -> None:
    theirs = inspect.signature(Client.connect).parameters
    ours = natsproto.Options()
    table = table_rows("Options of connect")
    assert {name for row in table for name in spans(row[0])} == set(theirs) - {"self"}
    for left, default, right, standard in table:
        for name in spans(left):
            assert theirs[name].default == worth(default), name
        if right.startswith("none: "):
            continue
        first, *others = spans(right)
        assert getattr(ours, first) == worth(standard), first
        assert {*others, first} <= {"servers", "Path", *inspect.get_annotations(OptionArgs)}


def worth(cell: str) -> object:
    """The default that a cell shows."""
    return ast.literal_eval(cell.strip("`"))


@pytest.mark.parametrize("title", SECTIONS)
def test_every_public_name_of_nats_py_is_in_its_table(title: str) -> None:
    assert {name for left, _ in table_rows(title) for name in spans(left)} == SECTIONS[title]


@pytest.mark.parametrize("title", SECTIONS)
def test_what_the_tables_of_names_point_to_exists(title: str) -> None:
    for left, right in table_rows(title):
        same = re.match(r"the same names of `([\w.]+)`", right)
        cells = [f"{same[1]}.{name.rpartition('.')[2]}" for name in spans(left)] if same else spans(right)
        for code in cells:
            first, *path = code.split(".")
            found = OURS.get(first)
            if found is None or (same and path[-1] in ("Service", "Request")):
                continue  # an argument, a field, a keyword; a class among its own methods
            *path, last = path or [""]
            for name in path:
                found = getattr(found, name)
            if last and not hasattr(found, last):  # given to each object when it is made
                assert inspect.isclass(found)
                assert f"self.{last} = " in inspect.getsource(found)


def test_errors_are_those_of_both() -> None:
    modules = {"nats.errors": nats.errors, "nats.js.errors": nats.js.errors}
    table = table_rows("Errors")
    here = {f"{module}.{name}" for module, content in modules.items() for name in classes(content)}
    assert {name for left, _ in table for name in spans(left)} == here
    for left, _ in table:
        [name] = spans(left)
        module, _, kind = name.rpartition(".")
        assert issubclass(getattr(modules[module], kind), Exception)
    named = {name for _, right in table for name in spans(right) if name[0].isupper()} - {
        "TimeoutError",
        "ConsumerNotice",
        "HandlerFailed",
    }
    assert named <= set(errors.__all__)


async def test_first_argument_is_a_name_or_a_config(nats_client: natsproto.Client) -> None:
    js = nats_client.jetstream()
    stream = await js.create_stream(name="S", subjects=["s"])
    calls: tuple[tuple[str, str, Callable[..., Awaitable[object]]], ...] = (
        ("name", "StreamConfig", js.create_stream),
        ("durable_name", "ConsumerConfig", stream.create_consumer),
        ("bucket", "KeyValueConfig", js.create_key_value),
        ("bucket", "ObjectStoreConfig", js.create_object_store),
        ("bucket", "ObjectStoreConfig", js.create_or_update_object_store),
    )
    for key, kind, call in calls:
        with pytest.raises(TypeError, match=f"the first argument must be the {key} or a {kind}, not int"):
            await call(5)
        await call("files")
