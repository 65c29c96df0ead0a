"""A trace path is tried before anything is loaded, and each replica has a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_fsm import FileSink
from spec_fsm.errors import ConfigError
from spec_fsm_sglang import serve
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.trace_file import TraceFile, own_path


@pytest.mark.parametrize("path", ["no/trace.ndjson", "."])
def test_a_path_that_fails_is_refused_before_the_model_is_loaded(
    tmp_path: Path, path: str
) -> None:
    """`serve` ends with one line that names the path; nothing of SGLang was asked for."""
    config = Config.of({"disable_above": 4, "trace": str(tmp_path / path)})
    with pytest.raises(ConfigError, match=r"trace file .* cannot be written") as caught:
        serve.run(["--model-path", "none"], config)
    assert "\n" not in str(caught.value)


def test_a_file_another_server_writes_is_refused_untouched(tmp_path: Path) -> None:
    """The trying neither truncates nor locks out the writer."""
    path = tmp_path / "trace.ndjson"
    first = FileSink(path)
    first.write({"kind": "start", "v": 2})
    config = Config.of({"disable_above": 4, "trace": str(path)})
    with pytest.raises(ConfigError, match="another server writes it"):
        serve.run(["--model-path", "none"], config)
    first.close()
    assert path.read_bytes().count(b"\n") == 1


def test_a_path_that_fails_later_costs_the_trace_and_not_the_server(tmp_path: Path) -> None:
    """In the scheduler's process it is shown in the status, and there is no sink."""
    trace = TraceFile(str(tmp_path / "no" / "trace.ndjson"))
    assert trace.sink is None
    status = trace.status()
    assert status is not None
    assert (status["writing"], "ENOENT" in status["error"]) == (False, True)
    assert TraceFile(None).status() is None


def test_replicas_write_files_of_their_own(tmp_path: Path) -> None:
    """The first has the file that was asked for, each other its number in the name."""
    path = str(tmp_path / "trace.ndjson")
    assert [own_path(path, rank) for rank in (None, 0)] == [path, path]
    assert own_path(path, 2) == str(tmp_path / "trace.dp2.ndjson")
    first, second = TraceFile(path, 0), TraceFile(path, 1)
    assert first.sink is not None
    assert second.sink is not None
    first.sink.close()
    second.sink.close()
