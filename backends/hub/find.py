"""Finds a model of the Hugging Face hub: on this machine, or by downloading it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sapo_edge.backends.hub.cache import on_this_machine
from sapo_edge.backends.hub.download import Progress, download
from sapo_edge.backends.hub.name import FORM, HubName
from sapo_edge.errors import ModelError, SapoError

ELSEWHERE = "check the network and the disk space, or give a file or directory"


def hub_model(name: HubName, *, fetch: bool, progress: Progress | None = None) -> Path:
    """The local copy of a model; `fetch` downloads what is missing."""
    from huggingface_hub.utils._validators import validate_repo_id

    with explained("model", str(name), FORM, ModelError, fetch=fetch):
        validate_repo_id(name.repository)
        path = on_this_machine(name)
        if path is None and fetch:
            path = download(name, progress or (lambda _done, _total: None))
        if path is None:
            remedy = f"download it with: sapo models pull {name}; sapo run downloads it too"
            raise ModelError(f"the model {name} is not on this machine yet", remedy)
    return path


@contextmanager
def explained(thing: str, name: str, form: str, kind: type[SapoError], *, fetch: bool) -> Iterator[None]:
    """Turn errors of the hub's client about a thing ("model"), whose names have this form, into ones with a remedy."""
    from huggingface_hub import errors

    try:
        yield
    except (OSError, ValueError, RuntimeError, transport_error()) as error:
        if isinstance(error, errors.HFValidationError):
            problem, remedy = f"is no name of a {thing} on the hub", f"give {form}"
        elif isinstance(error, errors.GatedRepoError):
            problem, remedy = "is gated", "accept its terms on huggingface.co, then log in with: hf auth login"
        elif isinstance(error, errors.RepositoryNotFoundError):
            problem, remedy = "is private or not on the hub", "check the name; for a private one log in: hf auth login"
        else:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            action = "be downloaded" if fetch else "be read"
            problem, remedy = f"can't {action} ({reason})", ELSEWHERE
        raise kind(f"the {thing} {name} {problem}", remedy) from error


def transport_error() -> type[Exception]:
    """Base class of errors of the library that the hub's client sends with, which depends on the client's version."""
    from huggingface_hub import hf_api

    library = next(getattr(hf_api, name) for name in ("httpx2", "httpx") if hasattr(hf_api, name))
    error: type[Exception] = library.HTTPError
    return error
