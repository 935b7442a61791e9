"""Write a tiny random model into a folder: `python model.py FOLDER`, run by the engine's own Python.

Two Llama layers with 512 tokens. The engine is started with `--load-format dummy`, so that the folder holds a
configuration and a tokenizer and no weights. What the model says means nothing; how its scheduler queues is real.
"""

from __future__ import annotations

import sys
from pathlib import Path

VOCABULARY = 512
LONGEST_PROMPT = 32_768
SENTENCE = "The quick brown fox jumps over the lazy dog while two queues stand in front of one engine."
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write(folder: Path) -> None:
    """Write `config.json`, the generation defaults and a byte-level tokenizer that `/v1/chat/completions` can use."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.train_from_iterator(
        [SENTENCE],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="<s>", eos_token="</s>", model_max_length=LONGEST_PROMPT
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST_PROMPT,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    ).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
