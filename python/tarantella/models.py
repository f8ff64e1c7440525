"""Models in files, as configurations and as copies: `keras.models` for a job of several ranks.

What is loaded or made is a tnt.Model. `save_model` takes plain models of Keras too.
"""

import importlib
import importlib.util
import os
from typing import Any

from .keras import flavour, saving
from .keras.model import Distributed, Model

__all__ = [
    "clone_model",
    "load_model",
    "model_from_config",
    "model_from_json",
    "model_from_yaml",
    "save_model",
]


def _keras() -> Any:
    """The Keras that `tf.keras` is."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").strip().lower()
    if legacy in ("1", "true") and importlib.util.find_spec("tf_keras") is not None:
        return importlib.import_module("tf_keras")
    return importlib.import_module("keras")


def save_model(
    model: Any, filepath: Any, *args: Any, tnt_save_all_devices: bool = False, **kwargs: Any
) -> Any:
    """Saves a model, on the master, or on every rank with tnt_save_all_devices=True;
    `keras.models.save_model`.
    """
    if isinstance(model, Distributed):
        return model.save(filepath, *args, tnt_save_all_devices=tnt_save_all_devices, **kwargs)
    keras = flavour(model)
    overwrite = args[0] if args else kwargs.get("overwrite", True)
    return saving.write(
        filepath,
        lambda path: keras.models.save_model(model, path, *args, **kwargs),
        False,
        tnt_save_all_devices,
        saving.is_one_file(filepath) and bool(overwrite),
        needs=saving.bytes_of(model, True),
    )


def load_model(
    filepath: Any, custom_objects: Any = None, compile: bool = True, **kwargs: Any
) -> Any:
    """A tnt.Model of what the master finds at `filepath`, compiled as it was saved."""
    with saving.at_hand(filepath) as path:
        return Model(
            saving.everywhere(
                lambda: _keras().models.load_model(
                    path, custom_objects=custom_objects, compile=compile, **kwargs
                )
            )
        )


def model_from_config(config: Any, custom_objects: Any = None) -> Any:
    """A tnt.Model of a configuration."""
    models = _keras().models
    if hasattr(models, "model_from_config"):
        return Model(models.model_from_config(config, custom_objects=custom_objects))
    return Model(_keras().saving.deserialize_keras_object(config, custom_objects=custom_objects))


def model_from_json(json_string: str, custom_objects: Any = None) -> Any:
    """A tnt.Model of what `model.to_json()` gave."""
    return Model(_keras().models.model_from_json(json_string, custom_objects=custom_objects))


def model_from_yaml(yaml_string: str, custom_objects: Any = None) -> Any:
    """Not possible, as in Keras."""
    raise RuntimeError(
        "Method `model_from_yaml()` has been removed due to security risk of arbitrary code"
        " execution. Please use `Model.to_json()` and `model_from_json()` instead."
    )


def clone_model(model: Any, *args: Any, **kwargs: Any) -> Any:
    """A tnt.Model of the same layers with weights of its own; `keras.models.clone_model`."""
    from .keras.model import restored

    keras = flavour(model)
    with restored(model):
        return Model(keras.models.clone_model(model, *args, **kwargs))
