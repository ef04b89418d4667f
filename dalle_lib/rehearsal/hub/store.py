"""What the stand-in for the Hub stores: repositories with their commits, and the bytes of files."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import yaml

LFS_SUFFIXES = {".bin", ".gz", ".npy", ".npz", ".parquet", ".pt", ".pth", ".safetensors", ".tar", ".zip", ".zst"}
MAX_REGULAR_BYTES = 10 << 20


class Refused(Exception):
    """An answer other than success, with the headers by which huggingface_hub tells errors apart."""

    def __init__(self, status: int, message: str, code: str = "", **headers: str) -> None:
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **headers}


def is_lfs(path: str, size: int, sample: bytes) -> bool:
    return size > MAX_REGULAR_BYTES or Path(path).suffix in LFS_SUFFIXES or b"\0" in sample


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_file(oid: str, size: int) -> dict:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n".encode()
    return {"oid": git_hash(pointer), "size": size, "lfs": {"sha256": oid, "size": size, "pointerSize": len(pointer)}}


def entries_of(commit: dict, expand: bool) -> dict[str, dict]:
    """Return what the Hub says of each file and folder of a commit."""
    last = {"lastCommit": {"id": commit["sha"], "title": commit["title"], "date": commit["date"]}} if expand else {}
    found = {}
    for path, file in commit["files"].items():
        for above in reversed(PurePosixPath(path).parents[:-1]):
            oid = git_hash(f"{commit['sha']}/{above}".encode())
            found[str(above)] = {"type": "directory", "path": str(above), "size": 0, "oid": oid, **last}
        lfs = {"lfs": {**file["lfs"], "oid": file["lfs"]["sha256"]}} if "lfs" in file else {}
        found[path] = {"type": "file", "path": path, "size": file["size"], "oid": file["oid"], **lfs, **last}
    return found


class Store:
    """Repositories in a folder: a commit names all of its files, whose bytes lie under their SHA-256 digests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.RLock()
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        state = folder / "repositories.json"
        self.repositories: dict[str, dict] = json.loads(state.read_text()) if state.exists() else {}

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest

    def keep(self, path: str, data: bytes) -> dict:
        """Store the file at `path` of some repository, and return what a commit says of it."""
        regular = self.keep_regular(data)
        return lfs_file(regular["sha256"], len(data)) if is_lfs(path, len(data), data[:512]) else regular

    def keep_regular(self, data: bytes) -> dict:
        """Store a file that git itself holds, and return what a commit says of it."""
        digest = hashlib.sha256(data).hexdigest()
        with self.lock:
            self.blob(digest).write_bytes(data)
        return {"oid": git_hash(data), "size": len(data), "sha256": digest}

    def create(self, key: str, is_private: bool, creator: str) -> None:
        with self.lock:
            self.repositories[key] = {"private": is_private, "creator": creator, "commits": []}
            self.commit(key, {}, "initial commit")

    def commit(self, key: str, changes: Mapping[str, dict | None], title: str) -> str:
        """Add a commit that changes these files, or deletes those that are None, and return its hash."""
        with self.lock:
            commits = self.repositories[key]["commits"]
            files = {**(commits[-1]["files"] if commits else {}), **changes}
            files = {path: file for path, file in sorted(files.items()) if file is not None}
            date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
            commits.append({"sha": secrets.token_hex(20), "title": title, "date": date, "files": files})
            self.save()
            return commits[-1]["sha"]

    def squash(self, key: str, commit: dict, title: str) -> None:
        """Put one commit with the files of `commit` in the place of all."""
        with self.lock:
            self.repositories[key]["commits"] = [{**commit, "sha": secrets.token_hex(20), "title": title}]
            self.save()

    def save(self) -> None:
        written = self.folder / "repositories.tmp"
        written.write_text(json.dumps(self.repositories))
        written.replace(self.folder / "repositories.json")

    def tags(self, commit: dict) -> list[str]:
        """Return the tags that the page of a repository begins with, as YAML between two lines of "---"."""
        if "README.md" not in commit["files"]:
            return []
        file = commit["files"]["README.md"]
        _, head, *_ = [*self.blob(file["sha256"]).read_text(encoding="utf-8").split("---\n", 2), ""]
        return (yaml.safe_load(head) or {}).get("tags", [])

    @staticmethod
    def at(repository: dict, rev: str) -> dict:
        """Return the commit that `rev` names."""
        commits = repository["commits"]
        named = commits[-1:] if rev == "main" else [commit for commit in commits if commit["sha"] == rev]
        if not named:
            raise Refused(404, f"Invalid rev id: {rev}", "RevisionNotFound")
        return named[0]

    def changes(self, repository: dict, operation: str, value: dict) -> dict[str, dict | None]:
        """Return what one line of a commit changes."""
        path, files = value["path"], repository["commits"][-1]["files"]
        if operation == "file":
            return {path: self.keep_regular(base64.b64decode(value["content"]))}
        if operation == "lfsFile":
            if not (blob := self.blob(value["oid"])).exists():
                raise Refused(400, f"LFS object {value['oid']} was not uploaded")
            return {path: lfs_file(value["oid"], blob.stat().st_size)}
        if operation == "copyFile":
            found = self.at(repository, value.get("srcRevision") or "main")["files"].get(value["srcPath"])
            changed = {} if found is None else {path: found}
        elif operation in ("deletedFile", "deletedFolder"):
            changed = {file: None for file in files if f"{file}/".startswith(path.rstrip("/") + "/")}
        else:
            raise Refused(400, f"this stand-in does not know the operation {operation!r}")
        if not changed:
            raise Refused(404, f"{path} does not exist", "EntryNotFound")
        return changed
