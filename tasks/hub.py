"""Uploads to the Hugging Face hub. huggingface_hub is imported when one is asked for; runs never need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import ConfigurationError, ServerError, quoted
from storage.text import one_line

_ADVICE = "look at the network, and whether the token may write there"


def check_hub(name: str, uploads: bool) -> None:
    """Refuse an upload that would fail, before anything is written.

    Args:
        name: repository: NAME or OWNER/NAME.
        uploads: False for a dry run, which needs neither a token nor a network.

    Raises:
        ConfigurationError: huggingface_hub is missing, the name is no repository's, or there is no token.
        ServerError: the hub cannot be reached, or refuses the token.
    """
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id
    except ImportError as error:
        raise ConfigurationError(
            f"--push needs huggingface_hub ({error}); run `pip install huggingface_hub`"
        ) from error
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigurationError(f"--push {quoted(name)}: {one_line(str(error))}") from error
    if not uploads:
        return
    if not get_token():
        raise ConfigurationError(
            f"--push {quoted(name)} needs a token of the hub, and there is none here; run `hf auth login`, "
            "or set HF_TOKEN to one that may write"
        )
    with _asking_hub(name, _ADVICE):
        HfApi().whoami()


def push_folder(name: str, folder: Path) -> str:
    """Upload a folder's files, in one commit, to a repository that is made where it does not exist.

    Args:
        name: repository: NAME or OWNER/NAME.
        folder: folder; all its files are uploaded.

    Returns:
        The repository's address.

    Raises:
        ServerError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    with _asking_hub(name, f"{folder} is whole: {_ADVICE}, then run `hf upload {name} {folder}`"):
        repository = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(
            repo_id=repository.repo_id, folder_path=folder, commit_message="Upload an export of Spotlight"
        )
    return str(repository)


@contextmanager
def _asking_hub(name: str, advice: str) -> Iterator[None]:
    from huggingface_hub.errors import HTTPError  # of the client that it uses

    try:
        yield
    except (OSError, ValueError, HTTPError) as error:  # ValueError: it refuses the card
        raise ServerError(
            f"--push {quoted(name)}: the hub refused or did not answer ({one_line(str(error))}); {advice}"
        ) from error
