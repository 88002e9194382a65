"""`sapo api` asked by the clients that people have: OpenAI's own, and `llm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest

from tests.cli.api.conftest import SECONDS, Api
from tests.cli.api.test_server import FORMAT

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "What is 3 + 4?"}]


@pytest.fixture
def client(api: Api) -> openai.OpenAI:
    return openai.OpenAI(base_url=api.url, api_key=api.token, max_retries=0, timeout=SECONDS)


def test_openais_client_lists_asks_streams_and_knows_the_errors(api: Api, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "first", "first-chat", "first-base"]
    whole = client.chat.completions.create(model="first", messages=MESSAGES, max_completion_tokens=16)
    text = whole.choices[0].message.content
    assert text == api.chat("first", max_tokens=16).text and whole.usage is not None and whole.usage.total_tokens > 0
    stream = client.chat.completions.create(
        model="first", messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == whole.usage
    answer = client.chat.completions.create(
        model="first", messages=MESSAGES, max_tokens=60, temperature=1.0, response_format=FORMAT
    )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"name", "level"}
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.chat.completions.create(model="none", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="top_p is not supported") as refused:
        client.chat.completions.create(model="first", messages=MESSAGES, top_p=0.5)
    assert refused.value.param == "top_p"
    with pytest.raises(openai.AuthenticationError, match="--show-token"):
        client.with_options(api_key="wrong").models.list()


@pytest.mark.skipif(find_spec("llm") is None, reason="the extra starter brings llm")
def test_llm_asks(api: Api, tmp_path: Path) -> None:
    entry = {"model_id": "sapo", "model_name": "first", "api_base": api.url, "api_key_name": "sapo"}
    # JSON is YAML.
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    (tmp_path / "keys.json").write_text(json.dumps({"sapo": api.token}))
    command = [sys.executable, "-m", "llm", "-m", "sapo", "-o", "max_tokens", "16", "What is 3 + 4?"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
    done = subprocess.run(
        command, capture_output=True, timeout=SECONDS, env=environment, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == api.chat("first", max_tokens=16).text.strip()
