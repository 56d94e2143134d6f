"""Attention in torch alone: scaled_dot_product_attention, or matmul + softmax + matmul."""
import common


def eager(torch, q, k, v, causal):
    """softmax(q k^T / sqrt(d) + mask) v with K and V repeated over the heads of a group, as
    Transformers' eager attention does; softmax in float32."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    if causal is not None:
        scores = scores + causal
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def measure(task):
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    batch, queries, keys, width = (task[n] for n in ("batch", "queries", "keys", "head_dim"))

    shapes = ((task["heads"], queries), (task["kv_heads"], keys), (task["kv_heads"], keys))
    first = [torch.randn(batch, heads, n, width).to(torch.bfloat16) for heads, n in shapes]
    kv_bytes = 2 * 2 * batch * task["kv_heads"] * keys * width
    n_copies = common.n_copies(task, kv_bytes)
    sets = [first] + [[x.clone() for x in first] for _ in range(n_copies - 1)]
    causal = queries > 1
    mask = None
    if causal:
        mask = torch.full((queries, keys), float("-inf"), dtype=torch.bfloat16).triu(
            keys - queries + 1)
    grouped = task["heads"] != task["kv_heads"]

    def sdpa(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=grouped)

    def call(i):
        with torch.inference_mode():
            q, k, v = sets[i % len(sets)]
            if task["axes"]["attention"] == "sdpa":
                return sdpa(q, k, v)
            return eager(torch, q, k, v, mask)

    # What is timed must agree with float32 first, shown by one head: bf16 keeps 8 bits of the
    # scores and of the weights.
    q, k, v = (x[:1].float() for x in sets[0])
    want = eager(torch, q[:, :1], k[:, :1], v[:, :1], None if mask is None else mask.float())
    error = (call(0)[:1, :1].float() - want).abs().max().item()
    if not error <= 0.05 * want.abs().max().item():
        return {"outcome": "mismatch", "reason": "off by %g from float32" % error}
    pairs = queries * keys if not causal else queries * (queries + 1) // 2
    flops = 4 * batch * task["heads"] * pairs * width
    effective = {"cache": "cold", "copies": n_copies, "verified_max_abs": error}
    return common.measure_calls(task, call, effective, "kv_gb_s", kv_bytes, flops)


if __name__ == "__main__":
    common.main(("torch",), measure)
