"""A shop whose spans go to a collector: `shop.py URL MICROS PROCESS enqueue|work`. The time is what it is told."""

from __future__ import annotations

import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from holdfast import Context, Holdfast

url, micros, process, verb = sys.argv[1:]
provider = TracerProvider(resource=Resource({"process": process}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
app = Holdfast(url, telemetry="otel", clock=lambda: int(micros))


def reserve(item: str) -> str:
    with trace.get_tracer("shop").start_as_current_span("ask the store"):
        return f"{item} reserved"


@app.task(name="pack")
def pack(item: str) -> str:
    return f"a box with {item}"


@app.task(name="order")
async def order(ctx: Context, item: str) -> str:
    await ctx.step(reserve, item)
    await ctx.sleep(3600)
    return await ctx.call(pack, item)


if verb == "enqueue":
    with trace.get_tracer("shop").start_as_current_span("checkout"):
        sys.stdout.write(str(order.enqueue("rope").id))
else:
    app.worker().drain(timeout=60)
app.close()
provider.shutdown()
