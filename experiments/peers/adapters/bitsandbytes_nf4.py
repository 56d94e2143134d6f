"""bitsandbytes: bfloat16 rows times an nf4 matrix, blocks of 64."""
import common


def measure(task):
    import bitsandbytes
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    outputs, columns = task["outputs"], task["columns"]
    nf4_bytes = outputs * columns // 2 + outputs * columns // 64 * 4
    n = common.n_copies(task, nf4_bytes)
    dense = torch.randn(outputs, columns).to(torch.bfloat16)
    packed, state = bitsandbytes.functional.quantize_4bit(dense, blocksize=64, quant_type="nf4")
    sets = [packed] + [packed.clone() for _ in range(n - 1)]
    rows = torch.randn(task["rows"], columns).to(torch.bfloat16)

    def call(i):
        with torch.inference_mode():
            return bitsandbytes.matmul_4bit(rows, sets[i % n].t(), quant_state=state)

    decoded = bitsandbytes.functional.dequantize_4bit(packed, state).float()
    want = rows.float() @ decoded.t()
    error = ((call(0).float() - want).abs().max() / want.abs().max()).item()
    if not error <= 0.02:
        return {"outcome": "mismatch", "reason": "off by %g of the largest value" % error}
    effective = {"cache": "cold", "copies": n, "weights": "nf4", "verified_max_relative": error}
    return common.measure_calls(task, call, effective, "weights_gb_s", nf4_bytes,
                                2 * task["rows"] * outputs * columns)


if __name__ == "__main__":
    common.main(("torch", "bitsandbytes"), measure)
