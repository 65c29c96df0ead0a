"""SGLang's HTTP application for its several tokenizer workers, which load no plugin themselves.

With `--tokenizer-worker-num` above 1 each worker imports the application from the path in
`SGLANG_HTTP_SERVER_APP_PATH`; `start.decide` names this module there.
"""

from __future__ import annotations

from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.entrypoints.http_server import app  # noqa: E402 -- after the plugins

__all__ = ["app"]
