"""The setting `curves`: which libraries take a run's figures, and which of them send them over the network."""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import urlsplit

CURVES = ("tensorboard", "trackio", "wandb", "mlflow")
"""The values of the setting; empty for none."""


def check_library(text: str) -> None:
    """Reject any other text with a ValueError."""
    if text not in ("", *CURVES):
        raise ValueError(f"{text!r} is none of them")


def goes_to(library: str) -> str:
    """Where a library sends figures over the network, in words, by its own variables in the environment.

    "" if they stay on this machine, or none is set.
    """
    if library == "wandb" and os.environ.get("WANDB_MODE", "") not in ("offline", "disabled", "dryrun"):
        return _host(os.environ.get("WANDB_BASE_URL") or "https://wandb.ai")
    if library == "trackio":
        space, server = (os.environ.get(f"TRACKIO_{name}", "") for name in ("SPACE_ID", "SERVER_URL"))
        return f"the Space {space} of the Hugging Face hub" if space else _host(server)
    address = os.environ.get("MLFLOW_TRACKING_URI", "") if library == "mlflow" else ""
    # One without a scheme is a directory, unless it is one of Databricks' names.
    is_path = ":" not in address and address not in ("databricks", "databricks-uc", "uc")
    return "" if is_path or address.startswith(("file:", "sqlite:", "/", ".")) else _host(address)


def _host(address: str) -> str:
    """What of an address may be shown: the rest may hold a password."""
    host = None
    # The library says what is wrong with a malformed one.
    with suppress(ValueError):
        host = urlsplit(address).hostname
    return host or address.partition(":")[0]


def describe_curves(library: str) -> str:
    """What becomes of the figures, in one sentence; "" without a library."""
    if not library:
        return ""
    place = goes_to(library)
    if not place:
        return f"curves: {library} keeps figures of each round, which stay on this machine"
    return f"curves: {library} sends figures of each round, no texts, to {place}"
