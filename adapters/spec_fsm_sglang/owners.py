"""Who writes `spec_info`, `seq_lens` and `out_cache_loc`: SGLang 0.5.23 and we, by function.

Each entry was read in the source: what it writes, in which modes it may run, which launch it
prepares (None: between launches) and which row of the lifecycle table that is. The number of
entries is pinned by a test: a new one is a decision, not an accident.
"""

from __future__ import annotations

from typing import NamedTuple

from spec_fsm import Mode, Phase


class Owner(NamedTuple):
    """What one function may write, when, and for what."""

    fields: frozenset[str]
    modes: frozenset[Mode]
    phase: Phase | None
    row: str


_ALL = frozenset(Mode)
_SPEC = frozenset({Mode.SPEC})
_OFF = frozenset({Mode.PLAIN, Mode.RESEEDING})
_THREE = frozenset({"spec_info", "seq_lens", "out_cache_loc"})
_LENS = frozenset({"seq_lens"})
_LOC = frozenset({"out_cache_loc"})
_INFO = frozenset({"spec_info"})

_BATCH = "sglang/srt/managers/schedule_batch.py"
_SCHEDULER = "sglang/srt/managers/scheduler.py"
_COMMON = "sglang/srt/speculative/eagle_worker_common.py"
_WORKER = "sglang/srt/speculative/eagle_worker_v2.py"

OWNERS: dict[tuple[str, str], Owner] = {
    # Batches are made, copied, joined and cut.
    (_SCHEDULER, "Scheduler.init_running_status"): Owner(_THREE, _ALL, None, "start"),
    (_BATCH, "ScheduleBatch.init_new"): Owner(_THREE, _ALL, None, "ADMITTED"),
    (_BATCH, "ScheduleBatch.copy"): Owner(_THREE, _ALL, None, "LAUNCHED"),
    (_BATCH, "ScheduleBatch.filter_batch"): Owner(_LENS | _LOC, _ALL, None, "FILTERED"),
    (_BATCH, "ScheduleBatch.merge_batch"): Owner(_LENS | _LOC, _ALL, None, "MERGED"),
    # A launch and its result.
    ("sglang/srt/managers/overlap_utils.py", "FutureMap.resolve_seq_lens_cpu"): Owner(
        _LENS, _ALL, None, "LAUNCHED"
    ),
    (_SCHEDULER, "Scheduler._forward_isolation"): Owner(_THREE, _ALL, None, "LAUNCHED"),
    (_SCHEDULER, "Scheduler.run_batch"): Owner(_INFO | _LENS, _ALL, None, "SETTLED, DECODED"),
    # Prefill: allowed in every mode.
    (_BATCH, "ScheduleBatch.prepare_for_extend"): Owner(
        _LENS | _LOC, _ALL, Phase.PREFILL, "PREFILLED"
    ),
    (_WORKER, "EagleDraftWorker._draft_extend_for_prefill"): Owner(
        _INFO, _ALL, Phase.PREFILL, "PREFILLED"
    ),
    # The speculative round.
    (_COMMON, "prepare_for_draft"): Owner(_LOC, _SPEC, Phase.DRAFT, "LAUNCHED"),
    (_WORKER, "EAGLEWorkerV2.forward_batch_generation"): Owner(
        _INFO, _SPEC, Phase.VERIFY, "LAUNCHED"
    ),
    ("sglang/srt/speculative/eagle_utils.py", "eagle_prepare_for_verify"): Owner(
        _LOC, _SPEC, Phase.VERIFY, "LAUNCHED"
    ),
    (_COMMON, "prepare_for_draft_extend"): Owner(
        _INFO, _SPEC | _OFF, Phase.DRAFT_EXTEND, "LAUNCHED, FLUSHED, SLICE_DONE, RESEEDED"
    ),
    # Ours.
    ("spec_fsm_sglang/plain.py", "prepare"): Owner(
        _THREE, _OFF, Phase.PLAIN_DECODE, "LAUNCHED"
    ),
    ("spec_fsm_sglang/rebuild.py", "run_draft_extend"): Owner(
        _LENS | _LOC, _OFF, Phase.SEED_EXTEND, "FLUSHED, SLICE_DONE, RESEEDED"
    ),
}
"""(file, qualified function) -> owner."""

__all__ = ["OWNERS", "Owner"]
