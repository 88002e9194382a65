"""The answer inside a completion."""

from __future__ import annotations

from sapo_edge.policy import STOP_TEXT

OPEN_TAG = "<answer>"
CLOSE_TAG = STOP_TEXT
MAX_ANSWER_CHARACTERS = 4096
"""Longest answer that is verified; a longer one is wrong. Bounds the cost of every verifier, and stays below the 4300
digits at which Python refuses to parse an integer."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def extract_answer(completion: str) -> str | None:
    """The stripped text between the first opening tag and the first closing tag.

    A policy stops at its first closing tag. What another node writes behind one must not decide about what stands
    before it, and a second opening tag must not hide a wrong answer: a policy that learns `<answer>4<answer>3</answer>`
    closes the tag after the 4. Takes time linear in the completion.

    NUL and lone surrogates become U+FFFD, so that verifiers get valid text only. None without a complete pair, or if
    the text is longer than `MAX_ANSWER_CHARACTERS`.
    """
    close = completion.find(CLOSE_TAG)
    start = completion.find(OPEN_TAG, 0, max(close, 0))
    if start < 0:
        return None
    answer = completion[start + len(OPEN_TAG) : close].strip()
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return None
    return answer.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", _REPLACEMENT)
