"""Without asyncio: a bucket, a watch, and an object store."""

from natsproto import sync
from natsproto.testing import run_server

with run_server(jetstream=True) as server, sync.connect(server.url) as client:
    js = client.jetstream()
    settings = js.create_key_value("settings")
    settings.put("colour", b"red")
    with settings.watch("colour") as watcher:
        print(watcher.next(timeout=5).value)
        settings.put("colour", b"blue")
        print(watcher.next(timeout=5).value)

    files = js.create_object_store("files")
    files.put("squares", (b"%d\n" % number**2 for number in range(10)))
    print(files.get_bytes("squares").splitlines()[-1])

# origin: NATS docs, Key/value store; Object store
# about: The blocking client has the names of `KeyValue` and `ObjectStore`, without `await`: watches are iterated, and
# about: content may be any iterable.
# prints: b'red'
# prints: b'blue'
# prints: b'81'
