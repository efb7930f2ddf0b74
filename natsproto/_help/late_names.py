"""Names of a module that are imported when they are asked for, and the place of names that are looked for in it.

A module takes both methods of a ``LateNames`` as its ``__getattr__`` and ``__dir__`` (PEP 562).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType


class LateNames:
    """The late names of one module.

    ``homes`` has the modules of names that are attributes of this one, too. ``modules`` are submodules, imported only
    when they are used. ``advice`` says for other names what to use: asking for one raises an ImportError with it.
    """

    def __init__(
        self,
        module: str,
        *,
        homes: Mapping[str, str] = MappingProxyType({}),
        modules: Sequence[str] = (),
        advice: Mapping[str, str],
    ) -> None:
        self._module = module
        self._homes, self._modules, self._advice = homes, modules, advice

    def get(self, name: str) -> object:
        """Return the attribute, which is one of the module from then on; AttributeError, ImportError."""
        if name in self._modules:
            return import_module(f"{self._module}.{name}")
        if (home := self._homes.get(name)) is not None:
            value = getattr(import_module(home), name)
            setattr(sys.modules[self._module], name, value)
            return value
        if (advice := self._advice.get(name)) is not None:
            # The text of an AttributeError is lost in "from module import name".
            raise ImportError(f"{self._module} has no {name}: {advice}", name=self._module)
        raise AttributeError(f"module {self._module!r} has no attribute {name!r}", name=name)

    def names(self) -> list[str]:
        """Return the names of the module, the late ones too."""
        return sorted({*vars(sys.modules[self._module]), *self._homes, *self._modules})
