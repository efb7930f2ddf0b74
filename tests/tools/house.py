"""The house rules that a machine can check: sizes, test names and English. ``make check`` runs it.

    python -m tests.house            the figures; fails on a broken rule
    python -m tests.house english    every sentence that the figure for English counts, with its place
    python -m tests.house rooms      the lines of code of each folder, and the imports among what is in it

``KNOWN`` lists the exceptions of today. An exception may shrink and go away, and it has to go when it is not needed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.tools import names, rooms
from tests.tools.state import assigned, called, count_state

ROOT = Path(__file__).parents[2]

MAX_FILE_LINES = 600
"""Without docstrings, so that no text is cut short for this rule."""
MAX_FUNCTION_LINES = 60
"""Lines of the body, without signature and docstring."""
MAX_PARAMETERS = 12
"""Without ``self``, and without the keyword-only ones of public functions."""
MAX_FIELDS = 15
"""Attributes that change after construction, with those of base classes and of helper classes in the same file."""
MIN_MODULE_LINES = 40
MAX_TEST_NAME = 50
MAX_DECISION_WORDS = 450
MAX_DECISION_LINES = 40
MAX_ENTRIES = {"natsproto/jetstream": 16}
"""The most files and folders that a folder may show."""

KNOWN: dict[str, dict[str, int]] = {
    "file lines": {
        "tests/core/test_engine.py": 1069,
        "tests/core/test_subscription.py": 916,
        "tests/jetstream/test_consumer.py": 799,
        "tests/jetstream/test_direct.py": 673,
        "tests/jetstream/test_management.py": 836,
        "tests/jetstream/test_publish.py": 612,
        "tests/jetstream/test_publisher.py": 780,
        "tests/jetstream/test_pull_state.py": 1214,
        "tests/kit/hostile.py": 611,
        "tests/protocol/test_parser.py": 981,
        "tests/protocol/test_pool.py": 712,
        "tests/server/test_auth.py": 761,
        "tests/server/test_services.py": 628,
        "tests/server/test_testing.py": 694,
        "tests/server/test_websocket.py": 644,
        "tests/test_options.py": 769,
    },
    "function lines": {},
    "parameters": {
        "natsproto/compat/nats/aio/client.py:Client.connect": 37,
        "natsproto/compat/nats/js/client.py:JetStreamContext.subscribe": 15,
    },
    "mutable fields": {},
}
"""The exceptions: what it is, and the most that it may measure."""

SMALL_MODULES = {
    "natsproto/_version.py": "read by the build",
}
"""Modules below 40 lines, and the reason."""

ENGLISH: dict[str, int] = {}
"""Sentences to reword, for each directory: upper bounds to lower after rewording."""


LAYER_INTERFACE = {
    "NatsError": {"_transience"},
    "Client": {"_connect", "_options_again", "_start"},
    "Subscription": {
        *["_inbox", "_on_change", "_readers", "_read_batch", "_read_batch_nowait", "_route", "_track_task"],
        *["_stop_delivery_nowait", "_unsubscribe_nowait", "_wake_reader"],
    },
    "Message": {"_head", "_note", "_origin", "_reply"},
    "Headers": {"_description", "_status", "_wire_size"},
    "Options": {
        *["_anonymous_to", "_check_files", "_credentials_at_hand", "_credentials_for", "_dialer_for", "_for_probe"],
        *["_for_server", "_requiring_tls", "_server_pool"],
        *["_tls_context", "_tls_hostname_for", "_tls_required", "_websocket_headers_for", "_websocket_path_for"],
    },
    "Publisher": {"_is_traced", "_publish_blocks"},
    "AckFuture": {"_outcome"},
    "Messages": {"_lend", "_on_handled", "_return_unread", "_take_all"},
    "Fetch": {"_put_back"},
    "ResponseStream": {"_next", "_take_available"},
}
"""Names with an underscore that other layers of natsproto may use on objects of these classes; users see those without.
Those of a connection are the members of ``SEAM``. Everything else with an underscore is private to its package."""

SEAM = "natsproto/_core/seam.py"
"""The class Seam there has all that the layers on top use of a connection beside its public methods."""
MAX_SEAM_MEMBERS = 15
BUILT_ON_SEAM = ["natsproto/jetstream", "natsproto/service"]
CONNECTIONS = {"connection", "_connection", "nc", "origin"}
"""The names of expressions that are connections."""

PRIVATE_IMPORTS: dict[str, dict[str, set[str]]] = {
    "_cli": {},
    "spark": {
        "natsproto._dead_letters": {"failure_headers", "forms"},
        "natsproto._core.deadline": {"Backoff", "Deadline"},
        "natsproto._durations": {"positive_seconds", "seconds"},
        "natsproto._help.introspection": {"import_late_types"},
        "natsproto._options.options": {"DEFAULT_SERVER", "OptionArgs", "Text"},
        "natsproto._value": {"Value"},
        "natsproto.errors._base": {"HIDDEN", "hide_arguments", "is_transient"},
        "natsproto.jetstream._values.asset_names": {"check_bucket_name", "check_consumer_name", "check_stream_name"},
        "natsproto.jetstream._values.codec": {"UINT64"},
        "natsproto.jetstream._stream.direct_get": {"stored_header_blocks", "stored_times"},
        "natsproto.jetstream._publish.headers": {"message_blocks"},
        "natsproto.jetstream._consumer.ack_subject": {"MOST_TOKENS", "STREAM_AT", "read_ack_subject"},
        "natsproto.jetstream._consumer.message": {"ack_subjects", "header_blocks"},
        "natsproto.jetstream.kv._keys": {"check_key_name"},
        "natsproto.jetstream.kv._many_values": {"ManyValues"},
        "natsproto.sync": {"_client"},
        "natsproto.sync._portal": {"Portal"},
    },
}
"""The interface that a package has to the others: it imports these names of private modules, and public ones."""

FOREIGN_PRIVATE = {"_FIELD", "_current_frames", "_field_type", "_get_running_loop", "_is_coroutine"}
"""Underscored names of the standard library that are used on purpose; the reason is where they are used."""

ROOMS = [
    "_cli",
    "_core",
    "auth",
    "codecs",
    "compat",
    "errors",
    "jetstream",
    "otel",
    "protocol",
    "service",
    "spark",
    "sync",
    "testing",
]
"""The packages within natsproto; the modules beside them are rooms of their own."""


class Figure(NamedTuple):
    """A measured thing: a file, a function or a class."""

    rule: str
    name: str
    value: int
    limit: int


# ---------------------------------------------------------------- sizes


def sources(*directories: str) -> Iterator[tuple[str, Path]]:
    """The Python files, with their names relative to the project."""
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Everything in a file."""
    return list(ast.walk(parsed(path)))


def file_lengths() -> Iterator[Figure]:
    for name, path in sources("natsproto", "tests", "benchmarks"):
        texts = sum(last - first + 1 for _, first, last in docstring_nodes(nodes_of(path)))
        yield Figure("file lines", name, len(path.read_text().splitlines()) - texts, MAX_FILE_LINES)


def code_lines(text: str) -> int:
    """The lines that hold code: no docstrings, comments and blank lines."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    texts = docstring_nodes(list(ast.walk(ast.parse(text))))
    return len(lines.difference(*(range(first, last + 1) for _, first, last in texts)))


def room_sizes() -> Counter[str]:
    """The lines of code of each package."""
    sizes: Counter[str] = Counter()
    for name, path in sources("natsproto"):
        for room in (name.rpartition("/")[0], "in all"):
            sizes[room] += code_lines(path.read_text())
    return sizes


def parsed_modules() -> dict[str, ast.Module]:
    """The modules of natsproto by their files."""
    return {name: parsed(path) for name, path in sources("natsproto")}


def parsed_tests() -> dict[str, ast.Module]:
    """The modules of the tests by their files."""
    return {name: parsed(path) for name, path in sources("tests")}


def import_graph() -> rooms.Graph:
    """The imports among the modules of natsproto, in any place."""
    return rooms.import_graph(parsed_modules())


def full_folders() -> list[str]:
    """Folders with more entries than ``MAX_ENTRIES``."""
    counts = {folder: len(rooms.entries(ROOT / folder)) for folder in MAX_ENTRIES}
    return [
        f"{folder}: {count} entries, at most {MAX_ENTRIES[folder]}"
        for folder, count in counts.items()
        if count > MAX_ENTRIES[folder]
    ]


def small_modules() -> list[str]:
    """Modules below 40 lines that ``SMALL_MODULES`` does not explain, and explanations of others."""
    small = {
        name
        for name, path in sources("natsproto")
        if not path.name.startswith("__")
        and not name.startswith("natsproto/compat/nats")  # the modules that nats-py has
        and len(path.read_text().splitlines()) < MIN_MODULE_LINES
    }
    reasons = {*SMALL_MODULES}
    unexplained = [f"{name}: below {MIN_MODULE_LINES} lines, no reason in SMALL_MODULES" for name in small - reasons]
    return unexplained + [f"{name}: take it out of SMALL_MODULES" for name in reasons - small]


def decision_pages() -> dict[str, str]:
    """The texts of the decisions by their names, without the index."""
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    return {page.name: page.read_text() for page in pages}


def decision_numbers() -> list[str]:
    """Decisions that have the number of another one, or another number in their heading than in their name."""
    pages = decision_pages()
    counts = Counter(name[:4] for name in pages)
    twice = [f"docs/decisions/{name}: another decision has this number" for name in pages if counts[name[:4]] > 1]
    return twice + [
        f"docs/decisions/{name}: its heading has another number"
        for name, text in pages.items()
        if not text.startswith(f"# {name[:4]}")
    ]


def unlisted_decisions(index: str, pages: Iterable[str]) -> list[str]:
    """Pages that the index by rooms does not name, and names of none."""
    named, existing = set(re.findall(r"\]\((\d{4}[^)]*)\)", index)), set(pages)
    missing = [f"docs/decisions/README.md: {page} is in no room" for page in sorted(existing - named)]
    return missing + [f"docs/decisions/README.md: there is no {page}" for page in sorted(named - existing)]


def long_decisions() -> list[str]:
    """Decisions of more than ``MAX_DECISION_WORDS`` or ``MAX_DECISION_LINES``."""
    sizes = {name: (len(text.split()), text.count("\n")) for name, text in decision_pages().items()}
    return [
        f"docs/decisions/{name}: {words} words in {lines} lines, at most {MAX_DECISION_WORDS} in {MAX_DECISION_LINES}"
        for name, (words, lines) in sizes.items()
        if words > MAX_DECISION_WORDS or lines > MAX_DECISION_LINES
    ]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods with their qualified names."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield prefix + child.name, child
                yield from inside(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from inside(child, f"{prefix}{child.name}.")
            else:
                yield from inside(child, prefix)

    return inside(tree, "")


def function_sizes() -> Iterator[Figure]:
    for name, path in sources("natsproto"):
        for function, node in functions(parsed(path)):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
            yield Figure("function lines", f"{name}:{function}", lines, MAX_FUNCTION_LINES)
            public = all(not part.startswith("_") or part == "__init__" for part in function.split("."))
            positional = [*node.args.posonlyargs, *node.args.args]
            count = len(positional) - bool(positional and positional[0].arg in ("self", "cls"))
            count += 0 if public else len(node.args.kwonlyargs)
            yield Figure("parameters", f"{name}:{function}", count, MAX_PARAMETERS)


# ---------------------------------------------------------------- state


def state_sizes() -> Iterator[Figure]:
    files = {name: nodes_of(path) for name, path in sources("natsproto")}
    written = {
        target.attr
        for nodes in files.values()
        for target, _ in assigned(nodes)
        if not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"))
    }
    for name, count in count_state(files, written):
        yield Figure("mutable fields", name, count, MAX_FIELDS)


# ---------------------------------------------------------------- boundaries


def _room(name: str) -> str:
    part = name.split("/")[1]
    return part if part in ROOMS else name


def _own_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The methods, fields and attributes of the classes in a file."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    for target, _ in assigned(nodes):
        if isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"):
            yield target.attr


def _is_own_object(node: ast.expr) -> bool:
    """True for ``self``, ``cls`` and ``super()``: a class may use what it inherits."""
    return (isinstance(node, ast.Name) and node.id in ("self", "cls")) or called(node) == "super"


def broken_boundaries(files: dict[str, list[ast.AST]] | None = None) -> list[str]:
    """Uses of a private attribute of another package, and names that ``LAYER_INTERFACE`` need not list."""
    files = {name: nodes_of(path) for name, path in sources("natsproto")} if files is None else files
    own: dict[str, set[str]] = {}
    for name, nodes in files.items():
        own.setdefault(_room(name), set()).update(_own_names(nodes))
    listed = {attribute for names in LAYER_INTERFACE.values() for attribute in names} | seam_members().keys()
    used, found = set(), []
    for name, nodes in files.items():
        for node in nodes:
            if (
                not isinstance(node, ast.Attribute)
                or not node.attr.startswith("_")
                or node.attr.startswith("__")
                or node.attr in FOREIGN_PRIVATE | {"_fields", "_replace"}  # a NamedTuple's are public
            ):
                continue
            if node.attr in listed and not (_room(name) == "_core" and node.attr in own["_core"]):
                used.add(node.attr)
            elif node.attr not in own[_room(name)] and not _is_own_object(node.value):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)} is private to another package")
    return found + [f"LAYER_INTERFACE: {attribute} is used nowhere" for attribute in sorted(listed - used)]


@cache
def seam_members() -> dict[str, str]:
    """The members of Seam, with their sentences."""
    (seam,) = [node for node in nodes_of(ROOT / SEAM) if isinstance(node, ast.ClassDef) and node.name == "Seam"]
    members: dict[str, str] = {}
    for node, following in pairwise([*seam.body, ast.Pass()]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            members[node.name] = ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members[node.target.id] = next(docstrings([following]), "")
    return members


def seam_uses(folder: str) -> Counter[str]:
    """The underscored names of a connection that a package uses, and at how many places."""
    return Counter(
        node.attr
        for _, path in sources(folder)
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and called(node.value if not isinstance(node.value, ast.Call) else node.value.func) in CONNECTIONS
    )


def wide_seams() -> list[str]:
    """More members than ``MAX_SEAM_MEMBERS``, members without a sentence, and uses of anything else."""
    members = seam_members()
    found = [f"{SEAM}: {name} needs a sentence" for name, sentence in members.items() if not sentence]
    if len(members) > MAX_SEAM_MEMBERS:
        found.append(f"{SEAM}: {len(members)} members, at most {MAX_SEAM_MEMBERS}")
    for folder in BUILT_ON_SEAM:
        found += [f"{folder}: {name} of a connection is not in {SEAM}" for name in seam_uses(folder).keys() - members]
    return found


def unlisted_imports() -> Iterator[str]:
    """Private names of others that a package imports without an entry in ``PRIVATE_IMPORTS``, and needless entries."""
    for package, listed in PRIVATE_IMPORTS.items():
        needless = {(module, name) for module, names in listed.items() for name in names}
        for file, path in sources(f"natsproto/{package}"):
            for node in nodes_of(path):
                if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("natsproto"):
                    continue
                module = str(node.module)
                for alias in node.names:
                    needless.discard((module, alias.name))
                    is_private = any(part.startswith("_") for part in f"{module}.{alias.name}".split("."))
                    is_own = module.startswith(f"natsproto.{package}")
                    if is_private and not is_own and alias.name not in listed.get(module, ()):
                        yield f"{file}:{node.lineno}: {module}.{alias.name} is not in PRIVATE_IMPORTS"
        yield from (f"PRIVATE_IMPORTS: {module}.{name} is used nowhere" for module, name in sorted(needless))


# ---------------------------------------------------------------- English

UNNATURAL = re.compile(
    r"^(?:What|Who|Whoever|Whether|Nobody|Whom)\b(?!.*\?$)|\bso many\b|\bhow many\b.*\bit is\b|\btells of\b",
    re.IGNORECASE,
)


METAPHOR = re.compile(r"\b(?:tells?|told|hears?|heard|believes?|believed)\b(?! (?:from|apart)\b)", re.IGNORECASE)
"""Words for people where the subject is software, in docstrings and pages: it reports, receives, trusts."""


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """All docstrings, those under attributes and constants too."""
    return (text for text, _, _ in docstring_nodes(nodes))


def docstring_nodes(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int, int]]:
    """The docstrings with their first and last lines."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value, node.lineno, node.end_lineno or node.lineno


def prose(page: str) -> str:
    """A page of Markdown without its code."""
    return re.sub(r"```.*?```", "", page, flags=re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """Sentences; table cells and list items begin new ones."""
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*#>]+|\d+\.)\s|\|", text):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(block.split())):
            yield sentence.lstrip("*_\"'( ")


def english() -> dict[str, list[str]]:
    """The sentences that a native speaker would put another way, for each directory."""
    found: dict[str, list[str]] = {}
    texts = [(name, "\n\n".join(docstrings(nodes_of(path)))) for name, path in sources("natsproto")]
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
    texts += [(str(path.relative_to(ROOT)), prose(path.read_text())) for path in pages]
    for name, text in texts:
        directory = "/".join(name.split("/")[:2]) if name.count("/") > 1 else name.rpartition("/")[0] or "."
        not_a_decision = not name.startswith("docs/decisions")
        found.setdefault(directory, []).extend(
            f"{name}: {sentence}"
            for sentence in sentences(text)
            if UNNATURAL.search(sentence) or (not_a_decision and METAPHOR.search(re.sub(r"`[^`]*`", "", sentence)))
        )
    return found


# ---------------------------------------------------------------- tests


def long_test_names() -> dict[str, list[str]]:
    """Tests with names of more than 50 characters, for each directory."""
    found: dict[str, list[str]] = {}
    for name, path in sources("tests"):
        found.setdefault(name.rpartition("/")[0], []).extend(
            f"{name}: {test}"
            for test in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
            if len(test) > MAX_TEST_NAME
        )
    return found


# ---------------------------------------------------------------- the report


def broken_sizes(figures: list[Figure]) -> list[str]:
    """The sizes above their limits or known exceptions, and the exceptions that are not needed."""
    found = []
    needed: dict[str, set[str]] = {rule: set() for rule in KNOWN}
    for rule, name, value, limit in figures:
        if value > limit:
            needed[rule].add(name)
            if value > (bound := KNOWN[rule].get(name, limit)):
                found.append(f"{name}: {value} {rule}, at most {bound}")
    for rule, known in KNOWN.items():
        found += [f"{name}: take it out of KNOWN[{rule!r}]" for name in sorted({*known} - needed[rule])]
    return found


def broken_counts(subject: str, found: dict[str, list[str]], bounds: dict[str, int]) -> list[str]:
    """Directories with more than their bounds, and bounds that are not needed."""
    return [
        f"{directory}: {len(found.get(directory, []))} {subject}, at most {bounds.get(directory, 0)}"
        for directory in sorted({*found, *bounds})
        if len(found.get(directory, [])) > bounds.get(directory, 0)
        or (directory in bounds and not found.get(directory))
    ]


def broken_rules(figures: list[Figure] | None = None) -> list[str]:
    """All broken rules, one line each; an empty list is good."""
    return [
        *broken_sizes(list(all_sizes()) if figures is None else figures),
        *rooms.all_circles(import_graph()),
        *names.names_with_two_meanings(parsed_modules()),
        *names.nested_choices(parsed_modules()),
        *names.crowded_statements(parsed_modules()),
        *names.repeated_helpers(parsed_tests()),
        *full_folders(),
        *small_modules(),
        *decision_numbers(),
        *unlisted_decisions((ROOT / "docs/decisions/README.md").read_text(), decision_pages()),
        *long_decisions(),
        *broken_boundaries(),
        *wide_seams(),
        *unlisted_imports(),
        *broken_counts("sentences to reword (python -m tests.house english)", english(), ENGLISH),
        *broken_counts("test names above 50 characters", long_test_names(), {}),
    ]


def all_sizes() -> Iterator[Figure]:
    yield from file_lengths()
    yield from function_sizes()
    yield from state_sizes()


def room_figures() -> Iterator[str]:
    """How the listing shows the architecture: circles, and what stands in which folder."""
    graph = import_graph()
    found = rooms.all_circles(graph)
    files = sum("files:" in line for line in found)
    yield f"circles of imports, those of types and in functions too: {files} of files, {len(found) - files} of folders"
    for folder, inside in sorted(rooms.folders_of(graph).items()):
        if folder in ("natsproto", "natsproto._core", "natsproto.jetstream", "natsproto.jetstream._consumer"):
            arrows = sum(map(len, inside.values()))
            count = len(rooms.entries(ROOT / folder.replace(".", "/")))
            yield f"{folder}: {count} entries, {arrows} arrows among them, {rooms.floors(inside)} floors"

    trees = parsed_modules()
    twice, nested, crowded = (
        find(trees) for find in (names.names_with_two_meanings, names.nested_choices, names.crowded_statements)
    )
    yield f"names with two meanings: {len(twice)}" + "".join(f"; {line}" for line in twice)
    repeated = names.repeated_helpers(parsed_tests())
    yield f"helpers of one name in {names.HELPER_FILES} test files and more: {len(repeated)}"
    yield f"conditional expressions in others: {len(nested)}" + "".join(f"; {line}" for line in nested)
    yield f"statements with more than {names.MAX_CHOICES} choices in {names.CROWDED_LINES} lines: {len(crowded)}"
    yield f"members of the seam (<= {MAX_SEAM_MEMBERS}): {len(seam_members())}"
    for folder in BUILT_ON_SEAM:
        uses = seam_uses(folder)
        yield f"{folder}: {len(uses)} members of the seam, at {uses.total()} places"


def report(figures: list[Figure]) -> Iterator[str]:
    """The largest things of each kind and the totals."""
    for rule in KNOWN:
        largest = sorted((figure for figure in figures if figure.rule == rule), key=lambda one: -one.value)[:3]
        above = sum(figure.value > figure.limit for figure in figures if figure.rule == rule)
        limit = largest[0].limit
        yield f"{rule} (<= {limit}): {above} above; " + ", ".join(f"{one.value} {one.name}" for one in largest)
    yield from room_figures()
    for subject, counts in (("sentences to reword", english()), ("test names to shorten", long_test_names())):
        totals = Counter({directory: len(found) for directory, found in counts.items() if found})
        parts = ", ".join(f"{count} {directory}" for directory, count in totals.most_common())
        yield f"{subject}: {totals.total()}" + (f" ({parts})" if parts else "")


def main(arguments: list[str]) -> int:
    if arguments == ["english"]:
        print(*(line for found in english().values() for line in found), sep="\n")
        return 0
    if arguments == ["rooms"]:
        print(*(f"{size:6} {room}" for room, size in sorted(room_sizes().items())), *room_figures(), sep="\n")
        return 0
    figures = list(all_sizes())
    print(*report(figures), sep="\n")
    broken = broken_rules(figures)
    print(*broken, sep="\n", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
