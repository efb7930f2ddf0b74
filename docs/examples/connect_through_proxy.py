"""A client behind a firewall that connects through a proxy.

Run it with ``python docs/examples/connect_through_proxy.py`` where ``natsproto[server,proxy]`` is installed.
"""

import asyncio
from asyncio import StreamReader, StreamWriter

import natsproto
from natsproto.testing import run_server


async def pump(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def serve(reader: StreamReader, writer: StreamWriter) -> None:
    """Play the company's proxy: respond to one CONNECT, then forward bytes."""
    request = await reader.readuntil(b"\r\n\r\n")
    host, port = request.split()[1].decode().split(":")
    print(f"the proxy connects to {host}")
    there = await asyncio.open_connection(host, int(port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))


async def main() -> None:
    """Start a server and a proxy, and connect to the server through the proxy."""
    ended = asyncio.Event()

    async def serve_one(reader: StreamReader, writer: StreamWriter) -> None:
        await serve(reader, writer)
        ended.set()

    proxy = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with run_server() as server, proxy:
        port = proxy.sockets[0].getsockname()[1]
        async with natsproto.connect(server.url, proxy=f"http://127.0.0.1:{port}") as nc:
            print(f"a round trip of {await nc.rtt() * 1000:.1f} ms")
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())

# prints: the proxy connects to 127.0.0.1
# prints: a round trip of ... ms
