"""One real nats-server on free loopback ports, for tests, examples and benchmarks.

Owns what outlives the process and is needed to start it again: its directory, its ports, its configuration.
Speaks no NATS: the server's ports file, its log and its signals tell everything.
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

from natsproto.errors import ConfigError
from natsproto.testing._config import HOST, ServerSettings, ServerTls, StrPath
from natsproto.testing._ports import HeldPort
from natsproto.testing._process import Process, ServerFailed, find_binary
from natsproto.testing._steps import Scope, Steps, drive, until

_STOP_TIMEOUT = 5.0
_ANSWER_TIMEOUT = 5.0


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
    """A real nats-server on 127.0.0.1, started on entering the block and stopped on leaving it.

    ``with run_server() as server`` blocks while it starts (about 10 ms), ``async with`` lets the event loop run.

    ``config`` is added to the server's configuration file and wins where both speak; a ``jetstream {}`` in it
    may set anything but ``store_dir``. ``user`` and ``password``, or ``token``, are asked of every client. ``port`` is
    a fixed port for clients instead of a free one; ``websocket`` opens a port for WebSocket clients too, with
    TLS when ``tls`` is given. ``name`` is the server's name. ``store_dir`` keeps the JetStream store beyond
    the block; without it the store is a temporary directory. ``args`` are further arguments of the command,
    ``binary`` is the nats-server to run (see ``find_binary``), so a test can choose the version.
    ``start_timeout`` is in seconds, for every start.

    Raises ConfigError for settings that cannot go together, at once; on entering ServerNotFound, or
    ServerFailed with the end of the log. The process is stopped when the block ends in whatever way, is
    cancelled, when the interpreter exits, and when this process is killed; its files go with it.
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

    Made by ``run_server`` and ``run_cluster``. Verbs that wait are coroutines, those that act at once are plain
    methods. The verbs that send signals need a POSIX system.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._config = settings.config
        self._process: Process | None = None
        self._owner = os.getpid()
        with ExitStack() as stack:
            self._directory = Path(tempfile.mkdtemp(prefix="natsproto-"))
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._port = stack.enter_context(HeldPort(settings.port))
            self._http_port = stack.enter_context(HeldPort())
            self._websocket_port = stack.enter_context(HeldPort()) if settings.websocket else None
            self._log = self._directory / "server.log"
            self._log.touch()
            atexit.register(self.discard)
            stack.callback(atexit.unregister, self.discard)
            self._resources = stack.pop_all()

    @property
    def host(self) -> str:
        """The address it listens on: 127.0.0.1."""
        return HOST

    @property
    def port(self) -> int:
        """The port for clients; the same after every restart, and refused to all others meanwhile."""
        return self._port.number

    @property
    def url(self) -> str:
        """Where clients connect, without credentials: ``nats://`` or, when started with TLS, ``tls://``."""
        return f"{'tls' if self._settings.tls else 'nats'}://{HOST}:{self.port}"

    @property
    def websocket_url(self) -> str:
        """Where WebSocket clients connect: ``ws://`` or ``wss://``. ConfigError when started without."""
        if self._websocket_port is None:
            raise ConfigError("websocket_url", None, "this server was started without websocket=True")
        return f"{'wss' if self._settings.tls else 'ws'}://{HOST}:{self._websocket_port.number}"

    @property
    def monitoring_url(self) -> str:
        """The server's HTTP monitoring, ``/varz``, ``/connz``, ``/jsz``, ``/healthz`` …"""
        return f"http://{HOST}:{self._http_port.number}"

    @property
    def name(self) -> str:
        """The server's name."""
        return self._settings.name or f"natsproto-{self.port}"

    @property
    def running(self) -> bool:
        """True when the process lives, frozen or not."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The process id of the running, or else of the last, process. ServerFailed before the first start."""
        return self._started("pid").pid

    @property
    def config_path(self) -> Path:
        """The configuration file; written anew by ``reconfigure`` and at every start."""
        return self._directory / "server.conf"

    def log(self) -> str:
        """Everything the server wrote since its first start, restarts included."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Ends the server at once (SIGKILL), as a crash does, and returns when its ports are closed."""
        if self._process is not None:
            self._process.kill()

    def freeze(self) -> None:
        """Stops the clock of the server (SIGSTOP): connections stay open, nothing is answered, until thaw()."""
        self._started("freeze").freeze()

    def thaw(self) -> None:
        """Lets a frozen server run on (SIGCONT)."""
        self._started("thaw").signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Stops the server in good order (SIGTERM); one that is not gone in 5 s is killed. Restart is possible.

        Cancelling kills it.
        """
        await drive(self._stop())

    async def restart(self) -> None:
        """Starts the server again on the same ports and store, after stopping it when it still runs.

        ServerFailed with the end of the log when it does not start. Cancelling leaves it stopped.
        """
        await drive(self._restart())

    async def reload(self) -> None:
        """Makes the server read its configuration and certificates again (SIGHUP), and waits until it has.

        ServerFailed with the server's reason when it refused. Cancelling does not take it back.
        """
        said = "Reloaded server configuration"
        refused = "Failed to reload server configuration"
        log = await self._tell("reload", signal.SIGHUP, lambda log: said in log or refused in log)
        if refused in log:
            reason = log.partition(refused)[2].partition("\n")[0].lstrip(": ")
            raise ServerFailed("reload", reason, log)

    async def reconfigure(self, config: str) -> None:
        """Replaces the ``config`` given to run_server, and reloads when the server is running.

        What the other arguments of run_server said is kept. See ``reload`` for errors; a refused configuration
        stays in the file and is what the next start will use.
        """
        self._config = config
        self._write_config()
        if self.running:
            await self.reload()

    async def lame_duck(self) -> None:
        """Tells the server to retire (SIGUSR2); returns when it has begun to.

        It closes its ports, tells its clients, evicts them after ``lame_duck_grace_period``, spread over
        ``lame_duck_duration`` (10 s and 2 min unless ``config`` says otherwise), and exits.
        """
        await self._tell("lame duck mode", signal.SIGUSR2, lambda log: "Entering lame duck mode" in log)

    def start_steps(self) -> Steps:
        """The first start, for a Scope; left early or failing, everything is undone."""
        try:
            yield from self._start()
        except BaseException:
            self.discard()
            raise

    def close_steps(self) -> Steps:
        """The end, for a Scope: the process is gone, the files are removed, the ports given back."""
        try:
            # a temporary store has no reader, so there is nothing to save
            if self._settings.store_dir is not None and os.getpid() == self._owner:
                yield from self._stop()
        finally:
            self.discard()

    def discard(self) -> None:
        """Ends the process at once and gives everything back; harmless when that has been done.

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
                port.lend()
        process = self._process = Process(
            [binary, *arguments, *self._settings.args], log=self._log, scratch=self._directory
        )
        try:
            ports_file = self._directory / f"{binary.name}_{process.pid}.ports"
            timeout = self._settings.start_timeout
            if not (yield from until(lambda: _written(ports_file) or not process.running, timeout)):
                raise ServerFailed("start nats-server", f"not ready within {timeout:g} s", self._logged(mark))
            if not process.running:
                reason = f"exited with code {process.exit_code}"
                raise ServerFailed("start nats-server", reason, self._logged(mark))
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
            process.signal(signal.SIGCONT)  # a frozen one would never hear it
            yield from until(lambda: not process.running, _STOP_TIMEOUT)
        finally:
            process.kill()

    def _restart(self) -> Steps:
        yield from self._stop()
        yield from self._start()

    async def _tell(self, doing: str, number: int, done: Callable[[str], bool]) -> str:
        """Sends the signal and waits until ``done`` holds for what was logged since; returns that."""
        process = self._started(doing)
        mark = self._log_size()
        process.signal(number)
        await drive(self._answer(doing, process, mark, done))
        return self._logged(mark)

    def _answer(self, doing: str, process: Process, mark: int, done: Callable[[str], bool]) -> Steps:
        yield from until(lambda: done(self._logged(mark)) or not process.running, _ANSWER_TIMEOUT)
        log = self._logged(mark)
        if not done(log):
            reason = f"no answer within {_ANSWER_TIMEOUT:g} s" if process.running else "the server is not running"
            raise ServerFailed(doing, reason, log)

    def _started(self, doing: str) -> Process:
        if self._process is None:
            raise ServerFailed(doing, "the server was not started")
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

    def _logged(self, mark: int) -> str:
        """What was logged after the first ``mark`` bytes."""
        with self._log.open("rb") as log:
            log.seek(mark)
            return log.read().decode(errors="replace").strip()


def _written(ports_file: Path) -> bool:
    """Return True when the server has written its ports file to the end, which it does when all its ports listen."""
    try:
        return bool(json.loads(ports_file.read_bytes()))
    except (OSError, ValueError):
        return False
