"""Passwords, tokens and keys from a callback, which is called for every attempt to connect.

Run it with ``python docs/examples/connect_with_secrets.py`` where ``natsproto[nkeys,server]`` is installed.
"""

import asyncio
import os
import tempfile
from pathlib import Path

import nkeys  # type: ignore[import-untyped]

import natsproto
from natsproto import AuthChallenge, Credentials
from natsproto.errors import ConnectFailed, NotAuthorized
from natsproto.testing import run_server


async def fetch_password() -> str:
    """Return a secret, as from a vault in the network."""
    await asyncio.sleep(0)
    return "wild roses"


async def password_from_a_callable() -> None:
    """A value, a ``pathlib.Path`` or a callable, sync or async: every secret may be any of them."""
    async with (
        run_server(user="shop", password="wild roses") as server,
        natsproto.connect(server.url, user="shop", password=fetch_password) as nc,
    ):
        print("with a password from a callable:", nc.state)


async def token_from_a_file() -> None:
    """Use a file, such as a mounted secret: it is read again for every attempt."""
    path = Path(tempfile.mkdtemp()) / "token"
    path.write_text("dandelion\n")
    async with run_server(token="dandelion") as server, natsproto.connect(server.url, token=path) as nc:
        print("with a token from a file:", nc.state)


async def key_that_never_leaves_its_place() -> None:
    """``auth`` gets the server's nonce; a hardware module may sign it, so that no seed is in the process."""
    module = nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)))
    public = module.public_key.decode()

    def prove(challenge: AuthChallenge) -> Credentials:
        return Credentials(nkey=public, signer=module.sign)

    config = f"authorization {{ users: [{{ nkey: {public} }}] }}"
    async with run_server(config=config) as server, natsproto.connect(server.url, auth=prove) as nc:
        print("with a signature from elsewhere:", nc.state)


async def what_a_refusal_looks_like() -> None:
    """The error is raised at once; it has the text of the server but no secret."""
    async with run_server(user="shop", password="wild roses") as server:
        try:
            await natsproto.connect(server.url, user="shop", password="tulips")
        except ConnectFailed as failed:
            _address, cause = failed.attempts[0]
            print("refused:", isinstance(cause, NotAuthorized), "-", "tulips" in str(failed))


async def main() -> None:
    """One after the other."""
    await password_from_a_callable()
    await token_from_a_file()
    await key_that_never_leaves_its_place()
    await what_a_refusal_looks_like()


if __name__ == "__main__":
    asyncio.run(main())

# prints: with a password from a callable: open
# prints: with a token from a file: open
# prints: with a signature from elsewhere: open
# prints: refused: True - False
