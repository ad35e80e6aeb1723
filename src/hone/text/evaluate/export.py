"""Export of a language model out of a run: a whole Hugging Face folder, or the adapter that was trained."""

import shutil
from pathlib import Path

from hone.core.errors import ConfigError
from hone.models.language.peft_folder import is_adapter, read_peft_folder
from hone.run.saved_config import is_control
from hone.run.store.durable import remove_tree, sync_path, writing, writing_tensors
from hone.text.evaluate.open_policy import ModelSource, open_policy


def export_policy(policy: Path, target: Path, *, adapter: bool) -> str:
    """Write the model in `policy` into a new folder, and return a sentence about it: whole, an adapter merged into its
    base, or with `adapter` the PEFT folder as it is. The folder is complete, or it is not there.

    Raises ConfigError for a target that is in the way, a control policy, and `adapter` of a whole model; DataError for
    a damaged folder; ResourceError where the target cannot be written.
    """
    if is_control(policy):
        raise ConfigError(
            f"{policy} is a control policy, which is complete as it is: copy the folder; hone export is for language "
            "models"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder; name a new one")
    if adapter and not is_adapter(policy):
        raise ConfigError(f"{policy} holds all weights and no adapter; leave --adapter out")
    part = target.absolute().with_name(f".{target.absolute().name}.part")
    if part.exists():
        remove_tree(part)
    with writing_tensors(target):
        part.parent.mkdir(parents=True, exist_ok=True)
        if is_adapter(policy) and not adapter:
            open_policy(ModelSource(path=str(policy)), seed=0, device="cpu", temperature=1.0).save_merged(part)
        else:
            shutil.copytree(policy, part)
    for file in part.iterdir():
        sync_path(file)
    with writing(target):
        part.replace(target)
    sync_path(target.absolute().parent)
    return _sentence(policy, target, adapter=adapter)


def _sentence(policy: Path, target: Path, *, adapter: bool) -> str:
    if not is_adapter(policy):
        return f"wrote {target}: the whole model, for transformers and vLLM"
    base = read_peft_folder(policy).base
    if adapter:
        return f"wrote {target}: the adapter, for PEFT; its base is {base}"
    return f"wrote {target}: the whole model for transformers and vLLM, the adapter merged into {base}"
