"""What a notebook shows of values: small tables, in which nothing that others wrote is markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import natsproto
from natsproto import Client, Headers, Options
from natsproto.jetstream import JetStream, StreamConfig

EVIL = "<script>alert('x')</script><b>"


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags = set[str]()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def table_text(value: object) -> str:
    """The text of the table of a value."""
    parsed = Tags(value._repr_html_())  # type: ignore[attr-defined]
    assert parsed.tags == {"table", "caption", "tr", "th", "td"}
    return parsed.text


async def test_values_are_escaped_tables(nats_client: Client, jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"], description=EVIL, metadata={EVIL: EVIL})
    await stream.create_consumer("c", description=EVIL)
    assert EVIL in table_text(await stream.info())
    assert EVIL in table_text(await stream.consumer_info("c"))
    assert "in_msgs" in table_text(nats_client.stats)
    assert EVIL in table_text(Headers({"a": EVIL}))
    kv = await jetstream.create_key_value("b", description=EVIL)
    await kv.put("k", EVIL.encode())
    assert EVIL in table_text(await kv.get("k"))
    assert EVIL in table_text(await kv.status())
    await kv.put("k", b"x" * 100_000)
    assert len(table_text(await kv.get("k"))) < 1000
    async with nats_client.add_service("s", "1.0.0", description=EVIL):
        async for info in nats_client.discover_services("s"):
            assert EVIL in table_text(info)
        async for stats in nats_client.service_stats("s"):
            assert "endpoints" in table_text(stats)


def test_tables_show_no_secret() -> None:
    options = Options("nats://u:secret-of-url@a", password="secret-of-option", user="u")
    assert "secret" not in str(options._repr_html_())


@pytest.mark.parametrize("name", ["description", "max_age", "max_msgs", "storage", "subjects", "placement", "metadata"])
def test_none_is_a_field_that_is_left_out(name: str) -> None:
    config = StreamConfig(name="S", **{name: None})  # type: ignore[arg-type]
    assert config == StreamConfig(name="S")
    with pytest.raises((TypeError, natsproto.errors.ConfigError)):
        config.replace(name=None)  # type: ignore[arg-type]


async def test_none_changes_no_limit(jetstream: JetStream) -> None:
    """In a change None would be ambiguous: the present value, or the default."""
    await jetstream.create_stream("S", subjects=["s"], max_msgs=7, max_age=None, description=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await jetstream.update_stream("S", max_msgs=None)  # type: ignore[arg-type]
    assert (await (await jetstream.stream("S")).info()).config.max_msgs == 7
