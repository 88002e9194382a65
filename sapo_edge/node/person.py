"""Shares a person's answers as rollouts of the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sapo_edge.errors import StateError, UnknownTaskError
from sapo_edge.events import Notice
from sapo_edge.node.rounds import Node
from sapo_edge.person import Outbox, PersonAnswers, Verdict, person_rollout, verify_answers


def share(node: Node, given: PersonAnswers, *, shared: bool) -> Verdict:
    """Verify a person's answers and publish them as a rollout of the node.

    Raises:
        UnknownTaskError: if the question is not of the node's manifest.
    """
    task, rewards = verify_answers(node.source, given)
    sequence = node.store.journal.reserve_sequences(1)
    # Peers learn from the text: tags would teach a form that nobody asked for.
    asked = replace(given, answers=tuple(node.source.as_asked(task, text) for text in given.answers))
    node.transport.publish([person_rollout(task, asked, author=node.author, round=node.round, sequence=sequence)])
    return Verdict(rewards, task.ground_truth, shared)


class OutboxSharer:
    """Shares the answers that a person gave while no node ran, once there is a peer. Call it between rounds."""

    def __init__(self, node: Node, outbox: Path, is_connected: Callable[[], bool]) -> None:
        self._node, self._is_connected = node, is_connected
        self._outbox = Outbox(outbox, self._warn)
        self._last_warning = ""
        # Published, but still in the file, because that could not be written.
        self._shared: list[PersonAnswers] = []

    def __call__(self) -> None:
        """Publish the answers of the outbox; drop those that can't be verified, with a notice.

        They leave the file last: a node that is killed, or can't write, shares them again, and peers take each once.
        """
        if not self._outbox.path.exists() or not self._is_connected():
            return
        try:
            self._share()
        except StateError as error:
            # They wait in the file for the next time.
            self._warn(f"a person's answers are not shared yet: {error}")

    def _share(self) -> None:
        digest = self._node.source.manifest.digest
        waiting = [answers for answers in self._outbox.read() if answers.manifest == digest]
        shared = 0
        for answers in waiting:
            if answers in self._shared:
                continue
            try:
                share(self._node, answers, shared=True)
            except UnknownTaskError as error:
                self._warn(f"a person's answers were not shared: {error.message}")
            else:
                self._shared.append(answers)
                shared += 1
        if waiting:
            self._outbox.remove(waiting)
            self._shared.clear()
        if shared:
            self._node.emit(Notice(level="info", text=f"shared a person's answers to {shared} questions"))

    def _warn(self, text: str) -> None:
        """Emit a warning, but not the same one after every round."""
        if text != self._last_warning:
            self._last_warning = text
            self._node.emit(Notice(level="warning", text=text))
