"""Runs all other encoders through AutoModel of transformers, with the interface of `Bert`.

The import of transformers takes seconds, so it is inside the functions. Code from a checkpoint is
never run.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sentkit.errors import DataError, SentkitError, UsageError, is_out_of_memory
from sentkit.formats.checkpoints.folders import DEEPEST, LARGEST, invalid_value, is_adapter
from sentkit.formats.files import read_object
from sentkit.model.checkpoint_reading import by
from sentkit.model.text.token_types import NAME, TextTypes, read_text_types
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import Convolution
from sentkit.model.transformer.weights import aligned, listed, read_weights, refuse_missing

# numbers that a model can have beside those of its checkpoint: a pooler, positions
UNSTORED = 1 << 20
LARGE = 1 << 30  # parameters of a model that is not tried with padding, which would take seconds
PADDED_LENGTH = 12  # tokens of the trial
PADDING_CHANGE = 1e-3  # of a state, relative to the largest one; rounding is far below


def check_sizes(config: Mapping[str, Any], source: str) -> None:
    """Refuse sizes with which transformers would not finish to build a model."""
    for name, value in config.items():
        largest = DEEPEST if "layer" in name else LARGEST
        if isinstance(value, int) and value > largest and "theta" not in name:
            raise invalid_value(name, value, source)


LOCAL = {"trust_remote_code": False, "local_files_only": True}
# The report names tensors of other shapes. Without this, the error of transformers does not.
REPORTED = {"output_loading_info": True, "ignore_mismatched_sizes": True}


def padding_id_of(model: Any) -> int:
    """The token that fills a batch; another one if the configuration has an unusable one, as it is
    masked.
    """
    number = model.config.pad_token_id
    return number if number in range(vocabulary_size(model)) else 0


def vocabulary_size(model: Any) -> int:
    try:
        size: int = model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):  # tables of I-BERT and CANINE
        size = getattr(model.config, "vocab_size", 0)
    return size


def restore_attention(model: Any) -> None:
    """Undo what BigBird does at a batch of short texts: it would read all later ones with another
    attention.
    """
    if hasattr(model, "set_attention_type"):
        model.set_attention_type(model.config.attention_type)


def reads_padding(model: Any, max_tokens: int) -> bool:
    """Whether the states of a text change with the padding behind it, in spite of its mask.

    A convolution of ConvBERT and the transform of FNet read it, for example.
    """
    # The length of the batch selects the attention of BigBird.
    if hasattr(model, "set_attention_type") or has_longrope(model.config):
        return True
    if model.num_parameters() > LARGE:
        return False
    length = min(PADDED_LENGTH, max_tokens)
    short = length // 3
    if not short:
        return False
    padding_id = padding_id_of(model)
    ids = torch.full((1, length), padding_id)
    ids[0, :short] = (padding_id + 1 + torch.arange(short)) % max(vocabulary_size(model), 1)
    mask = torch.zeros_like(ids)
    mask[0, :short] = 1
    with torch.inference_mode():
        alone = model(input_ids=ids[:, :short], attention_mask=mask[:, :short]).last_hidden_state
        padded = model(input_ids=ids, attention_mask=mask).last_hidden_state
    difference = (padded[:, :short] - alone).abs().max()
    return not bool(difference <= PADDING_CHANGE * alone.abs().max())


def has_longrope(config: Any) -> bool:
    """Whether the longest text of a batch selects the rotary positions of all its texts.

    "su" is an older name of "longrope". Some models have parameters for each type of layer.
    """
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return False
    all_settings = [parameters]
    all_settings += [settings for settings in parameters.values() if isinstance(settings, dict)]
    return any(
        settings.get("rope_type", settings.get("type")) in ("longrope", "su")
        for settings in all_settings
    )


class TransformersModel(nn.Module):
    def __init__(
        self,
        model: Any,
        source: str,
        *,
        has_pooler: bool,
        max_tokens: int,
        reads_padding: bool,
        text_types: TextTypes | None,
        unused_names: Set[str],
    ) -> None:
        """`source`: its folder, for errors. `text_types`: None if all types are 0.
        `unused_names`: of the stored tensors that the model does not have, such as those of a head.
        """
        super().__init__()
        self.model = model
        self.source = source
        self.unused_names = unused_names
        self.has_pooler = has_pooler
        self.max_tokens = max_tokens
        # whether a batch can only have texts of one length
        self.reads_padding = reads_padding
        self.text_types = text_types
        self.convolution: Convolution | None = None
        self.depth: int = model.config.num_hidden_layers
        self.width: int = model.config.hidden_size
        self.padding_id = padding_id_of(model)
        model.config.use_cache = False  # decoders would keep the keys and values of all layers

    def states(
        self,
        packed: Packed,
        *,
        deepest: int | None = None,
        disturb: Callable[[Tensor], Tensor] | None = None,
        rows_of_last: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield X(0) .. X(deepest), each (n, d); `rows_of_last` selects rows of the last state. All
        layers run.
        """
        if disturb is not None:
            problem = "a change of the first states is not supported for this encoder"
            raise UsageError(f"{problem}, because transformers runs it")
        assert packed.segment_ids is None, "only the packed encoder reads two segments"
        last = self.depth if deepest is None else deepest
        arguments = {
            "input_ids": packed.pad(packed.ids, fill=self.padding_id),  # (b, t)
            "attention_mask": packed.pad(torch.ones_like(packed.ids)),
        }
        if self.text_types is not None:
            types = packed.to_device(self.text_types.of_batch(packed.lengths))
            arguments[NAME] = packed.pad(types)
        with transformers_errors(self.source, "run"):
            restore_attention(self.model)
            output = self.model(**arguments, output_hidden_states=True)
        # Some models apply a norm after the last block, so the last hidden state differs from the
        # output.
        layers = [*output.hidden_states[: self.depth], output.last_hidden_state]
        for number, padded in enumerate(layers[: last + 1]):
            states = packed.unpad(padded)
            if rows_of_last is not None and number == last:
                states = states[rows_of_last]
            yield states

    def pooled(self, first: Tensor) -> Tensor:
        """Apply the pooler to the last states of the first tokens, (b, d) -> (b, d)."""
        assert self.has_pooler, "this encoder has no pooler"
        if isinstance(self.model.pooler, nn.Linear):  # ALBERT has a separate activation
            return self.model.pooler_activation(self.model.pooler(first))
        return self.model.pooler(first[:, None])

    @property
    def hashed_values(self) -> list[Any]:
        """The config values in the hash of the space: they can change the vectors of equal weights.

        These are all values of any family of models, except those in `is_idle`, and except the
        defaults: a checkpoint of another version of transformers states others of them.
        """
        config = self.model.config
        defaults = EARLIER_DEFAULTS | defaults_of(config)
        values = {
            name: value
            for name, value in config.to_dict().items()
            if not is_idle(name) and defaults.get(name) != value
        }
        text = json.dumps(values, default=str)
        hashed = [config.model_type, json.loads(text, parse_int=number_of_64_bits)]
        if self.text_types is not None:
            hashed.append(astuple(self.text_types))
        return hashed

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the weights under their AutoModel names, without a head."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


def number_of_64_bits(digits: str) -> int | float:
    """An integer of a config, such as 10^30 for "no limit". If it has more than 64 bits, it is the
    float that an exported config.json has.
    """
    number = int(digits)
    if -(1 << 63) <= number < 1 << 64:
        return number
    return float(digits)


def load_transformers_model(folder: Path) -> TransformersModel:
    """Return the encoder of a Hugging Face folder, in float32 and evaluation mode."""
    model, report = load_model(folder, encoder_of)
    missing = sorted(report["missing_keys"])  # transformers draws them at random
    refuse_missing([name for name in missing if not name.startswith("pooler.")], source=str(folder))
    positions: int = getattr(model.config, "max_position_embeddings", 0) or 512
    if positions < 1:  # XLNet has -1: no limit
        positions = 512
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    # rows up to this index are not positions (RoBERTa)
    padding = getattr(table, "padding_idx", None)
    max_tokens = positions if padding is None else positions - padding - 1
    with transformers_errors(str(folder), "run"):
        is_padding_read = reads_padding(model.eval(), max_tokens)
    return TransformersModel(
        model,
        str(folder),
        has_pooler=not missing and getattr(model, "pooler", None) is not None,
        max_tokens=max_tokens,
        reads_padding=is_padding_read,
        text_types=text_types_of(model, folder),
        unused_names={*report["unexpected_keys"]},
    )


def text_types_of(model: Any, folder: Path) -> TextTypes | None:
    """Return the types of the tokens of a text that the model reads; None if all are 0."""
    if NAME not in inspect.signature(model.forward).parameters:
        return None
    return read_text_types(folder, read_object(folder / "config.json"))


def load_classifier(folder: Path) -> Any:
    """Return the sequence classification model of a folder, in float32 and evaluation mode."""
    import transformers

    if is_adapter(folder):
        raise DataError("a classifier with a LoRA adapter is not supported", source=str(folder))
    auto = transformers.AutoModelForSequenceClassification
    model, report = load_model(folder, partial(auto.from_config, trust_remote_code=False))
    refuse_missing(sorted(report["missing_keys"]), source=str(folder))
    with transformers_errors(str(folder)), torch.inference_mode():
        # Some values are read by no constructor.
        model.eval()(input_ids=torch.zeros((1, 2), dtype=torch.long))
    return model


def load_model(folder: Path, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the model that `make` creates from the configuration, with the weights, and a report
    on them.
    """
    transformers = quiet_transformers()
    source = str(folder)
    check_sizes(read_object(folder / "config.json"), str(folder / "config.json"))
    with transformers_errors(source):
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
        refuse(config, source)
        tensors = read_weights(folder, source)
        with torch.device("meta"):
            model = make(config)
        stored = sum(tensor.numel() for tensor in tensors.values())
        if model.num_parameters() > 2 * stored + UNSTORED:
            raise DataError(
                "config.json: the model is larger than the stored weights", source=source
            )
        # transformers gets the tensors, so it reads no files of another size and no adapter.
        model, report = type(model).from_pretrained(
            None, config=config, state_dict=tensors, dtype=torch.float32, **REPORTED
        )
    refuse_other_shapes(report, source)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = aligned(layer.weight.data)
    return model, report


def refuse_other_shapes(report: Mapping[str, Any], source: str) -> None:
    """Raise a DataError if stored tensors have other shapes than the model."""
    wrong = [
        f'"{name}" is {by(stored)}, expected {by(expected)}'
        for name, stored, expected in sorted(report["mismatched_keys"])
    ]
    if wrong:
        raise DataError(f"weights and config.json do not match: {listed(wrong)}", source=source)


def encoder_of(config: Any) -> Any:
    import transformers

    if config.model_type in ENCODER_CLASSES:
        return getattr(transformers, ENCODER_CLASSES[config.model_type])(config)
    return transformers.AutoModel.from_config(config, trust_remote_code=False)


@contextmanager
def transformers_errors(source: str, action: str = "load") -> Iterator[None]:
    """Convert the errors of transformers to DataErrors. An invalid folder can raise any error."""
    try:
        yield
    except (SentkitError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        problem = f"transformers cannot {action} the model: {reason}"
        raise DataError(problem, source=source) from error


def quiet_transformers() -> ModuleType:
    """Import transformers and disable its log and progress bars, which would write to stderr."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


# transformers 5 always uses absolute positions for these model types and ignores the config.
ABSOLUTE_ONLY = ("albert", "bert", "camembert", "electra", "roberta", "xlm-roberta")

# Encoder-decoders with a separate class for the encoder.
ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}

# Values of a config that do not change vectors: names, training, generation, and heads.
IDLE_VALUES = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "decoder_start_token_id",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "label_smoothing",
    "mlm_probability",
    "model_type",
    "num_decoder_layers",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "problem_type",
    "return_dict",
    "router_jitter_noise",
    "sentence_transformers",
    "task_specific_params",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unsloth_version",
    "use_cache",
}
# What earlier versions of transformers wrote for all models; these values have no effect.
EARLIER_DEFAULTS = {
    "add_cross_attention": False,
    "is_decoder": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "tie_encoder_decoder": False,
    "torchscript": False,
    "use_bfloat16": False,
}
# Parts of other such names: probabilities of dropout, the scale of first weights, and heads.
IDLE_ENDINGS = ("dropout", "dropout_prob", "dropout_rate", "pdrop", "layerdrop")
IDLE_BEGINNINGS = ("initializer_", "summary_")


def is_idle(name: str) -> bool:
    """Whether a value of a config has no effect on vectors."""
    if name == "token_dropout":  # of ESM: a factor of the embeddings, not a probability
        return False
    is_of_training = name.endswith(IDLE_ENDINGS) or name.startswith(IDLE_BEGINNINGS)
    return name in IDLE_VALUES or is_of_training


def defaults_of(config: Any) -> dict[str, Any]:
    """The values of a config of the same class that nobody set."""
    try:
        return type(config)().to_dict()
    except Exception:  # some classes require values
        return {}


def refuse(config: Any, source: str) -> None:
    """Raise a DataError for models that load but give meaningless or different vectors."""
    model_type = config.model_type
    if config.is_encoder_decoder and model_type not in ENCODER_CLASSES:
        raise DataError(
            f'"{model_type}" is an encoder-decoder, which sentkit cannot read',
            source=source,
            advice="use an encoder, such as BERT, MPNet, DeBERTa or the encoder of T5",
        )
    if "AutoModel" in (getattr(config, "auto_map", None) or {}):
        problem = "the model needs its own Python code; sentkit does not run code of models"
        raise DataError(problem, source=source)
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if model_type in ABSOLUTE_ONLY and positions != "absolute":
        problem = (
            f'"{model_type}" with positions "{positions}": transformers would use absolute '
            f"positions"
        )
        raise DataError(problem, source=source)
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        raise DataError(f'"{model_type}" is not a text encoder', source=source)
    if config.num_hidden_layers < 1:
        raise invalid_value("num_hidden_layers", config.num_hidden_layers, f"{source}/config.json")
