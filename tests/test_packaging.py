"""What is shipped: one pure wheel and an sdist that can be built from, usable without a single dependency."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from trove_classifiers import classifiers

ROOT = Path(__file__).parent.parent
EXTRAS = {"all", "nkeys", "otel", "proxy", "server", "spark", "spark-cluster", "uvloop", "ws"}


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


pytestmark = pytest.mark.xdist_group("packaging")  # what is built is built once


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree, and the wheel built from that sdist: whoever packages it does the same."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and nothing else; --no-index proves that nothing else is needed."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet", wheel)
    return python


def test_one_pure_wheel_and_one_sdist_are_built(dist: Path) -> None:
    wheel, sdist = sorted(path.name for path in dist.iterdir())
    assert wheel.startswith("natsproto-")
    assert wheel.endswith("-py3-none-any.whl")
    assert sdist == wheel.removesuffix("-py3-none-any.whl") + ".tar.gz"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"natsproto"}
    assert "natsproto/py.typed" in names
    assert {name for name in names if name.endswith(".py")} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "natsproto").rglob("*.py")
    }


def test_sdist_holds_what_make_needs(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "pyproject.toml",
        "docs/examples/quickstart.py",
        "tests/test_packaging.py",
    } <= names
    assert not any("__pycache__" in name or name.startswith((".venv", ".git/")) for name in names)


def test_metadata_names_license_python_and_every_extra(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS


def test_metadata_names_the_pages_of_the_project(metadata: Message) -> None:
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Documentation", "Source", "Changelog", "Issues", "Security"}
    assert all(url.startswith("https://") for url in urls.values())


def test_classifiers_exist(metadata: Message) -> None:
    assert set(metadata.get_all("Classifier", [])) <= classifiers


def test_supported_pythons_are_those_of_the_page(metadata: Message) -> None:
    page = (ROOT / "docs/support.md").read_text()
    (row,) = re.findall(r"^\| (3\.11.*?) \| supported \|$", page, re.MULTILINE)
    prefix = "Programming Language :: Python :: 3."
    claimed = [line.rpartition(" ")[2] for line in metadata.get_all("Classifier", []) if line.startswith(prefix)]
    assert row.split(", ") == claimed


def test_links_of_the_readme_work_on_pypi() -> None:
    """PyPI shows the README alone: a link is absolute, and one into this repository leads to a file."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"] + "/blob/main/"
    assert [link for link in links if not link.startswith("https://")] == []
    assert [link for link in links if link.startswith(source) and not (ROOT / link.removeprefix(source)).exists()] == []


@pytest.mark.slow
def test_twine_and_check_wheel_contents_find_nothing(dist: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    run(sys.executable, "-m", "check_wheel_contents", wheel)


def test_publishing_needs_no_secret() -> None:
    """Trusted publishing: PyPI believes the workflow's identity, and only the job that publishes has one."""
    workflow = (ROOT / ".github/workflows/publish.yml").read_text()
    assert "secrets." not in workflow
    assert workflow.count("id-token: write") == 1
    assert "twine check --strict" in workflow


def test_nothing_is_required_without_an_extra(metadata: Message) -> None:
    assert [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need] == []


def test_the_extra_all_means_all_but_spark(metadata: Message) -> None:
    of_all = needs_of("all", metadata)
    small = EXTRAS - {"all", "spark", "spark-cluster"}
    assert of_all in (
        set().union(*(needs_of(extra, metadata) for extra in small)),
        {f"natsproto[{','.join(sorted(small))}]"},
    )


def test_clusters_get_no_spark_of_their_own(metadata: Message) -> None:
    assert {re.split("[<>=]", need)[0] for need in needs_of("spark-cluster", metadata)} == {"pandas", "pyarrow"}
    assert any(need.startswith("pyspark") for need in needs_of("spark", metadata))


def needs_of(extra: str, metadata: Message) -> set[str]:
    needs = [need.partition(";") for need in metadata.get_all("Requires-Dist", [])]
    return {name.strip() for name, _, marker in needs if marker.endswith(f"'{extra}'")}


def test_wheel_works_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    program = (
        "import natsproto, sys; from importlib import metadata\n"
        "assert metadata.version('natsproto') == natsproto.__version__\n"
        "assert sys.prefix in natsproto.__file__, natsproto.__file__\n"
        "print(natsproto.Options('nats://localhost'))"
    )
    shown = run(clean_python, "-I", "-W", "error", "-X", "dev", "-c", program, cwd=tmp_path)
    assert shown == "Options(servers='localhost:4222')\n"


def test_client_modules_import_without_extras(clean_python: Path, tmp_path: Path) -> None:
    """Those that stand for an extra say which one is missing; ``natsproto.testing._plugin`` is for pytest.

    ``natsproto.spark`` itself needs nothing, and loads those of its modules that need Spark when they are asked for.
    """
    program = (
        "import importlib, pkgutil, natsproto\n"
        "for found in pkgutil.walk_packages(natsproto.__path__, 'natsproto.'):\n"
        "    try: importlib.import_module(found.name)\n"
        "    except (ImportError, natsproto.errors.ConfigError) as error: print(found.name, error)\n"
    )
    refused = run(clean_python, "-I", "-W", "error", "-c", program, cwd=tmp_path).splitlines()
    lazy = re.compile(r"natsproto\.testing\._plugin |natsproto\.spark\.\w+ No module named '(pyspark|pyarrow)'")
    assert all("natsproto[" in line or lazy.match(line) for line in refused), refused
