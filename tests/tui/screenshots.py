"""Pictures of all screens for the documents: `python -m tests.tui.screenshots docs/images`.

A browser shows `sapo serve` with the scripted node of `scene.py`, so they need Chromium. The same fonts on the system
give the same pictures: Roboto Mono comes with textual-serve, missing characters come from DejaVu.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.tui.browser import Page, browser
from tests.tui.served import SCREEN, serving

COLUMNS, ROWS = 100, 30
SCALE = 2
"""Pixels of a picture per pixel of the page, for sharp pictures on fine screens."""
COLORS = 128
"""Colours of the palette: a third of the size without a visible difference."""
SETTLED = 0.6
"""Seconds without a change after which a screen counts as complete."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture.

    Attributes:
        name: of its file.
        keys: that lead there from the previous picture, as a terminal sends them, and typed texts.
        text: on the screen then.
    """

    name: str
    keys: tuple[str, ...]
    text: str


ENTER, ESCAPE, F1, CTRL_P, CTRL_S = "\r", "\x1b", "\x1bOP", "\x10", "\x13"
AT_WORK = (
    Shot("dashboard", (), "Reward by round"),
    Shot("rollouts", ("2",), "arithmetic problem: 50 + 3"),
    Shot("rollout", (ENTER,), "<answer>58</answer>"),
    Shot("peers", (ESCAPE, "3"), "solar-do"),
    Shot("chat", ("4", "i", "What is 17 + 25?", ENTER), "<answer>42</answer>"),
    Shot("answer", (ESCAPE, "5", "i", "42", ENTER, "43", ESCAPE, CTRL_S), "right"),
    Shot("logs", ("6",), "checkpoint of round 40"),
    Shot("settings", ("7",), "learning_rate"),
    Shot("help", ("1", F1), "Dashboard"),
    Shot("commands", (ESCAPE, CTRL_P), "Search for commands"),
)
"""Pictures of a node with 40 finished rounds, in order."""
FRESH = (Shot("first-run", (), "Processor"),)
"""Pictures of a machine without a consent."""


async def settle(page: Page, text: str) -> None:
    """Wait until a text is shown and nothing changes any more."""
    try:
        await page.until(f"text().includes({text!r})")
    except AssertionError:
        print(await page.value("text()"), file=sys.stderr)
        raise
    before = None
    while before != (now := await page.picture()):
        before = now
        await asyncio.sleep(SETTLED)


async def take(directory: Path, scene: str, shots: tuple[Shot, ...]) -> None:
    """Write the pictures of one scene."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        with serving(work, [sys.executable, "-m", "tests.tui.scene", str(work / "scene"), scene]) as served:
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
                    path = directory / f"{shot.name}.png"
                    path.write_bytes(smaller(await page.picture()))
                    print(path)


def smaller(picture: bytes) -> bytes:
    """The picture with a palette."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    file = io.BytesIO()
    image.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


async def main(directory: Path) -> None:
    """Write all pictures into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    await take(directory, "fresh", FRESH)
    await take(directory, "at-work", AT_WORK)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
