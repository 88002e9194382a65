"""`sapo api` on the embedded model: askers at once beside one, through sockets, with the server in this process."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.benchmarks.measure import interleaved, report, seconds
from tests.benchmarks.work import SUBJECTS
from tests.cli.api.conftest import Api, serving

ASKERS, MORE, TOKENS = 8, 16, 128
ONES = 2
"""Questions that the one asker asks, one after the other."""


def run(repeats: int, path: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as workspace,
        serving(Path(home), path, Path(workspace), threads=0) as api,
    ):
        _ask(api, 0)
        candidates = {
            "one asker": lambda: _rate(api, 1, ONES),
            f"{ASKERS} askers at once": lambda: _rate(api, ASKERS, 1),
            f"{MORE} askers at once": lambda: _rate(api, MORE, 1),
        }
        figures = interleaved(candidates, repeats)
    for askers in list(candidates)[1:]:
        pair = {name: figures[name] for name in (askers, "one asker")}
        title = f"{askers} of sapo api, answers of at most {TOKENS} tokens"
        report(title, "tokens/s", pair, askers, higher_is_better=True)


def _rate(api: Api, askers: int, each: int) -> float:
    """Tokens a second of all answers together."""
    counts: list[int] = []
    with ThreadPoolExecutor(askers) as pool:
        elapsed = seconds(lambda: counts.extend(pool.map(lambda number: _ask(api, number), range(askers * each))))
    return sum(counts) / elapsed


def _ask(api: Api, number: int) -> int:
    question = f"Tell a long story about {SUBJECTS[number % len(SUBJECTS)]}."
    reply = api.chat("tiny", question, max_tokens=TOKENS, temperature=1.0)
    return int(reply.json["usage"]["completion_tokens"])
