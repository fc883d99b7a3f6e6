"""The end token that tokenizer_config.json requires and tokenizer.json does not add.

Checkpoints such as e5-mistral declare "add_eos_token". Versions of transformers before 5 then add the token
to the rules of tokenizer.json. Later versions do not, so the last token differs from that in training.
"""

from pathlib import Path
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.files import read_object_if_there

# The tokenizer classes for which transformers 4 uses add_eos_token.
CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
ENDS = ("BertProcessing", "RobertaProcessing")  # post-processors that always add an end token


def with_end_token(rules: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the rules of tokenizer.json, changed only if an end token is required and missing."""
    path = folder / "tokenizer_config.json"
    config = read_object_if_there(path)
    kind = config.get("tokenizer_class")
    if config.get("add_eos_token") is not True or str(kind).removesuffix("Fast") not in CLASSES:
        return rules
    token = (read_object_if_there(folder / "special_tokens_map.json") | config).get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    ids = [added["id"] for added in rules.get("added_tokens") or () if added.get("content") == token]
    if not isinstance(token, str) or not ids:
        raise DataError('"add_eos_token" is true, but the tokenizer has no such token', source=str(path))
    processor = rules.get("post_processor")
    changed = _ending(processor, token, ids[0])
    return rules if changed == processor else {**rules, "post_processor": changed}


def _ending(processor: Any, token: str, number: int) -> Any:
    """Return the post-processor with the end token after each text."""
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind in ENDS:
        return processor
    if kind == "Sequence" and processor["processors"]:
        *before, last = processor["processors"]
        changed = _ending(last, token, number)
        parts = changed["processors"] if changed["type"] == "Sequence" else [changed]
        return {**processor, "processors": [*before, *parts]}
    if kind != "TemplateProcessing":
        texts = [{"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB")]
        template = {"type": "TemplateProcessing", "single": texts[:1], "pair": texts, "special_tokens": {}}
        template = _ending(template, token, number)
        return template if kind is None else {"type": "Sequence", "processors": [processor, template]}
    if any(piece.get("SpecialToken", {}).get("id") == token for piece in processor["single"]):
        return processor
    templates = {}
    for form in ("single", "pair"):
        pieces = []
        for piece in processor[form]:
            pieces.append(piece)
            if "Sequence" in piece:
                end = {"id": token, "type_id": piece["Sequence"]["type_id"]}
                pieces.append({"SpecialToken": end})
        templates[form] = pieces
    known = {**processor["special_tokens"], token: {"id": token, "ids": [number], "tokens": [token]}}
    return {**processor, **templates, "special_tokens": known}
