"""What a program asks for: the bodies of requests checked, and errors in OpenAI's form.

A parameter that would change the answer and that this server can't obey is refused by name: an answer that silently
ignores it would be wrong. Its neutral value is accepted, because clients send it unasked. A field that this server
does not know is ignored: clients add fields of their own (Open WebUI its chat's id, Home Assistant its user's), and a
field that newer clients add must not end what worked before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sapo_edge.backends.common.constraint import check_schema
from sapo_edge.errors import BackendError, ModelError
from sapo_edge.policy import Message, Prompt

MAX_MESSAGES = 256
MAX_NAME = 128
"""Longest name of a model, in characters."""
MAX_STOPS = 4
"""Most texts that end an answer, as OpenAI has it."""
MAX_STOP = 64
"""Longest of them, in characters."""
MAX_TEMPERATURE = 2.0
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of messages, and what the model's chat template calls them."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "typical_p": (1,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},),
    "logprobs": (False,), "top_logprobs": (0,), "echo": (False,), "suffix": ("",), "store": (False,),
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "modalities": (["text"],), "audio": (), "prediction": (), "web_search_options": (),
    "service_tier": ("auto", "default"), "reasoning_effort": ("none", "minimal"), "verbosity": ("medium",),
}  # fmt: skip
"""Parameters that this server can't obey, and their values that ask for nothing; so does null."""
KNOWN = frozenset({
    "model", "messages", "prompt", "temperature", "max_tokens", "max_completion_tokens", "stop", "stream",
    "stream_options", "seed", "response_format", *NEUTRAL,
    # Of no effect on an answer.
    "user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
})  # fmt: skip


class ApiError(Exception):
    """An error that a program is told, in OpenAI's form.

    Args:
        message: what happened and what to do; one or two sentences without a full stop.
        parameter: of the request that is wrong; None for another reason.
        retry: seconds after which to try again.
    """

    def __init__(
        self, message: str, status: int = 400, parameter: str | None = None, code: str | None = None, retry: int = 0
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.parameter, self.code, self.retry = message, status, parameter, code, retry

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = {401: "authentication_error", 403: "permission_error"}.get(self.status, kind)
        return {"error": {"message": self.message, "type": kind, "param": self.parameter, "code": self.code}}


@dataclass(frozen=True, slots=True)
class Question:
    """What one request asks.

    Attributes:
        messages: oldest first; of a completion its prompt, as the user's message.
        max_tokens: most tokens of the answer; 0: the model's usual limit.
        temperature: 0 takes the most likely token.
        seed: None: any.
        stops: texts before which an answer ends.
        schema: JSON schema (text) that the answer obeys; None for any text.
        stream: whether the answer is sent while it grows.
        usage: whether a stream ends with the number of its tokens.
        unknown: fields that were ignored.
    """

    model: str
    messages: Prompt
    max_tokens: int = 0
    temperature: float = 0.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    schema: str | None = None
    stream: bool = False
    usage: bool = False
    unknown: tuple[str, ...] = ()


def read_chat(body: bytes) -> Question:
    """The question of a request for a chat's next answer, or an ApiError. May take a second, for its schema."""
    fields = _fields(body)
    return _question(fields, _messages(fields.get("messages")))


def read_completion(body: bytes) -> Question:
    """The same of the older form, which has a prompt in place of messages."""
    fields = _fields(body)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise ApiError("prompt is one text here; send several requests at once for several texts", parameter="prompt")
    return _question(fields, (Message("user", _text(prompt, "prompt")),))


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError("the body is not JSON; send an object with model and messages") from error
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object; send one with model and messages")
    for name, neutral in NEUTRAL.items():
        value = fields.get(name)
        # True equals 1.
        if value is not None and not any(value == usual and isinstance(value, bool) == isinstance(usual, bool)
                                         for usual in neutral):  # fmt: skip
            usual = f", or send {json.dumps(neutral[0])}" if neutral else ""
            raise ApiError(f"{name} is not supported here: leave it out{usual}", parameter=name, code="unsupported")
    return fields


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _question(fields: Mapping[str, Any], messages: Prompt) -> Question:
    model = fields.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_NAME:
        raise ApiError("model is missing; GET /v1/models lists them", parameter="model")
    stream = _one_of(fields, "stream", bool, lambda value: True, "true or false") or False
    options = _one_of(fields, "stream_options", dict, lambda value: stream, "an object, of a request with stream") or {}
    limits = [
        _one_of(fields, name, int, lambda value: 0 < value < 1 << 31, "a number from 1 on")
        for name in ("max_completion_tokens", "max_tokens")
    ]
    temperature = _one_of(
        fields, "temperature", (int, float), lambda value: 0 <= value <= MAX_TEMPERATURE,
        f"a number from 0 to {MAX_TEMPERATURE:g}",
    )  # fmt: skip
    return Question(
        model,
        messages,
        limits[0] or limits[1] or 0,
        float(temperature or 0.0),
        _one_of(fields, "seed", int, lambda value: abs(value) < 1 << 63, "a whole number of 64 bits"),
        _stops(fields.get("stop")),
        _schema(fields.get("response_format")),
        stream,
        bool(options.get("include_usage")),
        tuple(sorted(set(fields) - KNOWN)),
    )


def _one_of(
    fields: Mapping[str, Any], name: str, kind: type | tuple[type, ...], is_right: Callable[[Any], bool], words: str
) -> Any:
    """A field of a type and within its bounds; None if it is missing or null."""
    value = fields.get(name)
    if value is None:
        return None
    # True is a number to Python.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or not is_right(value):
        raise ApiError(f"{name} is {words}", parameter=name)
    return value


def _messages(messages: Any) -> Prompt:
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise ApiError(f"messages is a list of 1 to {MAX_MESSAGES} messages", parameter="messages")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def _message(message: Any, place: str) -> Message:
    if not isinstance(message, dict):
        raise ApiError(f"{place} is an object with role and content", parameter=place)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ApiError(f"{place}.role is one of {', '.join(ROLES)}", parameter=f"{place}.role")
    if message.get("tool_calls") or message.get("function_call"):
        raise ApiError("calls of tools are not supported here", parameter=f"{place}.tool_calls", code="unsupported")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    if not isinstance(content, str):
        raise ApiError(f"{place}.content is a text", parameter=f"{place}.content")
    return Message(ROLES[role], _text(content, f"{place}.content"))


def _part(part: Any, place: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ApiError("only parts of the type text are supported here", parameter=f"{place}.content")
    return text


def _text(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(f"{place} has half a character (a lone surrogate)", parameter=place) from error
    return text


def _stops(stop: Any) -> tuple[str, ...]:
    stops: Iterable[Any] = () if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS:
        raise ApiError(f"stop is a text, or a list of at most {MAX_STOPS}", parameter="stop")
    if not all(isinstance(text, str) and 0 < len(text) <= MAX_STOP for text in stops):
        raise ApiError(f"each text of stop has 1 to {MAX_STOP} characters", parameter="stop")
    return tuple(stops)


def _schema(wanted: Any) -> str | None:
    place = "response_format"
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if wanted is None or kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise ApiError("the type of response_format is text, json_object or json_schema", parameter=place)
    named = wanted.get("json_schema")
    given = named.get("schema") if isinstance(named, dict) else None
    if kind == "json_schema" and not isinstance(given, dict):
        raise ApiError("json_schema.schema is missing: it is the schema", parameter=place)
    schema = '{"type": "object"}' if kind == "json_object" else json.dumps(given)
    try:
        check_schema(schema)
    except ModelError as error:
        raise ApiError(str(error), parameter=place) from error
    except BackendError as error:
        raise ApiError(str(error), 501, place) from error
    return schema
