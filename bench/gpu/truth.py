"""What CUDA graphs could make wrong, measured on the tiny pair against servers without the plugin.

    python bench/gpu/truth.py OUT.json [--device cuda|cpu] [--quick] [NAME ...]

    lora       two adapters and none in one batch, in SPEC, PLAIN and after each switch, beside a
               server that does not speculate and the model with the adapters merged; and the same
               with PLAIN's graphs exchanged without their LoRA state, which has to be found out
    seeds      the relay of several rows after gaps, row by row, beside twins prefilled up to there
    recapture  new weights with `recapture_cuda_graph`: both sets of graphs are captured again
    lines      what the log says of mode changes, and SGLang's decode lines in PLAIN

An output counts as right if it is the other server's, or leaves the merged model's greedy path
only where its two best tokens tie (`demo/compare.py`). Exit code 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import truth_models

from spec_fsm_sglang.demo.compare import NEAR_TIE
from spec_fsm_sglang.reference import first_difference
from spec_fsm_sglang.tiny import TinyPair, write_pair

FSM: Final = {"disable_above": 8, "dwell": 0, "checks": True, "stash_width": 256}
TIE: Final = {"float32": 1e-3, "bfloat16": 3e-2}
"""Between a row and its twin: of hidden states by norm, and of probabilities."""
APART: Final = 0.1
"""Of hidden states by norm, at least, between a row and another's twin."""
OLD_ROWS: Final = 3
SILENT: Final = ("accept len", "accept rate")


class Truth:
    """The models, the measurements, and what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device: str = options.device
        self.folder = Path(tempfile.mkdtemp())
        self.pair: TinyPair = write_pair(self.folder / "pair")
        self.merged = truth_models.write(self.pair.target, self.folder)
        self.sizes = [3, 7] if options.quick else [1, 2, 3, 5, 8, 13, 24, 40, 60, 75]
        self.gaps = [1, 6] if options.quick else [1, 2, 5, 16, 40, 120]
        self.backends = ["torch_native"] if self.device == "cpu" else options.backends.split(",")
        self.failed: list[str] = []

    def arm(self, name: str, measure: str, **settings: Any) -> dict[str, Any]:
        """One server's result; `{"error": ...}` with the end of its log if it died."""
        engine: dict[str, Any] = {"max_running_requests": 96, "log_level": "info"}
        if self.device != "cpu":
            engine |= {"attention_backend": "triton", "sampling_backend": "pytorch",
                       "grammar_backend": "none", "cuda_graph_max_bs_decode": 64}
        settings = {
            "measure": measure, "device": self.device, "adapters": False, "fsm": FSM,
            "folder": str(self.folder), "target": str(self.pair.target),
            "draft": str(self.pair.eagle3), "sizes": self.sizes, "gaps": self.gaps, "tokens": 60,
            "rows": 6, "tie": TIE["float32"], **settings,
            "engine": {**engine, **settings.get("engine", {})},
        }
        result, log = self.folder / f"{name}.json", self.folder / f"{name}.log"
        script = Path(__file__).with_name("truth_arm.py")
        with log.open("wb") as output:
            code = subprocess.run(
                [sys.executable, str(script), json.dumps(settings), str(result)],
                stdout=output, stderr=output, timeout=400, check=False,
            ).returncode
        print(f"{name}: exit code {code}", flush=True)
        if code:
            return {"error": log.read_text(errors="replace")[-3000:]}
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def expect(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        print(f"  {'holds' if holds else 'FAILS'}: {what}", flush=True)
        if not holds:
            self.failed.append(what)

    def judged(self, found: dict[str, Any], plain: dict[str, Any] | None) -> dict[str, Any]:
        """How many outputs are equal, near ties, wrong; by adapter where there are some."""
        counts = {"equal": 0, "near tie": 0, "different": 0}
        wrong = []
        for rid, output in found["outputs"].items():
            if plain is not None and plain["outputs"][rid] == output:
                counts["equal"] += 1
                continue
            name = rid.rsplit("-", 1)[1]
            model = self.merged.get(name, self.pair.target)
            parts = first_difference(model, found["prompts"][rid], output)
            if parts is None and plain is None:
                counts["equal"] += 1
            elif parts is None or parts.margin < NEAR_TIE:
                counts["near tie"] += 1
            else:
                counts["different"] += 1
                wrong.append([rid, parts.index, parts.margin])
        return {**counts, "wrong": wrong[:8]}


def lora(truth: Truth) -> dict[str, Any]:
    """Adapters in both modes."""
    found = {}
    for backend in truth.backends:
        engine = {"engine": {"lora_backend": backend}, "adapters": True}
        plain = truth.arm(f"lora-{backend}-plain", "lora", fsm=None, **engine)
        if "error" in plain:
            truth.expect(False, f"{backend}: a server without speculation runs")
            found[backend] = {"plain": plain}
            continue
        spec = truth.arm(f"lora-{backend}-fsm", "lora", **engine)
        arms = {"fsm": spec}
        if truth.device == "cuda":
            # So few rows that the wrong batch information has room for them: nothing raises.
            few = {"sizes": [s for s in truth.sizes if s <= OLD_ROWS]}
            arms["old"] = truth.arm(f"lora-{backend}-old", "lora", old=True, **engine, **few)
        one = {"requests": len(plain["outputs"]), "plain": truth.judged(plain, None)}
        for name, arm in arms.items():
            one[name] = arm if "error" in arm else {
                **truth.judged(arm, plain),
                **{key: arm[key] for key in ("launches", "switches", "violations", "exchanged")},
            }
        last = f"{truth.sizes[-1]}-"
        texts = {tuple(o) for rid, o in plain["outputs"].items() if rid.startswith(last)}
        one["distinct texts of the last wave"] = len(texts)
        found[backend] = one
        _expect_lora(truth, backend, one)
    return found


def _expect_lora(truth: Truth, backend: str, one: dict[str, Any]) -> None:
    def right(arm: dict[str, Any]) -> bool:
        return "error" not in arm and not arm["different"]

    truth.expect(right(one["plain"]), f"{backend}: a plain server serves the merged models")
    truth.expect(
        one["distinct texts of the last wave"] >= truth.sizes[-1] * 2 // 3,
        f"{backend}: an adapter changes the text",
    )
    truth.expect(right(one["fsm"]), f"{backend}: every output is right under switches")
    if right(one["fsm"]):
        ties = one["fsm"]["near tie"]
        truth.expect(ties * 10 <= one["requests"], f"{backend}: near ties at most a tenth")
        truth.expect(one["fsm"]["violations"] == 0, f"{backend}: no violation")
        if truth.device == "cuda":
            kinds = one["fsm"]["launches"]
            for kind in ("PLAIN graph", "SPECULATE graph", "PLAIN eager", "SPECULATE eager"):
                truth.expect(kinds.get(kind, 0) > 0, f"{backend}: launches of kind {kind}")
    if truth.device == "cuda":
        truth.expect(not right(one["old"]), f"{backend}: without the exchange it is found out")


def seeds(truth: Truth) -> dict[str, Any]:
    """Relays of several rows."""
    found = {}
    for dtype in ("float32",) if truth.device == "cpu" else ("float32", "bfloat16"):
        engine = {"dtype": dtype, "disable_radix_cache": True}
        arm = truth.arm(f"seeds-{dtype}", "seeds", engine=engine, tie=TIE[dtype])
        if "error" in arm:
            truth.expect(False, f"seeds, {dtype}: the server runs")
            found[dtype] = arm
            continue
        found[dtype] = {"relays": arm["relays"], "launches": arm["launches"]}
        for relay in arm["relays"]:
            own, other, where = relay["own"], relay["neighbour"], f"{dtype}, gap {relay['gap']}"
            near = own["topk_p"] < TIE[dtype] and own["hidden_states"] < TIE[dtype]
            truth.expect(relay["rows"] >= 4 and near and not own["topk_index"],
                         f"seeds, {where}: every row has its own")
            truth.expect(other["hidden_states"] > APART and other["topk_index"] > 0,
                         f"seeds, {where}: a neighbour's would be found out")
    return found


def recapture(truth: Truth) -> dict[str, Any]:
    """Both sets of graphs after new weights."""
    arm = truth.arm("recapture", "recapture")
    if "error" in arm:
        truth.expect(False, "recapture: the server runs")
        return arm
    found = truth.judged(arm, None)
    if truth.device == "cuda":
        truth.expect(all(arm["captured_again"].values()), "recapture: both sets are new")
    truth.expect(arm["lost"] == 6, "recapture: the stashes of the old weights are forgotten")
    truth.expect(found["different"] == 0, "recapture: every output is right")
    keys = ("launches", "switches", "captured_again", "lost")
    return {**found, **{key: arm[key] for key in keys}}


def lines(truth: Truth) -> dict[str, Any]:
    """The log of a server that changes its mode by load."""
    arm = truth.arm("lines", "lora", sizes=truth.sizes[:6], engine={"decode_log_interval": 3})
    if "error" in arm:
        truth.expect(False, "lines: the server runs")
        return arm
    changes = [text for _, text in arm["lines"] if " -> " in text or "\N{RIGHTWARDS ARROW}" in text]
    decode = [(mode, text) for mode, text in arm["lines"] if text.startswith("Decode batch")]
    plain = [text for mode, text in decode if mode == "PLAIN"]
    told = [text for text in plain if any(word in text for word in SILENT)]
    truth.expect(bool(changes), "lines: a change of mode is logged")
    truth.expect(bool(plain) and not told, "lines: PLAIN's decode lines show no acceptance")
    return {"switches": arm["switches"], "changes": changes[:20], "changes logged": len(changes),
            "plain decode lines": plain[:6], "of them with acceptance": len(told),
            "other decode lines": [line for line in decode if line[0] == "SPEC"][:6]}


MEASURES = {"lora": lora, "seeds": seeds, "recapture": recapture, "lines": lines}


def main() -> int:
    """Measures what was asked for; 1 if anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=list(MEASURES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--backends", default="csgmv,triton", help="of LoRA, on a GPU")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--commit", default="", help="the commit measured, for the record")
    options = parser.parse_intermixed_args()
    truth = Truth(options)
    record: dict[str, Any] = {
        "command": f"python bench/gpu/truth.py {' '.join(sys.argv[1:])}", "commit": options.commit
    }
    for name in options.names:
        record[name] = MEASURES[name](truth)
        record["failed"] = truth.failed
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(truth.failed)} of what was expected does not hold")
    return int(bool(truth.failed))


if __name__ == "__main__":
    sys.exit(main())
