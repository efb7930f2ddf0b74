"""nats-py's API on natsproto, for programs and frameworks written for ``import nats``.

Use ``import natsproto.compat.nats as nats`` to change one line of a program, or call ``install()`` to change none:
natsproto then replaces nats-py in the whole process.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from natsproto.compat import nats

__all__ = ["install", "nats"]


def install() -> None:
    """Make ``import nats``, and imports of its submodules, return ``natsproto.compat.nats`` from now on.

    Call it before any module imports ``nats``; RuntimeError afterwards. A second call does nothing.
    """
    if sys.modules.get("nats", nats) is not nats:
        raise RuntimeError("nats was imported before: call natsproto.compat.install() first")
    sys.modules["nats"] = nats
    for module in pkgutil.walk_packages(nats.__path__, f"{nats.__name__}."):
        sys.modules[module.name.removeprefix(f"{__name__}.")] = importlib.import_module(module.name)
