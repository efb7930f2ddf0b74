"""What the documentation shows runs as it stands and does what it says.

An example below docs/examples that holds ``# prints: TEXT`` lines is run, and these lines must be its whole output:
"..." stands for a part of a line that differs from run to run, and alone in a line for lines that are left out. One
that cannot be run alone says ``# not run: WHY``. Programs of the gallery are short, say what their task is and where it
comes from, and stand in docs/examples.md.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from natsproto import Client, Message, errors
from natsproto.testing import Server

ROOT = Path(__file__).parent.parent
GALLERY = sorted((ROOT / "docs/examples/gallery").glob("*/*.py"))
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.py")) + GALLERY
RUNNABLE = [path for path in EXAMPLES if "# prints: " in path.read_text()]

pytestmark = pytest.mark.slow


def run_example(program: Path) -> list[str]:
    """The lines it prints; fails with its stderr unless it ends well and silently."""
    tool = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    tool = tool if program.name.startswith("test_") else []
    command = [sys.executable, "-W", "error", "-X", "dev", *tool, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # In development mode asyncio tells of steps over 0.1 s, which on a busy machine says nothing of the example.
    told = re.compile("(log: )?Executing <.* took .* seconds")
    complaints = [line for line in done.stderr.splitlines() if not told.fullmatch(line)]
    if program in GALLERY:  # the client's log goes there as well: short programs set no logging up
        complaints = [line for line in complaints if re.search("Warning|ignored|never (retrieved|awaited)", line)]
    assert (done.returncode, complaints) == (0, []), done.stderr
    return [line for line in done.stdout.splitlines() if not told.fullmatch(line)]


def is_shown_as(printed: list[str], shown: list[str]) -> bool:
    """True if both are the same, but for what is left out at a "..."."""
    patterns = [r"(?:.*\n)+" if line == "..." else re.escape(line).replace(r"\.\.\.", ".+") + r" *\n" for line in shown]
    return re.fullmatch("".join(patterns), "".join(f"{line}\n" for line in printed)) is not None


@pytest.mark.parametrize("example", RUNNABLE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_prints_what_it_says(example: Path) -> None:
    shown = re.findall(r"^# prints:(?: (.*))?$", example.read_text(), re.MULTILINE)
    printed = run_example(example)
    assert is_shown_as(printed, shown), "\n".join(["shown:", *shown, "", "printed:", *printed])


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("shown", "right"),
    [
        ("a|port 4222|c", True),
        ("a|port ...|c", True),
        ("a|...|c", True),
        ("...", True),
        ("a|c", False),
        ("a|port 4222", False),
        ("port 4222|c", False),
        ("a|port|c", False),
        ("a|port ...", False),
        ("a|port 4222|...|c", False),
        ("a|port 4222|c|d", False),
        ("a|...|port ...|c", False),
        ("port ...|a|c", False),
    ],
)
def test_only_marked_output_may_be_left_out(shown: str, right: bool) -> None:
    assert is_shown_as(["a", "port 4222", "c"], shown.split("|")) == right


async def test_all_cores_restarts_and_drains(nats_server: Server, nats_client: Client) -> None:
    """A killed process is replaced; after SIGTERM the others answer what they have received, and the program ends."""
    program = ROOT / "docs/examples/all_cores.py"
    async with nats_client.subscribe("ready") as ready:
        await nats_client.flush()
        serving = await asyncio.create_subprocess_exec(sys.executable, str(program), nats_server.url)
        pids = {int((await ready.next(60)).data) for _ in range(os.cpu_count() or 1)}
        os.kill(min(pids), signal.SIGKILL)
        assert int((await ready.next(60)).data) not in pids
        requests = [asyncio.ensure_future(nats_client.request("hash", b"%d" % one, timeout=60)) for one in range(500)]
        await requests[0]
        await nats_client.flush()  # the server has given all of them to processes
        serving.terminate()
        assert await asyncio.wait_for(serving.wait(), 60) == 0
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert len([one for one in answers if isinstance(one, Message)]) == 500
        with pytest.raises(errors.NoResponders):
            await nats_client.request("hash", b"")


def test_every_example_is_run_or_says_why_not() -> None:
    assert [path.name for path in EXAMPLES if path not in RUNNABLE and "# not run: " not in path.read_text()] == []


@pytest.mark.smoke
def test_gallery_is_short_and_in_its_index() -> None:
    """Each program has a title, an origin, fewer than 40 lines, and a row of the index that says the same. The site
    shows its ``# about: `` lines under the title.
    """
    assert len(GALLERY) >= 45
    index = (ROOT / "docs/examples.md").read_text()
    rows = re.findall(r"^\| (.+) \| \[\w+\.py\]\((examples/gallery/\S+)\) \| (.+) \|$", index, re.MULTILINE)
    expected = []
    for program in GALLERY:
        text = program.read_text()
        code, _, notes = text.partition("# origin: ")
        assert len(code.rstrip().splitlines()) < 40, program
        assert "\n# about: " in notes, program
        assert program.stem not in sys.stdlib_module_names, f"{program} hides a module of Python"
        title = (ast.get_docstring(ast.parse(text)) or "").rstrip(".")
        expected.append((title, program.relative_to(ROOT / "docs").as_posix(), notes.partition("\n")[0]))
    assert sorted(rows) == sorted(expected)
    whole = set(re.findall(r"\(examples/(\w+\.py)\)", index))
    assert whole == {path.name for path in EXAMPLES if path not in GALLERY}


def test_compose_files_publish_the_ports_of_the_page() -> None:
    yaml = pytest.importorskip("yaml")
    one, three = (
        yaml.safe_load((ROOT / f"docs/examples/compose/{name}.yaml").read_text()) for name in ("server", "cluster")
    )
    assert "4222:4222" in one["services"]["nats"]["ports"]
    assert [node["ports"] for node in three["services"].values()] == [["4222:4222"], ["4223:4222"], ["4224:4222"]]


@pytest.mark.smoke
def test_quickstart_fits_on_a_screen() -> None:
    assert len(run_example(ROOT / "docs/examples/quickstart.py")) < 40


def test_readme_example_prints_what_its_comments_say(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    program = tmp_path / "readme.py"
    program.write_text(code)
    assert run_example(program) == re.findall(r"print\(.+\)  # (.+)$", code, re.MULTILINE)
