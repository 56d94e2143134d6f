"""Loads a folder in 4 bits with Transformers and bitsandbytes; writes its logits for given ids.

Usage: bnb_transformers.py FOLDER OUT ID...
OUT gets float32 [2][n_ids][vocab]: bitsandbytes' own products, then float32 products over the codes
decoded by the format's definition; NaN for the first where it refuses to multiply. Prints versions and the largest difference between the two.
"""
import sys

import bitsandbytes
import torch
import transformers


def decode(weight):
    """The value of every code, from the quantisation state that bitsandbytes read."""
    state = weight.quant_state
    pairs = weight.data.contiguous().view(torch.uint8).flatten().long()
    codes = torch.stack([pairs >> 4, pairs & 15], 1).flatten()[: state.shape.numel()]
    absmax = state.absmax
    if state.nested:
        group = torch.arange(absmax.numel()) // state.state2.blocksize
        absmax = state.state2.code[absmax.long()] * state.state2.absmax[group] + state.offset
    scale = absmax.float().repeat_interleave(state.blocksize)[: codes.numel()]
    return (state.code[codes] * scale).reshape(state.shape)


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids).logits[0].float().contiguous()


folder, out, ids = sys.argv[1], sys.argv[2], torch.tensor([[int(i) for i in sys.argv[3:]]])
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu"
).eval()
layers = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
assert layers, "no layer was loaded in 4 bits"
# Before the first product: on CPUs with AVX512_BF16 that one repacks codes and absmax in place.
decoded = [decode(layer.weight) for layer in layers]
try:
    own = logits_of(model, ids)
except RuntimeError as error:
    # 0.50.2 cannot repack rows that are not whole blocks, which other CPUs multiply.
    print(f"bitsandbytes does not multiply: {error}")
    own = None
for layer, values in zip(layers, decoded):
    layer.weight = torch.nn.Parameter(values, requires_grad=False)
    layer.forward = lambda x, self=layer: torch.nn.functional.linear(x, self.weight, self.bias)
for parameter in model.parameters():
    parameter.data = parameter.data.float()
exact = logits_of(model, ids)
own = torch.full_like(exact, torch.nan) if own is None else own
open(out, "wb").write(torch.stack([own, exact]).numpy().tobytes())
print(
    f"transformers {transformers.__version__}, bitsandbytes {bitsandbytes.__version__}, "
    f"torch {torch.__version__}: {len(layers)} layers in 4 bits; "
    f"own products off by {(own - exact).abs().max():.3g}"
)
