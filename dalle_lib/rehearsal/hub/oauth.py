"""OAuth at the stand-in for the Hub: device flows, whose a token is, and the members of organisations."""

import secrets
from dataclasses import dataclass
from html import escape
from urllib.parse import parse_qs

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

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
        add("/oauth/device", self.page)
        add("/oauth/answer", self.answered, methods=["POST"])
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

    async def page(self, user_code: str = "") -> HTMLResponse:
        """Show a page on which somebody approves or denies a code as any user of the stand-in, without a password."""
        users = "".join(
            f'<p><label><input type="radio" name="user" value="{escape(user.name)}" required> {escape(user.name)}, '
            f"{escape(', '.join(user.organisations)) or 'in no organisation'}</label></p>"
            for user in self.hub.users.values()
        )
        return _page(
            f'<form method="post" action="/oauth/answer"><p>Code: <input name="user_code" required '
            f'value="{escape(user_code)}"></p>{users}<button name="answer" value="approve">Approve</button> '
            '<button name="answer" value="deny" formnovalidate>Deny</button></form>'
        )

    async def answered(self, request: Request) -> HTMLResponse:
        """Approve or deny what the page was filled in with."""
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        code, name = form.get("user_code", "").strip().upper(), form.get("user")
        users = [user for user in self.hub.users.values() if user.name == name]
        if all(flow.user_code != code for flow in self.flows.values()):
            return _page(f"<p>No peer waits with the code {escape(code)}: it is mistyped, used, or too old.</p>", 404)
        if form.get("answer") == "deny":
            self.answer(code, None)
            return _page("<p>Denied: the peer is told so.</p>")
        if not users:
            return _page("<p>Choose a user first.</p>", 400)
        self.answer(code, users[0])
        return _page(f"<p>Approved as {escape(users[0].name)}: go back to the terminal or notebook of the peer.</p>")

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


def _page(body: str, status: int = 200) -> HTMLResponse:
    head = (
        '<meta charset="utf-8"><title>Stand-in for the Hub</title><style>body{font:16px sans-serif;margin:2em}</style>'
    )
    return HTMLResponse(f'<!doctype html><html lang="en"><head>{head}</head><h1>Device code</h1>{body}</html>', status)
