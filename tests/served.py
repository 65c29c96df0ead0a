"""A server as the client sees one: SGLang's rule for keys, and the scheduler's side of the pin."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sglang.srt.managers.io_struct import SetInternalStateReq

from spec_fsm import Pin
from spec_fsm_sglang import operator_pin


def sglang_auth() -> Any:
    """SGLang's own decision who may ask what, from its file alone."""
    folder = importlib.util.find_spec("sglang")
    assert folder is not None
    assert folder.submodule_search_locations is not None
    path = Path(folder.submodule_search_locations[0]) / "srt/utils/auth.py"
    spec = importlib.util.spec_from_file_location("sglang_auth", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sglang_auth"] = module
    spec.loader.exec_module(module)
    return module


AUTH = sglang_auth()


class Server(ThreadingHTTPServer):
    """Says nothing when a client leaves before the end of an answer."""

    def handle_error(self, *_: object) -> None:
        """Nothing."""


class Served:
    """A server: SGLang's rule for keys, and the scheduler's side of the pin for each replica.

    A replica of None runs without the plugin; one in `refusing` takes no pin.
    """

    def __init__(self, replicas: int = 1) -> None:
        self.pins: list[operator_pin.OperatorPin | None] = [
            operator_pin.OperatorPin(Pin.AUTO) for _ in range(replicas)
        ]
        self.refusing: set[int] = set()
        self.api: str | None = None
        self.admin: str | None = None
        self.posts: list[dict[str, Any]] = []
        self.raw: Callable[[Any], None] | None = None
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.answer(self, "normal", served.info)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                served.answer(self, "admin_optional", lambda: served.set(body))

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler: Any, level: str, content: Callable[[], Any]) -> None:
        """Answers as SGLang does, or as `raw` says."""
        if self.raw is not None:
            self.raw(handler)
            return
        decision = AUTH.decide_request_auth(
            method=handler.command, path=handler.path, api_key=self.api,
            authorization_header=handler.headers.get("Authorization"), admin_api_key=self.admin,
            auth_level=AUTH.AuthLevel(level),
        )  # fmt: skip
        status = 200 if decision.allowed else decision.error_status_code
        send(handler, status, json.dumps(content() if decision.allowed else {"error": "no"}))

    def info(self) -> dict[str, Any]:
        """What `/server_info` shows, replicas in the order in which they happened to answer."""
        states = [
            {"spec_fsm": {"mode": "PLAIN", "replica": i, **pin.status()}} if pin else {"tp_size": 1}
            for i, pin in enumerate(self.pins)
        ]
        return {"internal_states": states[::-1]}

    def set(self, body: dict[str, Any]) -> list[bool]:
        """Each replica's own answer."""
        self.posts.append(body)
        taken = []
        for i, pin in enumerate(self.pins):
            if pin is None or (i in self.refusing and "spec_fsm_pin" in body["server_args"]):
                taken.append(False)
                continue
            request = SetInternalStateReq(server_args=dict(body["server_args"]))
            answer = operator_pin.set_internal_state(pin, lambda: None, lambda _: None, request)
            taken.append(answer.updated)
        return taken[::-1]

    def held(self) -> list[str | None]:
        """The pin of each replica."""
        return [None if pin is None else pin.current.name for pin in self.pins]


def send(handler: Any, status: int, body: str | bytes, **headers: str) -> None:
    """One whole answer."""
    content = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(content)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)
