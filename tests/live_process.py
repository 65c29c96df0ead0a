"""Processes in which SGLang is imported already, each forked from one that did nothing else.

    python live_process.py

Reads one JSON list a line, `[script, arguments, environ, log file, seconds]`, runs the script in a
child as its own program and answers with the child's exit code.  Imports are half of what a start
of the tiny pair takes, and no part of what is tested.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from spec_fsm_sglang import cpu_ops

TESTS = Path(__file__).resolve().parent


def imported() -> None:
    """Import what every engine of the tests imports, with no thread and no process group."""
    cpu_ops.enable()
    import sglang.srt.managers.scheduler
    import sglang.srt.models.llama
    import sglang.srt.models.llama_eagle
    import sglang.srt.models.llama_eagle3  # noqa: F401

    import spec_fsm_sglang.inprocess
    import spec_fsm_sglang.plugin
    import spec_fsm_sglang.worker  # noqa: F401


def child(script: str, arguments: list[str], environ: dict[str, str], log: str) -> None:
    """Run the script; never returns."""
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        kept = {name: os.environ[name] for name in ("SGLANG_USE_CPU_ENGINE", "PYTHONPATH")}
        os.environ.clear()
        os.environ.update(environ | kept)
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answer until the input ends."""
    imported()
    for line in sys.stdin:
        script, arguments, environ, log, seconds = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.alarm(seconds)  # its default action ends the child
            faulthandler.dump_traceback_later(seconds - 5)
            child(script, arguments, environ, log)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
