"""How results are shown: tables, ages and sizes, JSON, and the progress of a transfer.

Every text of a server or of another user passes ``printable`` before it is shown: a terminal obeys control characters.
``rich`` (``pip install 'natsproto[cli]'``) draws tables and bars on a terminal where it is installed.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any, NamedTuple

from natsproto import Headers, errors
from natsproto.jetstream import Progress

MAX_CELL_CHARS = 48
"""Characters of a text in a table."""


class Column(NamedTuple):
    """A column of a table: its key in the rows and in JSON, its title, and how its values are written."""

    key: str
    text: Callable[[Any], str] = str
    right: bool = False

    @property
    def title(self) -> str:
        return self.key.replace("_", " ").upper()


# ---------------------------------------------------------------- texts


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text without characters that a terminal would obey; with ``lines`` it may have several lines."""
    kept = "\n\t" if lines else ""
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)


def shell_text(text: str) -> str:
    """Return the text of an error with the advice for a program, arguments of Python, replaced by that for a shell."""
    for advice, instead in _ADVICE.items():
        text = text.replace(advice, instead)
    return text


_ADVICE = {
    "pass its domain": "give its --js-domain",
    "pass the domain of another JetStream": "give the --js-domain of another JetStream",
    "give the URL of another (only Options.from_env() reads NATS_URL), or pass retry_connect_for= to wait for one": (
        "or name another with --server or NATS_URL"
    ),
    ", or pass retry_connect_for= to wait for one": ", or name another with --server or NATS_URL",
    "give user and password, token, creds, nkey_seed, jwt or auth": "give some: in the URL, NATS_CREDS …, or --context",
    "raise timeout=": "raise the timeout (--timeout, or NATS_TIMEOUT)",
    ", or pass inbox_prefix= with a prefix that it may subscribe to": ", or use a --context with an inbox_prefix",
    " (see retry_attempts)": "",
    ": pass a tls context that has the CA": ": NATS_CA names a PEM file that has the CA",
    ": load one into the tls context": ": NATS_CERT and NATS_KEY name its PEM files",
    ", or clear ssl.VERIFY_X509_STRICT (on by default since Python 3.13) in the tls context": "",
    ": remove tls_first (or wss), or use another port": ": use another port",
}


def payload_text(data: bytes, *, lines: bool = False) -> str:
    """Return a payload as text for a terminal."""
    return printable(data.decode(errors="backslashreplace"), lines=lines)


def payload_fields(data: bytes) -> dict[str, str]:
    """Return a payload for JSON: as text, and in base64 when it is none."""
    fields = {"data": data.decode(errors="backslashreplace")}
    try:
        data.decode()
    except UnicodeDecodeError:
        fields["data_base64"] = base64.b64encode(data).decode()
    return fields


def header_fields(headers: Headers) -> dict[str, list[str]]:
    """Return headers for JSON."""
    found: dict[str, list[str]] = {}
    for name, value in headers.pairs():
        found.setdefault(name, []).append(value)
    return found


def write_content(data: bytes, *, raw: bool) -> None:
    """Print a payload, or write its bytes alone. ConfigError for these on a terminal."""
    if not raw:
        print(payload_text(data, lines=True))
        return
    check_raw_output()
    sys.stdout.buffer.write(data)


def check_raw_output() -> None:
    """ConfigError when bytes would go to a terminal."""
    if sys.stdout.isatty():
        raise errors.ConfigError("output", None, "a terminal would obey what is in it: write it to a file or a pipe")


def number(value: float) -> str:
    """``1,234``."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """``1,234``, and ``0.5``."""
    return f"{value:,.1f}" if 0 < abs(value) < 10 else f"{value:,.0f}"


def size(value: float) -> str:
    """``1.5 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 100 else f"{value:.1f} {units[0]}"


def seconds(value: float | None) -> str:
    """``3 d 4 h``, ``12 s``: the two largest units; a dash for None."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    whole, parts = int(value), list[str]()
    for name, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if whole >= length or parts:
            parts.append(f"{whole // length} {name}")
            whole %= length
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def age_of(moment: datetime | None) -> float | None:
    """Return the seconds since then, by the clock of this machine; None for None."""
    return None if moment is None else max(0.0, (datetime.now(UTC) - moment).total_seconds())


# ---------------------------------------------------------------- tables


def show(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Print rows as a table, or each as a line of JSON. Without rows the table is the sentence ``empty``."""
    if as_json:
        for row in rows:
            print(json_text(row))
    elif rows:
        print_table(columns, rows)
    else:
        print(printable(empty))


def print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table, with rich on a terminal."""
    cells = [[_cell(column, row[column.key]) for column in columns] for row in rows]
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column.title, justify="right" if column.right else "left", no_wrap=column.right)
        for line in cells:
            table.add_row(*(Text(cell) for cell in line))  # Text: a cell has no markup
        Console().print(table)
        return
    lines = [[column.title for column in columns], *cells]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    for line in lines:
        shown = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        print("  ".join(shown).rstrip())


def print_fields(fields: Mapping[str, str]) -> None:
    """Print names and values in two columns."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.ljust(width)}  {printable(value)}")


def _cell(column: Column, value: object) -> str:
    text = "-" if value is None else printable(column.text(value))
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


# ---------------------------------------------------------------- JSON


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return JSON, in which every character beyond ASCII is escaped."""
    return json.dumps(value, default=_json_value, indent=indent)


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {**dict(shown.pop("extra", {})), **shown}
    return str(value)


# ---------------------------------------------------------------- progress


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[Progress], object] | None]:
    """Yield what to call with the progress of a transfer; None when the standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
    elif find_spec("rich") is not None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        label = TextColumn("{task.description}", markup=False)
        with Bar(label, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(printable(what), total=None)
            yield lambda done: bar.update(task, completed=done.bytes, total=done.total or None)
    else:
        yield lambda done: print(
            f"\r{printable(what)}: {size(done.bytes)} of {size(done.total) if done.total else 'an unknown size'}\x1b[K",
            end="",
            file=sys.stderr,
            flush=True,
        )
        print(file=sys.stderr)
