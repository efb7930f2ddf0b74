"""Writes the configuration of the documentation for mkdocs: what pyproject.toml says, and all decisions there are."""

import json
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent

site = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["mkdocs"]
site["nav"].append({"Decisions": sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("decisions/*.md"))})
site["exclude_docs"] = Path(__file__).name
print(json.dumps(site))
