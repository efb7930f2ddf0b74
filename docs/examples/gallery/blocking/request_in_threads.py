"""Without asyncio: a responder in a thread, requests from several others."""

import threading
from concurrent.futures import ThreadPoolExecutor

from natsproto import sync
from natsproto.testing import run_server


def answer(questions: sync.Subscription) -> None:
    for question in questions:  # ends when the subscription does
        question.respond(question.data.upper())


with run_server() as server, sync.connect(server.url) as client:
    with client.subscribe("shout") as questions, ThreadPoolExecutor(4) as pool:
        responder = threading.Thread(target=answer, args=[questions])
        responder.start()
        words = ("one", "two", "three", "four")
        replies = pool.map(lambda word: client.request("shout", word.encode(), timeout=10).data, words)
        print(list(replies))
    responder.join()

# origin: NATS docs, Request-reply
# about: One blocking client serves several threads: four of them request at a time, and one responds.
# prints: [b'ONE', b'TWO', b'THREE', b'FOUR']
