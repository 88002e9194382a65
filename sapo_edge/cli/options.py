"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None, typer.Option("--home", help="Keep everything under this directory (also SAPO_EDGE_HOME).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A GGUF file, a directory, or hf:ORGANISATION/MODEL; without it, the embedded model."),
]
BackendOption = Annotated[
    str | None, typer.Option("--backend", help="auto, llama_cpp, torch, mlx, or an installed one.")
]
ManifestOption = Annotated[
    str | None, typer.Option("--manifest", help="What to train on: a shipped name or a TOML file.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting of `sapo config show`; repeatable.")
]
