"""Data for the dashboard with names, arguments, errors and values as long as real applications have them."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import quote

from holdfast import Context, Graph, Holdfast, Retry
from holdfast.control import Control
from holdfast.control.audit import acting
from holdfast.errors import StepFailed
from holdfast.model.clock import MICROS_PER_SECOND

PACKAGE = "acme_commerce.fulfilment.warehouse.tasks"
QUEUE = "fulfilment-eu-north-1-high-priority"
TENANT = "0199f3c2-6b1d-7c55-9a51-3f6f0d0e7a11.customers.example.com"
OPERATOR = "maximiliana.featherstonehaugh@operations.example.com"
WORKER = "worker-fulfilment-7f9c6d5b8-x2x4q.eu-north-1.compute.internal:48213"
SESSION = f"{WORKER}:bbd654536c6e"
LIMIT = "carrier-api-requests-per-customer-account"
BUDGET = "llm-tokens-usd-monthly-allowance-of-customers"
EVENT = "customer-onboarding-completed/0199f3c2-6b1d-7c55-9a51-3f6f0d0e7a11"
TOPIC = "warehouse.inventory.adjustments.recorded"
SCHEDULE = "reconcile the ledgers of all subsidiaries (fiscal year end, Europe/Oslo)"
KEY = "order-2026-11-20-000042-eu-north-1-9f3c2b7a"
ONCE = Retry(max_attempts=1)
REFUSED = (
    "HTTPSConnectionPool(host='api.carrier-with-a-long-name.example.com', port=443): Max retries exceeded with url: "
    "/v2/shipments/0199f3c2-6b1d-7c55-9a51-3f6f0d0e7a11/labels?format=pdf&size=a6&callback=https%3A%2F%2Fshop.example"
    ".com%2Fhooks%2Fcarrier (Caused by ConnectTimeoutError: timed out after 30.0 seconds)"
)
LINES = {"sku": "ACME-ROPE-30M-BLUE-8MM", "quantity": 3, "warehouse": "oslo-fornebu-2", "unit_price": "129.00 NOK"}
SETTINGS = {"secret": "only for tests and never in production", "public_url": "https://ops.example.org", "logs": "info"}


@dataclass
class ReleaseDecision:
    """The type of a gate."""

    approved: bool
    rollout: Literal["one region first, then the others", "all regions at once"] = "one region first, then the others"
    remarks_for_the_change_advisory_board: str = ""


class LongNames:
    """An app with long names everywhere, and the addresses of its pages."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.control = Control(app.store, app.registry, links=app.links)
        self.paths: dict[str, list[str]] = {}
        """Addresses by the path of the page in `PAGES`."""
        app.limit(LIMIT, concurrency=1, rate="100/min", by="customer")
        app.budget(BUDGET, limit=25, per="tenant")
        self._declare_tasks()
        self._add_runs()
        self._add_resources()
        self._list_paths()

    def _declare_tasks(self) -> None:
        app = self.app

        @app.task(name=f"{PACKAGE}.print_shipping_label", queue=QUEUE, retry=ONCE)
        def print_label(order: str, lines: list[dict[str, Any]]) -> None:
            raise ConnectionError(REFUSED)

        @app.task(name=f"{PACKAGE}.synchronize_customer_account_with_carrier", queue=QUEUE, limits=[LIMIT])
        def synchronize(customer: str) -> None: ...

        @app.task(name=f"{PACKAGE}.allocate_inventory_for_backordered_lines", queue=QUEUE)
        async def allocate(ctx: Context, order: str, lines: list[dict[str, Any]]) -> None:
            logging.getLogger(f"{PACKAGE}.allocation").warning("%s", REFUSED)
            await ctx.set("allocation_progress_of_the_current_wave", {"order": order, "lines": lines})
            await ctx.write(f"allocated {json.dumps(lines)}\n")
            await ctx.spend(BUDGET, 0.013)
            await ctx.step(lambda: {"order": order, "lines": lines}, name="reserve_inventory_in_all_warehouses")
            with contextlib.suppress(StepFailed):
                once = ctx.options(name="request_carrier_quotation_for_oversized_parcels", retry=ONCE)
                await once.step(self._refuse, order, lines)
            await ctx.spawn(print_label, order, lines)
            await ctx.receive("payment_confirmations_from_the_payment_service_provider")

        @app.task(name=f"{PACKAGE}.wait_for_customer_onboarding")
        async def onboard(ctx: Context) -> None:
            await ctx.wait_for(EVENT)

        @app.task(name=f"{PACKAGE}.update_search_index_after_inventory_adjustment", on=TOPIC)
        def index(adjustment: dict[str, Any]) -> dict[str, Any]:
            return adjustment

        app.schedule(SCHEDULE, index, args=(LINES,), cron="0 3 28-31 * *", tz="Europe/Oslo")
        self.print_label, self.synchronize, self.allocate = print_label, synchronize, allocate
        self.onboard, self.index = onboard, index

    def _refuse(self, order: str, lines: list[dict[str, Any]]) -> None:
        raise ConnectionError(REFUSED)

    def _add_runs(self) -> None:
        app, lines = self.app, [LINES, LINES]
        names = {"tenant": TENANT, "tags": ["campaign:black-friday-2026/early-access", "priority:expedite"]}
        order = {"key": KEY, "metadata": {"customer_reference": KEY, "sales_channel": "marketplace-eu-north-1"}}
        self.waiting = self.allocate.options(**names, **order).enqueue(KEY, lines)
        for number in range(3):
            self.failed = self.print_label.options(**names).enqueue(f"{KEY}-{number}", lines)
        self.onboard.options(tenant=TENANT).enqueue()
        app.publish(TOPIC, LINES, tenant=TENANT)
        graph = Graph("nightly_release_of_the_search_index", tenant=TENANT)
        plan = graph.add(self.index, LINES, name="plan_the_partitions_of_the_new_index")
        parts = [graph.add(self.index, LINES, after=[plan], name=f"build_partition_{n:04}_of_0012") for n in range(12)]
        payload = {"change": "CHG-0048112", "reason": REFUSED, "affected": [LINES] * 3}
        gate = graph.gate("approval_by_the_change_advisory_board", type=ReleaseDecision, payload=payload, after=parts)
        graph.add(self.index, LINES, after=[gate], name="switch_traffic_over_to_the_new_index")
        self.graph = app.submit(graph)
        with contextlib.suppress(TimeoutError):
            app.worker(concurrency=8).drain(timeout=20)
        (self.gate,) = self.control.graphs.gates(self.graph.id)
        for customer in (TENANT, TENANT, OPERATOR):
            self.synchronize.options(tenant=TENANT).enqueue(customer)
        self.later = self.print_label.options(**names, delay=timedelta(hours=2)).enqueue(KEY, lines)
        status = {"memory": 50 * 2**20, "problem": f"event loop blocked by {self.allocate.name}", "loop_lag": 3.5}
        info = {
            "concurrency": 100,
            "queues": [QUEUE, "default"],
            "tasks": [self.allocate.name],
            "version": "0.2.0.dev1",
        }
        app.store.sessions.open(SESSION, WORKER, 3600 * MICROS_PER_SECOND, json.dumps(info), json.dumps(status))
        lanes = [lane for lane, (_, task) in app.store.lanes.refresh().items() if task == self.synchronize.name]
        app.store.claims.claim_limited(SESSION, lanes, 8)

    def _add_resources(self) -> None:
        app, control = self.app, self.control
        app.schedules.create(f"{SCHEDULE}, by customers", self.index.request(LINES), every=3600, by=OPERATOR)
        app.emit(EVENT, LINES, tenant="other")
        with acting(OPERATOR, "dashboard", "2001:0db8:85a3:0000:0000:8a2e:0370:7334"):
            control.queues.pause([QUEUE])
            control.pauses.pause("task", [self.print_label.name], OPERATOR)
            control.pauses.pause("tenant", [TENANT], OPERATOR)
            control.limits.set(LIMIT, rate="200/min", concurrency=1, by=OPERATOR)
            control.tokens.create(
                "operator", TENANT, "deployment pipeline of the warehouse team", tasks=[f"{PACKAGE}.*"], queues=[QUEUE]
            )
            self.token = control.tokens.create("admin", name="the operations team of the night shift").token
            control.runs.pause(self.later.id, OPERATOR)
            self.link = control.gate_links.create(self.gate.graph, self.gate.name, recipient=OPERATOR)

    def _list_paths(self) -> None:
        tasks = [task.name for task in (self.print_label, self.allocate, self.synchronize)]
        runs = [self.waiting, self.failed, self.graph, self.later]
        named = {
            "/tasks/{task:path}": tasks, "/queues/{queue:path}": [QUEUE], "/tenants/{tenant:path}": [TENANT],
            "/limits/{limit:path}": [LIMIT], "/budgets/{budget:path}": [BUDGET], "/workers/{session}": [SESSION],
            "/schedules/{schedule:path}": [SCHEDULE, f"{SCHEDULE}, by customers"], "/gates/{id}": [self.gate.id],
            "/runs/{id}": [*(run.id for run in runs), self.gate.id],
        }  # fmt: skip
        for path, names in named.items():
            self.paths[path] = [f"{path.partition('{')[0]}{quote(str(name), safe='')}" for name in names]
        self.paths["/runs/{id}/family"] = [f"/runs/{self.graph.id}/family", f"/runs/{self.waiting.id}/family"]
        self.paths["/find"] = [f"/find?q={KEY}", "/find?q=carrier"]
        self.paths["/bulk"] = ["/bulk?verb=retry&state=failed", f"/bulk?verb=cancel&tenant={TENANT}"]
        self.paths["/enqueue"] = [f"/enqueue?task={self.allocate.name}"]
        self.paths["/runs"] = ["/runs", f"/runs?task={tasks[0]}&created_from=2020-01-01T00:00", "/runs?metadata=wrong"]
        self.paths["/tasks"] = ["/tasks?last=day"]
        self.paths["/links/gate"] = [self.link.url.removeprefix(SETTINGS["public_url"])]
