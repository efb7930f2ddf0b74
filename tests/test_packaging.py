"""What is shipped: one pure wheel and an sdist that can be built from, usable without a single dependency."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from trove_classifiers import classifiers

from natsproto import __version__

ROOT = Path(__file__).parent.parent
EXTRAS = {"all", "cli", "nkeys", "otel", "proxy", "server", "spark", "spark-cluster", "uvloop", "ws"}


def run_command(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


pytestmark = pytest.mark.xdist_group("packaging")  # what is built is built once


TOP_LEVEL = {"pytest_natsproto.py", "pyspark_natsproto.py"}
"""Modules that pytest and Spark find by themselves."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree, and the wheel built from that sdist: whoever packages it does the same.

    $NATSPROTO_DIST is a folder that has both already: those of a release.
    """
    if ready := os.environ.get("NATSPROTO_DIST"):
        return Path(ready).absolute()
    return built(tmp_path_factory.mktemp("dist"))


def built(folder: Path) -> Path:
    run_command(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
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
    run_command(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run_command(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet", wheel)
    return python


def test_one_pure_wheel_and_one_sdist_are_built(dist: Path) -> None:
    wheel, sdist = sorted(path.name for path in dist.iterdir())
    assert wheel.startswith("natsproto-")
    assert wheel.endswith("-py3-none-any.whl")
    assert sdist == wheel.removesuffix("-py3-none-any.whl") + ".tar.gz"


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"natsproto", *TOP_LEVEL}
    assert "natsproto/py.typed" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "natsproto").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules | TOP_LEVEL


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
    assert set(urls) == {"Homepage", "Documentation", "Source", "Changelog", "Issues", "Security"}
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
    run_command(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    run_command(sys.executable, "-m", "check_wheel_contents", wheel)


@pytest.mark.slow
def test_a_build_can_be_repeated(dist: Path, tmp_path: Path) -> None:
    """Whoever builds the tag with the same tools has the files of the release."""
    again = built(tmp_path)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir()} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in again.iterdir()
    }


# ---------------------------------------------------------------- the release

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs_of(name: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    return jobs


def commands(job: Mapping[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def actions(job: Mapping[str, Any]) -> list[str]:
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


def test_publishing_needs_no_secret() -> None:
    """Trusted publishing: PyPI believes the workflow's identity, and only the job that publishes has one."""
    assert all("secrets." not in path.read_text() for path in WORKFLOWS)
    jobs = jobs_of("publish.yml")
    rights = {name: job["permissions"] for name, job in jobs.items()}
    assert rights == {"build": {"contents": "read"}, "test": {"contents": "read"}, "publish": {"id-token": "write"}}
    assert actions(jobs["publish"]) == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]


def test_the_tested_files_are_the_published_ones() -> None:
    """They are built before anything else has run on the machine."""
    jobs = jobs_of("publish.yml")
    assert jobs["test"]["needs"] == "build"
    assert jobs["publish"]["needs"] == ["build", "test"]
    (install, build) = (command for command in commands(jobs["build"]) if command.startswith("python -m "))
    assert "--require-hashes --only-binary :all: --no-deps -r .github/build-requirements.txt" in install
    assert build == "python -m build --no-isolation"
    assert "unzip -q build/release/*.whl 'natsproto/*'" in commands(jobs["test"])[0]
    assert "git diff --exit-code" in commands(jobs["test"])[0]
    assert commands(jobs["test"])[1:] == ["make test", '.venv/bin/python -m pytest -m "" tests/test_packaging.py']
    assert "sha256sum --check --strict" in commands(jobs["publish"])[0]


def test_pull_requests_are_tested_on_three_systems() -> None:
    jobs = jobs_of("test.yml")
    assert jobs["linux"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert commands(jobs["linux"]) == ["make test", "make check"]
    assert jobs["others"]["continue-on-error"]
    assert jobs["others"]["strategy"]["matrix"]["system"] == ["macos-latest", "windows-latest"]
    assert commands(jobs["fresh"]) == ["make fresh"]
    assert jobs["publish-site"]["if"] == "github.event_name == 'push'"
    writing = [name for name, job in jobs.items() if job["permissions"] != {"contents": "read"}]
    assert writing == ["publish-site"]


@pytest.mark.slow
def test_release_check_creates_no_tag() -> None:
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    script = (ROOT / ".ci/release").read_text()
    done = subprocess.run([ROOT / ".ci/release", sys.executable], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(f"natsproto {__version__}\n"), done.stderr
    assert ("Ready." in done.stdout) == (done.returncode == 0)
    assert subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True).stdout == tags
    assert not re.search(r"^\s*git (?:tag --annotate|push|commit)", script.partition("cat <<END")[0], re.MULTILINE)


def test_build_tools_have_hashes() -> None:
    lines = (ROOT / ".github/build-requirements.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", line) for line in pinned)
    assert {"build", "hatchling"} <= {line.partition("==")[0] for line in pinned}


def test_actions_are_pinned_by_their_commit() -> None:
    lines = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines()]
    used = [line.removeprefix("- uses: ") for line in lines if line.startswith("- uses: ")]
    assert len(used) > 5
    assert [one for one in used if not re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v[\d.]+", one)] == []


def test_page_names_all_packages_and_publishers(metadata: Message) -> None:
    page = (ROOT / "docs/security.md").read_text()
    table = page.partition("| extra | package | published by |")[2].partition("\n\n")[0]
    rows = {tuple(part.strip(" `") for part in line.split("|")[1:3]) for line in table.splitlines()[2:]}
    extras = EXTRAS - {"all"}
    needs = {(extra, re.split(r"[<>=;\[ ]", need)[0]) for extra in extras for need in needs_of(extra, metadata)}
    of_clusters = {("spark", name) for extra, name in needs if extra == "spark-cluster"}  # the extra contains that one
    assert rows == needs - of_clusters - {("spark", "natsproto")}


def test_nothing_is_required_without_an_extra(metadata: Message) -> None:
    assert [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need] == []


def test_extra_all_means_all_but_spark_and_server(metadata: Message) -> None:
    of_all = needs_of("all", metadata)
    small = EXTRAS - {"all", "server", "spark", "spark-cluster"}
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
    shown = run_command(clean_python, "-I", "-W", "error", "-X", "dev", "-c", program, cwd=tmp_path)
    assert shown == "Options(servers='localhost:4222')\n"


def test_client_modules_import_without_extras(clean_python: Path, tmp_path: Path) -> None:
    """Those that stand for an extra say which one is missing.

    ``natsproto.spark`` itself needs nothing, and loads those of its modules that need Spark when they are asked for.
    """
    program = (
        "import importlib, pkgutil, natsproto\n"
        "for found in pkgutil.walk_packages(natsproto.__path__, 'natsproto.'):\n"
        "    try: importlib.import_module(found.name)\n"
        "    except (ImportError, natsproto.errors.ConfigError) as error: print(found.name, error)\n"
    )
    refused = run_command(clean_python, "-I", "-W", "error", "-c", program, cwd=tmp_path).splitlines()
    lazy = re.compile(r"natsproto\.spark\.\w+ No module named '(pyspark|pyarrow)'")
    assert all("natsproto[" in line or lazy.match(line) for line in refused), refused
