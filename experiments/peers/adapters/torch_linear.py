"""torch's bf16 linear layer (oneDNN does the work): rows times a matrix [outputs][columns]."""
import common


def measure(task):
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    outputs, columns = task["outputs"], task["columns"]
    weight_bytes = 2 * outputs * columns
    n = common.n_copies(task, weight_bytes)
    weights = torch.randn(outputs, columns).to(torch.bfloat16)
    sets = [weights] + [weights.clone() for _ in range(n - 1)]
    rows = torch.randn(task["rows"], columns).to(torch.bfloat16)

    def call(i):
        with torch.inference_mode():
            return torch.nn.functional.linear(rows, sets[i % n])

    want = rows.float() @ weights.float().t()
    error = ((call(0).float() - want).abs().max() / want.abs().max()).item()
    if not error <= 0.02:
        return {"outcome": "mismatch", "reason": "off by %g of the largest value" % error}
    effective = {"cache": "cold", "copies": n, "weights": "bf16", "verified_max_relative": error,
                 "onednn": torch.backends.mkldnn.is_available()}
    return common.measure_calls(task, call, effective, "weights_gb_s", weight_bytes,
                                2 * task["rows"] * outputs * columns)


if __name__ == "__main__":
    common.main(("torch",), measure)
