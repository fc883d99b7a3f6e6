"""Files to read, and folders as sentence-transformers saves them."""

import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a the cat dog sat . : query ##s"


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    return written


@pytest.fixture
def rows_of(write):
    def read(name, content, **options):
        inputs = Inputs([write(name, content)], **options)
        return list(inputs.read(lambda row: row))

    return read


@pytest.fixture
def problem_of(rows_of):
    """The error for a file of this name with these bytes, without the folder."""

    def read(name, content, **options):
        with pytest.raises(DataError) as caught:
            rows_of(name, content, **options)
        return str(caught.value).rpartition("/")[2]

    return read


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A random BERT of three layers of width 8, with its tokenizer, as transformers saves it."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("base")
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = BertConfig(vocab_size=len(WORDS.split()), max_position_embeddings=32, **sizes)
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS.split()))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture
def saved(base, tmp_path):
    """A folder that sentence-transformers saves: the random BERT, and what `build` puts
    behind it.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    def save(build, **options):
        length = options.pop("max_seq_length", 20)
        transformer = Transformer(
            str(base), max_seq_length=length, **options.pop("transformer", {})
        )
        model = SentenceTransformer(modules=[transformer, *build()], device="cpu", **options)
        model.save(str(tmp_path / "saved"), create_model_card=False)  # most of the time is the card
        return tmp_path / "saved"

    return save
