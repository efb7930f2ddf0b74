"""The functions that mkdocs calls while it builds the site; mkdocs.yml names this file.

Owns what is made then: pictures of the storeys from the import contracts in pyproject.toml, pages with the programs of
the gallery, and the release notes, which are CHANGELOG.md. The API reference leaves out verbs that are for layers on
top.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from html import escape
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "docs/examples/gallery"
REPOSITORY = "https://github.com/natsproto/natsproto"
WIDTH, GAP, LINE = 820, 8, 17  # pixels of a picture
COLOURS = ("#3f51b5", "#5c6bc0")


class Reference(griffe.Extension):
    """The reference leaves out special methods, and verbs that are for layers on top: their docstrings say so."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Hide such an object; tell of a blocking method which method it calls."""
        words = "" if obj.docstring is None else " ".join(obj.docstring.value.splitlines()[:3])
        if obj.name.startswith("__") or re.search(r"\blayers?\s+on\s+top\b", words):
            obj.public = False
        if isinstance(obj, griffe.Attribute) and str(obj.annotation) == "Final":
            obj.annotation = None
            asyncio_method = re.search(r"\w\((?:\w+\.)?(\w+\.\w+)", str(obj.value))
            if obj.module.path.startswith("natsproto.sync") and asyncio_method and obj.docstring is None:
                obj.docstring = griffe.Docstring(
                    f"Blocks; see `{asyncio_method[1]}` of the asyncio client.", parent=obj
                )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pictures and the pages of the gallery."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        if contract["type"] == "layers":
            (container,) = contract["containers"]
            name = f"images/storeys-{container.removeprefix('natsproto.')}.svg"
            files.append(File.generated(config, name, content=picture(container, contract["layers"])))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text()))
    for topic in sorted(path for path in GALLERY.iterdir() if path.is_dir()):
        files.append(File.generated(config, f"examples/gallery/{topic.name}.md", content=gallery_page(topic)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The index of the gallery links to files, for those who read it in the repository; here they are sections.

    Decisions are for those who change natsproto: the search leaves them out, as the menu does.
    """
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri in ("guarantees.md", "security.md", "workers.md"):
        return with_linked_tests(markdown)
    if page.file.src_uri != "examples.md":
        return markdown
    return re.sub(r"\(examples/gallery/(\w+)/(\w+)\.py\)", r"(examples/gallery/\1.md#\2)", markdown)


def with_linked_tests(markdown: str) -> str:
    """The names of tests lead to their files in the repository."""
    files = {
        name: path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    return re.sub(r"`(test_\w+)`", lambda found: f"[{found[0]}]({REPOSITORY}/blob/main/{files[found[1]]})", markdown)


def gallery_page(topic: Path) -> str:
    """All programs of a topic, each with its title, what it prints, and where its task comes from."""
    parts = [f"---\nsearch:\n  boost: 0.7\n---\n\n# Examples: {topic.name.replace('_', ' ')}\n"]
    for program in sorted(topic.glob("*.py")):
        text = program.read_text()
        title = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].rstrip(".")
        code, _, notes = text.partition("# origin: ")
        origin, *prints = [line.removeprefix("# prints: ") for line in notes.splitlines()]
        parts.append(f'## {title} {{#{program.stem}}}\n\n```python title="{program.name}"\n{code.rstrip()}\n```\n')
        parts.append('```text title="prints"\n' + "\n".join(prints) + f"\n```\n\nFrom: {origin}.\n")
    return "\n".join(parts)


def picture(container: str, layers: list[str]) -> str:
    """The layers of an import contract as SVG: a row each, the top one first, siblings side by side."""
    boxes: list[str] = []
    top = 0
    for number, layer in enumerate(layers):
        names = [name.strip(" ()") for name in re.split(r"[|:]", layer)]
        width = (WIDTH - GAP * (len(names) - 1)) // len(names)
        texts = [textwrap.wrap(_summary(f"{container}.{name}"), max(12, width // 8)) for name in names]
        height = LINE * (max(map(len, texts)) + 2)
        for place, (name, lines) in enumerate(zip(names, texts, strict=True)):
            boxes.append(_box(place * (width + GAP), top, width, height, COLOURS[number % 2], name, lines))
        top += height + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-family="sans-serif">'
    return "\n".join([head, f"<title>Storeys of {container}: imports go down only</title>", *boxes, "</svg>"])


def _box(left: int, top: int, width: int, height: int, colour: str, name: str, lines: list[str]) -> str:
    text = ""
    for number, line in enumerate([name, *lines]):
        style = 'font-size="13"' if number else 'font-size="15" font-weight="bold"'
        place = top + LINE * (number + 1) + 4
        text += f'<text x="{left + 10}" y="{place}" fill="#fff" {style}>{escape(line)}</text>'
    return f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="4" fill="{colour}"/>{text}'


def _summary(module: str) -> str:
    """The first sentence of a module's docstring."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    words = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(re.split(r"(?<=[.;:])\s", words.replace("`", ""), maxsplit=1)[0].split()).rstrip(".;:")
