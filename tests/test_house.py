"""The house rules hold: sizes, test names and English (tests.tools.house)."""

from __future__ import annotations

import ast

import pytest

from tests.tools import house, names, rooms
from tests.tools.state import count_state


def test_pyproject_is_small() -> None:
    assert (house.ROOT / "pyproject.toml").stat().st_size <= 16 * 1024


@pytest.mark.slow
@pytest.mark.smoke
def test_house_rules() -> None:
    assert house.broken_rules() == []


def test_house_counts_nested_state() -> None:
    source = """
class _State:
    def __init__(self):
        self.first = []
        self.second = 0

    def act(self):
        self.second += 1

class Owner:
    def __init__(self, name):
        self.name = name
        self.state = _State()
        self.third = None

    def act(self):
        self.third = 1
"""
    figures = count_state({"f": list(ast.walk(ast.parse(source)))})
    assert dict(figures) == {"f:_State": 2, "f:Owner": 3}


def test_house_boundaries() -> None:
    source = "def act(connection):\n    connection._event_bus.emit(1)\n    connection._engine.close()\n"
    tree = list(ast.walk(ast.parse(source)))
    found = [line for line in house.broken_boundaries({"natsproto/sync/x.py": tree}) if "used nowhere" not in line]
    assert found == ["natsproto/sync/x.py:3: connection._engine is private to another package"]


def test_house_english_pattern() -> None:
    text = "Whether it works.\n\nWhat is this? It says so many words. Plain words.\n- Who asks."
    found = [sentence for sentence in house.sentences(text) if house.UNNATURAL.search(sentence)]
    assert found == ["Whether it works.", "It says so many words.", "Who asks."]


def test_house_index_of_decisions() -> None:
    index = "- [0001](0001-one.md): this.\n- [0002](0002-two.md)\n\n0003 → 0002"
    assert house.unlisted_decisions(index, ["0001-one.md", "0002-two.md"]) == []
    assert house.unlisted_decisions(index, ["0001-one.md", "0003-three.md"]) == [
        "docs/decisions/README.md: 0003-three.md is in no room",
        "docs/decisions/README.md: there is no 0002-two.md",
    ]


def test_house_code_lines() -> None:
    text = '"""A module."""\n\nX = """not\none"""  # a comment\n\n# another\ndef f():\n    """One."""\n    return 1\n'
    assert house.code_lines(text) == 4


def trees(**files: str) -> dict[str, ast.AST]:
    return {f"p/{name.replace('__', '/')}.py": ast.parse(source) for name, source in files.items()}


def test_house_finds_circles_of_files() -> None:
    source = "if TYPE_CHECKING:\n    from p.b import B\n"
    graph = rooms.import_graph(trees(a=source, b="def f():\n    from p import a\n", c="import p.a\n"))
    assert rooms.all_circles(graph) == ["a circle of 2 files: p.a, p.b", "a circle in p: a, b"]


def test_house_finds_circles_of_folders() -> None:
    graph = rooms.import_graph(trees(x__one="import p.y.one", y__one="", y__two="import p.x.two", x__two=""))
    assert rooms.circles(graph) == []
    assert rooms.all_circles(graph) == ["a circle in p: x, y"]


def test_house_counts_floors() -> None:
    graph = rooms.import_graph(trees(a="import p.b\nimport p.c", b="import p.c", c=""))
    assert rooms.floors(rooms.folders_of(graph)["p"]) == 3


def test_house_finds_names_with_two_meanings() -> None:
    source = {
        "a.py": "WAIT_S, MAX_S = 1, 2\nclass Reader: ...",
        "b.py": "WAIT_S: Final = 2\nMAX_S = 2\nclass Reader: ...",
    }
    found = names.names_with_two_meanings({file: ast.parse(text) for file, text in source.items()})
    assert found == ["WAIT_S: two values, in a.py and b.py", "class Reader: defined in a.py and b.py"]


def test_house_finds_repeated_helpers() -> None:
    helper, fixture = "def until(): ...\n", "@pytest.fixture\ndef server(): ...\n"
    files = {f"tests/{name}.py": ast.parse(helper + fixture) for name in ("a", "b", "typing/c")}
    assert names.repeated_helpers(files) == []
    found = names.repeated_helpers({**files, "tests/d.py": ast.parse("@cache\ndef until(): ...")})
    assert [line.partition(";")[0] for line in found] == [
        "until: a helper in 3 files, tests/a.py, tests/b.py, tests/d.py"
    ]


def test_house_finds_nested_choices() -> None:
    tree = ast.parse("x = 1 if a else 2\ny = 1 if a else 2 if b else 3\nz = f(1 if a else 2) if b else 3")
    assert names.nested_choices({"a.py": tree}) == ["a.py:2: a conditional expression in another one"]


def test_house_finds_crowded_statements() -> None:
    most = "if (a and b and c and d or e or f or\n        (g if h else i)):\n    x = (j or k)"
    more = most.replace("a and", "a and z and")
    longer = more.replace(" or", " or\n")
    trees = {"most.py": ast.parse(most), "more.py": ast.parse(more), "longer.py": ast.parse(longer)}
    assert names.crowded_statements(trees) == ["more.py:1: 8 choices in 2 lines, at most 7"]
