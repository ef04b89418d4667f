"""OAuth at the stand-in for the Hub: device flows, whose a token is, and the members of organisations."""

import secrets
from dataclasses import dataclass
from urllib.parse import parse_qs

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from dalle_lib.rehearsal.hub.stand_in import Hub, User
from dalle_lib.rehearsal.hub.store import Refused

PAGE = 2
"""Members of an organisation in one answer."""


@dataclass
class Flow:
    """A device flow: who has approved it, and what the Hub says when asked."""

    user_code: str
    user: User | None = None
    error: str = "authorization_pending"


class OAuth:
    """Adds device flows to a stand-in. `flows` are by device code; `hides` leaves organisations out of answers.

    Whoever is `signed_in` at its browser approves each code at once.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub, self.hides, self.interval_s, self.expires_s = hub, False, 1, 900
        self.signed_in: User | None = None
        self.flows: dict[str, Flow] = {}
        self.approvals: dict[str, User] = {}
        add = hub.app.add_api_route
        add("/oauth/device", self.begin, methods=["POST"])
        add("/oauth/token", self.token, methods=["POST"])
        add("/oauth/userinfo", self.userinfo)
        add("/api/organizations/{name}/members", self.members)
        routes = hub.app.router.routes
        routes.insert(0, routes.pop())  # before the repositories' routes, which would match it too

    def answer(self, user_code: str, user: User | None, error: str = "access_denied") -> None:
        """Approve a code as `user`, as somebody does in the browser; None refuses it with `error`."""
        (flow,) = (flow for flow in self.flows.values() if flow.user_code == user_code)
        flow.user, flow.error = user, error

    async def begin(self, request: Request) -> dict:
        form = parse_qs((await request.body()).decode())
        if form["scope"] != ["openid profile"] or not form["client_id"]:
            raise Refused(400, "invalid_client")
        code = secrets.token_urlsafe(16)
        self.flows[code] = flow = Flow(f"{secrets.token_hex(2)}-{secrets.token_hex(2)}".upper(), self.signed_in)
        return {"device_code": code, "user_code": flow.user_code, "interval": self.interval_s,
                "expires_in": self.expires_s, "verification_uri": f"{self.hub.url}/oauth/device"}  # fmt: skip

    async def token(self, request: Request) -> Response:
        form = parse_qs((await request.body()).decode())
        flow = self.flows.get(form["device_code"][0])
        if flow is None:
            return JSONResponse({"error": "expired_token"}, 400)
        if flow.user is None:
            return JSONResponse({"error": flow.error}, 400)
        del self.flows[form["device_code"][0]]  # each code gives one token
        token = f"hf_oauth_{secrets.token_urlsafe(24)}"
        self.approvals[token] = flow.user
        return JSONResponse({"access_token": token, "token_type": "bearer", "expires_in": 3600})

    async def userinfo(self, request: Request) -> dict:
        user = self.approvals.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if user is None:
            raise Refused(401, "Invalid token")
        organisations = [
            {"sub": name, "name": f"The {name}", "preferred_username": name, "roleInOrg": role}
            for name, role in user.organisations.items()
        ]
        told = {"sub": user.name, "name": user.name, "preferred_username": user.name}
        return told if self.hides else told | {"orgs": organisations}

    async def members(self, request: Request, name: str, cursor: int = 0) -> Response:
        asking = self.hub.user(request)
        if asking is None or name not in asking.organisations:
            raise Refused(403, "You may not list these members")
        found = sorted({user.name for user in self.hub.users.values() if name in user.organisations})
        after = request.url.include_query_params(cursor=cursor + PAGE)
        headers = {"Link": f'<{after}>; rel="next"'} if len(found) > cursor + PAGE else {}
        return JSONResponse([{"user": one} for one in found[cursor : cursor + PAGE]], headers=headers)
