"""What a client may send, drawn at random, and what it does to the scheduler.

A message is plain data: the fields of `TokenizedGenerateReqInput` and `SamplingParams` a client
can set, or another request to the server. What SGLang's own tokenizer refuses is not drawn.
"""

from __future__ import annotations

import traceback
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from live_scenarios import Live

NAMES = st.one_of(
    st.sampled_from(("a", "ab", "abc", "n")),
    st.just("x" * 5000),
    st.text(st.characters(), max_size=8),  # lone surrogates and control characters too
)
MODES = ("in_place", "retract")
SAMPLING = st.fixed_dictionaries({}, optional={
    "temperature": st.sampled_from((0.0, 1.0, 1e-9, 100.0)),
    "top_k": st.sampled_from((-1, 1, 3, 100_000)),
    "top_p": st.sampled_from((1.0, 1e-9, 0.5)),
    "min_p": st.sampled_from((0.0, 1.0)),
    "frequency_penalty": st.sampled_from((-2.0, 2.0)),
    "presence_penalty": st.sampled_from((-2.0, 2.0)),
    "repetition_penalty": st.sampled_from((1e-6, 2.0)),
    "min_new_tokens": st.sampled_from((0, 1)),
    "stop": st.sampled_from(("", "q", ["q", "7"], "\ud800", "x" * 200)),
    "stop_regex": st.sampled_from(("[a-f]+", "q|z", "a{3}")),
    # An id outside the vocabulary ends any SGLang 0.5.23 server with `min_new_tokens`
    # (`sampling/penaltylib/min_new_tokens.py:65`).
    "stop_token_ids": st.sampled_from(([], [5], list(range(400)))),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "no_stop_trim": st.booleans(),
    "stream_interval": st.sampled_from((1, 7)),
    "logit_bias": st.sampled_from(({}, {"5": 100.0}, {"5": -100.0, "05": 3.0})),
    "sampling_seed": st.sampled_from((0, -1, 2**62)),
    "custom_params": st.sampled_from(({}, {"a": 1}, {"__req__": 3})),
})
GRAMMARS = st.sampled_from((
    {}, {}, {}, {"regex": "[a-f]{3}"}, {"regex": "("}, {"regex": ""}, {"json_schema": "{"},
    {"json_schema": '{"type": "object"}'}, {"ebnf": "root ::="}, {"ebnf": 'root ::= "a" root'},
    {"structural_tag": "{}"},
))
FIELDS = st.fixed_dictionaries({}, optional={
    "return_logprob": st.booleans(),
    "logprob_start_len": st.sampled_from((-1, 0, 1, 3, 10_000)),
    "top_logprobs_num": st.sampled_from((0, 1, 5)),
    "token_ids_logprob": st.sampled_from((None, [], [1, 2, 3])),
    "return_hidden_states": st.booleans(),
    "stream": st.booleans(),
    "priority": st.sampled_from((None, 0, -5, 2**40)),
    "bootstrap_host": st.sampled_from((None, "", "nowhere")),
    "bootstrap_room": st.sampled_from((None, -1, 2**62)),
    "routing_key": st.sampled_from((None, "", "k")),
    "extra_key": st.sampled_from((None, "", "k")),
    "require_reasoning": st.booleans(),
    "session_id": st.sampled_from((None, "", "s")),
    "return_sampling_mask": st.booleans(),
})
REQUEST = st.fixed_dictionaries({
    "name": NAMES,
    "prompt": st.sampled_from((1, 2, 9, 23, 40, 5000)),
    "tokens": st.sampled_from((0, 1, 2, 5, 12, 30, 2**31 - 1, 2**62)),
    "sampling": SAMPLING,
    "grammar": GRAMMARS,
    "fields": FIELDS,
    "session": st.sampled_from((None, None, None, "unknown", "open")),
})
MESSAGE = st.one_of(
    REQUEST, REQUEST, REQUEST,
    st.builds(lambda name: {"abort": name}, NAMES | st.just("")),
    st.sampled_from((
        {"pause": "in_place"}, {"pause": "retract"}, {"pin": 0}, {"pin": 1}, {"pin": 2},
        {"flush": 1}, {"abort_all": 1}, {"open session": 1}, {"close session": 1},
    )),
)
HISTORY = st.lists(st.tuples(MESSAGE, st.integers(0, 6)), min_size=4, max_size=16)

GREEDY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "max_new_tokens": ({}, {}),
    "stop": ({"stop": ["q", "7", "Z", "e"], "ignore_eos": False}, {}),
    "stop_regex": ({"stop_regex": "[a-m]", "ignore_eos": False}, {}),
    "stop_token_ids": ({"stop_token_ids": list(range(0, 500, 17)), "ignore_eos": False}, {}),
    "ignore_eos": ({"ignore_eos": False}, {}),
    "temperature": ({"temperature": 1e-9}, {}),
    "top_k": ({"temperature": 0.7, "top_k": 1}, {}),
    "top_p": ({"temperature": 0.7, "top_p": 1e-9}, {}),
    "logit_bias": ({"logit_bias": {str(i): -50.0 for i in range(0, 500, 2)}}, {}),
    "regex": ({"regex": "[a-f]{3}-[0-9]{2,6}", "ignore_eos": False}, {}),
    "ebnf": ({"ebnf": 'root ::= "a" | "b" root', "ignore_eos": False}, {}),
    "json_schema": ({"json_schema": '{"type": "integer"}', "ignore_eos": False}, {}),
    "skip_special_tokens": ({"skip_special_tokens": False}, {}),
    "spaces_between_special_tokens": ({"spaces_between_special_tokens": False}, {}),
    "no_stop_trim": ({"no_stop_trim": True, "stop": ["q", "7"], "ignore_eos": False}, {}),
    "stream_interval": ({"stream_interval": 5}, {"stream": True}),
    "sampling_seed": ({"sampling_seed": 5}, {}),
    "custom_params": ({"custom_params": {"a": 1}}, {}),
    "return_logprob": ({}, {"return_logprob": True, "top_logprobs_num": 2}),
}
"""Requests whose text must be the same in SPEC, in PLAIN and without speculation."""
DIFFERING_VALUES: dict[str, Any] = {
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.3,
    "min_new_tokens": 2, "min_p": 0.2,
}
"""A value of each parameter that SGLang applies differently while it speculates."""

ENDING = ("one token", "no token", "scored", "aborted", "chunked to one token")
"""Requests that end with their prefill."""


def submit_ending(live: Live, kind: str) -> None:
    """A request of a kind of `ENDING`."""
    if kind == "aborted":
        live.submit(40, live.prompt(6, 7), return_logprob=True, logprob_start_len=10_000)
    elif kind == "scored":
        live.submit(
            0, live.prompt(6, 7), return_logprob=True, logprob_start_len=0, top_logprobs_num=2
        )
    else:
        live.submit(int(kind != "no token"), live.prompt(6, 7) * (8 if "chunked" in kind else 1))


class Player:
    """Sends histories to one engine; whatever raises in the scheduler's loop comes out here."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.sent = self.refused = self.played = 0
        self.failure = ""
        self.history: list[Any] = []

    def play(self, history: list[Any]) -> None:
        """One history, from an idle server to an idle server without rows and with a whole pool."""
        live, self.history = self.live, history
        if self.failure:
            raise AssertionError("the engine is of no more use")
        try:
            for message, steps in history:
                self._send(message)
                live.step(steps)
                if "pause" in message:
                    self._continue()
            live.fsm.pin(0)
            self._abort("", everything=True)
            live.finish()
            self._whole()
        except Exception:
            self.failure = traceback.format_exc()
            raise
        self.played += 1

    def _whole(self) -> None:
        scheduler, live = self.live.scheduler, self.live
        if live.fsm.lifecycle.rows:
            raise AssertionError(f"{live.fsm.lifecycle.rows} rows on an idle server")
        free = scheduler.token_to_kv_pool_allocator.available_size()
        held = free + scheduler.tree_cache.evictable_size()
        if held != scheduler.max_total_num_tokens:
            raise AssertionError(f"{held} slots of {scheduler.max_total_num_tokens}")
        live.engine.outputs.clear()
        live.prompts.clear()
        live.modes.clear()

    def _continue(self) -> None:
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        self.live.engine.send(ContinueGenerationReqInput())
        self.live.step()

    def _abort(self, name: str, *, everything: bool = False) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        self.live.engine.send(AbortReq(rid=name, abort_all=everything))

    def _send(self, message: dict[str, Any]) -> None:
        from sglang.srt.managers import io_struct

        send = self.live.engine.send
        self.sent += 1
        if "name" in message:
            self._request(message)
        elif "abort" in message:
            self._abort(message["abort"])
        elif "abort_all" in message:
            self._abort("", everything=True)
        elif "pause" in message:
            send(io_struct.PauseGenerationReqInput(mode=message["pause"]))
        elif "pin" in message:
            self.live.fsm.pin(message["pin"])
        elif "flush" in message:
            send(io_struct.FlushCacheReqInput())
        elif "open session" in message:
            send(io_struct.OpenSessionReqInput(capacity_of_str_len=1000, session_id="open"))
        else:
            send(io_struct.CloseSessionReqInput(session_id="open"))

    def _request(self, message: dict[str, Any]) -> None:
        from sglang.srt.managers.io_struct import SessionParams

        fields = dict(message["fields"])
        if message["session"]:
            fields["session_params"] = SessionParams(id=message["session"])
        try:
            self.live.engine.submit(
                self.live.prompt(message["prompt"], message["prompt"] + 1),
                max_new_tokens=message["tokens"],
                rid=message["name"],
                sampling={**message["sampling"], **message["grammar"]},
                **fields,
            )
        except (ValueError, TypeError):
            self.refused += 1  # by SGLang's own `SamplingParams.verify`, in the tokenizer's process


def play(live: Live, examples: int) -> dict[str, Any]:
    """`examples` histories, the same ones each time."""
    player = Player(live)

    @seed(14)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=(Phase.generate,),
        suppress_health_check=tuple(HealthCheck), print_blob=False,
    )
    @given(HISTORY)
    def one(history: list[Any]) -> None:
        player.play(history)

    try:
        one()
    except Exception:
        if not player.failure:
            raise
    return {
        "played": player.played, "sent": player.sent, "refused": player.refused,
        "failure": player.failure, "history": repr(player.history if player.failure else ""),
    }
