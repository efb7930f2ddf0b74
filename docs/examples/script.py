"""A script without an event loop: the blocking client on a nats-server started here.

Run it with ``python docs/examples/script.py`` where ``natsproto[server]`` is installed.
"""

import threading

from natsproto import sync
from natsproto.testing import run_server


def answer(requests: sync.Subscription) -> None:
    """Iterate in a separate thread, since there are no callbacks."""
    for request in requests:
        request.respond(request.data.upper())


def main() -> None:
    """Send a request, write and read a stream, and store settings and files."""
    with run_server(jetstream=True) as server, sync.connect(server.url) as nc:
        requests = nc.subscribe("shout")
        thread = threading.Thread(target=answer, args=(requests,))
        thread.start()
        print(nc.request("shout", b"hello", timeout=2).data.decode())
        requests.unsubscribe()
        thread.join()

        js = nc.jetstream()
        stream = js.create_stream("ORDERS", subjects=["orders.>"])
        with js.publisher() as publisher:  # leaving waits until the stream has all of them
            for number in range(5):
                publisher.publish("orders.eu", b"%d" % number, msg_id=f"o-{number}")
        consumer = stream.create_consumer("billing")
        for message in consumer.fetch(5, timeout=2):
            message.ack()
            print(f"{message.subject} {message.data.decode()} was number {message.seq}")

        settings = js.create_key_value("settings", history=5, limit_marker_ttl=60)
        with settings.lock("painter") as lock:  # of all scripts that do this, one at a time is here
            lock.put("colour", b"red")
        with settings.watch("colour") as colours:
            settings.put("colour", b"blue")
            for entry in colours:  # endless: the current values, then every change
                print(f"colour is {entry.value.decode()}")
                if entry.value == b"blue":
                    break

        files = js.create_object_store("files")
        files.put("report.csv", (f"{number};{number**2}\n".encode() for number in range(1000)))
        report = files.get_bytes("report.csv").decode()
        print(f"{len(report)} bytes, the last line is {report.splitlines()[-1]}")


if __name__ == "__main__":
    main()

# prints: HELLO
# prints: orders.eu 0 was number 1
# prints: orders.eu 1 was number 2
# prints: orders.eu 2 was number 3
# prints: orders.eu 3 was number 4
# prints: orders.eu 4 was number 5
# prints: colour is red
# prints: colour is blue
# prints: 10427 bytes, the last line is 999;998001
