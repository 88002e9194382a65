"""The process in which an environment of the package `verifiers` runs: it gives its tasks, or judges answers.

An environment is its owner's code, and does what it likes as this user; apart from the node it can neither break nor
stop it. The protocol is msgpack on stdin and stdout: first what was loaded, then an answer to each request. What the
environment prints goes to stderr.

Only what one answer can be judged by is taken: a taskset whose tasks bring a prompt and rewards. What has several
turns, tools, a harness, a container or another model's judgement is refused in words.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import msgpack

from sapo_edge.children import limit_memory

MEMORY = 4 * 1024**3
"""Bytes of address space; macOS does not enforce them."""
MAX_TASKS = 200_000
MAX_OF_ENDLESS = 4096
"""Most tasks, and most of a taskset that never ends."""
MAX_REQUEST = 1024 * 1024
"""Longest request in bytes."""
MAX_ROW = 3 * 1024 * 1024
"""Longest row in bytes: below the longest reply that is taken."""
TEXTS = ("answer", "reference", "ground_truth", "solution", "target", "expected")
"""Fields of a task in which an expected answer is looked for, to be shown: rewards decide."""
_HOOKS = {"setup": "prepares a machine", "finalize": "works on a machine", "stage_verifier": "works on a machine"}


class RefusedError(Exception):
    """Why an environment can't be used, in words."""


def main(name: str, arguments: str) -> None:
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limit_memory(MEMORY)
    packer = msgpack.Packer()

    def send(packed: bytes) -> None:
        replies.write(packed)
        replies.flush()

    def reply(record: object) -> None:
        send(packer.pack(record))

    try:
        tasks = load(name, json.loads(arguments))
    except RefusedError as error:
        reply({"refused": str(error)})
        return
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is told to its owner
        reply({"failed": _words(error)})
        return
    reply({"tasks": len(tasks)})
    for request in _requests(requests):
        if request == "rows":
            for task in tasks.values():
                send(_packed_row(packer, task))
            reply(None)
            continue
        question, text = request
        try:
            reply({"score": asyncio.run(score(tasks[question], text))})
        except Exception as error:  # noqa: BLE001 - as above
            if isinstance(error.__cause__ or error, MemoryError):
                # What this answer took is an end like that by a signal, and no fault that its owner can mend.
                os._exit(1)
            reply({"failed": _words(error)})


def load(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The tasks of an environment by their question's text; a RefusedError if no answer can be judged by itself."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import taskset_class

    try:
        kind = taskset_class(name)
    except (AttributeError, TypeError) as error:
        raise RefusedError(f"exports no taskset as verifiers 0.4 expects it ({error})") from error
    if vf.environment_class(name) is not vf.SingleAgentEnv:
        raise RefusedError("has a course of its own, with several turns or agents")
    if vf.default_harness_id(name) == name:
        raise RefusedError("brings a program of its own around the model")
    taskset = kind(vf.taskset_config_type(name)(id=name, **arguments))
    if kind.toolsets(taskset.config):
        raise RefusedError("gives the model tools")
    tasks: dict[str, Any] = {}
    for task in itertools.islice(taskset, MAX_TASKS if taskset.bounded else MAX_OF_ENDLESS):
        if not tasks:
            check(task)
        tasks.setdefault(question_of(task), task)
    if not tasks:
        raise RefusedError("has no tasks")
    return tasks


def check(task: Any) -> None:
    """A RefusedError unless a task's rewards need its data and one answer alone; all tasks are of one kind."""
    import verifiers.v1 as vf

    if type(task).toolsets(task.config):
        raise RefusedError("gives the model tools")
    if task.NEEDS_CONTAINER or task.data.image is not None:
        raise RefusedError("needs a container")
    for hook, what in _HOOKS.items():
        if getattr(type(task), hook) is not getattr(vf.Task, hook):
            raise RefusedError(f"{what} for each task ({hook})")
    if task.config.judges:
        raise RefusedError("asks another model about answers")
    rewards = task.hooks("reward")
    if not rewards:
        raise RefusedError("has no rewards")
    for reward in rewards:
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise RefusedError(f"needs a machine to judge answers ({reward.__name__})")


def turns_of(task: Any) -> list[dict[str, str]]:
    """The turns of a task's prompt, beginning with the system's if there is one."""
    prompt, system = task.data.prompt, task.data.system_prompt
    turns = [{"role": "system", "content": system}] if system else []
    if prompt is None:
        raise RefusedError("lets a user begin, who is a program")
    if isinstance(prompt, str):
        return [*turns, {"role": "user", "content": prompt}]
    if any(not isinstance(message.content, str) for message in prompt):
        raise RefusedError("shows more than text")
    return [*turns, *({"role": message.role, "content": message.content} for message in prompt)]


def question_of(task: Any) -> str:
    """The text that is asked, as an import writes it."""
    from sapo_edge.tasks.texts import tidy

    return str(tidy(next((turn["content"] for turn in reversed(turns_of(task)) if turn["role"] == "user"), "")))


def _packed_row(packer: msgpack.Packer, task: Any) -> bytes:
    """A row; an empty one, which an import leaves out and counts, if it is too long or something can't be written."""
    empty: bytes = packer.pack({})
    try:
        row: bytes = packer.pack(_row(task))
    except Exception:  # noqa: BLE001 - fields are the environment's, and so is how they are written
        return empty
    return row if len(row) <= MAX_ROW else empty


def _row(task: Any) -> dict[str, Any]:
    """A row of columns that an import understands."""
    turns, fields = turns_of(task), task.data.model_dump(mode="json")
    expected = next((fields[name] for name in TEXTS if isinstance(fields.get(name), str | int | float)), "")
    # An import writes it as this text, too; msgpack has 64 bits for a number.
    return {"prompt": turns, "answer": str(expected) if type(expected) is int else expected}


async def score(task: Any, text: str) -> float:
    """The sum of a task's rewards for an answer, by their weights, from 0 to 1: what is beyond is cut."""
    import verifiers.v1 as vf
    from verifiers.v1.graph import MessageNode

    kinds: dict[str, Any] = {
        "system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage,
    }  # fmt: skip
    prompt = [kinds[turn["role"]](content=turn["content"]) for turn in turns_of(task)]
    nodes = [
        MessageNode(parent=number - 1 if number else None, message=message) for number, message in enumerate(prompt)
    ]
    answer = MessageNode(parent=len(nodes) - 1, message=vf.AssistantMessage(content=text), sampled=True)
    trace: Any = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[*nodes, answer],
        is_completed=True,
        ok=True,
    )
    await task.score(trace)
    return min(1.0, max(0.0, float(trace.reward)))


def _requests(stream: IO[bytes]) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_REQUEST)
    while block := os.read(stream.fileno(), 64 * 1024):
        unpacker.feed(block)
        yield from unpacker


def _words(error: BaseException) -> str:
    # The library wraps what a reward raises.
    cause = error.__cause__ or error
    words = f"{type(cause).__name__}: {cause}"[:500]
    # A lone surrogate can't be sent.
    return words.encode(errors="backslashreplace").decode()


if __name__ == "__main__":
    main(*sys.argv[1:3])
