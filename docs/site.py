"""The functions that mkdocs calls while it builds the site; mkdocs.yml names this file.

Owns what is made then: drawings of the layers from the import contracts in pyproject.toml, the chart of the benchmarks,
pages with the programs of the gallery, the release notes, which are CHANGELOG.md, and links from names in the guides to
the API reference. ``site_reference`` makes that.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import re
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_reference import targets

import natsproto

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "docs/examples/gallery"
REPOSITORY = "https://github.com/natsproto/natsproto"
CHANGELOG_HEAD = "---\ntags: [release notes, changelog, what is new, version]\n---\n\n"
LONG_WORD = 15  # letters of code that do not fit in one of two columns of a narrow screen
WHOLE_LINE = 34  # letters of code that may need a line of a narrow screen for themselves
FIGURE = 8  # letters of a cell that takes little of a narrow screen
SHORT = 24  # letters of a cell that fits beside the name of its column
LAYERS = re.compile(r"^<!-- layers: (\S+) -->$", re.MULTILINE)
FRAGMENT = re.compile(r"^```python\n(?!--8<--)(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r'^```python\n--8<-- "gallery/(\S+)"\n```$', re.MULTILINE)
NOTE = '<p class="fragments">The fragments of this page run as they stand{where}, where {names}.</p>'
INSIDE = " inside an <code>async def</code>"
INSTALL = (
    "Each program starts a server of its own, so it runs as it stands: `pip install 'natsproto[server]'`, copy it into "
    "a file, and run that with Python. The log of the client, on stderr, is not shown. "
    "[All examples](../../examples.md)."
)
NAMES = {
    "nc": "<code>nc</code> is a client (<code>nc = await natsproto.connect(url)</code>)",
    "natsproto": "<code>natsproto</code> is imported",
    "server": "<code>server</code> is a server of <code>natsproto.testing.run_server</code> with JetStream",
}
BOOSTS = {"reference/": 0.2, "examples/": 0.3, "compat.md": 0.5}
"""How much less than guides these pages count in the search."""
CODE = re.compile(r"(?<![`\[\w])`([A-Z]\w+|[a-z]\w*\.[a-z_]\w*)(?:\([^`]*\))?`(?![`\]])")
"""Inline code that is a class, or a verb of an object whose class is clear."""
OBJECTS = {
    "nc": "natsproto.Client",
    "js": "natsproto.jetstream.JetStream",
    "stream": "natsproto.jetstream.Stream",
    "consumer": "natsproto.jetstream.PullConsumer",
    "kv": "natsproto.jetstream.kv.KeyValue",
    "store": "natsproto.jetstream.objectstore.ObjectStore",
}
"""The names that guides give to objects of these classes."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The foot of every page has the version, the repository and the release notes."""
    [version] = re.findall(r'__version__ = "(.+)"', (ROOT / "natsproto/_version.py").read_text())
    config.copyright = (
        f'natsproto {version}, an alpha · <a href="{REPOSITORY}">repository</a> · '
        f'<a href="{config.site_url}changelog/">release notes</a> · Apache\N{NON-BREAKING HYPHEN}2.0'
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the release notes and the pages of the gallery."""
    changes = re.sub(r"`docs/([\w-]+)\.md`", r"[\1](\1.md)", (ROOT / "CHANGELOG.md").read_text())
    files.append(File.generated(config, "changelog.md", content=f"{CHANGELOG_HEAD}{changes}"))
    for topic in sorted(path for path in GALLERY.iterdir() if path.is_dir()):
        files.append(File.generated(config, f"examples/gallery/{topic.name}.md", content=gallery_page(topic)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The index of the gallery links to files, for those who read it in the repository; here they are sections.

    Decisions are for those who change natsproto: the search and the menu leave them out, and README.md lists them.
    """
    place = page.file.src_uri
    if place.startswith(("decisions/", "reference/protocol")):
        page.meta["search"] = {"exclude": True}
    elif (boost := next((BOOSTS[start] for start in BOOSTS if place.startswith(start)), None)) is not None:
        page.meta.setdefault("search", {"boost": boost})
    if place in ("guarantees.md", "security.md", "workers.md"):
        markdown = with_linked_tests(markdown)
    markdown = LAYERS.sub(lambda found: drawing(found[1]), markdown).replace("<!-- chart -->", chart(markdown))
    if place.startswith("reference/"):
        markdown = with_options(markdown)
    if place.startswith("decisions/"):
        return markdown if "README" in place else markdown.replace("\n", "\n\n[All decisions](README.md)\n", 1)
    if place != "compat.md":
        markdown = with_links(markdown, place)
    if place != "examples.md":
        return with_programs(with_note(markdown))
    return re.sub(r"\(examples/gallery/(\w+)/(\w+)\.py\)", r"(examples/gallery/\1.md#\2)", markdown)


def with_options(markdown: str) -> str:
    """A page of the reference whose sections contain their classes, with events alone, without what all events have."""
    lines: list[str] = []
    level = 2
    for line in markdown.replace("\n    options:", "").split("\n"):
        lines.append(line)
        level = 3 if line.startswith("## ") else level
        if found := re.fullmatch(r"::: (natsproto[\w.]*)\.(\w+)", line):
            kind = getattr(importlib.import_module(found[1]), found[2])
            lines += ["    options:", f"      heading_level: {level}"]
            if isinstance(kind, type) and issubclass(kind, natsproto.Event) and kind is not natsproto.Event:
                lines.append("      inherited_members: false")
    return "\n".join(lines)


def with_linked_tests(markdown: str) -> str:
    """The names of tests lead to their files in the repository."""
    files = {
        name: path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    return re.sub(r"`(test_\w+)`", lambda found: f"[{found[0]}]({REPOSITORY}/blob/main/{files[found[1]]})", markdown)


def with_links(markdown: str, place: str) -> str:
    """A page on which the classes and verbs in inline code are links to the reference, but for names of nats-py."""
    names = r"^\|[^|\n]*\|" if place in ("from-nats-py.md", "nats-py-names.md") else r"\Z"

    def link(found: re.Match[str]) -> str:
        owner, _, name = found[1].partition(".")
        target = targets().get(owner) if not name else OBJECTS.get(owner)
        if target is None or (name and f"{target}.{name}" not in anchors()):
            return found[0]
        return f"[{found[0]}][{target}{_}{name}]"

    kept = rf"(^```.*?^```|^:::.*?$|^#+ .*?$|\[[^\]]*\]\([^)]*\)|{names})"
    blocks = re.split(kept, markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(block if number % 2 else CODE.sub(link, block) for number, block in enumerate(blocks))


@functools.cache
def anchors() -> set[str]:
    """The verbs that the classes of ``OBJECTS`` have."""
    found: set[str] = set()
    for identifier in OBJECTS.values():
        module, _, name = identifier.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        found |= {f"{identifier}.{member}" for member in dir(kind) if not member.startswith("_")}
    return found


def with_programs(markdown: str) -> str:
    """A page whose programs of the gallery are followed by what they print."""
    return PROGRAM.sub(lambda found: program_blocks(GALLERY / found[1])[0], markdown)


def with_note(markdown: str) -> str:
    """A page that says, before its first fragment, what the names are that its fragments use and do not define."""
    fragments = list(FRAGMENT.finditer(markdown))
    used = [
        name
        for name in NAMES
        if any(
            re.search(rf"(?<![\w.]){name}\b", found[1])
            and not re.search(rf"^import {name}\b|\bas {name}\b", found[1], re.MULTILINE)
            for found in fragments
        )
    ]
    if not used:
        return markdown
    asynchronous = any(re.search(r"\b(?:await|async)\b", found[1]) for found in fragments)
    *others, last = (NAMES[name] for name in used)
    names = f"{', '.join(others)} and {last}" if others else last
    note = NOTE.format(where=INSIDE * asynchronous, names=names)
    first = fragments[0].start()
    return f"{markdown[:first]}{note}\n\n{markdown[first:]}"


def on_post_page(output: str, **_: Any) -> str:
    """The link to the repository asks no other server for its number of stars."""
    return output.replace('data-md-component="source"', "")


def on_post_build(config: MkDocsConfig) -> None:
    """llms.txt (llmstxt.org): every page of the menu with its address and its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for place, title in _pages_of(config.nav or []):
        path = Path(config.docs_dir, place)
        text = path.read_text() if path.exists() else ""
        heading = re.search(r"^# (.+)$", text, re.MULTILINE)
        below = f"\n{text}".partition("\n# ")[2].partition("\n")[2]
        paragraphs = (part for part in below.split("\n\n") if re.match(r"\s*[\w`]", part) and "```" not in part)
        sentence = re.split(r"(?<=\.)\s", " ".join(next(paragraphs, "").split()), maxsplit=1)[0]
        said = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", sentence)
        name = heading[1] if heading else title or place
        address = f"{config.site_url}{place.removesuffix('.md').removesuffix('index')}"
        lines.append(f"- [{name}]({address.rstrip('/')}/)" + (f": {said}" if said else ""))
    Path(config.site_dir, "llms.txt").write_text("\n".join([*lines, ""]))


def _pages_of(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """The pages of the menu with their titles there."""
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if isinstance(below, str):
                yield below, title
            else:
                yield from _pages_of(below)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Cells of tables that are too wide for a narrow screen get the name of their column; code breaks between words."""
    html = re.sub(r"<table>.*?</table>", lambda found: with_labels(found[0]), html, flags=re.DOTALL)
    if page.file.src_uri.startswith("reference/"):
        return html
    parts = re.split(r"(<pre\b.*?</pre>|<table\b.*?</table>)", html, flags=re.DOTALL)
    for number, part in enumerate(parts):
        if not part.startswith("<pre"):
            parts[number] = _breakable(part, LONG_WORD if number % 2 else WHOLE_LINE)
    return "".join(parts)


def _breakable(html: str, limit: int) -> str:
    """Long words of inline code may break after a punctuation mark, and shorter ones, titles and intervals nowhere."""

    def code(found: re.Match[str]) -> str:
        return re.sub(r"\S+", lambda word: _breakable_word(word[0], limit), found[0])

    return re.sub(r"(?<=<code>)[^<]+(?=</code>)|(?<=<th>)[^<]+|\([\d.]+-[\d.]+\)", code, html)


def _breakable_word(word: str, limit: int) -> str:
    if len(word) >= limit:
        marks = "/:=" if "/" in word else "._:=@>(-"
        place = "<wbr>" if len(word) >= WHOLE_LINE else '<wbr class="cell">'  # on a screen of middle width
        return re.sub(rf"(?<=\w)[{marks}](?=[\w*$])|,", rf"\g<0>{place}", word)
    return f'<span class="unbroken">{word}</span>' if "-" in word else word


def with_labels(table: str) -> str:
    """A table whose cells say what column they are in, or one that fits, with all columns but the first of figures."""
    titles = _texts(r"<th\b[^>]*>(.*?)</th>", table)
    cells = _texts(r"<td\b[^>]*>(.*?)</td>", table)
    columns = [cells[number :: len(titles)] for number in range(len(titles))]
    words = re.findall(r"[^\s<>]+", " ".join(re.findall(r"<code>(.*?)</code>", table, re.DOTALL)))
    if len(titles) < 3 and max(map(len, words), default=0) < LONG_WORD:
        return table
    lengths = [max(map(len, column), default=0) for column in columns]
    if 2 < len(titles) < 5 and max(lengths[1:]) <= FIGURE:
        return table.replace("<table>", "<table data-figures>")
    places = iter(range(len(cells)))

    def cell(_: re.Match[str]) -> str:
        column = next(places) % len(titles)
        short = " data-short" if lengths[column] <= SHORT - len(titles[column]) // 2 else ""
        return f'<td data-label="{escape(titles[column], quote=True)}"{short}'

    if titles[-1] == "proved by":
        table = re.sub(r"<td\b([^>]*)>((?:(?!</td>).)*)</td>\n</tr>", _proof, table, flags=re.DOTALL)
    return re.sub(r"<td\b", cell, table.replace("<table>", f'<table data-columns="{len(titles)}">'))


def _proof(found: re.Match[str]) -> str:
    """The last cell of a row, folded: how many tests there are, and below that their names."""
    number = found[2].count("<a ") or found[2].count("<code>")
    if not number:
        return found[0]
    summary = f"{number} tests" if number > 1 else "1 test"
    return f'<td{found[1]}><details class="proof"><summary>{summary}</summary>{found[2]}</details></td>\n</tr>'


def _texts(pattern: str, table: str) -> list[str]:
    """What is in cells, without tags."""
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(pattern, table, re.DOTALL)]


def gallery_page(topic: Path) -> str:
    """All programs of a topic, each with its title, what it shows and prints, and where its task comes from."""
    index = (ROOT / "docs/examples.md").read_text()
    [section] = [part for part in index.split("\n## ") if f"(examples/gallery/{topic.name}/" in part]
    heading, guides = section.split("\n\n")[:2]
    guides = re.sub(r"\]\((?=[\w/-]+\.md)", "](../../", guides)
    parts = [f"---\nhide: [navigation]\n---\n\n# Examples: {heading}\n\n{INSTALL} {guides}\n"]
    sections: list[str] = []
    for program in sorted(topic.glob("*.py")):
        title = (ast.get_docstring(ast.parse(program.read_text())) or "").partition("\n")[0].rstrip(".")
        blocks, about, origin = program_blocks(program)
        guide = guide_of(program)
        origin = f"[how-to guide]({guide})" if guide else origin
        parts.append(f"- [{title}](#{program.stem})")
        sections.append(f"\n## {title} {{#{program.stem}}}\n\n{about}\n\n{blocks}\n\nFrom: {origin}.")
    return "\n".join(parts + sections)


def guide_of(program: Path) -> str:
    """The how-to guide that includes a program, as seen from the gallery, or nothing."""
    name = f"gallery/{program.relative_to(GALLERY).as_posix()}"
    found = (page.name for page in (ROOT / "docs/howto").glob("*.md") if name in page.read_text())
    return next((f"../../howto/{page}" for page in found), "")


def program_blocks(program: Path) -> tuple[str, str, str]:
    """A program of the gallery and what it prints, as two blocks; what it shows; where its task comes from."""
    code, _, notes = program.read_text().partition("# origin: ")
    origin, *lines = notes.splitlines()
    about = " ".join(line.removeprefix("# about: ") for line in lines if line.startswith("# about: "))
    prints = [line.removeprefix("# prints:").removeprefix(" ") for line in lines if line.startswith("# prints:")]
    printed = "\n".join(prints)
    blocks = f'```python title="{program.name}"\n{code.rstrip()}\n```\n\n```text title="prints"\n{printed}\n```'
    return blocks, about, origin


def drawing(container: str) -> str:
    """The layers of an import contract: a row each, the top one first, siblings side by side."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == [container]]
    rows: list[str] = []
    for layer in layers:
        names = [name.strip(" ()") for name in re.split(r"[|:]", layer)]
        boxes = [f"<div><b>{name}</b> {escape(_summary(f'{container}.{name}'))}</div>" for name in names]
        rows.append(f"<li>{''.join(boxes)}</li>")
    title = f"The layers of {container}: imports go down only"
    return f'<ol class="layers" aria-label="{title}" data-search-exclude>{"".join(rows)}</ol>'


def chart(markdown: str) -> str:
    """The first table of measured ratios of CPU time, with their intervals, as bars on a logarithmic scale."""
    rows = [
        (row[2].replace("`", ""), *map(float, re.findall(r"[\d.]+", row[4])))
        for line in markdown.partition("### On uvloop")[2].partition("###")[0].splitlines()
        if len(row := line.split("|")) > 4 and "(" in row[4]
    ]
    largest = max((row[3] for row in rows), default=10.0)

    def place(value: float) -> float:
        return round(100 * math.log(min(max(value, 0.5), largest) / 0.5) / math.log(largest / 0.5), 1)

    scale = [f'<b style="left: {place(value)}%">{value:g}</b>' for value in (0.5, 1, 2, 5, 10) if value <= largest]
    bars = [f"<div><span></span><p>{''.join(scale)}</p></div>"]
    for about, middle, low, high in rows:
        kind = "slower" if middle < 1 else "kindest" if about.strip().startswith("kindest") else "faster"
        start, end = sorted((place(1), place(middle)))
        bars.append(
            f'<div><span>{escape(about.strip())}</span><p><i class="{kind}" style="left: {start}%; width: '
            f'{end - start:.1f}%"></i><s style="left: {place(low)}%; width: {place(high) - place(low):.1f}%"></s>'
            f'<b style="left: {place(max(high, 1))}%">{middle:.2f}</b></p></div>'
        )
    title = "CPU time of nats-py for one message, divided by natsproto's; the table has the figures"
    style = f"--one: {place(1)}%"
    return (
        f'<div class="bars" role="img" aria-label="{title}" style="{style}" data-search-exclude>{"".join(bars)}</div>'
    )


def _summary(module: str) -> str:
    """The first sentence of a module's docstring, without what the name of the module says already."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    words = (ast.get_docstring(ast.parse(source.read_text())) or "").replace("`", "").removeprefix("PURE. ")
    sentence = " ".join(re.split(r"(?<=\.)\s", words, maxsplit=1)[0].split()).rstrip(".")
    beginning, _, rest = sentence.partition(": ")
    name = module.rpartition(".")[2].strip("_").replace("_", " ")
    known = re.sub(r"^(?:the|an?) |s$", "", re.sub(r" \([^)]*\)$", "", beginning).lower())
    return rest[0].upper() + rest[1:] if rest and known == name.removesuffix("s") else sentence
