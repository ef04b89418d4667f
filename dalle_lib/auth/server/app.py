"""The application: routes, and what guards them all."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from huggingface_hub import constants
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dalle_lib.auth.server.admission import Admission
from dalle_lib.auth.server.banning import ban_list
from dalle_lib.auth.server.database import Database, hashed
from dalle_lib.auth.server.hub import HubClient
from dalle_lib.auth.server.limits import Limiter, address_of
from dalle_lib.auth.server.metrics import Metrics
from dalle_lib.auth.server.page import CSP, ended_page, join_page
from dalle_lib.auth.server.refusals import AGAIN, Refusal, too_many_tries
from dalle_lib.auth.server.requests import Join, Renewal, Signed, read
from dalle_lib.auth.server.runs import Runs
from dalle_lib.auth.server.sealing import unsealed
from dalle_lib.auth.server.settings import Folder

logger = logging.getLogger(__name__)

FORGET_EVERY_S = 30.0
WRITE_S = 1.0
"""Seconds to wait for another process that writes: everybody waits meanwhile."""
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def create_app(folder: str | Path, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """Return the application of the authority whose settings, keys and data base are in a folder.

    `clock` gives seconds since 1970. Raises FileNotFoundError or ValueError if something there cannot be used.
    """
    return _Service(Folder(Path(folder)), clock).app


class _Service:
    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self.clock, self.runs = clock, Runs(folder)
        self.database = Database(folder.database, wait_s=WRITE_S)
        self.addresses, self.metrics = Limiter(), Metrics(self.database, clock)
        self.app = FastAPI(openapi_url=None, lifespan=self.living)
        self.app.middleware("http")(self.guard)
        add, run = self.app.add_api_route, "/runs/{run}"
        add("/healthz", self.healthz)
        add("/metrics", self.tell_metrics)
        add("/join/{handle}", self.page)
        add(run, self.about)
        add(f"{run}/bans", self.bans)
        add(f"{run}/device", self.device, methods=["POST"])
        add(f"{run}/device/{{handle}}", self.poll, methods=["POST"])
        add(f"{run}/token", self.token, methods=["POST"])
        add(f"{run}/peer", self.peer, methods=["POST"])
        add(f"{run}/renewal", self.renewal, methods=["POST"])

    @asynccontextmanager
    async def living(self, _: FastAPI) -> AsyncIterator[None]:
        hub = HubClient(constants.ENDPOINT)
        self.admission = Admission(self.runs, self.database, hub)
        self.admission.begin()
        tasks = [asyncio.create_task(work) for work in (self.runs.look_at_hub(), self.forget())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await hub.close()
            self.database.close()

    async def forget(self) -> None:
        while True:
            try:
                self.database.forget(self.clock())
            except sqlite3.Error as error:
                logger.error("the data base cannot be cleaned: %s", error)
            await asyncio.sleep(FORGET_EVERY_S)

    async def guard(self, request: Request, answer: Callable) -> Response:
        """Count, limit and log each request, and turn what goes wrong into a refusal. Handles in paths stay unsaid."""
        began, now = time.perf_counter(), self.clock()
        try:
            wait_s = self.addresses.wait_s(self.address(request), self.runs.settings.requests_per_minute, 60, now)
            if wait_s and request.url.path != "/healthz":
                raise too_many_tries("your address", wait_s)
            response = await answer(request)
        except Refusal as refusal:
            response = self.refused(request, refusal)
        except sqlite3.Error as error:
            logger.error("the data base failed: %s", error)
            response = self.refused(
                request, Refusal("busy", "the data base is not there now.", AGAIN, retry_after_s=60)
            )
        except Exception:
            logger.exception("a request failed")
            response = self.refused(request, Refusal("fault", "the authority failed.", "Tell the run's organiser."))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        route = getattr(request.scope.get("route"), "path", "other")
        spent = time.perf_counter() - began
        is_known = route != "other" and request.method in ("GET", "POST")  # a sender may invent methods
        method = request.method if is_known else "other"
        self.metrics.requests.labels(method, route, response.status_code).inc()
        self.metrics.seconds.labels(route).observe(spent)
        logger.info("%s %s %d %.0f ms", request.method, route, response.status_code, 1000 * spent)
        return response

    def refused(self, request: Request, refusal: Refusal) -> Response:
        run = request.path_params.get("run", "")
        try:
            self.database.count_refusal(run if run in self.runs.all() else "", refusal.code, self.clock())
        except sqlite3.Error as error:
            logger.error("a refusal cannot be counted: %s", error)
        return JSONResponse(refusal.body(), refusal.status, refusal.headers())

    def address(self, request: Request) -> str:
        host = request.client.host if request.client else None
        forwarded = ",".join(request.headers.getlist("x-forwarded-for"))  # a proxy may add a line of its own
        return address_of(host, forwarded, self.runs.settings.proxies)

    async def healthz(self) -> Response:
        try:
            self.database.beat(self.clock())
        except sqlite3.Error as error:
            logger.error("the data base cannot be written: %s", error)
            return JSONResponse({"status": "the data base cannot be written"}, 503)
        return JSONResponse({"status": "ok"})

    async def tell_metrics(self, request: Request) -> Response:
        if self.runs.settings.proxies and "x-forwarded-for" in request.headers:  # they are the organiser's alone
            return Response(status_code=404)
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def about(self, run: str) -> dict:
        card = self.runs.named(run).card
        told = {"run": card.name, "state": card.state, "message": card.message, "time": int(self.clock())}
        members = card.members.model_dump(include={"authority", "organization", "invitation", "client_id"})
        return told | members

    async def bans(self, run: str, request: Request) -> Response:
        serial, data = ban_list(self.runs.named(run), self.database, self.clock())
        tag = f'"{serial}"'
        headers = {"ETag": tag, "Cache-Control": f"max-age={self.runs.settings.bans_every_s}"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def device(self, run: str, request: Request) -> Response:
        found, asked = self.runs.named(run), await read(request, Join)
        told = await self.admission.device(found, asked, self.address(request), self.clock())
        base = found.card.members.server or str(request.base_url).rstrip("/")
        return JSONResponse(told | {"page": f"{base}/join/{told['handle']}"}, 201)

    async def poll(self, run: str, handle: str, request: Request) -> Response:
        asked = await read(request, Signed)
        status, told = await self.admission.poll(self.runs.named(run), handle, asked, self.clock())
        return JSONResponse(told, status)

    async def token(self, run: str, request: Request) -> dict:
        found, asked = self.runs.named(run), await read(request, Join)
        scheme, _, hub_token = request.headers.get("authorization", "").partition(" ")
        hub_token = hub_token.strip() if scheme.lower() == "bearer" else ""
        return await self.admission.token(found, asked, hub_token, self.address(request), self.clock())

    async def peer(self, run: str, request: Request) -> dict:
        found, asked = self.runs.named(run), await read(request, Join)
        return self.admission.peer(found, asked, self.address(request), self.clock())

    async def renewal(self, run: str, request: Request) -> dict:
        return await self.admission.renewal(self.runs.named(run), await read(request, Renewal), self.clock())

    async def page(self, handle: str) -> Response:
        query = "SELECT * FROM devices WHERE handle = :handle AND state = 'pending' AND expires > :now"
        row = self.database.row(query, handle=hashed(handle), now=self.clock())
        headers = {"Content-Security-Policy": CSP}
        if row is None:
            return HTMLResponse(ended_page(), 410, headers)
        told, until = unsealed(handle, row["sealed"]), self.clock() + self.runs.named(row["run"]).proof_s
        return HTMLResponse(join_page(dict(row), told["code"], told["url"], until), headers=headers)
