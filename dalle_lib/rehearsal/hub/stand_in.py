"""A stand-in for the Hugging Face Hub on this machine, which clients take for the real one.

It knows models, data sets and spaces with their commits, private repositories, users and organisations, and all that
huggingface_hub calls with HF_HUB_DISABLE_XET=1 to upload and download files. `wire.py` serves it: with a log of
requests, faults on demand and a rate limit. `python -m dalle_lib.rehearsal.hub FOLDER PORT` keeps all of it.

Limits: `main` is the only branch; there are no pull requests, tags, gated repositories, settings or search, and names
are owner/name. LFS objects are uploaded in one part and shared by all repositories, and `raw` gives them whole. Model
cards are not checked. Errors have the Hub's words as far as clients read them. All commits are written anew with each.
"""

import base64
import hashlib
import hmac
import json
import secrets
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse

from dalle_lib.rehearsal.hub.store import Refused, Store, entries_of, is_lfs
from dalle_lib.rehearsal.hub.wire import Wire

KINDS = {"models": "", "datasets": "datasets/", "spaces": "spaces/"}
PAGE = 1000
"""Entries of a tree in one answer; the next page is in the Link header."""


@dataclass(frozen=True)
class User:
    """Whom a Hub token belongs to: `organisations` maps names to roles (admin, write, contributor or read)."""

    name: str
    organisations: Mapping[str, str] = field(default_factory=dict)
    access: str = "write"
    """What the Hub token itself allows: write or read."""


class Hub(Wire):
    """The stand-in. `users` maps Hub tokens to users; all else is set through `add`, `faults`, `rate` and `away`.

    Downloads of LFS files lead to a link that is valid for `signed_s` seconds; with None they are sent directly.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        app = FastAPI(openapi_url=None)
        super().__init__(app, port)
        self.store, self.users, self.secret = Store(folder), {}, secrets.token_bytes()
        self.signed_s: float | None = 3600.0
        app.add_exception_handler(Refused, self.refuse)
        app.add_api_route("/api/whoami-v2", self.whoami)
        app.add_api_route("/api/repos/create", self.create, methods=["POST"])
        app.add_api_route("/api/repos/delete", self.delete, methods=["DELETE"])
        app.add_api_route("/api/validate-yaml", self.validate, methods=["POST"])
        app.add_api_route("/api/models", self.models)
        repository = "/api/{kind}/{owner}/{name}"
        for path in "", "/revision/{rev}":
            app.add_api_route(repository + path, self.info)
        for path in "/tree/{rev}", "/tree/{rev}/{path:path}":
            app.add_api_route(repository + path, self.tree)
        for verb in self.preupload, self.commit:
            app.add_api_route(f"{repository}/{verb.__name__}/{{rev}}", verb, methods=["POST"])
        app.add_api_route(repository + "/super-squash/{rev}", self.squash, methods=["POST"])
        app.add_api_route(repository + "/paths-info/{rev}", self.paths_info, methods=["POST"])
        for prefix in "", "/{kind}":
            path = prefix + "/{owner}/{name}"
            app.add_api_route(path + ".git/info/lfs/objects/batch", self.lfs_batch, methods=["POST"])
            for verb in "/resolve", "/raw":
                app.add_api_route(path + verb + "/{rev}/{path:path}", self.resolve, methods=["GET", "HEAD"])
        app.add_api_route("/_lfs/{digest}", self.upload, methods=["PUT"])
        app.add_api_route("/_cdn/{digest}", self.download, methods=["GET", "HEAD"])

    def add(self, key: str, files: Mapping[str, bytes | None] | Path, private: bool = False) -> str:
        """Commit files to owner/name, datasets/owner/name or spaces/owner/name, and return the commit's hash.

        `files` are bytes by path, or None for a file to delete; or a folder. A new repository is made when needed.
        """
        if isinstance(files, Path):
            folder, paths = files, [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        if key not in self.store.repositories:
            self.store.create(key, private, creator=key.split("/")[-2])
        changes = {path: None if data is None else self.store.keep(path, data) for path, data in files.items()}
        return self.store.commit(key, changes, "files of a test")

    async def refuse(self, _: Request, refused: Refused) -> Response:
        return JSONResponse({"error": refused.message}, refused.status, refused.headers)

    def user(self, request: Request) -> User | None:
        """Return whose Hub token the request shows, or None if it shows none."""
        shown = request.headers.get("authorization")
        if shown is None:
            return None
        if (user := self.users.get(shown.removeprefix("Bearer "))) is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        return user

    def writer(self, request: Request, owner: str, repository: dict | None = None) -> User:
        """Return the user, who may write to a repository of `owner`, or may create one there if that is None."""
        if (user := self.user(request)) is None:
            raise Refused(401, "Invalid username or password.")
        role = "admin" if user.name == owner else user.organisations.get(owner)
        is_own = role == "contributor" and (repository is None or repository["creator"] == user.name)
        if user.access == "read" or not (is_own or role in ("admin", "write")):
            raise Refused(403, f"You don't have the rights to write under the namespace {owner!r}")
        return user

    def repository(self, request: Request, kind: str, owner: str, name: str, write: bool = False) -> tuple[str, dict]:
        """Return a repository with its key, if the user may read it. The Hub does not tell strangers that it exists."""
        user, key = self.user(request), f"{KINDS.get(kind, '?')}{owner}/{name}"
        found = self.store.repositories.get(key)
        if found is None or (found["private"] and (user is None or owner not in {user.name, *user.organisations})):
            status, message = (404, "Repository not found") if user else (401, "Invalid username or password.")
            raise Refused(status, message, "RepoNotFound")
        if write:
            self.writer(request, owner, found)
        return key, found

    async def whoami(self, request: Request) -> dict:
        if (user := self.user(request)) is None:
            raise Refused(401, "Invalid username or password.")
        organisations = [
            {"type": "org", "name": name, "fullname": name, "email": None, "isEnterprise": False, "roleInOrg": role}
            for name, role in user.organisations.items()
        ]
        auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": user.access}}
        return {"type": "user", "id": user.name, "name": user.name, "orgs": organisations, "isPro": False, "auth": auth}

    async def create(self, request: Request) -> Response:
        asked = await request.json()
        owner = asked.get("organization") or getattr(self.user(request), "name", "")
        user = self.writer(request, owner)
        key = f"{KINDS[(asked.get('type') or 'model') + 's']}{owner}/{asked['name']}"
        answer = {"url": f"{self.url}/{key}", "name": f"{owner}/{asked['name']}"}
        if key in self.store.repositories:
            return JSONResponse({"error": "You already created this repo", **answer}, 409)
        self.store.create(key, asked.get("visibility") == "private", user.name)
        return JSONResponse(answer)

    async def delete(self, request: Request) -> None:
        asked = await request.json()
        owner = asked.get("organization") or getattr(self.user(request), "name", "")
        key, _ = self.repository(request, (asked.get("type") or "model") + "s", owner, asked["name"], write=True)
        del self.store.repositories[key]
        self.store.save()

    async def validate(self) -> dict:
        return {"errors": [], "warnings": []}

    async def models(self, request: Request, limit: int = PAGE) -> list[dict]:
        """List the models that the user may read and that have all tags of `filter`, those that changed last first."""
        user, wanted, found = self.user(request), set(request.query_params.getlist("filter")), []
        for key, repository in self.store.repositories.items():
            commit, names = repository["commits"][-1], {user.name, *user.organisations} if user else ()
            is_read = not repository["private"] or key.split("/")[0] in names
            if key.count("/") == 1 and is_read and wanted <= set(tags := self.store.tags(commit)):
                found.append({"id": key, "modelId": key, "private": repository["private"], "tags": tags,
                              "lastModified": commit["date"]})  # fmt: skip
        return sorted(found, key=lambda model: model["lastModified"], reverse=True)[:limit]

    async def info(self, request: Request, kind: str, owner: str, name: str, rev: str = "main") -> dict:
        _, repository = self.repository(request, kind, owner, name)
        commit = self.store.at(repository, rev)
        siblings = [{"rfilename": path} for path in commit["files"]]
        if request.query_params.get("blobs"):
            for sibling in siblings:
                file = commit["files"][sibling["rfilename"]]
                sibling |= {
                    "size": file["size"],
                    "blobId": file["oid"],
                    **({"lfs": file["lfs"]} if "lfs" in file else {}),
                }
        return {"id": f"{owner}/{name}", "author": owner, "sha": commit["sha"], "lastModified": commit["date"],
                "createdAt": repository["commits"][0]["date"], "private": repository["private"], "gated": False,
                "disabled": False, "tags": self.store.tags(commit), "downloads": 0, "likes": 0,
                "siblings": siblings}  # fmt: skip

    async def tree(
        self, request: Request, kind: str, owner: str, name: str, rev: str, path: str = "",
        recursive: bool = False, expand: bool = False, cursor: int = 0,
    ) -> Response:  # fmt: skip
        _, repository = self.repository(request, kind, owner, name)
        folder = PurePosixPath(path)
        found = [
            entry
            for place, entry in entries_of(self.store.at(repository, rev), expand).items()
            if (folder in PurePosixPath(place).parents if recursive else folder == PurePosixPath(place).parent)
        ]
        if path and not found:
            raise Refused(404, f"{path} does not exist on {rev}", "EntryNotFound")
        after = request.url.include_query_params(cursor=cursor + PAGE)
        headers = {"Link": f'<{after}>; rel="next"'} if len(found) > cursor + PAGE else {}
        return JSONResponse(found[cursor : cursor + PAGE], headers=headers)

    async def paths_info(self, request: Request, kind: str, owner: str, name: str, rev: str) -> list[dict]:
        _, repository = self.repository(request, kind, owner, name)
        form = parse_qs((await request.body()).decode())
        entries = entries_of(self.store.at(repository, rev), form.get("expand") == ["true"])
        return [entries[path] for path in form.get("paths", ()) if path in entries]

    async def preupload(self, request: Request, kind: str, owner: str, name: str, rev: str) -> dict:
        """Say how each file is to be uploaded, and what is there already under its path."""
        _, repository = self.repository(request, kind, owner, name, write=True)
        there, answer = self.store.at(repository, rev)["files"], []
        for file in (await request.json())["files"]:
            is_large = is_lfs(file["path"], file["size"], base64.b64decode(file.get("sample", "")))
            same = there.get(file["path"], {})
            answer.append({"path": file["path"], "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False,
                           "oid": same["lfs"]["sha256"] if "lfs" in same else same.get("oid")})  # fmt: skip
        return {"files": answer}

    def signed(self, method: str, digest: str, expires: float) -> str:
        """Return a link by which anybody may upload or download an object for a while.

        Its host has another name than the Hub's, so clients take it for another machine and show it no Hub token.
        """
        signature = hmac.digest(self.secret, f"{method} {digest} {expires}".encode(), "sha256").hex()
        place = "_lfs" if method == "PUT" else "_cdn"
        return f"http://localhost:{self.port}/{place}/{digest}?expires={expires}&signature={signature}"

    def check_signature(self, method: str, digest: str, request: Request) -> None:
        expires = float(request.query_params.get("expires", 0))
        right = self.signed(method, digest, expires).partition("?")[2]
        if not hmac.compare_digest(right, request.url.query) or time.time() > expires:
            raise Refused(403, "The link is not valid, or not any more")

    async def lfs_batch(self, request: Request, owner: str, name: str, kind: str = "models") -> dict:
        self.repository(request, kind, owner, name, write=True)
        objects = [{"oid": asked["oid"], "size": asked["size"]} for asked in (await request.json())["objects"]]
        for found in objects:
            if not self.store.blob(found["oid"]).exists():
                found["actions"] = {"upload": {"href": self.signed("PUT", found["oid"], time.time() + 3600)}}
        return {"transfer": "basic", "objects": objects}

    async def upload(self, request: Request, digest: str) -> None:
        self.check_signature("PUT", digest, request)
        taken = hashlib.sha256()
        with tempfile.TemporaryDirectory(dir=self.store.folder) as folder:
            with open(written := Path(folder) / digest, "wb") as file:
                async for piece in request.stream():
                    taken.update(piece)
                    file.write(piece)
            if taken.hexdigest() != digest:
                raise Refused(400, f"expected an object of SHA-256 {digest}, got {taken.hexdigest()}")
            written.replace(self.store.blob(digest))

    async def commit(self, request: Request, kind: str, owner: str, name: str, rev: str) -> dict:
        key, repository = self.repository(request, kind, owner, name, write=True)
        lines = [json.loads(line) for line in (await request.body()).splitlines() if line]
        with self.store.lock:  # nothing below waits, so no other commit comes between
            parent, changes, title = self.store.at(repository, rev), {}, ""
            if parent is not repository["commits"][-1]:
                raise Refused(404, f"Invalid rev id: {rev}", "RevisionNotFound")
            for line in lines:
                value = line["value"]
                if line["key"] != "header":
                    changes |= self.store.changes(repository, line["key"], value)
                elif value.get("parentCommit") not in (None, parent["sha"]):
                    raise Refused(412, "A commit has happened since. Please refresh and try again.")
                else:
                    title = value["summary"]
            sha = self.store.commit(key, changes, title)
        return {"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{key}/commit/{sha}"}

    async def squash(self, request: Request, kind: str, owner: str, name: str, rev: str) -> None:
        """Make one commit of all, with the same files; nothing names the old ones any more."""
        key, repository = self.repository(request, kind, owner, name, write=True)
        with self.store.lock:
            self.store.squash(key, self.store.at(repository, rev), (await request.json())["message"])

    async def resolve(
        self, request: Request, owner: str, name: str, rev: str, path: str, kind: str = "models"
    ) -> Response:
        _, repository = self.repository(request, kind, owner, name)
        commit = self.store.at(repository, rev)
        headers = {"X-Repo-Commit": commit["sha"]}
        if (file := commit["files"].get(path)) is None:
            raise Refused(404, "Entry not found", "EntryNotFound", **headers)
        if "lfs" not in file:
            return self.send_blob(file["sha256"], {**headers, "ETag": f'"{file["oid"]}"'})
        digest = file["lfs"]["sha256"]
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(file["size"])}
        if self.signed_s is None:
            return self.send_blob(digest, {**headers, "ETag": f'"{digest}"'})
        return RedirectResponse(self.signed("GET", digest, time.time() + self.signed_s), 302, headers)

    async def download(self, request: Request, digest: str) -> Response:
        self.check_signature("GET", digest, request)
        return self.send_blob(digest, {"ETag": f'"{digest}"'})

    def send_blob(self, digest: str, headers: Mapping[str, str]) -> Response:
        return FileResponse(self.store.blob(digest), headers=headers, media_type="application/octet-stream")
