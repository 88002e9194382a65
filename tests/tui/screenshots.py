"""Pictures of all screens for the documents, of a real run: `python -m tests.tui.screenshots WORK docs/images`.

One node trains the embedded model alone for some rounds. Then, in a new run, it and another one on this machine train
in a private swarm until it has finished its rounds. A browser shows `sapo web` for it while both continue, so
Chromium is needed. WORK, which pictures show as well, keeps the nodes: the command resumes, and takes new pictures of
the same runs. The same fonts give the same look: Roboto Mono comes with textual-serve, missing characters come from
DejaVu.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.tui.browser import Page, browser
from tests.tui.served import SCREEN, serving

COLUMNS, ROWS = 100, 30
SCALE = 2
"""Pixels of a picture for each pixel of the page, so that it is sharp on fine screens."""
COLORS = 128
"""Size of the palette: the file shrinks to a third without a visible difference."""
SETTLED = 0.6
"""Seconds without a change after which a screen counts as drawn; a training node changes it again and again."""
PATIENCE = 8.0
"""Seconds after which the picture is taken anyway."""
NODES = 2
ROUNDS = 30
ROUNDS_ALONE = 20
HEAD_START = "60"
"""Updates on right answers: enough to show what they do, and rounds begin within minutes."""
APP = (sys.executable, "-P", "-m", "sapo_edge.cli.web.app")
ENTER, ESCAPE, F1, F2, CTRL_U = "\r", "\x1b", "\x1bOP", "\x1bOQ", "\x15"


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture, the keys and texts that lead to it from the one before, and what it shows; "" only waits for that."""

    name: str
    keys: tuple[str, ...]
    text: str


def at_work(questions: Path) -> tuple[Shot, ...]:
    """Pictures of a node that has trained, in order; the manifest has own questions."""
    return (
        Shot("dashboard", (), "Reward"),
        Shot("rollouts", ("2",), "author"),
        Shot("rollout", (ENTER,), "reward"),
        Shot("peers", (ESCAPE, "3"), "trust"),
        # Esc would stop an answer; it leaves the chat when both are there.
        Shot("", ("4", "What is 17 + 25?", ENTER), "Esc stops"),
        Shot("chat", (), "Enter asks"),
        Shot("answer", (ESCAPE, "5"), "nswer"),
        Shot("logs", ("6",), "round"),
        Shot("settings", ("7",), "ettings"),
        Shot("results", ("8",), "What was learned"),
        Shot("runs", ("R",), "against"),
        Shot("", ("9",), "starter"),
        Shot("", ("n",), "replace with your own"),
        Shot("tasks", (CTRL_U, str(questions), ENTER), "no mistakes"),
        Shot("help", ("1", F1), "Dashboard"),
        Shot("words", (ESCAPE, F2), "What the words mean"),
    )


FRESH = (Shot("first-run", (), "ready"),)
"""The picture of a machine on which nobody has agreed to anything."""


def sapo(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "sapo_edge", *arguments, "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def start(home: Path, name: str, *flags: str) -> subprocess.Popen[bytes]:
    """Start a node; without flags one that never ends by itself."""
    flags = ("--set", "busy=0", "--head-start", HEAD_START, *(flags or ("--rounds", "0", "--agree")))
    command = [sys.executable, "-m", "sapo_edge", "run", "--home", str(home), *flags]
    with (home.parent / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def finished_rounds(home: Path) -> int:
    """Rounds that the running node of a home has finished; 0 while it starts."""
    try:
        return int(json.loads(sapo(home, "status", "--json"))["round"])
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return 0


@contextlib.contextmanager
def swarm(work: Path) -> Iterator[Path]:
    """Nodes in a private swarm, the first of which has finished its rounds; stopped at the end."""
    homes = [work / f"node-{number}" for number in range(1, NODES + 1)]
    with contextlib.ExitStack() as nodes:

        def run(home: Path) -> None:
            process = start(home, home.name)
            nodes.callback(process.wait)
            nodes.callback(process.terminate)

        if not homes[0].exists():
            homes[0].mkdir(parents=True)
            start(homes[0], homes[0].name, "--solo", "--rounds", str(ROUNDS_ALONE)).wait()
            sapo(homes[0], "runs", "new", "in-a-swarm")
            sapo(homes[0], "swarm", "create", "starter", "--private")
        run(homes[0])
        invite = ""
        while not invite:
            with contextlib.suppress(subprocess.CalledProcessError):
                invite = sapo(homes[0], "swarm", "invite").strip()
        for home in homes[1:]:
            if not home.exists():
                home.mkdir()
                sapo(home, "swarm", "join", invite)
            run(home)
        while (count := finished_rounds(homes[0])) < ROUNDS:
            print(f"round {count} of {ROUNDS}", file=sys.stderr, flush=True)
            time.sleep(20)
        yield homes[0]


async def settle(page: Page, text: str) -> None:
    """Wait until a text is shown and nothing changes any more, for a while at most."""
    try:
        await page.until(f"text().includes({text!r})", 180)
    except AssertionError:
        print(await page.value("text()"), file=sys.stderr)
        raise
    before, deadline = None, time.monotonic() + PATIENCE
    while before != (now := await page.picture()) and time.monotonic() < deadline:
        before = now
        await asyncio.sleep(SETTLED)


async def take(directory: Path, home: Path, shots: tuple[Shot, ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        with serving(work, APP, home) as served:
            async with browser(work, SCALE) as page:
                await page.before_load(SCREEN)
                await page.size(1000, 600)
                await page.open(served.url)
                await page.until("window.shown !== undefined")
                cell = await page.value("shown.terminal._core._renderService.dimensions.css.cell")
                await page.size(round(COLUMNS * cell["width"]), round(ROWS * cell["height"]))
                for shot in shots:
                    for key in shot.keys:
                        await page.value(f"shown.terminal.input({key!r})")
                        # A screen needs a moment, and a key right after Escape would count as Alt with that key.
                        await asyncio.sleep(0.5)
                    await settle(page, shot.text)
                    if shot.name:
                        path = directory / f"{shot.name}.png"
                        path.write_bytes(smaller(await page.picture()))
                        print(path)


def smaller(picture: bytes) -> bytes:
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    file = io.BytesIO()
    image.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def main(work: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as fresh:
        asyncio.run(take(directory, Path(fresh) / "home", FRESH))
    with swarm(work) as home:
        questions = work / "my-questions"
        if not questions.exists():
            subprocess.run([sys.executable, "-m", "sapo_edge", "tasks", "new", str(questions)], check=True, timeout=120)
        asyncio.run(take(directory, home, at_work(questions / "manifest.toml")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
