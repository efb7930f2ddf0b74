"""Django: views use one blocking client for each process, created at the first use."""

import functools

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from natsproto import sync
from natsproto.testing import run_server


@functools.cache
def nats() -> sync.Client:
    return sync.connect(settings.NATS_SERVERS, name="shop")


def order(request: HttpRequest, region: str) -> HttpResponse:
    ack = nats().jetstream().publish(f"orders.{region}", request.body)
    return HttpResponse(f"order {ack.seq} is stored")


urlpatterns = [path("orders/<str:region>", order)]

if __name__ == "__main__":
    with run_server(jetstream=True) as server:
        settings.configure(ROOT_URLCONF=__name__, NATS_SERVERS=server.url, ALLOWED_HOSTS=["testserver"])
        django.setup()
        nats().jetstream().create_stream("ORDERS", subjects=["orders.*"])
        print(Client().post("/orders/eu", b"12 tulips", content_type="text/plain").content.decode())
        nats().close()

# origin: how-to guide
# about: It needs `pip install django`.
# prints: order 1 is stored
