"""Publishes a directory on the Hugging Face hub, for whoever is logged in there on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sapo_edge.backends.hub.find import transport_error
from sapo_edge.backends.hub.name import HUB
from sapo_edge.errors import ConfigError, SapoError

LOGIN = "log in with: hf auth login, and a token that may write (huggingface.co/settings/tokens)"


def check_repository(name: str) -> str:
    """The name of a repository, checked to be "owner/name", without the prefix `HUB`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    repository = name.removeprefix(HUB)
    try:
        validate_repo_id(repository)
    except HFValidationError:
        repository = ""
    if repository.count("/") != 1:
        remedy = "give OWNER/NAME, with your name on the hub: me/my-adapter"
        raise ConfigError(f"{name!r} is no name of a repository", remedy)
    return repository


def check_login() -> None:
    """Check that there is a token of the hub on this machine; the hub is not asked."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise SapoError("nobody is logged in to the Hugging Face hub here", LOGIN)


def upload(directory: Path, repository: str, *, public: bool, message: str, replaced: Sequence[str]) -> str:
    """Publish all files of a directory in one commit, and return the address of the repository's page.

    The repository is made if there is none; an existing one has to be as `public` says.

    Args:
        replaced: patterns of files that are removed from the repository where the directory has none of the name.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with _explained(repository):
        address = str(api.create_repo(repository, private=not public, exist_ok=True))
        is_public = not api.model_info(repository).private
    if is_public is not public:
        state, remedy = ("public", "give --public") if is_public else ("private", "leave out --public")
        remedy = f"{remedy}, name another repository, or change it in its settings on the hub"
        raise SapoError(f"{repository} exists already, and is {state}: nothing was sent", remedy)
    with _explained(repository):
        api.upload_folder(
            repo_id=repository, folder_path=directory, commit_message=message, delete_patterns=list(replaced)
        )
    return address


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        yield
    except (OSError, ValueError, RuntimeError, transport_error()) as error:
        # What fails in a thread that sends is the cause of a general error.
        cause = error if error.__cause__ is None or not isinstance(error, RuntimeError) else error.__cause__
        status = getattr(getattr(cause, "response", None), "status_code", None)
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        if status == 401 or isinstance(cause, LocalTokenNotFoundError):
            problem, remedy = "the hub does not accept this machine's token", LOGIN
        elif status in (402, 403, 413, 507):
            problem = f"the hub refuses to store {repository} ({getattr(cause, 'server_message', None) or reason})"
            remedy = "name a repository of your own, take a token that may write there, or free storage on the hub"
        else:
            problem = f"{repository} can't be published ({reason})"
            remedy = "check the network, and run the same command again: what has arrived is not sent twice"
        raise SapoError(problem, remedy) from error
