"""nats-py's API on natsproto, for programs and frameworks that are written for ``import nats``.

``import natsproto.compat.nats as nats`` changes one line of a program. ``install()`` changes none in the modules that
import ``nats``: it lets natsproto stand in for nats-py in the whole process.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

from natsproto.compat import nats

__all__ = ["install", "nats"]


def install() -> None:
    """Lets ``import nats``, and imports of its submodules, give ``natsproto.compat.nats`` from now on.

    Call it before anything imports ``nats``: RuntimeError when that has happened. Calling it twice does nothing.
    """
    if sys.modules.get("nats", nats) is not nats:
        raise RuntimeError("nats was imported before: call natsproto.compat.install() first")
    sys.modules["nats"] = nats
    for module in pkgutil.walk_packages(nats.__path__, f"{nats.__name__}."):
        sys.modules[module.name.removeprefix(f"{__name__}.")] = importlib.import_module(module.name)
