"""The pages of the documentation are true: their Python runs, and their tables leave nothing out.

A block fenced as ``python`` is run on its own with a connected ``nc`` and its ``server``; one that needs what a test
does not have (a context file, a cluster) is fenced as ``py`` and only has to be Python. A block with a title is a whole
program: those of a page are run one after the other on one server, and print what the next block of text says.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import logging
import os
import pkgutil
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
import yaml  # type: ignore[import-untyped]
from mypy import api

import natsproto
from natsproto import errors
from natsproto._core import events
from natsproto._options.options import OptionArgs
from natsproto.jetstream import JetStream
from natsproto.testing import run_server
from tests.spark.java import missing
from tests.test_examples import is_shown_as
from tests.tools import error_messages

DOCS = Path(__file__).parent.parent / "docs"
INCLUDED = "--8<-- "  # a program of docs/examples, which tests/test_examples.py runs
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r'^```python title="(\S+)"\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?', re.MULTILINE | re.DOTALL)
FRAGMENT = re.compile(r"^```(python|py)\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTED = {"natsproto", "nc", "server"}
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \|", re.MULTILINE)


def blocks(fence: str) -> list[object]:
    """Every block of this kind, as parameters named after page and line."""
    found: list[object] = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match[1] == fence and not match[2].startswith(INCLUDED):
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match[2], id=f"{page.relative_to(DOCS)}:{line}"))
    return found


def compiled(code: str) -> object:
    return compile(code, "<documentation>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.fixture
def own_log_level_and_signals() -> Iterator[None]:
    """Examples set the level of the log, and call ``stop_event``; no test may depend on one that ran before it."""
    logger = logging.getLogger("natsproto")
    level, handlers = logger.level, {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logger.setLevel(logging.NOTSET)
    yield
    logger.setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_log_level_and_signals")
@pytest.mark.parametrize("code", blocks("python"))
async def test_example_in_the_documentation_runs(code: str) -> None:
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        result = eval(compiled(code), {"natsproto": natsproto, "nc": nc, "server": server})  # type: ignore[arg-type]
        if inspect.iscoroutine(result):
            await result


async def test_test_shown_to_contributors_passes(jetstream: JetStream) -> None:
    names: dict[str, object] = {}
    exec(BLOCK.findall((DOCS.parent / "CONTRIBUTING.md").read_text())[0][1], names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    assert inspect.iscoroutinefunction(test)
    await test(jetstream)


@pytest.mark.slow
def test_documentation_examples_pass_mypy(tmp_path: Path) -> None:
    head = "import natsproto\nfrom natsproto.testing import Server\n"
    head += "async def page(nc: natsproto.Client, server: Server) -> None:\n"
    for page in DOCS.glob("*.md"):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match[1] == "python" and not match[2].startswith(INCLUDED):
                line = text.count("\n", 0, match.start()) + 1
                name = f"{page.stem.replace('-', '_')}_line_{line}.py"
                (tmp_path / name).write_text(head + textwrap.indent(match[2], "    "))
    config = str(DOCS.parent / "pyproject.toml")
    report, complaint, status = api.run(["--config-file", config, *map(str, tmp_path.glob("*.py"))])
    assert (status, complaint) == (0, ""), report


def test_every_included_file_exists() -> None:
    included = [name for page in DOCS.rglob("*.md") for name in re.findall(r'^--8<-- "(.+)"$', page.read_text(), re.M)]
    assert len(included) > 10
    for name in included:
        file, _, section = name.partition(":")
        text = (DOCS / "examples" / file).read_text()
        assert not section or (f"# --8<-- [start:{section}]" in text and f"# --8<-- [end:{section}]" in text), name


def names_of(code: str) -> tuple[set[str], set[str]]:
    """The names that code uses without defining them, and those that it defines."""
    used, defined = set[str](), set[str]()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case (
                ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name))
            ):
                defined.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.alias(name=name, asname=given):
                defined.add((given or name).partition(".")[0])
    return used - defined - {"__file__", *dir(builtins)}, defined


def unexplained(markdown: str) -> set[str]:
    """The names in code of a page that neither the code before them defines nor the text before them mentions. The site
    says itself what ``NOTED`` are, where fragments that run use them.
    """
    found, known = set[str](), set[str]()
    for fragment in FRAGMENT.finditer(markdown):
        fence, code = fragment.groups()
        if included := re.match(rf'{INCLUDED}"(.+?\.py)(?::\w+)?"', code):
            code = (DOCS / "examples" / included[1]).read_text()
        used, defined = names_of(code)
        mentioned = re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", markdown[: fragment.start()])))
        found |= used - known - set(mentioned) - (NOTED if fence == "python" else set())
        known |= defined
    return found


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_code_of_a_page_uses_what_the_page_explains(page: Path) -> None:
    assert unexplained(page.read_text()) == set()


def test_unexplained_names_are_found() -> None:
    page = "```python\nimport a\nawait nc.flush(a, b, len)\n```\n`c`:\n```py\nc(a)\nd(nc)\n```\n"
    assert unexplained(page) == {"b", "d", "nc"}


@pytest.mark.parametrize("code", blocks("py"))
def test_sketch_in_the_documentation_is_python(code: str) -> None:
    compiled(code)


def programs() -> list[object]:
    """The pages with whole programs, by name."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if PROGRAM.search(page.read_text())]
    return [pytest.param(page, id=str(page.relative_to(DOCS))) for page in pages]


@pytest.mark.slow
@pytest.mark.parametrize("page", programs())
def test_programs_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    """Compared as the examples are. One that runs until Ctrl-C gets something to do from the first one, and SIGINT
    when it has printed all.
    """
    if "pyspark" in page.read_text() and (problem := missing()):
        pytest.skip(problem)
    with run_server(jetstream=True) as server:
        activated = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        found = [(tmp_path / name, code, output) for name, code, output in PROGRAM.findall(page.read_text())]
        for path, code, output in found:
            path.write_text(code.replace("nats://localhost:4222", server.url))
            command = [sys.executable, "-u", str(path)]
            with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=activated) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                endless = "stop_event(" in code
                if endless:
                    subprocess.run([sys.executable, str(found[0][0])], check=True, capture_output=True, timeout=60)
                printed = list[str]()
                for line in process.stdout:
                    printed.append(line.rstrip())
                    if endless and is_shown_as(printed, output.splitlines()):
                        process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0, process.stderr.read()
                assert is_shown_as(printed, output.splitlines()), (printed, output)


def test_programs_load_jetstream_at_the_top() -> None:
    """The first ``nc.jetstream()`` of a program that has not imported it stops the running loop for 30 ms."""
    found = {
        f"{page.name}: {name}": code
        for page in DOCS.rglob("*.md")
        for name, code, _ in PROGRAM.findall(page.read_text())
    }
    found |= {path.name: path.read_text() for path in (DOCS / "examples").rglob("*.py")}
    users = {name: code for name, code in found.items() if ".jetstream(" in code}
    assert len(users) > 60
    loaded = re.compile(
        r"^(?:import|from) natsproto(?:\.(?:jetstream|sync|retry|compat|spark)| import .*\b(?:sync|spark)\b)", re.M
    )
    assert [name for name, code in users.items() if not loaded.search(code)] == []


def test_make_targets_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (DOCS.parent / "Makefile").read_text(), re.MULTILINE))
    pages = {path: path.read_text() for path in (*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md"))}
    named = {path: set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)) for path, text in pages.items()}
    assert {"run", "test"} <= named[DOCS.parent / "README.md"]
    assert set().union(*named.values()) <= targets


def test_every_link_between_the_pages_leads_somewhere() -> None:
    pages = [*DOCS.rglob("*.md"), *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
    made = {"changelog.md"}  # while the site is built
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text())]
    assert [
        f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists() and link not in made
    ] == []


def test_every_page_is_in_the_menu() -> None:
    nav = yaml.safe_load((DOCS / "mkdocs.yml").read_text())["nav"]
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "decisions" not in page.parts}
    pages.add("changelog.md")  # made of CHANGELOG.md while the site is built
    menu = list(leaves(nav))
    assert len(menu) == len(set(menu))
    assert set(menu) == pages


def leaves(nav: object) -> Iterator[str]:
    """The pages of a menu, whatever the depth."""
    if isinstance(nav, str):
        yield nav
    else:
        assert isinstance(nav, list | dict)
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(item)


def test_every_option_is_documented_with_its_default() -> None:
    rows = ROW.findall((DOCS / "connecting.md").read_text())
    plain = natsproto.Options()
    defaults = {name: getattr(plain, name) for name in ("servers", *inspect.get_annotations(OptionArgs))}
    assert {name: ast.literal_eval(_product(cell)) for name, cell in rows} == defaults


def test_every_event_is_documented_with_its_fields() -> None:
    for module in pkgutil.walk_packages(natsproto.__path__, "natsproto."):
        importlib.import_module(module.name)  # whose events are subclasses then
    documented = {name: re.findall(r"`(\w+)`", cell) for name, cell in ROW.findall((DOCS / "events.md").read_text())}
    assert documented == {kind.__name__: list(kind._fields) for kind in _subclasses(events.Event)}


def _subclasses(kind: type[events.Event]) -> Iterator[type[events.Event]]:
    """Those of natsproto, at any depth."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("natsproto."):
            yield one
        yield from _subclasses(one)


def test_every_error_is_explained() -> None:
    words = (DOCS / "errors.md").read_text().partition("## The tree")[0]
    kinds = [name for name in errors.__all__ if issubclass(getattr(errors, name), errors.NatsError)]
    assert [name for name in kinds if f"`{name}`" not in words] == []


def test_error_messages_table() -> None:
    """Run ``python -m tests.tools.error_messages`` after changing a message."""
    raised = {name for name in errors.__all__ if issubclass(getattr(errors, name), errors.NatsError)}
    assert {type(error).__name__ for error in error_messages.examples()} == raised - error_messages.GROUPS
    assert error_messages.page_table() == error_messages.message_table()


def test_names_for_annotations_are_where_the_page_says() -> None:
    table = (DOCS / "reference/index.md").read_text().partition("## Names for annotations")[2]
    for line in table.splitlines():
        if line.startswith("| ") and "`natsproto" in line:
            _, names, home = line.strip("|").split(" | ")
            module = importlib.import_module(home.strip(" `"))
            for name in re.findall(r"`([A-Z]\w+)", names):
                assert inspect.isclass(getattr(module, name)), name


def test_tree_of_errors_is_that_of_the_code() -> None:
    tree = textwrap.dedent((errors.__doc__ or "").partition("::\n\n")[2]).rstrip()
    assert f"```text\n{tree}\n```" in (DOCS / "errors.md").read_text()


def test_tree_of_errors_is_drawn_as_the_classes_are() -> None:
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").partition("::\n\n")[2].splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)", line)
        assert found, line
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        if depth:
            parents[found[2]] = path[depth - 1]
    assert parents == {
        name: kind.__mro__[1].__name__
        for name, kind in ((name, getattr(errors, name)) for name in errors.__all__)
        if issubclass(kind, BaseException) and kind is not errors.NatsError
    }


def _product(cell: str) -> str:
    """The text of a default, with sizes written as ``8 * 2**20`` worked out."""
    text = cell.strip("`")
    found = re.fullmatch(r"(\d+) \* 2\*\*(\d+)", text)
    return str(int(found[1]) << int(found[2])) if found else text


def _measured() -> dict[str, float]:
    """The ratio of CPU times of each scenario, from the table of docs/benchmarks.md."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \| ([\d.]+) ", (DOCS / "benchmarks.md").read_text(), re.MULTILINE)
    return {name: float(ratio) for name, ratio in reversed(rows)}  # the first table is that of uvloop


README_FIGURES = {
    r"([\d.]+) times as much for a subscription with a callback": "wildcard_async",
    r"([\d.]+) times for `async for`": "wildcard_iter",
    r"([\d.]+) times for publishing,": "pub",
    r"([\d.]+) times for publishing to a stream with message ids": "js_window",
    r"([\d.]+) times for reading a stream by `fetch` with acknowledgements": "fetch_ack",
}


def test_figures_of_the_readme_are_measured() -> None:
    """They are those of docs/benchmarks.md, rounded down to wholes, or to halves below 3; 2 % are forgiven."""
    text = " ".join((DOCS.parent / "README.md").read_text().split())
    for pattern, scenario in README_FIGURES.items():
        [figure] = re.findall(pattern, text)
        ratio = _measured()[scenario]
        said = float(figure)
        assert said <= ratio * 1.02 < said + (1 if said >= 3 else 0.5) + ratio * 0.02, (figure, ratio, pattern)


def test_figures_of_the_first_page_are_measured() -> None:
    """Each is the ratio of CPU times of its scenario in the table of docs/benchmarks.md."""
    figures = re.findall(r'data-scenario="(\w+)">([\d.]+) \S<', (DOCS / "index.md").read_text())
    measured = _measured()
    assert len(figures) == 3
    assert [abs(measured[name] - float(figure)) <= 0.051 for name, figure in figures] == [True] * 3
