"""Models of the Hugging Face Hub by their names: `org/name`, or `org/name@revision`.

Belongs here: a name -> a folder in the Hub's own cache, by `huggingface_hub`, whose settings hold (`HF_HOME`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`, its login); and a folder -> the Hub. Nothing here is imported before a name is used.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from hone.core.errors import DataError

NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
_NOT_READ: Final = ("*/*", "consolidated*")
"""Folders inside (other formats of the same weights), and Mistral's second copy of the weights."""


def is_hub_name(name: str) -> bool:
    """True for `org/name` or `org/name@revision` where nothing here is called `org`: a path goes before a name."""
    repository = name.partition("@")[0]
    return NAME.fullmatch(repository) is not None and not Path(repository.partition("/")[0]).exists()


@cache
def hub_folder(name: str) -> Path:
    """The folder of a model in the Hub's cache, fetched first where it is not there or older than the Hub's. It is
    named after the commit, and `org/name@commit` is the same model for good.

    Raises DataError for a model that neither the Hub nor the cache has, and where the Hub asks for a login.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - start-up time

    repository, _, revision = name.partition("@")
    with _hub_errors(name):
        folder = snapshot_download(
            repository, revision=revision or None, allow_patterns=list(_FILES), ignore_patterns=list(_NOT_READ)
        )
    return Path(folder)


def push_folder(folder: Path, name: str) -> str:
    """Upload the files of a folder to the model `name`, which is made where it is not there; returns its address.

    Raises DataError where the Hub refuses or cannot be reached; the folder stays.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - start-up time

    with _hub_errors(name, f" was not uploaded ({folder} is complete, and `hf upload {name} {folder}` repeats that)"):
        api = HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by hone")
    return str(address)


@contextmanager
def _hub_errors(name: str, kept: str = "") -> Iterator[None]:
    """Errors of the Hub as DataError, with a way out."""
    from huggingface_hub import constants, errors  # noqa: PLC0415 - as above

    where = f"{constants.ENDPOINT}/{name.partition('@')[0]}"
    try:
        yield
    except errors.GatedRepoError:
        reason = f"its owner grants access: accept the terms at {where}, and log in by `hf auth login`"
    except errors.RepositoryNotFoundError:
        reason = f"there is no such model at {where}, or it is private: `hf auth login` logs in"
    except errors.RevisionNotFoundError:
        reason = f"the model at {where} has no revision {name.partition('@')[2]!r}"
    except errors.OfflineModeIsEnabled:
        reason = "HF_HUB_OFFLINE is set; unset it"
    except errors.LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        reason = (
            f"{offline}, and the cache {constants.HF_HUB_CACHE} does not hold it: fetch it where there is a network "
            f"(`hf download {name.partition('@')[0]}`), or give the folder of the model"
        )
    except (errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage] - of its HTTP client
        first = str(error).strip().partition("\n")[0]
        reason = f"the Hub answered {first or type(error).__name__}"
    else:
        return
    raise DataError(f"the Hub's model {name!r}{kept or ', which is no folder here'}: {reason}") from None
