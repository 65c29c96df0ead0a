"""What the fuzzer asks of the engine, and what the answers must be by the model alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from spec_fsm_sglang.reference import _load

TIE = 1e-5
"""Two logits this close may be ordered either way by kernels that sum in another order."""
LOGPROB_ERROR = 2e-4
EOS = frozenset({1, 511})
"""What ends a text: the tiny model's own token, and its tokenizer's."""
REGEX = "[a-f]{3}-[0-9]{2,6}"
PENALTY = 0.4
NEVER_COMPILED = "Aborted by AbortReq."
"""How SGLang ends a request that is aborted while its grammar is compiled (0.5.23
`GrammarManager.abort_requests`): it is prefilled as one token 0 without the grammar, so that the
ordinary way ends it, and the token that gives is sent with the abort."""
TOP_K = 4


@dataclass(frozen=True)
class Kind:
    """One way to ask: fields of `SamplingParams` and of `TokenizedGenerateReqInput`."""

    sampling: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    greedy: bool = True
    """Whether every token must be the best one the model has at its position."""


KINDS: dict[str, Kind] = {
    "greedy": Kind(),
    "stop_ids": Kind({"stop_token_ids": list(range(0, 500, 17)), "ignore_eos": False}),
    "stop_strings": Kind({"stop": ["q", "7", "Z"], "ignore_eos": False}),
    "logprobs": Kind(fields={"return_logprob": True, "logprob_start_len": 0}),
    "top_logprobs": Kind(fields={"return_logprob": True, "top_logprobs_num": 3}),
    "regex": Kind({"regex": REGEX, "ignore_eos": False}),
    # SGLang applies penalties to a speculative round as a whole, so a token there may differ.
    "penalty": Kind({"frequency_penalty": PENALTY}, greedy=False),
    # On the CPU SGLang verifies greedily whatever was asked; a plain step really samples.
    "sampled": Kind(
        {"temperature": 0.9, "top_k": TOP_K, "sampling_seed": 7}, greedy=False
    ),
}


@dataclass
class Asked:
    """A request that was submitted.

    aborted: by the fuzzer.  speculated: a speculative round may have held it.
    """

    rid: str
    prompt: list[int]
    max_new_tokens: int
    kind: str
    aborted: bool = False
    speculated: bool = False


@torch.no_grad()
def logits_of(target: Path, texts: list[list[int]]) -> torch.Tensor:
    """Logits `[n, longest, vocab]` after each token of each text; rows are padded at their end."""
    longest = max(len(text) for text in texts)
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    found: torch.Tensor = _load(target)(padded).logits.float()
    return found


class Judge:
    """Says what is wrong with answers; counts what it compared.

    tokens, ties: tokens held against the reference, and those at which two were equally good.
    """

    def __init__(self, target: Path) -> None:
        from transformers import AutoTokenizer

        self._target = target
        self._tokenizer = AutoTokenizer.from_pretrained(target)
        self.tokens = self.ties = self.answers = 0

    def problems(self, asked: list[Asked], outputs: dict[str, Any]) -> list[str]:
        """One line for each answer that is not what a plain server would give."""
        answered = [a for a in asked if outputs[a.rid].output_ids]
        found = []
        for a in asked:
            problem = self._end(a, outputs[a.rid])
            if problem:
                found.append(f"{a.rid} ({a.kind}, {a.max_new_tokens} tokens asked): {problem}")
        for start in range(0, len(answered), 32):
            part = answered[start : start + 32]
            prompts = [[0] if _never_compiled(outputs[a.rid]) else a.prompt for a in part]
            texts = [
                prompt + list(outputs[a.rid].output_ids)[:-1]
                for a, prompt in zip(part, prompts, strict=True)
            ]
            found_logits = logits_of(self._target, texts)
            for a, prompt, logits in zip(part, prompts, found_logits, strict=True):
                output = outputs[a.rid]
                first = len(prompt) - 1
                logits = logits[first : first + len(output.output_ids)]
                kind = "greedy" if _never_compiled(output) else a.kind
                problem = self._tokens(a, kind, list(output.output_ids), logits)
                problem = problem or self._logprobs(a, output, logits)
                if problem:
                    found.append(f"{a.rid} ({a.kind}): {problem}")
        self.answers += len(asked)
        return found

    # -- where it ends --------------------------------------------------------------------

    def _end(self, asked: Asked, output: Any) -> str:
        tokens = list(output.output_ids)
        reason = (output.finished_reason or {}).get("type")
        if reason is None:
            return "never finished"
        if reason == "abort":
            if not asked.aborted:
                return f"aborted by nobody: {output.finished_reason}"
            if _never_compiled(output) and (asked.kind != "regex" or len(tokens) > 1):
                return f"{len(tokens)} tokens of a request that never ran"
            return ""
        expected = self._expected_end(asked, tokens)
        if expected is None:
            return f"ended after {len(tokens)} tokens for no reason ({reason})"
        if expected != len(tokens):
            return f"ended after {len(tokens)} tokens, not {expected} ({reason})"
        return ""

    def _expected_end(self, asked: Asked, tokens: list[int]) -> int | None:
        """The first length at which a plain server would stop, or None if there is none yet."""
        sampling = KINDS[asked.kind].sampling
        stops = set(sampling.get("stop_token_ids", ()))
        eos = not sampling.get("ignore_eos", True)
        strings = sampling.get("stop", ())
        for n in range(1, len(tokens) + 1):
            if n == asked.max_new_tokens:
                return n
            if eos and (tokens[n - 1] in stops or tokens[n - 1] in EOS):
                return n
            if strings and any(s in self._tokenizer.decode(tokens[:n]) for s in strings):
                return n
        return None

    # -- what it says ---------------------------------------------------------------------

    def _tokens(self, asked: Asked, kind: str, tokens: list[int], logits: torch.Tensor) -> str:
        if kind == "regex":
            logits = _allowed_by(tokens, logits)
        elif kind == "penalty":
            if asked.speculated:
                return ""
            logits = logits - PENALTY * _counts(tokens, logits)
        given = logits[torch.arange(len(tokens)), torch.tensor(tokens)]
        if kind == "sampled":
            least = logits.topk(TOP_K, dim=-1).values[:, -1]
        else:
            least = logits.max(dim=-1).values
        short = least - given
        self.tokens += len(tokens)
        self.ties += int(((short > 0) & (short < TIE)).sum())
        wrong = (short >= TIE).nonzero().flatten().tolist()
        if not wrong:
            return ""
        i = wrong[0]
        return (
            f"token {i} is {tokens[i]}, the model's {int(logits[i].argmax())} is better by "
            f"{float(short[i]):.3g} ({len(wrong)} of {len(tokens)} are wrong)"
        )

    def _logprobs(self, asked: Asked, output: Any, logits: torch.Tensor) -> str:
        if not KINDS[asked.kind].fields.get("return_logprob") or asked.aborted:
            return ""
        tokens = torch.tensor(list(output.output_ids))
        given = output.meta.get("output_token_logprobs_val") or []
        if len(given) != len(tokens):
            return f"{len(given)} logprobs for {len(tokens)} tokens"
        expected = torch.log_softmax(logits, -1)[torch.arange(len(tokens)), tokens]
        worst = float((torch.tensor(given) - expected).abs().max())
        return f"a logprob is {worst:.3g} off" if worst > LOGPROB_ERROR else ""


def _never_compiled(output: Any) -> bool:
    """See `NEVER_COMPILED`."""
    return bool((output.finished_reason or {}).get("message") == NEVER_COMPILED)


def _counts(tokens: list[int], logits: torch.Tensor) -> torch.Tensor:
    """How often each token was put out before each position, `[n, vocab]`."""
    one_hot = torch.nn.functional.one_hot(torch.tensor(tokens), logits.shape[-1])
    return one_hot.cumsum(0) - one_hot


def _allowed_by(tokens: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Logits with what the grammar forbids at each position taken out."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(_compiled(logits.shape[-1]))
    mask = xgrammar.allocate_token_bitmask(1, logits.shape[-1])
    masked = logits.clone()
    for i, token in enumerate(tokens):
        matcher.fill_next_token_bitmask(mask)
        xgrammar.apply_token_bitmask_inplace(masked[i : i + 1], mask)
        if not matcher.accept_token(token):
            break
    return masked


@cache
def _compiled(vocab: int) -> Any:
    """The grammar of `REGEX` over the tiny tokenizer's vocabulary."""
    import xgrammar
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = alphabet + [f"<unused{i}>" for i in range(len(alphabet), vocab)]
    info = xgrammar.TokenizerInfo(
        words, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[min(EOS)]
    )
    return xgrammar.GrammarCompiler(info).compile_regex(REGEX)
