"""A tiny BERT with random weights and a tokenizer of a few dozen words, in a folder as transformers saves them."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXT = """
    a bad boring brilliant dog dull film fun good great in is it like ##able ##ly ##ness ##ful movie not of plot poor
    cat sad the this un ##like ##watch ##bear very was wonder one two three , . ? ! '
"""
WORDS = TEXT.split()


def save_encoder(
    folder: Path, *, positions: int = 32, size: int = 16, num_layers: int = 2, seed: int = 0, first: str = ""
) -> str:
    """Write the encoder and return its folder; `first` is a word that takes the place of the first one."""
    words = list(SPECIAL + tuple(WORDS))
    if first:
        words[len(SPECIAL)] = first
    tokenizer = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))]
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **names).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=size,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=2 * size,
        max_position_embeddings=positions,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)
