"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None, typer.Option("--home", help="Keep everything under this directory (also SAPO_EDGE_HOME).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print one event a line on stdout as JSON.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="A GGUF file, a directory, or hf:ORGANISATION/MODEL[:FILE]; default: the embedded model."
    ),
]
Backend = Annotated[str | None, typer.Option("--backend", help="auto, llama_cpp, torch or mlx.")]
ManifestName = Annotated[
    str | None,
    typer.Option(
        "--manifest",
        help="What to train on: a shipped or swarm's manifest, a TOML file, or questions (.jsonl, .csv, .parquet).",
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", help="Processor threads; 0: chosen by the machine.")]
Adapter = Annotated[
    Path | None, typer.Option("--adapter", help="Directory of a checkpoint or PEFT adapter; default: the best one.")
]
Agree = Annotated[
    bool, typer.Option("--agree", help="Agree to share with the swarm (docs/privacy.md), without a question.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting of `sapo config show`; repeatable.")
]
