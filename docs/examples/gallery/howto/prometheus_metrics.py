"""Prometheus: counters of a client through OpenTelemetry, as a page that Prometheus reads."""

import asyncio

from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest

from natsproto import otel
from natsproto.testing import run_server

metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))  # before the first otel.connect


async def main() -> None:
    async with run_server() as server, otel.connect(server.url) as nc:
        async with nc.subscribe("orders") as orders:
            for number in range(3):
                await nc.publish("orders", b"%d" % number)
                await orders.next(timeout=5)
        # In a server of your own: prometheus_client.start_http_server(9464)
        for line in generate_latest().decode().splitlines():
            if line.startswith("messaging_client_") and "_total{" in line:
                print(line.partition("{")[0], line.rpartition(" ")[2])


asyncio.run(main())

# origin: how-to guide
# about: It needs `pip install 'natsproto[otel]' opentelemetry-exporter-prometheus`.
# prints: messaging_client_sent_messages_total 3.0
# prints: messaging_client_consumed_messages_total 3.0
