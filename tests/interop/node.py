"""A program of nats.js, running beside the test.

Owns the process. Programs are in tests/interop/js: they get a URL and more as arguments, say one line of JSON at a
time, and end when their input does.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

SCRIPTS = Path(__file__).parent / "js"


class Node:
    """The interpreter and where the packages are."""

    def __init__(self, binary: str, modules: Path) -> None:
        self._binary, self._modules = binary, modules

    @asynccontextmanager
    async def running(self, script: str, *arguments: str) -> AsyncIterator[Program]:
        """A program until the end of the block; its input is closed then, and it must end well."""
        process = await asyncio.create_subprocess_exec(
            self._binary,
            str(SCRIPTS / script),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(self._modules)},
            limit=1 << 20,
        )
        program = Program(process)
        try:
            yield program
            assert await program.end() == 0, await program.complaint()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def run(self, script: str, *arguments: str) -> list[object]:
        """Everything a program says that needs no input."""
        async with self.running(script, *arguments) as program:
            assert program.process.stdin is not None
            program.process.stdin.close()
            return [line async for line in program.lines()]


class Program:
    """A running program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> object:
        """The next line it says; AssertionError when it ends instead."""
        assert self.process.stdout is not None
        async with asyncio.timeout(50):  # for 64 MiB on a slow machine
            text = await self.process.stdout.readline()
        assert text, await self.complaint()
        return json.loads(text)

    async def lines(self) -> AsyncIterator[object]:
        """Everything it says until it ends."""
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            while text := await self.process.stdout.readline():
                yield json.loads(text)

    async def end(self) -> int:
        """Closes its input; the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(20):
            return await self.process.wait()

    async def complaint(self) -> str:
        """What it wrote to stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            return (await self.process.stderr.read()).decode()
