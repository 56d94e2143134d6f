#!/usr/bin/env python3
"""One set of weights in the files that the peers read.

    convert.py --model MODEL.gguf --out DIR

writes, from a quantized GGUF file, the same weights rounded to bfloat16:

    DIR/hf/                Hugging Face directory (Transformers, vLLM, bitsandbytes)
    DIR/model-bf16.gguf    GGUF file with bf16 matrices (llama.cpp)
    DIR/model-f16.gguf     the bf16 values as f16 (OpenVINO reads no bf16 from GGUF)
    DIR/model.json         source and its SHA-256, vocabulary size, control tokens,
                           parameters of the layers' matrices

and then reads them back and compares every value with the source, decoded here on its own. bf16
values below f16's smallest normal may lose bits in f16; their number is printed. Needs torch,
transformers and gguf. DIR is complete or not there: it is written under another name first.
"""
import argparse
import hashlib
import json
import os
import shutil
import sys

import gguf
import numpy as np

CONTROL_TOKENS = (3, 4)  # tokenizer.ggml.token_type: control, user-defined


def bf16_bits(values):
    """float32 -> bfloat16 as uint16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(tensor):
    """A GGUF tensor as float32 in the order rows x columns."""
    shape = [int(n) for n in reversed(tensor.shape)]
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)


def rounded(values):
    """float32 values rounded to bfloat16."""
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)


def write_gguf(reader, path, kind):
    """Copies metadata; matrices become bf16, or those values as f16; vectors (norms) stay
    float32."""
    writer = gguf.GGUFWriter(path, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value, value_type = field.contents(), field.types[0]
        if field.name == "general.file_type":
            value = int(gguf.LlamaFileType["MOSTLY_" + kind])
        sub_kind = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, value_type, sub_type=sub_kind)
    for tensor in reader.tensors:
        values = decode(tensor)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        if kind == "F16":
            writer.add_tensor(tensor.name, rounded(values).astype(np.float16))
            continue
        raw = bf16_bits(values).view(np.uint8).reshape(values.shape[0], -1)
        writer.add_tensor(tensor.name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf(source, out):
    import torch
    import transformers

    folder, name = os.path.split(os.path.abspath(source))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    decoded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16)
    # Transformers refuses to save what it read from GGUF: the values move to a plain model.
    config = decoded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    model = type(decoded)(config).to(torch.bfloat16)
    model.load_state_dict(decoded.state_dict())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def check_gguf(reader, path):
    copies = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for tensor in reader.tensors:
        want, copy = decode(tensor), copies.pop(tensor.name)
        if want.ndim < 2:
            equal = np.array_equal(copy.data.reshape(-1), want)
        else:
            got = np.frombuffer(np.ascontiguousarray(copy.data).tobytes(), dtype=np.uint16)
            equal = np.array_equal(got, bf16_bits(want).reshape(-1))
        if not equal:
            sys.exit("%s: %s differs from the source" % (path, tensor.name))
    if copies:
        sys.exit("%s: tensors that the source lacks: %s" % (path, ", ".join(copies)))


def check_f16(reader, path):
    """Values that f16 cannot hold exactly; each is off by at most half of f16's smallest step."""
    copies, n_inexact = {t.name: t for t in gguf.GGUFReader(path).tensors}, 0
    for tensor in reader.tensors:
        want, copy = decode(tensor), copies[tensor.name]
        if want.ndim < 2:
            continue
        off = np.abs(copy.data.astype(np.float32).reshape(want.shape) - rounded(want))
        if not off.max() <= 2.0 ** -25:
            sys.exit("%s: %s differs from the source" % (path, tensor.name))
        n_inexact += int(np.count_nonzero(off))
    return n_inexact


HF_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def hf_name(name):
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}[name]
    _, layer, part, kind = name.split(".")
    return "model.layers.%s.%s.%s" % (layer, HF_NAMES[part], kind)


def unpermute(values, n_heads):
    """GGUF interleaves the two RoPE halves of each head's rows; Hugging Face keeps them apart."""
    rows, columns = values.shape
    return values.reshape(n_heads, rows // n_heads // 2, 2, columns).swapaxes(1, 2).reshape(
        rows, columns)


def check_hf(reader, folder, n_heads, n_kv_heads):
    import safetensors
    import torch

    with safetensors.safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        names = set(file.keys())
        for tensor in reader.tensors:
            want, name = decode(tensor), hf_name(tensor.name)
            if ".attn_q." in tensor.name:
                want = unpermute(want, n_heads)
            if ".attn_k." in tensor.name:
                want = unpermute(want, n_kv_heads)
            got = file.get_tensor(name)
            names.discard(name)
            bits = got.view(torch.int16).numpy().view(np.uint16)
            if got.dtype != torch.bfloat16 or not np.array_equal(bits, bf16_bits(want)):
                sys.exit("%s: %s differs from the source" % (folder, name))
    if names:
        sys.exit("%s: tensors that the source lacks: %s" % (folder, ", ".join(sorted(names))))


def describe(reader, source):
    with open(source, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    kinds = reader.get_field("tokenizer.ggml.token_type").contents()
    special = {i for i, kind in enumerate(kinds) if kind in CONTROL_TOKENS}
    for name in ("bos", "eos", "padding"):
        field = reader.get_field("tokenizer.ggml.%s_token_id" % name)
        if field:
            special.add(int(field.contents()))
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors
                     if tensor.name.startswith("blk.") and len(tensor.shape) > 1)
    return {"parameters": parameters, "source": os.path.basename(source), "source_sha256": digest, "vocab_size": len(kinds),
            "special_ids": sorted(special)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="quantized GGUF file of a Llama-like model")
    parser.add_argument("--out", required=True, help="folder to make")
    options = parser.parse_args()
    if os.path.exists(options.out):
        sys.exit("%s exists already" % options.out)
    partial = options.out.rstrip("/") + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    reader = gguf.GGUFReader(options.model)
    architecture = reader.get_field("general.architecture").contents()
    heads = [int(reader.get_field("%s.attention.%s" % (architecture, name)).contents())
             for name in ("head_count", "head_count_kv")]
    paths = {kind: os.path.join(partial, "model-%s.gguf" % kind.lower()) for kind in ("BF16", "F16")}
    for kind, path in paths.items():
        write_gguf(reader, path, kind)
    check_gguf(reader, paths["BF16"])
    n_inexact = check_f16(reader, paths["F16"])
    write_hf(options.model, os.path.join(partial, "hf"))
    check_hf(reader, os.path.join(partial, "hf"), *heads)
    with open(os.path.join(partial, "model.json"), "w") as file:
        json.dump(describe(reader, options.model), file, indent=1)
    os.rename(partial, options.out)
    print("%s: %d tensors; every value is the source's rounded to bf16; %d of the values are not exact "
          "in f16" % (options.out, len(reader.tensors), n_inexact))


if __name__ == "__main__":
    main()
