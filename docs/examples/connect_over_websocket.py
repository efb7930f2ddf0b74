"""NATS over WebSocket, for example through a proxy: compression, a path, and headers requested for every attempt.

Run it with ``python docs/examples/connect_over_websocket.py`` where ``natsproto[ws,server]`` is installed.
"""

import asyncio

import natsproto
from natsproto.testing import run_server


async def login_headers() -> dict[str, str]:
    """Return a short-lived token, as from a token service; a proxy checks it, or the server itself as a cookie."""
    await asyncio.sleep(0)
    return {"Authorization": "Bearer of-flowers"}


async def main() -> None:
    """Use the same client with another URL."""
    async with run_server(websocket=True) as server:
        url = f"{server.websocket_url}/shop/nats"  # the path is for the proxy; nats-server takes any
        async with (
            natsproto.connect(url, websocket_headers=login_headers, websocket_compression=True) as nc,
            nc.subscribe("orders") as orders,
        ):
            await nc.publish("orders", b"12 tulips")
            order = await orders.next(timeout=2)
            print("over", nc.connected_url.partition("://")[0], "came", order.data.decode())


if __name__ == "__main__":
    asyncio.run(main())

# prints: over ws came 12 tulips
