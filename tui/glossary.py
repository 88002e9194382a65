"""The words of the app and of the documents in plain language; `docs/glossary.md` has them, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """A meaning in one or two sentences for newcomers, and a regular expression of other words that it explains."""

    meaning: str
    shown_as: str = ""


GLOSSARY: Mapping[str, Term] = {
    "adapter": Term(
        "What is trained: a small file (LoRA) beside the model, which itself never changes. No node sends it.",
        r"adapters?|lora",
    ),
    "advantage": Term(
        "How much better or worse an answer is than the mean of its group. Training makes better answers more likely, "
        "and worse ones less likely.",
        r"advantages?",
    ),
    "backend": Term("The program that runs the model: llama.cpp and torch on a processor, torch on an NVIDIA GPU, or "
                    "MLX on a Mac.", r"llama\.cpp|llama_cpp|torch|mlx"),
    "base model": Term("The model as it was before training. Without the adapter, it still is.", r"base"),
    "best": Term("The checkpoint with the highest accuracy on the validation questions. Chat and export take it."),
    "checkpoint": Term("A copy of the adapter on this disk. After a crash, the node continues from the newest one.",
                       r"checkpoints?"),
    "export": Term("Write the result for another program. merged: model and adapter in one GGUF file, for Ollama and "
                   "LM Studio. peft, gguf, mlx: the adapter alone.", r"gguf|peft|merged"),
    "generator": Term("A node that only answers and shares, and does not learn. It needs less memory."),
    "group": Term("The answers to one question. They are compared only with each other.", r"groups?"),
    "held-out": Term(
        "Questions that no node of the swarm trains on. Only the share of correct answers to them, the held-out "
        "accuracy, tells whether the model got better.",
        r"held.?out|accuracy",
    ),
    "interval": Term("The range in which the true value lies with 95 % probability. Where two ranges overlap, "
                     "the values may be equal.", r"95 ?%|too close to tell"),
    "invite": Term("A line that begins with sapo://. Whoever has it can join the swarm, and pass it on.", r"invites?"),
    "manifest": Term("The list of tasks that a run trains on. Nodes of one swarm have the same.", r"manifests?"),
    "node": Term("The program that learns. It runs in the background: closing this app does not stop it.", r"nodes?"),
    "open swarm": Term("A swarm that needs no invite: anyone who trains on the same questions can take part.",
                       r"private"),
    "peer": Term("Another computer in the swarm.", r"peers?"),
    "public key": Term("The name of a node in its signatures: others tell by it who sent a message. It says nothing "
                       "about you."),
    "relay": Term("A computer that passes messages between two members that can't reach each other.", r"relays?"),
    "reward": Term(
        "The score of an answer, from 0 to 1, by a program that knows the solution. Every node computes it itself, "
        "also for other nodes' answers.",
        r"rewards?",
    ),
    "rollout": Term("A question with a model's answers, and what is needed to check them. Nodes send each other "
                    "nothing else.", r"rollouts?"),
    "round": Term("Answer questions, exchange rollouts, reward the answers, learn. Every few rounds: held-out "
                  "questions.", r"rounds?"),
    "swarm": Term("Nodes that train on the same manifest and share rollouts. No node is in charge, and each can work "
                  "alone."),
    "task": Term("A kind of question, such as sums, with a program that checks the answers.", r"tasks?"),
    "teaches": Term(
        "A question teaches if some of its answers have an advantage: they differ in reward (an informative group), or "
        "another node has it right where own answers seldom differ. So it does if all own answers are wrong and the "
        "right one is known (setting corrections). Tasks that seldom teach are drawn less.",
        r"teach|informative",
    ),
    "temperature": Term("How freely a model picks its words: 0 always takes the likeliest. In Settings, "
                        "max_temperature is that of the processor.", r"greedy"),
    "test": Term("200 held-out questions that measure the gain at the end. Nothing is chosen by them, so luck can't "
                 "flatter them."),
    "token": Term("A piece of text, about three quarters of a word; models read and write tokens.", r"tokens?|tok/s"),
    "trust": Term("What this node thinks of a peer: it falls with each wrong or forged message, and a peer far below 0 "
                  "is ignored.", r"reputation|rejected|refused"),
    "validation": Term("200 held-out questions that choose the best checkpoint during training."),
}  # fmt: skip
"""Every word, in alphabetical order."""


def shown_in(text: str) -> list[str]:
    """The words that a text contains, in the order of the glossary."""
    return [
        name
        for name, term in GLOSSARY.items()
        if re.search(rf"(?<!\w)(?:{re.escape(name)}{term.shown_as and '|' + term.shown_as})(?!\w)", text, re.IGNORECASE)
    ]
