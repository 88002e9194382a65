"""The setting `curves`: which libraries take a run's figures, and which of them send them over the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

CURVES = ("tensorboard", "trackio", "wandb", "mlflow")
"""The values of the setting; empty for none."""


def check_library(text: str) -> None:
    """Reject any other text with a ValueError."""
    if text not in ("", *CURVES):
        raise ValueError(f"{text!r} is none of them")


def goes_to(library: str, environment: Mapping[str, str] | None = None) -> str:
    """Where a library sends figures over the network, by its own variables in the environment (None: this process's).

    In words; "" if they stay on this machine, or none is set.
    """
    environment = os.environ if environment is None else environment
    if library == "wandb" and environment.get("WANDB_MODE", "") not in ("offline", "disabled", "dryrun"):
        return _host(environment.get("WANDB_BASE_URL") or "https://wandb.ai")
    if library == "trackio":
        space, server = (environment.get(f"TRACKIO_{name}", "") for name in ("SPACE_ID", "SERVER_URL"))
        return f"the Space {space} of the Hugging Face hub" if space else _host(server)
    address = environment.get("MLFLOW_TRACKING_URI", "") if library == "mlflow" else ""
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
